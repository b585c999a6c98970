"""A log written by hand → search indexes, run after run: a run's promises, and its errors."""

from pathlib import Path

import pytest

from cdc.errors import (
    BusyError,
    ConfigError,
    ExitCode,
    LogForgottenError,
    SinkError,
    SinkUnreachableError,
)
from cdc.records.state import Phase
from deploy.local.certificates import Certificates
from deploy.local.opensearch import OpenSearch
from deploy.local.processes import reserve_port
from sinks.search.run import run_search
from tests.fixtures.front import Front
from tests.fixtures.indexes import ALIAS, Indexes, loaded
from tests.fixtures.spark import HandLog, at, column, run_once, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]


@pytest.mark.proof
def test_changes_reach_the_index_once_and_in_order(indexes: Indexes) -> None:
    log = indexes.log(column("id", "int4", 1), column("a", "text"), column("n", "int8"))
    for number in range(5):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}", "n": number})
    log.table(100, Phase.SNAPSHOT)
    log.reached(at(100, 0))
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO, "the snapshot isn't complete"
    log.table(100)
    log.reached(at(100, 0))
    first = indexes.merge()
    assert (first.exit_code, first.tables[0].inserted) == (ExitCode.OK, 5)

    log.row("u", at(200, 1), {"id": 0, "a": "new", "n": None})
    log.row("u", at(200, 2), {"id": 1, "n": 11})  # a is absent
    log.row("d", at(200, 3), None, {"id": 2})
    log.tombstone(at(200, 3), {"id": 2})
    log.row("d", at(200, 4), None, {"id": 3})
    log.tombstone(at(200, 4), {"id": 3})
    log.row("c", at(200, 4), {"id": 33, "a": "moved", "n": 3})
    log.row("u", at(300, 1), {"id": 4, "a": "above the cut", "n": 4})
    log.reached(at(200, 4))
    result = indexes.merge().tables[0]
    assert (result.inserted, result.updated, result.deleted) == (1, 2, 2)
    assert indexes.documents() == {
        "0": {"id": 0, "a": "new"},
        "1": {"id": 1, "a": "a1", "n": 11},
        "33": {"id": 33, "a": "moved", "n": 3},
        "4": {"id": 4, "a": "a4", "n": 4},
    }

    log.truncate(at(300, 2))
    log.row("c", at(300, 3), {"id": 7, "a": "after", "n": 7})
    log.reached(at(300, 3))
    indexes.merge()
    assert indexes.documents() == {"7": {"id": 7, "a": "after", "n": 7}}
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_values_composite_keys_and_millraces_own_names_are_documents(indexes: Indexes) -> None:
    own = ("_millrace_key", "_millrace_op", "_millrace_position", "_millrace_absent")
    log = indexes.log(
        column("id", "int4", 1),
        column("day", "date", 2),
        column("dec", "numeric", modifier=(10 << 16 | 2) + 4),
        column("free", "numeric"),
        column("f", "float8"),
        column("ts", "timestamp"),
        column("tz", "timestamptz"),
        column("t", "time"),
        column("by", "bytea"),
        column("arr", "numeric", array=True, modifier=(10 << 16 | 2) + 4),
        column("js", "jsonb"),
        column("a.b", "bool"),
        column("Case", "text"),
        column("case", "text"),
        *(column(name, "text") for name in own),
    )
    value = {
        "id": 1,
        "day": 1,
        "dec": "1.10",
        "free": "NaN",
        "f": "NaN",
        "ts": 1,
        "tz": "2024-05-06T07:08:09.123456Z",
        "t": 86_400_000_000,
        "by": "AAEC",
        "arr": ["1.10", None],
        "js": '{"a": 1}',
        "a.b": True,
        "Case": "upper",
        "case": "lower",
        **{name: name for name in own},
    }
    log.row("r", at(100, 0), value)
    log.table(100)
    log.reached(at(100, 0))
    indexes.merge()
    assert indexes.documents() == {
        '["1","1970-01-02"]': {
            "id": 1,
            "day": "1970-01-02",
            "dec": "1.10",
            "free": "NaN",
            "f": "NaN",
            "ts": "1970-01-01T00:00:00.000001",
            "tz": "2024-05-06T07:08:09.123456Z",
            "t": "24:00:00.000000",
            "by": "AAEC",
            "arr": ["1.10", None],
            "js": '{"a": 1}',
            "a_b": True,
            "Case": "upper",
            "case": "lower",
            **{f"x{name}": name for name in own},
        }
    }


@pytest.mark.proof
def test_new_column_arrives_in_the_same_index(indexes: Indexes) -> None:
    log = loaded(indexes, 1)
    index = indexes.index()
    columns = (*log.schema.columns, column("added", "int4"))
    log.add_schema(table_schema(indexes.prefix, "t", *columns, version=2))
    log.row("u", at(200), {"id": 0, "a": "x", "n": 1, "added": 5})
    log.reached(at(200))
    indexes.merge()
    assert indexes.documents()["0"] == {"id": 0, "a": "x", "n": 1, "added": 5}
    assert indexes.index() == index
    assert (
        "added" in indexes.client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
    )


@pytest.mark.proof
def test_a_column_under_another_ones_name_has_none_of_its_values(indexes: Indexes) -> None:
    key = column("id", "int4", 1, number=1)
    versions = [
        table_schema(indexes.prefix, "t", key, *others, version=version, oid=7)
        for version, others in enumerate(
            (
                [column("a", "int4", number=2), column("b", "int4", number=3)],
                [column("a", "int4", number=4), column("c", "int4", number=3)],
            ),
            1,
        )
    ]
    log = HandLog(indexes.kafka, indexes.prefix, versions[0])
    log.row("r", at(100, 0), {"id": 0, "a": 1, "b": 2})
    log.table(100)
    log.reached(at(100, 0))
    indexes.merge()
    log.add_schema(versions[1])
    log.row("c", at(200), {"id": 1, "a": 3, "c": 4})
    log.reached(at(200))
    indexes.merge()
    assert indexes.documents() == {"0": {"id": 0, "c": 2}, "1": {"id": 1, "a": 3, "c": 4}}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("owner", "name", "records_few"),
    [
        ("sinks.search.executors", "_lines", 100),
        ("sinks.search.apply", "write_remaining", 100),
        ("sinks.search.apply", "write_remaining", 1),
        ("sinks.search.indexes.TableIndex", "publish", 100),
        ("sinks.search.progress.Ledger", "write_table", 1),
        ("sinks.search.progress.RunClaim", "finish", 100),
    ],
)
def test_crash_anywhere_is_repeated_to_the_same_index(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch, owner: str, name: str, records_few: int
) -> None:
    monkeypatch.setattr("sinks.log.changes.RECORDS_FEW", records_few)
    log = indexes.log(column("id", "int4", 1), column("a", "text"))
    for number in range(5):
        log.row("r", at(100, 0), {"id": number, "a": "old"})
    log.table(100)
    log.reached(at(100, 0))

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    for lsn in (100, 200):
        if lsn == 200:
            if name in {"publish", "write_remaining"}:  # nothing but a load does so
                return
            log.row("d", at(200, 1), None, {"id": 1})
            log.tombstone(at(200, 1), {"id": 1})
            log.row("u", at(200, 2), {"id": 2})
            log.row("c", at(200, 3), {"id": 9, "a": "new"})
            log.reached(at(200, 3))
        with monkeypatch.context() as patch:
            patch.setattr(f"{owner}.{name}", fail)
            with pytest.raises(ZeroDivisionError):
                indexes.merge()
        run = indexes.ledger.run()
        assert run.plan is not None
        assert run.outcome is None
        log.row("u", at(lsn + 50), {"id": 3, "a": f"after {lsn}"})  # not in the plan
        log.reached(at(lsn + 50))
        summary = indexes.merge()
        assert summary.run == run.plan.run + 1
        assert "interrupted" in "".join(indexes.said)
    assert indexes.documents() == {
        "0": {"id": 0, "a": "old"},
        "2": {"id": 2, "a": "old"},
        "3": {"id": 3, "a": "after 200"},
        "4": {"id": 4, "a": "old"},
        "9": {"id": 9, "a": "new"},
    }
    assert len(indexes.client.indices.get(index=f"{indexes.prefix}-{ALIAS}-*")) == 1


@pytest.mark.proof
def test_deleted_index_is_loaded_again_from_the_log(indexes: Indexes) -> None:
    log = loaded(indexes)
    before = indexes.documents()
    indexes.client.indices.delete(index=indexes.index())
    assert indexes.merge().tables[0].inserted == 5
    assert indexes.documents() == before
    log.row("d", at(200), None, {"id": 0})
    log.reached(at(200))
    indexes.merge()
    assert set(indexes.documents()) == {"1", "2", "3", "4"}


@pytest.mark.proof
def test_log_that_was_made_anew_is_not_mistaken_for_the_old_one(indexes: Indexes) -> None:
    log = loaded(indexes)
    before = indexes.documents()
    log.log = "another"
    log.row("r", at(200, 0), {"id": 0, "a": "other", "n": 0})
    log.reached(at(200))
    with pytest.raises(LogForgottenError, match="created again"):
        indexes.merge()
    assert indexes.documents() == before


def test_new_epoch_is_a_new_index_without_the_old_rows(indexes: Indexes) -> None:
    log = loaded(indexes)
    old = indexes.index()
    log.row("u", at(900, 1), {"id": 1, "a": "of the older history, never applied", "n": 9})
    log.row("c", at(900, 2), {"id": 9, "a": "of the older history, never applied", "n": 9})
    log.truncate(at(50, 0, epoch=2).just_before())
    log.row("r", at(50, 0, epoch=2), {"id": 1, "a": "other history", "n": 1})
    log.table(50, Phase.SNAPSHOT, epoch=2)
    log.reached(at(50, 0, epoch=2))
    indexes.merge()
    assert len(indexes.documents()) == 5, "the old index serves until the new one is complete"
    log.table(50, epoch=2)
    log.reached(at(50, 0, epoch=2))
    indexes.merge()
    assert indexes.documents() == {"1": {"id": 1, "a": "other history", "n": 1}}
    assert indexes.index() != old
    log.row("u", at(60, 1, epoch=2), {"id": 1, "a": "goes on", "n": 1})
    log.reached(at(60, 1, epoch=2))
    indexes.merge()
    assert indexes.documents()["1"]["a"] == "goes on"


def test_value_that_is_nowhere_is_missing_and_said(indexes: Indexes) -> None:
    log = indexes.log(column("id", "int4", 1), column("a", "text"))
    log.row("u", at(100, 1), {"id": 1})
    log.table(90)
    log.reached(at(100, 1))
    indexes.merge()
    assert indexes.documents() == {"1": {"id": 1, "_millrace_absent": ["a"]}}
    assert any("_exists_:_millrace_absent" in line for line in indexes.said)


def test_table_that_failed_is_applied_by_the_next_run(indexes: Indexes) -> None:
    log = loaded(indexes, 1)
    block = {"index.blocks.write": True}
    index = indexes.index()
    indexes.client.indices.put_settings(index=index, body=block)
    log.row("c", at(200), {"id": 5, "a": "x", "n": 1})
    log.reached(at(200))
    failed = indexes.merge()
    assert failed.exit_code == ExitCode.SINK
    assert "read-only" in str(failed.tables[0].error)
    indexes.client.indices.put_settings(index=index, body={"index.blocks.write": None})
    assert indexes.merge().exit_code == ExitCode.OK
    assert set(indexes.documents()) == {"0", "5"}


def test_table_without_a_key_is_left_out_and_said(indexes: Indexes) -> None:
    log = indexes.log(column("a", "text"))
    log.row("c", at(100), {"a": "x"})
    log.table(90)
    log.reached(at(100))
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO
    assert any("no key" in line for line in indexes.said)


@pytest.mark.proof
def test_overlapping_run_is_refused(indexes: Indexes) -> None:
    loaded(indexes, 1)
    with indexes.ledger.claim(), pytest.raises(BusyError):
        indexes.merge()
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_server_that_is_not_there_is_said_at_once(indexes: Indexes) -> None:
    with pytest.raises(SinkUnreachableError, match="doesn't answer"):
        indexes.merge(f"http://127.0.0.1:{reserve_port()}")


def test_missing_section_is_said(indexes: Indexes) -> None:
    settings = indexes.settings.model_copy(update={"search": None})
    with pytest.raises(ConfigError, match="no search server"):
        run_once(run_search, settings, indexes.spark)


@pytest.mark.proof
def test_applied_tables_are_recorded(indexes: Indexes) -> None:
    loaded(indexes, 1)
    record = indexes.ledger.tables(["public.t"])["public.t"]
    assert record.serves is not None
    assert (record.run, record.cut, record.serves.index) == (1, str(at(100, 0)), indexes.index())


@pytest.mark.parametrize(
    ("given", "authorization"),
    [
        ({"username": "u", "password": "s3cret"}, "Basic dTpzM2NyZXQ="),
        pytest.param(
            {"api.key": "a2V5OnMzY3JldA=="}, "ApiKey a2V5OnMzY3JldA==", marks=pytest.mark.proof
        ),
    ],
)
def test_a_server_that_asks_for_tls_and_a_user_is_written_to_from_executors(
    indexes: Indexes,
    opensearch: OpenSearch,
    front: Front,
    tmp_path: Path,
    given: dict[str, str],
    authorization: str,
) -> None:
    certificates = Certificates.create(tmp_path)
    url = front(opensearch.port, authorization, certificates)
    indexes.define(url=url, **given)
    log = indexes.log(column("id", "int4", 1), column("a", "text"))
    log.row("r", at(100, 0), {"id": 1, "a": "safe"})
    log.table(100)
    log.reached(at(100, 0))
    with pytest.raises(SinkUnreachableError, match="no TLS connection"):
        indexes.merge()
    indexes.define(url=url, ca_certs=str(certificates.authority))
    with pytest.raises(SinkError, match="refuses the user"):
        indexes.merge()
    indexes.define(url=url, ca_certs=str(certificates.authority), **given)
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {"1": {"id": 1, "a": "safe"}}
    assert "s3cret" not in repr(indexes.settings) + "".join(indexes.said)
    assert authorization.split()[1] not in repr(indexes.settings)


@pytest.mark.proof
def test_a_key_of_zero_is_one_key_whatever_its_sign(indexes: Indexes) -> None:
    log = indexes.log(column("f", "float8", 1), column("v", "text"))
    log.row("r", at(100, 0), {"f": -0.0, "v": "minus"})
    log.table(100)
    log.reached(at(100, 0))
    indexes.merge()
    log.row("d", at(200, 1), None, {"f": -0.0})
    log.tombstone(at(200, 1), {"f": -0.0})
    log.row("c", at(200, 1), {"f": 0.0, "v": "plus"})
    log.reached(at(200, 1))
    indexes.merge()
    assert indexes.documents() == {"0.0": {"f": 0.0, "v": "plus"}}


@pytest.mark.proof
def test_a_value_that_no_date_can_be_fails_its_index_or_is_left_out(indexes: Indexes) -> None:
    log = indexes.log(column("id", "int4", 1), column("until", "date"))
    log.row("r", at(100, 0), {"id": 1, "until": 2**31 - 1})
    log.table(100)
    log.reached(at(100, 0))
    assert "can't hold 2147483647 as date" in str(indexes.merge().tables[0].error)
    indexes.define(indexes=[{"table": "public.t", "unfit": {"until": "null"}}])
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {"1": {"id": 1}}

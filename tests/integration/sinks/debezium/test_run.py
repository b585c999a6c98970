"""Topics that a real Debezium wrote → runs that apply each new record once."""

from collections.abc import Callable
from typing import Any

import pytest

from cdc.errors import ExitCode, LogMissingError
from sinks.delta import commit
from sinks.run.summary import RunOutcome, RunSummary
from tests.fixtures.debezium_lake import DebeziumLake, event, tombstone
from tests.fixtures.debezium_topics import MadeRegistry, as_avro, recorded

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TYPES = {"public.t": {"id": "int", "v": "text", "n": "int"}}
UNCHANGED = "__debezium_unavailable_value"


def good(summary: RunSummary) -> RunSummary:
    """A run that has failed nowhere."""
    assert [str(table) for table in summary.tables if table.error] == []
    return summary


@pytest.mark.proof
def test_each_run_applies_what_is_new(lake: DebeziumLake) -> None:
    lake.configure(types=TYPES)
    with pytest.raises(LogMissingError, match=r"no topic[\s\S]*start Debezium first"):
        lake.merge()
    lake.topic()
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO, "an empty one"
    rows = ({"id": number, "v": f"v{number}", "n": number} for number in range(4))
    lake.write(event("r", row, lsn=5) for row in rows)
    first = good(lake.merge())
    assert (first.exit_code, first.tables[0].inserted) == (ExitCode.OK, 4)
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO

    lake.write(
        [
            event("u", {"id": 0, "v": UNCHANGED, "n": 10}, lsn=6),
            event("u", {"id": 1, "v": "w1", "n": 1}, lsn=7),
            event("u", {"id": 1, "v": UNCHANGED, "n": 11}, lsn=8),
            event("d", None, {"id": 2, "v": None, "n": None}, lsn=9),
            tombstone(id=2),
            event("c", {"id": 9, "v": "v9", "n": None}, lsn=10),
        ]
    )
    second = good(lake.merge()).tables[0]
    assert (second.events, second.inserted, second.updated, second.deleted) == (6, 1, 2, 1)
    assert lake.rows() == [(0, "v0", 10), (1, "w1", 11), (3, "v3", 3), (9, "v9", None)]
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_truncate_takes_away_what_was_there_before(lake: DebeziumLake) -> None:
    marked = {"source": "public.marked", "deletes": "mark"}
    names = ("public.t", "public.marked")
    lake.configure(types=dict.fromkeys(names, TYPES["public.t"]), tables=[marked])
    for name in names:
        lake.topic(name)

    def write(*events: tuple[str, int, str, int]) -> None:
        """Events with what they do to a row, and their LSNs."""
        for name in names:
            for op, number, text, lsn in events:
                row = None if op == "t" else {"id": number, "v": text, "n": 1}
                lake.write([event(op, row, lsn=lsn, table=name.partition(".")[2])], name)

    def merged() -> list[list[tuple[int, str]]]:
        good(lake.merge())
        found = [lake.table(names[0]), lake.table(names[1]).where("not _millrace_deleted")]
        return [sorted((row["id"], row["v"]) for row in rows.collect()) for rows in found]

    write(*(("r", number, "old", 5) for number in range(8)))
    assert [len(rows) for rows in merged()] == [8, 8]
    write(("c", 3, "older", 6), ("t", 0, "", 7), ("c", 4, "new", 8))
    assert merged() == [[(4, "new")]] * 2
    write(("c", 0, "newer", 9), ("c", 1, "newer", 9))
    assert merged() == [[(0, "newer"), (1, "newer"), (4, "new")]] * 2


@pytest.mark.proof
def test_a_table_without_a_key_is_refused_and_others_go_on(lake: DebeziumLake) -> None:
    """An archive of it has its records, each under its offset."""
    loose = "public.ri_nopk_full"
    types = TYPES | {loose: {"a": "text", "n": "int"}}
    lake.configure(types=types, kinds=["current", "history", "changes"])
    lake.topic()
    lake.topic(loose)
    lake.write([event("r", {"id": 1, "v": "a", "n": 1})])
    records = recorded("replica_identity", "ri_nopk_full")
    lake.write([*records, *records], loose)  # by a connector that had crashed
    summary = lake.merge()
    errors = {table.name: str(table.error) for table in summary.tables if table.error}
    assert errors.keys() == {loose, f"{loose}_history"}
    for error in errors.values():
        assert "the table's records have no key" in error
        assert f"topic {lake.prefix}.{loose}" in error
        assert "message.key.columns" in error
    assert summary.exit_code == ExitCode.SINK
    assert lake.rows() == [(1, "a", 1)]
    archived = sorted(lake.rows(f"{loose}_changes", "_millrace_offset", "_millrace_value"))
    values = [record.value for record in records if record.value is not None]
    assert [value for _, value in archived] == values * 2


@pytest.mark.proof
def test_a_table_that_loses_its_key_stays_as_it_is(lake: DebeziumLake) -> None:
    lake.configure(types=TYPES, kinds=["current", "changes"])
    lake.topic()
    lake.write([event("r", {"id": 1, "v": "a", "n": 1})])
    good(lake.merge())
    lake.write([event("c", {"id": 2, "v": "b", "n": 2}, key=()), event("t", None)])
    lake.write([event("c", {"id": 3, "v": "c", "n": 3})])
    errors = {table.name: str(table.error) for table in lake.merge().tables}
    assert errors.keys() == {"public.t", "public.t_changes"}
    for error in errors.values():
        assert "some of the table's records have no key" in error
    assert lake.rows() == [(1, "a", 1)]


@pytest.mark.proof
def test_histories_and_archives_have_their_columns_of_the_events(lake: DebeziumLake) -> None:
    lake.configure(types=TYPES, kinds=["current", "history", "changes"])
    lake.topic()
    lake.write([event("r", {"id": 1, "v": "a", "n": 1}, lsn=5)])
    good(lake.merge())
    events = [
        event("u", {"id": 1, "v": UNCHANGED, "n": 2}, lsn=6),
        event("c", {"id": 2, "v": "b", "n": 1}, lsn=7),
        event("u", {"id": 2, "v": "b", "n": 2}, lsn=8),
        event("d", None, {"id": 1, "v": None, "n": None}, lsn=8),
        tombstone(id=1),
    ]
    lake.write([*events, *events])  # by a connector that had crashed
    good(lake.merge())
    lake.write([event("t", None, lsn=9), event("c", {"id": 3, "v": "c", "n": 1}, lsn=10)])
    good(lake.merge())
    assert lake.rows() == [(3, "c", 1)]
    history = lake.table("public.t_history").selectExpr(
        "id", "v", "n", "unix_seconds(valid_from)", "unix_seconds(valid_to)", "is_current"
    )
    assert sorted(tuple(row) for row in history.collect()) == [
        (1, "a", 1, 5, 6, False),
        (1, "a", 2, 6, 8, False),
        (2, "b", 1, 7, 8, False),
        (2, "b", 2, 8, 9, False),
        (3, "c", 1, 10, None, True),
    ]
    changes = lake.table("public.t_changes").orderBy("_millrace_offset")
    assert [
        (row["_millrace_op"], row["id"], row["n"], row["_millrace_absent"])
        for row in changes.collect()
    ] == [
        ("r", 1, 1, []),
        *([("u", 1, 2, ["v"]), ("c", 2, 1, []), ("u", 2, 2, []), ("d", 1, None, [])] * 2),
        ("t", None, None, []),
        ("c", 3, 1, []),
    ]
    records = [row["_millrace_value"] for row in changes.collect()]
    assert b'"op":"t"' in records[9]
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_what_real_records_with_schemas_say_needs_no_configuration(
    lake: DebeziumLake, has_avro: None
) -> None:
    registry = MadeRegistry()
    first, second, third, *later = recorded("schemas_typical", "cust")
    lake.topic("public.cust")
    lake.write([first], "public.cust")
    good(lake.merge())
    assert lake.rows("public.cust", "id", "name") == [(1, "n")]
    lake.write([as_avro(second, registry)], "public.cust")
    refused = lake.merge().tables[0]
    assert refused.error is not None
    assert "no schema registry" in str(refused.error)
    from sinks.run.options import RunOptions

    good(lake.merge(RunOptions(schema_of=registry.text_of)))
    assert lake.rows("public.cust", "id", "name") == [(1, "n"), (2, "m")]
    lake.write([third, *later], "public.cust")
    good(lake.merge())
    assert lake.rows("public.cust", "id", "age", "tags") == [(2, 30, ["a", "b"])]


def interrupted(lake: DebeziumLake, monkeypatch: pytest.MonkeyPatch, *, after_commit: bool) -> None:
    """Have a run end as kill -9 would end it: behind its plan, or behind the table's commit."""
    original: Callable[..., Any] = commit.commit

    def killed(*arguments: Any, **options: Any) -> Any:
        if after_commit:
            original(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("sinks.delta.target.commit", killed)
        with pytest.raises(KeyboardInterrupt):
            lake.merge()


@pytest.mark.proof
def test_runs_that_were_killed_are_finished_with_the_same_records(
    lake: DebeziumLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.configure(types=TYPES, kinds=["current", "changes"])
    lake.topic()
    lake.write([event("r", {"id": 1, "v": "a", "n": 1})])
    interrupted(lake, monkeypatch, after_commit=False)
    lake.write([event("u", {"id": 1, "v": "b", "n": 2}), event("t", None, lsn=3)])
    interrupted(lake, monkeypatch, after_commit=True)  # what was to finish the first one
    lake.write([event("c", {"id": 2, "v": "c", "n": 3}, lsn=4)])
    good(lake.merge())
    assert lake.rows() == [(2, "c", 3)]
    interrupted_again = [event("u", {"id": 2, "v": "d", "n": 4}, lsn=5)]
    lake.write(interrupted_again)
    interrupted(lake, monkeypatch, after_commit=False)
    planned = lake.plans.last()
    assert planned is not None
    lake.configure(types={}, kinds=["current", "changes"])  # the plan knows them
    interrupted(lake, monkeypatch, after_commit=True)
    summary = good(lake.merge())
    assert {table.name for table in summary.tables} == {"public.t", "public.t_changes"}
    assert lake.rows() == [(2, "d", 4)]
    operations = lake.table("public.t_changes").orderBy("_millrace_offset").collect()
    assert [row["_millrace_op"] for row in operations] == ["r", "u", "t", "c", "u"]
    outcome = lake.plans.outcome(planned)
    assert isinstance(outcome, RunOutcome)
    assert outcome.failed == {}
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO

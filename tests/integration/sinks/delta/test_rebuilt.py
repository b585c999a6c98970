"""``millrace rebuild lakehouse`` → one commit to a table's own folder replaces all its rows."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from cdc.errors import ConfigError, ExitCode
from cdc.records.schema import TableName
from cdc.records.state import Gap
from sinks.changes.derived import table_path
from sinks.changes.names import DELETED, END, OP, POSITION
from sinks.delta.cuts import Cut, cuts
from sinks.run.options import RunOptions
from sinks.run.plans import lakehouse_plans
from sinks.run.summary import RunSummary
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column, table_schema
from tests.integration.sinks.delta.test_cuts import answer
from tests.integration.sinks.delta.test_gaps import listed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
KINDS = ("current", "history", "changes")
TABLES = ("public.t", "public.t_changes", "public.t_history")
ID, V, W = column("id", "int4", 1), column("v", "text"), column("w", "int4")
GAP = Gap(start=at(12), end=at(20), reason="it was set aside", ts_ms=20, number=1)


def folder(lakehouse: Lakehouse, name: str) -> str:
    return table_path(str(lakehouse.folder), TableName.parse(name))


def rebuild(lakehouse: Lakehouse, *names: str) -> RunSummary:
    return lakehouse.merge(RunOptions(rebuilt=frozenset(names), rebuilds_all=not names))


def begun(lakehouse: Lakehouse, *kinds: str, **table: Any) -> HandLog:
    """A table: two rows that were read; an update, a delete and an insert."""
    lakehouse.configure(kinds=kinds)
    log = lakehouse.log(ID, V, W)
    for key in (1, 2):
        log.row("r", at(10, 0), {"id": key, "v": "read", "w": key})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    log.row("u", at(20, 1), {"id": 1, "v": "updated", "w": 1})
    log.row("d", at(20, 2), None, {"id": 2, "v": "read", "w": 2})
    log.row("c", at(20, 3), {"id": 3, "v": "new", "w": 3})
    log.table(10, **table)
    log.reached(at(20, 3))
    assert lakehouse.merge().exit_code == ExitCode.OK
    return log


def rows(lakehouse: Lakehouse, name: str) -> list[tuple[Any, ...]]:
    own = {"public.t": (), "public.t_changes": (OP, END), "public.t_history": (END,)}
    return sorted(lakehouse.read(name, "id", "v", "w", POSITION, *own[name]), key=str)


def damage(lakehouse: Lakehouse, name: str) -> None:
    """Remove the table's data files behind Millrace's back."""
    files = [*Path(folder(lakehouse, name)).glob("*.parquet")]
    assert files
    for file in files:
        file.unlink()


def forget(lakehouse: Lakehouse, log: HandLog, partitions: tuple[int, ...] = (0, 1)) -> None:
    """Have the broker remove all that partitions have, as retention does in time."""
    admin = AdminClient({**lakehouse.kafka.client_options()})
    ends = [TopicPartition(log.schema.topic, number, OFFSET_END) for number in partitions]
    for future in admin.delete_records(ends).values():
        future.result()


def all_cuts(lakehouse: Lakehouse) -> list[Cut]:
    return cuts(lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark))


@pytest.mark.proof
def test_damaged_tables_are_right_again_by_one_version_of_their_own(lakehouse: Lakehouse) -> None:
    begun(lakehouse, *KINDS)
    before = {name: DeltaTable(folder(lakehouse, name)) for name in TABLES}
    expected = {name: rows(lakehouse, name) for name in TABLES}
    for name in TABLES:
        damage(lakehouse, name)
    assert rebuild(lakehouse).exit_code == ExitCode.OK
    assert {name: rows(lakehouse, name) for name in TABLES} == expected
    for name in TABLES:
        after = DeltaTable(folder(lakehouse, name))
        assert after.metadata().id == before[name].metadata().id
        assert after.version() == before[name].version() + 1
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_a_rebuild_that_dies_is_finished_and_earlier_cuts_stay(lakehouse: Lakehouse) -> None:
    log = begun(lakehouse, "current")
    log.add_schema(table_schema(log.prefix, "t", ID, V, version=2))
    log.row("c", at(30), {"id": 4, "v": "without w"})
    log.reached(at(30))
    assert lakehouse.merge().exit_code == ExitCode.OK
    before, stood = rows(lakehouse, "public.t"), lakehouse.version(log.schema)
    for death in (
        "keyed.write_whole",
        "target.register",
    ):  # before the commit, and behind it
        with (
            patch(f"sinks.delta.{death}", side_effect=ZeroDivisionError),
            pytest.raises(ZeroDivisionError),
        ):
            rebuild(lakehouse, "public.t")
        if death == "keyed.write_whole":
            assert DeltaTable(folder(lakehouse, "public.t")).version() == stood
            assert rows(lakehouse, "public.t") == before
    log.row("u", at(40), {"id": 3, "v": "later"})
    log.reached(at(40))
    assert lakehouse.merge().exit_code == ExitCode.OK
    there = DeltaTable(folder(lakehouse, "public.t"))
    assert there.version() == stood + 2, "the rebuild is one version, and the merge is one"
    assert [field.name for field in there.schema().fields] == ["id", "v", POSITION]
    found = sorted(lakehouse.read("public.t", "id", "v"))
    assert found == [(1, "updated"), (3, "later"), (4, "without w")]
    first, second, third, rebuilt, last = all_cuts(lakehouse)
    with_w = "SELECT id, v, w FROM t ORDER BY id"
    assert answer(lakehouse, first, with_w) == [(1, "read", 1), (2, "read", 2)]
    assert answer(lakehouse, second, with_w) == [(1, "updated", 1), (3, "new", 3)]
    assert answer(lakehouse, third, with_w)[-1] == (4, "without w", None)
    newest = "SELECT id, v FROM t WHERE id = 3"
    assert answer(lakehouse, rebuilt, newest) == [(3, "new")]
    assert answer(lakehouse, last, newest) == [(3, "later")]


@pytest.mark.proof
@pytest.mark.parametrize("lost", [(0,), (0, 1)])
def test_a_rebuild_whose_log_goes_before_it_is_finished_leaves_the_table(
    lakehouse: Lakehouse, lost: tuple[int, ...]
) -> None:
    log = begun(lakehouse, "current")
    before, stood = rows(lakehouse, "public.t"), lakehouse.version(log.schema)
    with (
        patch("sinks.delta.keyed.write_whole", side_effect=ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        rebuild(lakehouse, "public.t")
    forget(lakehouse, log, lost)
    log.row("c", at(30), {"id": 4, "v": "later", "w": 4})
    log.reached(at(30))
    lakehouse.merge()
    assert lakehouse.merge().exit_code in {ExitCode.OK, ExitCode.NOTHING_TO_DO}
    assert [row for row in rows(lakehouse, "public.t") if row[0] != 4] == before
    assert max(lakehouse.read("public.t", "id")) == (4,)
    assert lakehouse.version(log.schema) == stood + 1, "the merge is the only version"
    refused = rebuild(lakehouse, "public.t")
    assert refused.exit_code == ExitCode.LOG_FORGOTTEN
    (table,) = refused.tables
    assert "the log no longer has every row" in str(table.error)


@pytest.mark.proof
def test_what_the_log_has_forgotten_comes_from_an_archive_or_the_table_stays(
    lakehouse: Lakehouse,
) -> None:
    log = begun(lakehouse, *KINDS, gaps=(GAP,), gaps_total=1)
    expected = {name: rows(lakehouse, name) for name in TABLES}
    assert listed(lakehouse, "public.t_history") == [GAP]
    forget(lakehouse, log)
    for name in ("public.t", "public.t_history"):
        damage(lakehouse, name)
    log.row("c", at(30), {"id": 4, "v": "behind it", "w": 4})
    log.reached(at(30))
    summary = rebuild(lakehouse)
    assert summary.exit_code == ExitCode.OK, "the archive can't be, and goes on"
    fourth = (4, "behind it", 4, str(at(30)))
    assert rows(lakehouse, "public.t") == [*expected["public.t"], fourth]
    assert rows(lakehouse, "public.t_history") == [*expected["public.t_history"], (*fourth, None)]
    assert listed(lakehouse, "public.t_history") == [GAP]
    assert set(expected["public.t_changes"]) < set(rows(lakehouse, "public.t_changes"))

    refused = rebuild(lakehouse, "public.t_changes")
    assert refused.exit_code == ExitCode.LOG_FORGOTTEN
    assert "the only copy" in str(refused.tables[0].error)
    assert all_cuts(lakehouse)[-1].missing == [], "it hasn't failed"

    shutil.rmtree(folder(lakehouse, "public.t_changes"))
    log.row("c", at(40), {"id": 5, "v": "later", "w": 5})
    log.reached(at(40))
    lakehouse.configure(kinds=["current", "history"])
    stood = {name: rows(lakehouse, name) for name in TABLES if name != "public.t_changes"}
    refused = rebuild(lakehouse, "public.t", "public.t_history")
    assert refused.exit_code == ExitCode.LOG_FORGOTTEN
    errors = {table.name: str(table.error) for table in refused.tables if table.error}
    assert "millrace snapshot --reset public.t" in errors["public.t"]
    assert "no archive has the missing ones" in errors["public.t_history"]
    for name, before in stood.items():
        assert set(before) < set(rows(lakehouse, name)), "it goes on"
    with pytest.raises(ConfigError, match="unknown derived table"):
        rebuild(lakehouse, "public.other")


@pytest.mark.proof
def test_what_a_merge_refuses_of_the_configuration_a_rebuild_does(lakehouse: Lakehouse) -> None:
    log = begun(lakehouse, "current")
    marked = {"source": "public.t", "deletes": "mark", "types": {"w": "string"}, "cluster": ["w"]}
    lakehouse.configure(kinds=["current"], tables=[marked])
    log.row("c", at(30), {"id": 4, "v": "later", "w": 4})
    log.reached(at(30))
    refused = lakehouse.merge()
    assert refused.exit_code == ExitCode.SINK
    assert "millrace rebuild lakehouse public.t" in str(refused.tables[0].error)
    assert rebuild(lakehouse, "public.t").exit_code == ExitCode.OK
    log.row("d", at(40), None, {"id": 3, "v": "new", "w": 3})
    log.reached(at(40))
    assert lakehouse.merge().exit_code == ExitCode.OK
    found = sorted(lakehouse.read("public.t", "id", "w", DELETED))
    assert found == [(1, "1", False), (3, "3", True), (4, "4", False)]

"""Logs written by hand: an archive's events leave the rows that the current table has."""

from datetime import timedelta

import pytest

from cdc.records.position import Position
from compaction.verify.lakehouse.archived_versions import HistoryVersions, compared_versions
from compaction.verify.lakehouse.archives import Archive, replayed
from compaction.verify.lakehouse.derived import lakehouse_at
from compaction.verify.lakehouse.logged import compared_events
from compaction.verify.lakehouse.versions import BrokenRows
from sinks.changes.names import quoted
from sinks.run.options import RunContext, RunOptions
from tests.fixtures.ended_rows import ended
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column
from tests.integration.sinks.delta import test_dropped_partitions, test_generations

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
KINDS = ("current", "history", "changes")


def require_same(lakehouse: Lakehouse, lsn: int, epoch: int = 1) -> tuple[BrokenRows, BrokenRows]:
    """What an archive leaves, its events and the history's versions differ from nothing."""
    spark, instant = lakehouse.spark, Position(epoch, at(lsn).commit_lsn, 0)
    context = RunContext(lakehouse.settings, lambda _records=0: spark, lambda _: None, RunOptions())
    with lakehouse_at(context, instant, None) as lake:
        there = lake.brought()
        assert there.missing == {}
        current, history, changes = (
            there.tables[name] for name in ("public.t", "public.t_history", "public.t_changes")
        )
        shape = lake.expected["public.t_changes"]
        archive = Archive(changes.derived, shape, changes.all_rows(spark))
        names = [*map(quoted, lake.expected["public.t"].names)]
        rows = [
            frame.select(*names).collect() for frame in (replayed(archive), current.rows(spark))
        ]
        assert sorted(map(str, rows[0])) == sorted(map(str, rows[1]))
        events = compared_events(archive, lake.in_log("public.t_changes"), instant, None, 10)
        whole = lake.whole_since("public.t_history")
        versions = compared_versions(
            HistoryVersions(lake.expected["public.t_history"], history.all_rows(spark)),
            archive,
            whole.with_other(lake.whole_since("public.t_changes")),
            None,
            10,
        )
        assert (events.counts, versions.counts) == ({}, {})
        return events, versions


@pytest.mark.proof
def test_values_that_events_lack_are_those_of_the_row_before(lakehouse: Lakehouse) -> None:
    lakehouse.configure(kinds=KINDS)
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"), column("n", "int4"))
    for number in range(1, 7):
        log.row("r", at(10, 0), {"id": number, "a": f"first {number}", "n": 0})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    log.row("u", at(20, 1), {"id": 1, "a": "of later", "n": 1}, filled=["a"])
    log.row("u", at(20, 2), {"id": 2, "n": 1})
    log.row("d", at(21, 1), None, {"id": 3})
    log.tombstone(at(21, 1), {"id": 3})
    log.row("c", at(21, 2), {"id": 3, "a": "again", "n": 2})
    log.row("u", at(22), {"id": 3, "a": "of later", "n": 3}, filled=["a"])
    log.row("d", at(23), None, {"id": 4})
    log.tombstone(at(23), {"id": 4})
    log.row("d", at(24), None, {"id": 5})
    log.tombstone(at(24), {"id": 5})
    log.row("c", at(24), {"id": 5, "a": "the same key", "n": 4})
    log.row("r", at(25, 0), {"id": 6, "a": "first 6", "n": 0})
    log.reached(at(25))
    lakehouse.merge()
    log.row("u", at(30), {"id": 2, "a": "exact", "n": 5})
    log.reached(at(30))
    events, _ = require_same(lakehouse, 35)
    assert events.beside == ("16 events compared with the log (all that it has)",)


@pytest.mark.proof
def test_rows_that_have_ended_at_once_are_gone(lakehouse: Lakehouse) -> None:
    log = test_dropped_partitions.begun(lakehouse)
    row = test_dropped_partitions.row
    log.row("c", at(300), row(9, 12))
    log.drop(at(200), ended(at(200), *test_dropped_partitions.BOUNDS))
    log.reached(at(300))
    lakehouse.merge()
    require_same(lakehouse, 310)
    log.truncate(at(320))
    log.row("c", at(330), row(1, 10))
    log.reached(at(330))
    require_same(lakehouse, 340)


@pytest.mark.proof
def test_rows_of_an_older_key_are_other_rows(lakehouse: Lakehouse) -> None:
    log = test_generations.begun(lakehouse)
    test_generations.swap(log)
    test_generations.read_again(log, 40, *test_generations.SWAPPED)
    lakehouse.merge()
    log.row("u", at(50), {"old_id": 1, "id": 10, "v": "later"})
    log.reached(at(50))
    require_same(lakehouse, 60)


@pytest.mark.proof
def test_rows_of_an_older_history_of_the_source_are_gone(lakehouse: Lakehouse) -> None:
    lakehouse.configure(kinds=KINDS)
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"))
    for number in (1, 2):
        log.row("r", at(100, 0), {"id": number, "a": "first"})
    log.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()
    log.truncate(at(0, 0, epoch=2))
    log.row("r", at(10, 0, epoch=2), {"id": 2, "a": "first"})
    log.table(10, epoch=2)
    log.reached(at(10, 0, epoch=2))
    lakehouse.merge()
    log.row("u", at(20, epoch=2), {"id": 2, "a": "second"})
    log.reached(at(20, epoch=2))
    require_same(lakehouse, 30, epoch=2)


@pytest.mark.proof
def test_events_count_for_as_long_as_the_log_keeps_them(lakehouse: Lakehouse) -> None:
    lakehouse.configure(kinds=KINDS)
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"))
    log.row("r", at(10, 0), {"id": 1, "a": "first"})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    lakehouse.promise(timedelta(microseconds=1))
    events, _ = require_same(lakehouse, 20)
    assert events.beside[0].startswith("0 events compared with the log (since ")

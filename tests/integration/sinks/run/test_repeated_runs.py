"""Runs right after one another, as with --follow: a run skips work that the last one did."""

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from cdc.errors import ExitCode, MillraceError, SinkError, SinkUnreachableError
from cdc.log.offsets import LogReader
from sinks.delta.cuts import cuts
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.target import LakehouseTarget
from sinks.job import Jobs, Turn
from sinks.log import records
from sinks.run.options import RunOptions
from sinks.run.plans import lakehouse_plans
from sinks.run.summary import RunSummary
from sinks.search.target import IndexTarget
from tests.fixtures.indexes import Indexes
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def merged(lakehouse: Lakehouse) -> HandLog:
    """A table with one row, which a run of this process has made."""
    log = lakehouse.log(column("id", "int4", 1))
    log.table(10)
    log.row("r", at(10, 0), {"id": 1})
    log.reached(at(10, 0))
    lakehouse.merge()
    return log


@pytest.mark.proof
def test_a_table_that_is_paused_stays_as_it_is_until_it_is_not(lakehouse: Lakehouse) -> None:
    good = lakehouse.log(column("id", "int4", 1), column("n", "int4"), table="good")
    bad = good.beside(table_schema(lakehouse.prefix, "bad", *good.schema.columns))
    for log in (good, bad):
        log.row("r", at(10, 0), {"id": 1, "n": 1})
        log.table(10)
    good.reached(at(10, 0))
    lakehouse.merge()
    for log in (good, bad):
        log.row("u", at(20), {"id": 1, "n": 2})
    good.reached(at(20))
    paused = RunOptions(paused={"public.bad": SinkError("it failed a moment ago")})
    run = lakehouse.merge(paused)
    assert {t.name for t in run.tables if t.error is None} == {"public.good"}
    assert (lakehouse.rows(good.schema)[0]["n"], lakehouse.rows(bad.schema)[0]["n"]) == (2, 1)
    plans = lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark)
    last = plans.last()
    assert last is not None
    outcome = plans.outcome(last)
    assert outcome is not None
    assert outcome.failed == {"public.bad": "it failed a moment ago"}
    assert "public.bad" not in outcome.versions
    lakehouse.merge(paused)
    assert plans.runs() == [1, 2], "no plan is made for a paused table"
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert lakehouse.rows(bad.schema) == [{"id": 1, "n": 2}]
    for lsn, options in ((30, paused), (40, RunOptions())):
        good.row("u", at(lsn), {"id": 1, "n": lsn})
        good.reached(at(lsn))
        lakehouse.merge(options)
    *_, waited, back = cuts(plans)
    assert "public.bad" not in waited.versions
    assert back.versions.keys() == {"public.good", "public.bad"}, "nothing has come for it"


@pytest.mark.proof
def test_runs_go_on_without_a_look_through_all_versions(lakehouse: Lakehouse) -> None:
    """There may be weeks of them."""
    log = merged(lakehouse)
    log.row("c", at(20), {"id": 2})
    log.reached(at(20))
    with patch.object(DerivedDeltaTable, "_listed", side_effect=AssertionError):
        assert lakehouse.merge().exit_code == ExitCode.OK
    assert sorted(row["id"] for row in lakehouse.rows(log.schema)) == [1, 2]


@pytest.mark.proof
def test_a_version_file_that_another_has_written_is_seen(lakehouse: Lakehouse) -> None:
    """A table that was made anew meanwhile may have come to the same version."""
    log = merged(lakehouse)
    versions = lakehouse.folder / "public" / "t" / "_delta_log"
    newest = max(versions.glob("*.json"))
    os.utime(newest, (1, 1))
    log.row("c", at(20), {"id": 2})
    log.reached(at(20))
    with patch.object(
        DerivedDeltaTable, "_listed", autospec=True, side_effect=DerivedDeltaTable._listed
    ) as look:
        assert lakehouse.merge().exit_code == ExitCode.OK
    assert look.call_count > 0


class Turns:
    """The turns of a lakehouse and an index, and how often they read the log."""

    def __init__(self, lakehouse: Lakehouse, indexes: Indexes) -> None:
        self._spark = lakehouse.spark
        self._lakehouse = lakehouse
        self._indexes = indexes
        place = {"lakehouse": lakehouse.settings.lakehouse}
        self._settings = indexes.settings.model_copy(update=place)
        self.log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
        for key in (1, 2):
            self.log.row("r", at(10, 0), {"id": key, "n": 10})
        self.log.table(10)
        self.log.reached(at(10, 0))

    def update(self, lsn: int, key: int) -> None:
        """Let a row have the number of its transaction."""
        self.log.row("u", at(lsn), {"id": key, "n": lsn})
        self.log.reached(at(lsn))

    def begin(self, sink: str = "all") -> Iterator[Turn]:
        """A turn, which the caller takes run by run."""
        jobs = Jobs(self._settings, sink)
        jobs._session = self._spark
        return jobs.turns(print)

    def take(self, sink: str = "all") -> tuple[int, int]:
        """A turn: how often it has asked for the log's state, and how often it has read records."""
        reads = patch.object(records, "committed", side_effect=records.committed)
        states = patch.object(LogReader, "state", autospec=True, side_effect=LogReader.state)
        with states as asked, reads as read:
            for _, done in self.begin(sink):
                assert_whole(done)
        return asked.call_count, read.call_count

    def kept(self) -> dict[int, Any]:
        """What Spark keeps of rows that were read."""
        context: Any = self._spark.sparkContext
        return dict(context._jsc.getPersistentRDDs())

    def assert_rows(self, *numbers: int) -> None:
        """The lakehouse and the index have these in their rows by key."""
        expected = [{"id": key, "n": n} for key, n in enumerate(numbers, 1)]
        assert self._lakehouse.rows(self.log.schema) == expected
        documents = self._indexes.documents()
        assert [documents[key] for key in sorted(documents)] == expected


def assert_whole(done: RunSummary | MillraceError) -> None:
    """The run has failed nowhere."""
    assert isinstance(done, RunSummary), str(done)
    assert [table.error for table in done.tables if table.error is not None] == []


@pytest.fixture
def turns(lakehouse: Lakehouse, indexes: Indexes) -> Turns:
    return Turns(lakehouse, indexes)


@pytest.mark.proof
@pytest.mark.opensearch
def test_a_turn_reads_the_log_once_for_the_lakehouse_and_the_index(turns: Turns) -> None:
    kept = turns.kept().keys()
    assert turns.take() == (1, 2), "the load of an index reads for itself"
    turns.assert_rows(10, 10)
    turns.update(20, 1)
    assert turns.take() == (1, 1)
    turns.assert_rows(20, 10)
    assert turns.take() == (1, 0), "there is nothing new"
    # Of what other tests have left with Spark, some may be gone by now.
    assert turns.kept().keys() <= kept, "a turn leaves no records with Spark"


@pytest.mark.proof
@pytest.mark.opensearch
def test_one_that_is_elsewhere_has_what_it_lacks(turns: Turns) -> None:
    turns.take("lakehouse")
    turns.update(20, 1)
    assert turns.take() == (1, 3), "the index is new, and the lakehouse has read less"
    turns.assert_rows(20, 10)
    turns.update(30, 1)
    turns.take("search")
    turns.update(40, 2)
    assert turns.take() == (1, 1), "the index goes on in the middle of what the lakehouse has read"
    turns.assert_rows(30, 40)
    turns.update(50, 1)
    turns.take("lakehouse")
    assert turns.take() == (1, 1), "there is nothing new for the lakehouse"
    turns.assert_rows(50, 40)


@pytest.mark.opensearch
@pytest.mark.proof
def test_an_interrupted_run_has_its_own_records_and_not_those_of_the_turn(turns: Turns) -> None:
    turns.take()
    turns.update(20, 1)
    turns.take("lakehouse")
    turns.update(30, 2)
    with (
        patch.object(IndexTarget, "apply", side_effect=ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        turns.take("search")
    turns.take()
    turns.assert_rows(20, 30)


@pytest.mark.opensearch
@pytest.mark.proof
def test_what_another_process_has_done_in_the_middle_of_a_turn_is_seen(
    turns: Turns, indexes: Indexes
) -> None:
    turns.take()
    turns.update(20, 1)
    turn = turns.begin()
    assert next(turn)[0] == "lakehouse"
    turns.update(30, 2)
    indexes.merge()
    for _, done in turn:
        assert_whole(done)
    turns.take("lakehouse")
    turns.assert_rows(20, 30)


@pytest.mark.proof
@pytest.mark.opensearch
def test_a_run_that_fails_spoils_nothing_for_the_next_one(turns: Turns) -> None:
    turns.take()
    turns.update(20, 1)
    away = SinkUnreachableError("the lakehouse is away")
    with patch.object(LakehouseTarget, "versions", side_effect=away):  # once all is applied
        (_, lakehouse), (_, index) = turns.begin()
    assert lakehouse is away
    assert_whole(index)
    turns.take("lakehouse")
    turns.assert_rows(20, 10)


@pytest.mark.opensearch
@pytest.mark.proof
def test_records_that_go_in_the_middle_of_a_turn_are_read_again(turns: Turns) -> None:
    turns.take()
    turns.update(20, 1)
    turn = turns.begin()
    assert next(turn)[0] == "lakehouse"
    kept = turns.kept()
    assert kept
    for rows in kept.values():  # as if their executors had ended
        rows.unpersist(True)
    for _, done in turn:
        assert_whole(done)
    turns.assert_rows(20, 10)

"""A backlog → bounded runs (``--max-records``, tables at once), each up to a commit."""

import pytest

from cdc.errors import BusyError, ConfigError, ExitCode
from sinks.run.options import RunOptions
from sinks.run.owner import one_at_a_time
from sinks.spark.concurrency import SETTING
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


ROWS = 4


def test_a_bounded_run_leaves_later_commits_to_later_runs(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    other = log.beside(table_schema(lakehouse.prefix, "other", column("id", "int4", 1)))
    for number in range(ROWS):
        log.row("r", at(10, 0), {"id": number, "n": 0})
        other.row("r", at(10, 0), {"id": number})
    log.table(10)
    other.table(10)
    log.reached(at(10, 0))
    bounded = RunOptions(records_max=6)
    lakehouse.merge(bounded)
    assert len(lakehouse.rows(other.schema)) == ROWS, "a snapshot isn't parted"
    for number in range(ROWS):
        log.row("u", at(20 + number, 1), {"id": number, "n": 1})
        log.row("u", at(20 + number, 2), {"id": (number + 1) % ROWS, "n": 2})
        if number % 2 == 0:
            other.row("d", at(20 + number, 3), None, {"id": number})
            other.tombstone(at(20 + number, 3), {"id": number})
    log.reached(at(20 + ROWS))
    states = []
    while (summary := lakehouse.merge(bounded)).exit_code == ExitCode.OK:
        rows, others = lakehouse.rows(log.schema), lakehouse.rows(other.schema)
        values = {row["id"]: row["n"] for row in rows}
        assert [*values.values()].count(2) == 1, "all of a transaction, or nothing"
        done = [*values.values()].count(1) + (values[0] == 2)
        gone = {number for number in range(done) if number % 2 == 0}
        assert {row["id"] for row in others} == set(range(ROWS)) - gone
        states.append(done)
    assert states[-1:] == [ROWS], str(summary.line()) + str(summary.tables)
    assert len(states) >= 2
    assert states == sorted(states)


def test_the_user_sets_how_many_tables_a_run_works_on_at_once(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("id", "int4", 1))
    log.row("r", at(10, 0), {"id": 1})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.spark.conf.set(SETTING, "none")
    with pytest.raises(ConfigError, match=SETTING):
        lakehouse.merge()
    lakehouse.spark.conf.set(SETTING, "1")
    summary = lakehouse.merge()
    lakehouse.spark.conf.unset(SETTING)
    assert (summary.exit_code, lakehouse.rows(log.schema)) == (ExitCode.OK, [{"id": 1}])


def test_a_second_run_leaves_at_once(lakehouse: Lakehouse) -> None:
    with one_at_a_time(str(lakehouse.folder)) as kept_out:
        for number in range(2):
            assert kept_out.count() == number
            with pytest.raises(BusyError):
                lakehouse.merge()
        assert kept_out.count() == 2
    with one_at_a_time(str(lakehouse.folder)) as kept_out:
        assert kept_out.count() == 0, "they were those of an earlier run"

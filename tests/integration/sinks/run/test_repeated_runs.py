"""Runs right after one another, as --follow has them: what a run spares that the last one did."""

import os
from unittest.mock import patch

import pytest

from cdc.errors import ExitCode, SinkError
from sinks.delta.cuts import cuts
from sinks.delta.table import DeltaTarget
from sinks.run.options import RunOptions
from sinks.run.plans import lakehouse_plans
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


def test_runs_go_on_without_a_look_through_all_versions(lakehouse: Lakehouse) -> None:
    """There may be weeks of them."""
    log = merged(lakehouse)
    log.row("c", at(20), {"id": 2})
    log.reached(at(20))
    with patch.object(DeltaTarget, "_listed", side_effect=AssertionError):
        assert lakehouse.merge().exit_code == ExitCode.OK
    assert sorted(row["id"] for row in lakehouse.rows(log.schema)) == [1, 2]


def test_a_version_file_that_another_has_written_is_seen(lakehouse: Lakehouse) -> None:
    """A table that was made anew meanwhile may have come to the same version."""
    log = merged(lakehouse)
    versions = lakehouse.folder / "public" / "t" / "_delta_log"
    newest = max(versions.glob("*.json"))
    os.utime(newest, (1, 1))
    log.row("c", at(20), {"id": 2})
    log.reached(at(20))
    with patch.object(
        DeltaTarget, "_listed", autospec=True, side_effect=DeltaTarget._listed
    ) as look:
        assert lakehouse.merge().exit_code == ExitCode.OK
    assert look.call_count > 0

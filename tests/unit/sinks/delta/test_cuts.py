"""Runs, and where compaction has left their tables → the versions that cuts name, which last."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cdc.log.offsets import LogState
from cdc.records.schema import TableName
from cdc.settings.lakehouse import LakehouseSettings
from sinks.delta.cuts import LakehouseCuts, cut_at, cuts
from sinks.run.cuts import Instant
from sinks.run.plans import LeftTable, Plans, lakehouse_plans
from sinks.run.summary import RunOutcome, TableVersion
from tests.fixtures.checks import left_plan
from tests.fixtures.made_states import streaming, table_state
from tests.fixtures.spark import at, column, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "public.t"
MERGED: Final = TableVersion(id="t", version=4)
COMPACTED: Final = TableVersion(id="t", version=6)
MERGED_LATER: Final = TableVersion(id="t", version=7)


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return lakehouse_plans(str(tmp_path), pytest.fail)


def end_run(plans: Plans, run: int, version: TableVersion, **table: object) -> None:
    """A run whose plan has the table as it is told, and which leaves it at a version."""
    plan = left_plan()
    tables = {NAME: plan.tables[NAME].model_copy(update=table)}
    plans.start(plan.model_copy(update={"run": run, "cut": at(20 + run), "tables": tables}))
    now_ms = time.time_ns() // 1_000_000
    plans.finish(RunOutcome(run=run, ts_ms=now_ms, failed={}, versions={NAME: version}))


def never(records: int = 0) -> "SparkSession":
    pytest.fail(f"Spark is started for {records} records")


def lakehouse_cuts(folder: Path) -> LakehouseCuts:
    schema = table_schema("p", "t", column("id", "int4", 1))
    tables = {NAME: table_state(TableName("public", "t"))}
    state = LogState(streaming(at(30)), tables, {NAME: (schema,)}, {}, {})
    lakehouse = LakehouseSettings(path=str(folder))
    return LakehouseCuts(lakehouse, "t", state, lambda _plan: state, never)


def test_cuts_name_the_version_that_compaction_has_left_until_a_run_moves_the_table(
    plans: Plans, tmp_path: Path
) -> None:
    """VACUUM may have removed the files of the one that the run itself has left."""
    end_run(plans, 3, MERGED, base=0, events=1)
    end_run(plans, 4, MERGED, base=3)
    before = lakehouse_cuts(tmp_path).newest([NAME])
    plans.compact({NAME: LeftTable(run=3, at=COMPACTED)})
    assert [cut.versions for cut in cuts(plans)] == [{NAME: COMPACTED}] * 2
    after = lakehouse_cuts(tmp_path).newest([NAME])
    assert before is not None
    assert after is not None
    assert (before.versions, after.versions) == ({NAME: MERGED}, {NAME: COMPACTED})

    end_run(plans, 5, MERGED_LATER, base=3, events=1)
    assert cut_at(plans, "latest").versions == {NAME: MERGED_LATER}
    assert cut_at(plans, "4").versions == {NAME: COMPACTED}
    for instant in (before, after):
        assert lakehouse_cuts(tmp_path).has(instant), "what is made of either is followed"


def test_a_cut_of_a_table_that_was_made_again_is_none(plans: Plans, tmp_path: Path) -> None:
    end_run(plans, 3, MERGED, base=0, events=1)
    made = lakehouse_cuts(tmp_path)
    for version in (TableVersion(id="other", version=4), TableVersion(id="t", version=3)):
        assert not made.has(Instant(run=3, cut=at(23), versions={NAME: version}))
    assert not made.has(Instant(run=3, cut=at(23), versions={"public.gone": MERGED}))

"""Compaction of views' Delta tables: as for tables, and never during a view's build."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.errors import LogFormatError
from cdc.settings import Settings
from compaction.lakehouse import CompactedTable, compact_lakehouse
from sinks.run.cut_run import CutLoad
from sinks.views.records import (
    ViewGeneration,
    ViewRecord,
    ViewsAtCut,
    view_path,
    view_records,
)
from tests.fixtures.few import few
from tests.fixtures.readers import query_builder
from tests.fixtures.view_lake import finished_runs, view_of_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("history", few([False, True], False), ids=["alone", "with its history"])
def test_views_are_compacted_and_stay_as_they_were_at_each_cut_that_is_kept(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, history: bool
) -> None:
    monkeypatch.setattr("compaction.files.SMALL_FILES_MIN", 1)
    monkeypatch.setattr("compaction.lakehouse.RUNS_KEPT", 1)
    monkeypatch.setattr("time.time", lambda now=time.time: now() + 8 * 86_400)
    lake = str(tmp_path)
    plans, records = finished_runs(lake, 3, 4), view_records(lake, pytest.fail)
    versions = view_of_versions(spark, lake, "totals", 2)
    for run, version in enumerate(versions, start=3):
        records.finish(ViewsAtCut(run=run, ts_ms=1, versions={"totals": version}))
    names = ["views.totals", *["views.totals_history"] * history]
    if history:
        view_of_versions(spark, lake, "totals_history", 2)
    serves = ViewGeneration(query="SELECT 1", history=history)
    records.write("totals", ViewRecord(serves=serves, version=versions[-1]))
    loading = CutLoad[ViewGeneration](into=serves)
    records.write("built", ViewRecord(serves=serves, version=versions[-1], loading=loading))
    records.write("begun", ViewRecord())
    Path(lake, "_millrace", "views", "broken.json").write_text("{")
    settings = Settings(
        source={},
        capture={"topic.prefix": "t"},
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        lakehouse={"path": lake},
    )

    would: list[CompactedTable] = []
    with pytest.raises(LogFormatError, match="can't read a view's state"):
        would.extend(compact_lakehouse(settings, lambda: spark, dry_run=True))
    assert [(each.before.files, each.before.pays) for each in would] == len(names) * [(2, True)]
    assert records.runs() == [3, 4], "a dry run changes nothing"
    compacted: list[CompactedTable] = []
    with pytest.raises(LogFormatError, match=r"views/broken\.json"):
        compacted.extend(compact_lakehouse(settings, lambda: spark))
    assert [done.name for done in compacted] == names
    for done in compacted:
        assert done.after is not None
        assert (done.after.files, done.vacuumed) == (1, 0)
    assert plans.runs() == records.runs() == [4], "what no cut needs is forgotten"
    for version in versions:
        rows = query_builder(view_path(lake, "totals"), version=version.version)
        assert sorted(row["n"] for row in rows) == [*range(version.version + 1)]
    left = plans.compacted()["views.totals"].at
    assert (left.id, left.version) > (versions[-1].id, versions[-1].version)

"""`millrace cuts` and `query`, typed over views → each at a cut, or why it is missing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.errors import ExitCode
from deploy.local.pipeline import Pipeline
from sinks.views.records import ViewsAtCut, view_records
from tests.fixtures.checks import NO_KAFKA
from tests.fixtures.command_line import CommandLine
from tests.fixtures.spark import SPARK
from tests.fixtures.view_lake import finished_runs, view_of_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS = "SELECT n FROM {} ORDER BY n"


def test_views_are_queried_as_they_were_at_a_cut_and_one_that_lacks_is_named(
    spark: "SparkSession", tmp_path: Path, typed: CommandLine
) -> None:
    lake = str(tmp_path / "lake")
    finished_runs(lake, 3, 4, 5)
    records = view_records(lake, pytest.fail)
    why = "no column `x`, at 1:8 ([[views]] late)\n  → correct it"
    for run, version in enumerate(view_of_versions(spark, lake, "totals", 2), start=3):
        there = {"totals": version}
        records.finish(ViewsAtCut(run=run, ts_ms=1, versions=there, failed={"late": why}))
    views = [{"name": name, "query": "SELECT 1"} for name in ("totals", "late")]
    sections = {"lakehouse": {"path": lake}, "spark": SPARK, "views": views}
    config = Pipeline(tmp_path, {}, NO_KAFKA, prefix="t", sections=sections).config

    listed = json.loads(typed(config, "cuts", "--json").stdout)
    assert [[*cut["views"]] for cut in listed] == [["totals"], ["totals"], []]
    assert [[*cut["missing_views"]] for cut in listed] == [["late"], ["late"], ["totals", "late"]]
    table = typed(config, "cuts").stdout.splitlines()
    assert "views" in table[1]
    assert "view totals, view late" in table[-2]

    for name, at, rows in (
        ("totals", "4", ["n", "0", "1"]),
        ("views.totals", "4", ["n", "0", "1"]),
        ("TOTALS", "3", ["n", "0"]),
    ):
        answer = typed(config, "query", "--at", at, "-f", "csv", ROWS.format(name))
        assert (answer.returncode, answer.stdout.splitlines()) == (ExitCode.OK, rows), answer.stderr
    for name, at, why in (
        ("late", "4", "view late: no column `x`, at 1:8 ([[views]] late) → correct it"),
        ("views.totals", "latest", "view totals: no run of views has this cut: `millrace merge"),
    ):
        refused = typed(config, "query", "--at", at, ROWS.format(name))
        assert refused.returncode == ExitCode.SINK
        assert why in refused.stderr

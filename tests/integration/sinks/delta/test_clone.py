"""A version of a Delta table → a table of its files, as with Delta's own SHALLOW CLONE."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest

from sinks.delta.commit import clone
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.transaction import DeltaTransaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.changes.derived import Derived

pytestmark = [pytest.mark.spark, pytest.mark.proof]
STRANGE = "o'dd näme 100%25 #1"
"""A folder whose name has to be escaped in a URI, and then once more."""


def table(spark: "SparkSession", path: Path) -> DerivedDeltaTable:
    derived = SimpleNamespace(name="public.t", path=str(path))
    return DerivedDeltaTable(spark, "p", cast("Derived", derived))


def made(spark: "SparkSession", path: Path) -> DerivedDeltaTable:
    """Of three versions: the second one marks rows as gone, the third one isn't to be seen."""
    original = table(spark, path)
    spark.sql(
        f"CREATE TABLE {original.sql_name} (id INT, `a b` STRING, `part %` STRING) USING delta"
        " PARTITIONED BY (`part %`) TBLPROPERTIES ('delta.columnMapping.mode' = 'name',"
        " 'delta.enableDeletionVectors' = 'true', 'user.own' = 'x')"
    )
    rows = "(1, 'a', 'x/y %'), (2, 'b', 'x/y %'), (3, 'c', NULL), (4, 'd', NULL)"
    spark.sql(f"INSERT INTO {original.sql_name} VALUES {rows}")
    spark.sql(f"DELETE FROM {original.sql_name} WHERE id IN (1, 3)")
    spark.sql(f"DELETE FROM {original.sql_name}")
    return original


def actions(path: Path) -> dict[str, Any]:
    """What the first version's log says, but for what two tables can't share."""
    lines = (path / "_delta_log" / f"{0:020d}.json").read_text(encoding="utf-8").splitlines()
    said: dict[str, Any] = {"add": []}
    for name, action in (next(iter(json.loads(line).items())) for line in lines):
        if name == "add":
            said["add"].append({k: v for k, v in action.items() if (k, v) != ("tags", {})})
        elif name in {"protocol", "metaData", "domainMetadata"}:
            said[name] = {k: v for k, v in action.items() if k not in {"id", "createdTime"}}
    said["add"].sort(key=lambda add: add["path"])
    return said


@contextmanager
def no_tasks(spark: "SparkSession") -> Iterator[None]:
    """Fail where Spark runs anything; a job over an empty list has no stage."""
    tracker, group = spark.sparkContext.statusTracker(), "a clone"
    spark.sparkContext.setJobGroup(group, group)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    assert [job for job in jobs if job is None or job.stageIds] == []


def test_a_clone_is_as_deltas_own_and_has_the_run(spark: "SparkSession", tmp_path: Path) -> None:
    original = made(spark, tmp_path / STRANGE)
    ours, theirs = (table(spark, tmp_path / name) for name in ("ours", "theirs"))
    with no_tasks(spark):
        clone(original, 2, ours, 7)
    with patch.object(DeltaTransaction, "is_supported", return_value=False):
        clone(original, 2, theirs, 7)
    assert actions(Path(ours.path)) == actions(Path(theirs.path))
    for copy in (ours, theirs):
        rows = spark.read.format("delta").load(copy.path).collect()
        assert sorted(row.id for row in rows) == [2, 4]
        there = copy.read_applied(listed=True)
        assert there is not None
        assert there.run == 7
        assert there.at.id != original.applied().at.id
    spark.sql(f"DELETE FROM {ours.sql_name} WHERE id = 2")
    left = spark.read.format("delta").load(ours.path).collect()
    assert [row.id for row in left] == [4], "it goes on as any table does"


@pytest.mark.parametrize(
    "properties",
    [{"delta.enableRowTracking": "true"}, {"delta.enableChangeDataFeed": "true"}, {}],
    ids=str,
)
def test_clustered_tables_and_those_with_more_in_a_commit(
    spark: "SparkSession", tmp_path: Path, properties: Mapping[str, str]
) -> None:
    original, copies = table(spark, tmp_path / "t"), (tmp_path / "ours", tmp_path / "theirs")
    given = ", ".join(f"'{name}' = '{value}'" for name, value in {"own": "x", **properties}.items())
    spark.sql(
        f"CREATE TABLE {original.sql_name} (id INT, v STRING) USING delta CLUSTER BY (id)"
        f" TBLPROPERTIES ({given})"
    )
    spark.sql(f"INSERT INTO {original.sql_name} VALUES (1, 'a'), (2, 'b')")
    clone(original, 1, table(spark, copies[0]), 3)
    with patch.object(DeltaTransaction, "is_supported", return_value=False):
        clone(original, 1, table(spark, copies[1]), 3)
    ours, theirs = map(actions, copies)
    assert {**ours, "metaData": without_row_ids(ours)} == {
        **theirs,
        "metaData": without_row_ids(theirs),
    }
    assert table(spark, copies[0]).applied().run == 3


def without_row_ids(said: Mapping[str, Any]) -> dict[str, Any]:
    """Names of columns that each table has of its own."""
    configuration = said["metaData"]["configuration"]
    own = {name: value for name, value in configuration.items() if "materialized" not in name}
    return {**said["metaData"], "configuration": own}

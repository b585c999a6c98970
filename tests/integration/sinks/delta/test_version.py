"""Versions of Delta tables: the files' statistics find rows that may have some values."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sinks.changes.derived import Derived
from sinks.changes.names import POSITION
from sinks.delta.difference import difference, part_rows, part_without
from sinks.delta.lookup import BoundedColumn, Lookup
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.version import Version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS = 400
rare = partial(pytest.param, marks=pytest.mark.proof)


@pytest.fixture(scope="module")
def path(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of eight files by key, one of whose columns has another name than in its files."""
    path = str(tmp_path_factory.mktemp("version") / "t")
    rows = spark.range(ROWS).selectExpr(
        "id",
        "cast(id AS string) AS text",
        "id % 7 AS other",
        "nullif(id, 3) AS fine",
        "timestamp_micros(id * 60000000 + 999) AS at",
    )
    rows.repartitionByRange(8, "id").write.format("delta").options(
        **{"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    ).save(path)
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN fine TO hole")
    return path


@pytest.fixture
def version(spark: "SparkSession", path: str, monkeypatch: pytest.MonkeyPatch) -> Version:
    """The table's newest version, as if it were large."""
    monkeypatch.setattr("sinks.delta.version.SMALL_BYTES", 0)
    derived = cast("Derived", SimpleNamespace(name="t", path=path))
    return Version(DerivedDeltaTable(spark, "p", derived), 1)


@pytest.mark.parametrize(
    ("values", "columns", "files"),
    [
        rare("(5L)", {"id": "v"}, 1),
        ("(5L), (6L), (null)", {"id": "v"}, 1),
        # Integers of another size, by the name in the files.
        rare("(5), (399)", {"hole": "v"}, 2),
        rare("(3L)", {"hole": "v"}, 1),
        rare("(5L), (1000L)", {"id": "v"}, 1),
        rare("('5')", {"id": "v"}, 8),  # text isn't in the order of numbers
        rare("(5L)", {"text": "v"}, 8),
        rare("(1L)", {"other": "v"}, 8),  # in every file
        rare("(5L), (null)", {"id": "v", "hole": "v"}, 1),
        # Statistics have milliseconds, rounded down.
        rare("(timestamp'1970-01-01 00:49:00.000999')", {"at": "v"}, 1),
    ],
)
def test_rows_with_some_values_are_read_from_files_that_may_have_them(
    spark: "SparkSession", version: Version, values: str, columns: dict[str, str], files: int
) -> None:
    wanted = spark.sql(f"SELECT * FROM VALUES {values} AS t(v)")
    found = version.rows_with(wanted, columns)
    assert len(found.inputFiles()) == files
    column = next(iter(columns))

    def matching(rows: Any) -> set[int]:
        same = rows[column].cast("string") == wanted["v"].cast("string")
        return {row["id"] for row in rows.join(wanted, same, "left_semi").collect()}

    assert matching(found) == matching(version.rows())


def test_rows_in_spans_of_time_are_read_from_files_that_may_have_them(
    spark: "SparkSession", version: Version
) -> None:
    spans = spark.sql(
        "SELECT named_struct('start', timestamp'1970-01-01 00:49:00.0005',"
        " 'end', timestamp'1970-01-01 00:50:00.5') AS span"
    )
    found = version.rows_with(spans, {"at": "span"})
    assert len(found.inputFiles()) == 2
    within = "at >= '1970-01-01 00:49:00.0005' AND at < '1970-01-01 00:50:00.5'"
    assert sorted(row["id"] for row in found.where(within).collect()) == [49, 50]


@pytest.mark.usefixtures("version")  # as if tables were large
def test_days_that_javas_calendar_lacks_are_looked_up(
    spark: "SparkSession", tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    day = "date'1582-10-10' AS day, timestamp'1582-10-10 12:00:00' AS at"
    spark.sql(f"SELECT {day}").write.format("delta").save(path)
    target = DerivedDeltaTable(spark, "p", cast("Derived", SimpleNamespace(name="t", path=path)))
    wanted = spark.sql(f"SELECT {day}")
    for column in ("day", "at"):
        found = Version(target, 0).rows_with(wanted, {column: column})
        assert len(found.collect()) == 1, column


def test_files_with_the_last_time_there_is_are_looked_at_as_others_are(
    spark: "SparkSession",
) -> None:
    def stats(low: str, high: str) -> str:
        return f'{{"minValues": {{"at": "{low}"}}, "maxValues": {{"at": "{high}"}}}}'

    early, late = "0001-01-01T00:00:00.000Z", "+294247-01-10T04:00:54.775Z"
    files = spark.createDataFrame([(stats(early, late),), (stats(late, late),)], "stats string")
    wanted = spark.sql("SELECT timestamp'2024-01-01 00:00:00' AS v")
    lookup = Lookup.of(wanted, {"at": "v"}, {"at": BoundedColumn("at", "timestamp")}, nulls=False)
    assert lookup is not None
    assert [row.stats for row in files.where(lookup.may_be_near()).collect()] == [
        stats(early, late)
    ]


@pytest.mark.proof
def test_rows_that_only_one_version_marks_as_gone_are_its_difference(
    spark: "SparkSession", version: Version, path: str
) -> None:
    for deleted in ("id IN (5, 7, 120)", "id = 6"):
        spark.sql(f"DELETE FROM delta.`{path}` WHERE {deleted}")
    spark.sql(f"INSERT INTO delta.`{path}` SELECT * FROM delta.`{path}` WHERE id = 9")
    target = DerivedDeltaTable(spark, "p", cast("Derived", SimpleNamespace(name="t", path=path)))
    between, newest = Version(target, 2), Version(target, 4)
    assert only_in(version, newest) == [5, 6, 7, 120]
    assert only_in(between, newest) == [6]
    assert only_in(newest, version) == [9]
    assert only_in(version, version) == []
    found = difference(version, newest, ["id"], {"other"}, marks=())
    assert found is not None
    assert (ids(found.gone), ids(found.come), found.versions) == ([5, 6, 7, 120], [9], 4)
    assert difference(version, version, ["id"], {"other"}, marks=()) is None
    spark.sql(f"UPDATE delta.`{path}` SET other = -1 WHERE id IN (200, 201)")
    updated = difference(newest, Version(target, 5), ["id"], {"other"}, marks=())
    assert updated is not None
    assert (ids(updated.gone), ids(updated.come)) == ([200, 201], [200, 201])


def only_in(version: Version, other: Version) -> list[int]:
    """The ids of the rows that only one version has."""
    part = part_without(version, other)
    assert part is not None
    return ids(part_rows(version, part))


def ids(rows: Any) -> list[int]:
    """The rows' ids, in an order."""
    return sorted(row["id"] for row in rows.collect())


def test_a_microsecond_that_a_rebuild_has_mended_is_a_difference(
    spark: "SparkSession", tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    for micros in (1, 2):
        row = f"SELECT 1 AS id, '0' AS {POSITION}, timestamp_micros({micros}) AS at"
        spark.sql(row).write.format("delta").mode("overwrite").save(path)
    target = DerivedDeltaTable(spark, "p", cast("Derived", SimpleNamespace(name="t", path=path)))
    older, newer = (Version(target, number) for number in (0, 1))
    assert difference(older, newer, ["id"], {"at"}) is None
    assert difference(older, newer, ["id"], {"at"}, by_values=True) is not None

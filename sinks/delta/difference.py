"""Two versions of a Delta table → the rows that differ, at the cost of the changes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sinks.changes.derived import Derived
from sinks.changes.names import POSITION, quoted
from sinks.delta import version as versions
from sinks.delta.lookup import BoundedColumn
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.version import Version
from sinks.run.cuts import Instant, TableDifference
from sinks.run.summary import TableVersion
from sinks.spark.jvm import EXACT, counted, kept, release
from sinks.spark.session import RECORDS_FEW, tune

_MARKED_MAX: Final = 100_000
"""Maximum rows of a file that are read by their numbers."""
_FILES_MAX: Final = 1_000
"""With more differing files than that, the whole table is read, as their list would be too long."""


class VersionRows(NamedTuple):
    """The part of a version that another lacks: whole ``files``, and ``rows`` by numbers."""

    files: list[Any]
    rows: list[tuple[Any, Any]]

    @property
    def row_count(self) -> int:
        """Return the number of rows given by their numbers."""
        return sum(int(numbers.cardinality()) for _, numbers in self.rows)


def difference(
    older: Version,
    newer: Version,
    keys: Collection[str],
    columns: set[str],
    marks: Sequence[str] = (POSITION,),
    *,
    by_values: bool = False,
) -> TableDifference | None:
    """Return the keys and some columns of rows that differ between two versions. None: none do.

    Rows are the same if their keys and ``marks`` are. ``by_values`` also compares all other columns
    of both versions, as a rebuild may correct them. Files in both versions aren't read, so the cost
    depends on the changes, not on the table.
    """
    gone, come = part_without(older, newer), part_without(newer, older)
    if gone is not None and come is not None and not gone.files and not by_values:
        chosen = list(dict.fromkeys([*keys, *sorted(columns), *marks]))
        return _of_marks(older, newer, gone, come, keys, chosen)
    sides = _rows_of(older, newer, gone, come)
    return _difference(*kept(_joined(*sides, keys, columns, marks, by_values=by_values)))


def _difference(rows: DataFrame, count: int) -> TableDifference | None:
    """Return rows with structs ``gone`` and ``come``, or null."""
    if not count:
        return None
    gone = rows.select("gone.*").where(F.col("gone").isNotNull())
    come = rows.select("come.*").where(F.col("come").isNotNull())
    return TableDifference(gone, come, count)


def _of_marks(
    older: Version,
    newer: Version,
    gone: VersionRows,
    come: VersionRows,
    keys: Collection[str],
    chosen: Sequence[str],
) -> TableDifference | None:
    """Return the difference if files were only added, and rows only marked in files.

    The old version of an updated row has the new row's key, so Parquet finds it without reading the
    whole file. If not all are found there (some were deleted), the file is read as a whole.
    """
    new, struct = part_rows(newer, come), F.struct(*map(quoted, chosen))
    asked = {side: F.count_if(F.col(side).isNotNull()) for side in ("gone", "come")}
    come_rows = new.select(F.lit(None).alias("gone"), struct.alias("come"))

    def read(between: SparkColumn | None) -> tuple[DataFrame, dict[str, int]]:
        old = part_rows(older, gone, between)
        both = old.select(struct.alias("gone"), F.lit(None).alias("come")).unionByName(come_rows)
        return counted(both, asked)

    between = _key_ranges(newer, come, keys) if gone.rows else None
    rows, counts = read(between)
    if between is not None and counts["gone"] < gone.row_count:
        release(rows)
        rows, counts = read(None)
    return _difference(rows, max(counts.values()))


def _key_ranges(version: Version, part: VersionRows, keys: Collection[str]) -> SparkColumn | None:
    """Return the range of the keys in files, by their statistics. None: unknown."""
    if not part.files or part.rows:
        return None
    ranges = []
    for name in keys:
        column: BoundedColumn | None = version.bounded.get(name)
        of_files = [] if column is None else [column.bounds_in(file.stats()) for file in part.files]
        bounds = [each for each in of_files if each is not None]
        if column is not None and len(bounds) == len(of_files):
            low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
            ranges.append(column.between(name, low, high))
    return reduce(and_, ranges) if ranges else None


def _joined(
    old: DataFrame,
    new: DataFrame,
    keys: Collection[str],
    columns: set[str],
    marks: Sequence[str],
    *,
    by_values: bool,
) -> DataFrame:
    """Return the rows that only one of two sides has: structs ``gone`` and ``come``, or null."""
    compared = [name for name in old.columns if name in new.columns] if by_values else marks
    values = F.to_json(F.struct(*map(quoted, compared)), EXACT)
    chosen = [*map(quoted, dict.fromkeys([*keys, *sorted(columns), *marks]))]
    gone = old.select(F.struct(*chosen).alias("gone"), values.alias("was"))
    come = new.select(F.struct(*chosen).alias("come"), values.alias("is"))

    def of(side: str, name: str) -> SparkColumn:
        return F.col(side).getField(name)

    same = reduce(and_, (of("gone", key) == of("come", key) for key in keys))
    other = ~F.col("was").eqNullSafe(F.col("is"))
    return gone.join(come, same, "full_outer").where(other).select("gone", "come")


def differing_rows(older: Version, newer: Version) -> tuple[DataFrame, DataFrame]:
    """Return rows of files that the other version lacks or has changed, or all of a few rows."""
    return _rows_of(older, newer, part_without(older, newer), part_without(newer, older))


def _rows_of(
    older: Version, newer: Version, gone: VersionRows | None, come: VersionRows | None
) -> tuple[DataFrame, DataFrame]:
    """Return the same from the known difference of files, unless that is too large."""
    if gone is not None and come is not None:
        return part_rows(older, gone), part_rows(newer, come)
    if older.is_small and newer.is_small:
        return older.rows(), newer.rows()
    old, new = _files_only_in(older, newer), _files_only_in(newer, older)
    if max(len(old), len(new)) > _FILES_MAX:
        return older.rows(), newer.rows()
    return older.rows_of(old), newer.rows_of(new)


def part_without(version: Version, other: Version) -> VersionRows | None:
    """Return the part of a version that the other one lacks. None: too large.

    For a file in both versions, it is the rows that only the other version marks as removed.
    """
    mine, theirs = version.listed, other.listed
    if mine is None or theirs is None:
        return None
    vectors = {path: file for (path, _), file in theirs.items()}
    own = {path: file for (path, vector), file in mine.items() if (path, vector) not in theirs}
    part = VersionRows([file for path, file in own.items() if path not in vectors], [])
    for path, file in own.items():
        if path not in vectors:
            continue
        marked = other.marked(vectors[path])
        marked.diff(version.marked(file))
        if marked.cardinality() > _MARKED_MAX:
            return None
        if marked.cardinality():
            part.rows.append((file, marked))
    return part


def part_rows(version: Version, part: VersionRows, between: SparkColumn | None = None) -> DataFrame:
    """Return the rows of a part. Those given by numbers must be ``between`` some values."""
    rows = version.rows_in(part.files)
    for file, numbers in part.rows:
        rows = rows.unionByName(version.rows_at(file, numbers, between))
    return rows


def _files_only_in(version: Version, other: Version) -> list[str]:
    """Return paths of files that the other version lacks or has changed; at most one too many."""
    vectors = other.deletion_vectors()
    files = version.deletion_vectors().join(vectors, ["path", "vector"], "left_anti")
    return [row.path for row in files.limit(_FILES_MAX + 1).collect()]


class LakehouseReader:
    """Reads tables at some cuts, in a session tuned for their size and number of ``records``.

    Some tables were ``rebuilt`` between the cuts.
    """

    def __init__(
        self,
        spark: SparkSession,
        prefix: str,
        derived: Mapping[str, Derived],
        instants: Iterable[Instant],
        records: int,
        rebuilt: Collection[str] = (),
    ) -> None:
        self.spark = spark
        self._rebuilt = rebuilt
        pairs = {pair for instant in instants for pair in instant.versions.items()}
        self._versions: dict[tuple[str, TableVersion], Version] = {
            (name, version): Version(
                DerivedDeltaTable(spark, prefix, derived[name]), version.version
            )
            for name, version in pairs
            if name in derived
        }
        read_bytes = sum(version.size_bytes for version in self._versions.values())
        if records < RECORDS_FEW and read_bytes < versions.SMALL_BYTES:
            tune(spark, 0)

    def at(self, instant: Instant) -> dict[str, Version]:
        """Return the tables at one of the cuts."""
        there = self._versions.keys() & instant.versions.items()
        return {name: self._versions[name, version] for name, version in there}

    def difference(
        self, name: str, older: Instant, newer: Instant, keys: Collection[str], columns: set[str]
    ) -> TableDifference | None:
        """Return the keys and some columns of a table's differing rows. None: none differ."""
        before, after = self.at(older)[name], self.at(newer)[name]
        if before is after:
            return None
        return difference(before, after, keys, columns, by_values=name in self._rebuilt)

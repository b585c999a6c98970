"""Versions of Delta tables → their rows, and those by which two versions of a table differ.

Rows that are marked as deleted aren't there. A version is opened once, and read as often as needed:
Delta resolves every table that a query names, and joining reads each of its tables many times.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sinks.changes.derived import Derived
from sinks.changes.names import DELETED, POSITION, quoted
from sinks.delta.table import DerivedDeltaTable
from sinks.run.cuts import Instant, TableDifference
from sinks.run.summary import TableVersion
from sinks.spark.jvm import EXACT, counted
from sinks.spark.session import RECORDS_FEW, tune

SMALL_BYTES: Final = 32 << 20
"""Reading a smaller table as a whole is faster than comparing its files."""
_LISTED_MAX: Final = 64
"""Of so many files, going through them here is faster than any job of Spark's."""
_MARKED_MAX: Final = 100_000
"""At most so many rows of a file are read by their numbers."""
_FILES_MAX: Final = 1_000
"""With more matching files than that, all of the table is read: their list would be too long."""
_VALUES_MAX: Final = 10_000
"""At most so many values select files by statistics; nearly every file may have one of more."""
_KINDS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "date": "date",
    "string": "string",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
"""Types whose values files' statistics tell exactly enough: in JSON, and in SQL."""
_CUT_OFF: Final = ("timestamp", "timestamp_ntz")
"""Types that statistics have whole milliseconds of: the greatest value may be up to one later."""
_NUMBER: Final = "_millrace_number"
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})


def _comparable(kind: str, other: str) -> bool:
    """Whether values of two types are in one order (as text, 10 comes before 9), or spans of it."""
    return kind in {other, _span(other)} or {kind, other} <= _INTEGERS


def _span(kind: str) -> str:
    """The type of spans of time of a type."""
    return f"struct<start:{kind},end:{kind}>"


def all_there(columns: Iterable[str]) -> SparkColumn:
    """Whether none of the columns is null (``dropna`` knows no name with a dot)."""
    return reduce(and_, (F.col(quoted(name)).isNotNull() for name in columns))


class Version:
    """A table as of one of its versions."""

    def __init__(self, target: DerivedDeltaTable, number: int) -> None:
        jvm: Any = target.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        self._target = target
        self._none = jvm.scala.Option.empty()
        self._sequence = jvm.scala.collection.immutable.ArraySeq
        log = target.log()
        last = target.last_snapshot()
        self._snapshot = (
            last
            if int(last.version()) == number
            else log.getSnapshotAt(number, self._none, self._none, False)
        )

    @cached_property
    def columns(self) -> StructType:
        """The table's columns at this version, with what Delta's log says of each."""
        return StructType.fromJson(json.loads(self._snapshot.schema().json()))

    @property
    def size_bytes(self) -> int:
        """How large its files are."""
        checksum = self._snapshot.checksumOpt()
        if checksum.isDefined():  # without it, Delta puts the whole state together
            return int(checksum.get().tableSizeBytes())
        return int(self._snapshot.sizeInBytes())

    @property
    def is_small(self) -> bool:
        """Whether reading it as a whole is faster than selecting files."""
        return self.size_bytes < SMALL_BYTES

    def count(self) -> int:
        """How many rows it has, by what Delta's log says of its files."""
        if self.listed is not None:
            numbers = [file.numLogicalRecords() for file in self.listed.values()]
            return sum(int(number.get()) for number in numbers if number.isDefined())
        rows = F.get_json_object("stats", "$.numRecords").cast("bigint")
        files = DataFrame(self._snapshot.allFiles().toDF(), self._target.spark)
        gone = F.coalesce("deletionVector.cardinality", F.lit(0))
        counted = files.agg(F.sum(rows - gone).alias("rows")).first()
        return int(counted["rows"] or 0) if counted is not None else 0

    def rows(self) -> DataFrame:
        """All rows."""
        return self._of(self._all_files())

    def rows_with(
        self, values: DataFrame, columns: Mapping[str, str], *, nulls: bool = False
    ) -> DataFrame:
        """All rows that may have any of the ``values``; ``columns``: of which column each is.

        Rows are also those that have ``nulls`` where the values do; else there is no such row. A
        value may be a span of time, for a column with times in it.

        Of a large table only files are read whose statistics don't exclude it.
        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
        """
        bounds = self._bounds()
        kinds = {field.name: field.dataType.simpleString() for field in values.schema.fields}
        bounded = {
            name: value
            for name, value in columns.items()
            if name in bounds and _comparable(kinds[value], bounds[name][1])
        }
        if self.is_small or not bounded:
            return self.rows()
        few = values.select(*map(quoted, bounded.values()))
        few = few if nulls else few.where(all_there(bounded.values()))
        few, count = kept(few.distinct().limit(_VALUES_MAX + 1))
        if count > _VALUES_MAX:
            return self.rows()
        near = self._statistics().join(
            F.broadcast(few), self._may_have(bounded, kinds), "left_semi"
        )
        paths = {row["path"] for row in near.select("path").limit(_FILES_MAX + 1).collect()}
        if (listed := self.listed) is not None:
            return self.rows_in([file for (path, _), file in listed.items() if path in paths])
        return self.rows() if len(paths) > _FILES_MAX else self.rows_of([*paths])

    def _statistics(self) -> DataFrame:
        """The path of each file, and the least and greatest values that its columns have."""
        stats = F.from_json("stats", "minValues map<string, string>, maxValues map<string, string>")
        if self.listed is None:
            files = DataFrame(self._snapshot.allFiles().toDF(), self._target.spark)
        else:
            rows = [(path, file.stats()) for (path, _), file in self.listed.items()]
            files = self._target.spark.createDataFrame(rows, "path string, stats string")
        return files.select("path", stats.alias("stats"))

    def _may_have(self, columns: Mapping[str, str], kinds: Mapping[str, str]) -> SparkColumn:
        """Whether a file, by its statistics, may have values; of which column each is."""
        bounds, possible = self._bounds(), []
        for name, value in columns.items():
            physical, kind = bounds[name]
            low, high = (
                F.col(f"stats.{side}").getItem(physical).try_cast(kind)
                for side in ("minValues", "maxValues")
            )
            high = high + F.expr("INTERVAL '0.001' SECOND") if kind in _CUT_OFF else high
            of = F.col(quoted(value))
            first, last = (of["start"], of["end"]) if kinds[value] == _span(kind) else (of, of)
            is_outside = (last < low) | (first > high)
            possible.append(~F.coalesce(is_outside, F.lit(False)))
        return reduce(and_, possible)

    def _bounds(self) -> dict[str, tuple[str, str]]:
        """Columns that files have bounds of: by what name, and of which type."""
        fields = json.loads(self._snapshot.schema().json())["fields"]
        physical = "delta.columnMapping.physicalName"
        return {
            field["name"]: (field["metadata"].get(physical, field["name"]), _KINDS[field["type"]])
            for field in fields
            if isinstance(field["type"], str) and field["type"] in _KINDS
        }

    def deletion_vectors(self) -> DataFrame:
        """The path of each file, and its deletion vector, which names the rows that are gone."""
        vector = F.col("deletionVector")
        text = F.concat_ws(" ", vector.storageType, vector.pathOrInlineDv, vector.offset)
        files = DataFrame(self._snapshot.allFiles().toDF(), self._target.spark)
        return files.select("path", text.alias("vector"))

    def rows_of(self, paths: Sequence[str]) -> DataFrame:
        """The rows of some files."""
        chosen = F.col("path").isin(list(paths))._jc  # noqa: SLF001
        files = self._snapshot.allFiles().filter(chosen).collect()
        return self._of(self._sequence.unsafeWrapArray(files))

    @cached_property
    def listed(self) -> dict[tuple[str, str], Any] | None:
        """The files of a table of few, by path and deletion vector; None: it has many."""
        checksum = self._snapshot.checksumOpt()
        if not checksum.isDefined() or checksum.get().numFiles() > _LISTED_MAX:
            return None
        files = self._all_files()
        each = (files.apply(number) for number in range(files.size()))
        return {(str(file.path()), _vector(file)): file for file in each}

    def rows_in(self, files: Sequence[Any]) -> DataFrame:
        """The rows of some of the ``listed`` files."""
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        python = jvm.org.apache.spark.api.python.PythonUtils
        return self._of(python.toSeq(list(files)))

    def rows_without(self, other: "Version") -> DataFrame | None:
        """The rows of the ``listed`` files that the other version hasn't; None: too many to tell.

        Of a file that both have, those that only the other version marks as gone.
        """
        mine, theirs = self.listed, other.listed
        if mine is None or theirs is None:
            return None
        vectors = {path: file for (path, _), file in theirs.items()}
        own = {path: file for (path, vector), file in mine.items() if (path, vector) not in theirs}
        rows = self.rows_in([file for path, file in own.items() if path not in vectors])
        for path, file in own.items():
            if path not in vectors:
                continue
            marked = self._marked(vectors[path])
            marked.diff(self._marked(file))
            if marked.cardinality() > _MARKED_MAX:
                return None
            if marked.cardinality():
                rows = rows.unionByName(self._at(file, marked.toArray()))
        return rows

    def _marked(self, file: Any) -> Any:
        """The numbers of the rows of a file that are marked as gone.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
        """
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        delta, log = jvm.org.apache.spark.sql.delta, self._target.log()
        if file.deletionVector() is None:
            return delta.deletionvectors.RoaringBitmapArray()
        path = jvm.scala.Option.apply(log.dataPath())
        stored = delta.deletionvectors.DeletionVectorStoredBitmap(file.deletionVector(), path)
        stores = getattr(getattr(delta.storage.dv, "DeletionVectorStore$"), "MODULE$")
        return stored.load(stores.createInstance(log.newDeltaHadoopConf()))

    def _at(self, file: Any, numbers: Any) -> DataFrame:
        """Rows of a file by their numbers."""
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        text = F.lit(jvm.java.util.Arrays.toString(numbers))
        parsed = F.from_json(text, "array<bigint>")
        chosen = self._target.spark.range(1).select(F.explode(parsed).alias(_NUMBER))
        same = F.col("_metadata.row_index") == F.col(_NUMBER)
        return self.rows_in([file]).join(F.broadcast(chosen), same, "left_semi")

    def _all_files(self) -> Any:
        """All of them; of a small table its checksum has them without any job.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
        """
        checksum = self._snapshot.checksumOpt()
        if checksum.isDefined() and checksum.get().allFiles().isDefined():
            return checksum.get().allFiles().get()
        return self._sequence.unsafeWrapArray(self._snapshot.allFiles().collect())

    def _of(self, files: Any) -> DataFrame:
        log = self._target.log()  # its thread's session is ours by that
        created = log.createDataFrame(self._snapshot, files, False, self._none)
        rows = DataFrame(created, self._target.spark)
        return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows


class LakehouseReader:
    """Reads tables at some cuts, in a session tuned for their size and so many ``records``.

    In between, some tables were ``rebuilt``.
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
        versions = {pair for instant in instants for pair in instant.versions.items()}
        self._versions: dict[tuple[str, TableVersion], Version] = {
            (name, version): Version(
                DerivedDeltaTable(spark, prefix, derived[name]), version.version
            )
            for name, version in versions
            if name in derived
        }
        read_bytes = sum(version.size_bytes for version in self._versions.values())
        if records < RECORDS_FEW and read_bytes < SMALL_BYTES:
            tune(spark, 0)

    def at(self, instant: Instant) -> dict[str, Version]:
        """The tables at one of the cuts."""
        there = self._versions.keys() & instant.versions.items()
        return {name: self._versions[name, version] for name, version in there}

    def difference(
        self, name: str, older: Instant, newer: Instant, keys: Collection[str], columns: set[str]
    ) -> TableDifference | None:
        """By which rows a table differs: their keys and some columns. None: by none."""
        before, after = self.at(older)[name], self.at(newer)[name]
        if before is after:
            return None
        return difference(before, after, keys, columns, by_values=name in self._rebuilt)


def kept(rows: DataFrame) -> tuple[DataFrame, int]:
    """Rows that the executors keep, and how many there are: by one job."""
    checkpoint, counts = counted(rows, {"rows": F.count("*")})
    return checkpoint, counts["rows"]


def difference(
    older: Version,
    newer: Version,
    keys: Collection[str],
    columns: set[str],
    marks: Sequence[str] = (POSITION,),
    *,
    by_values: bool = False,
) -> TableDifference | None:
    """By which rows two versions of a table differ: their keys and some columns. None: by none.

    Rows are the same where their keys and ``marks`` are; ``by_values``: and all other columns that
    both versions have, as a rebuild may mend them. Files that both versions have aren't read, so
    that it costs what has changed, and not the table.
    """
    rows, count = kept(_difference(older, newer, keys, columns, marks, by_values=by_values))
    if not count:
        return None
    gone = rows.select("gone.*").where(F.col("gone").isNotNull())
    come = rows.select("come.*").where(F.col("come").isNotNull())
    return TableDifference(gone, come, count)


def _difference(
    older: Version,
    newer: Version,
    keys: Collection[str],
    columns: set[str],
    marks: Sequence[str],
    *,
    by_values: bool,
) -> DataFrame:
    """The rows that only one of two versions has: structs ``gone`` and ``come``, or null."""
    old, new = differing_rows(older, newer)
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
    """The rows of files that the other version hasn't, or has with other rows; of few, all."""
    gone, come = older.rows_without(newer), newer.rows_without(older)
    if gone is not None and come is not None:
        return gone, come
    if older.is_small and newer.is_small:
        return older.rows(), newer.rows()
    old, new = _files_only_in(older, newer), _files_only_in(newer, older)
    if max(len(old), len(new)) > _FILES_MAX:
        return older.rows(), newer.rows()
    return older.rows_of(old), newer.rows_of(new)


def _vector(file: Any) -> str:
    """What tells a file's deletion vector from others; empty: it has none."""
    unique = file.getDeletionVectorUniqueId()
    return str(unique.get()) if unique.isDefined() else ""


def _files_only_in(version: Version, other: Version) -> list[str]:
    """Paths of the version's files that the other one hasn't so; at most one more than read."""
    vectors = other.deletion_vectors()
    files = version.deletion_vectors().join(vectors, ["path", "vector"], "left_anti")
    return [row.path for row in files.limit(_FILES_MAX + 1).collect()]

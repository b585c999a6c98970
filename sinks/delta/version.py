"""Versions of Delta tables → their rows, all of them or those that may have some values.

Rows that are marked as deleted are left out. A version is opened once, and read as often as needed:
Delta resolves every table in a query, and joins read each of their tables many times.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sinks.changes.names import DELETED, quoted
from sinks.delta.lookup import BoundedColumn, Lookup, bounded_columns
from sinks.delta.table import DerivedDeltaTable

SMALL_BYTES: Final = 32 << 20
"""A smaller table is read as a whole faster than its files are compared."""
_LISTED_MAX: Final = 64
"""Up to this number of files, a loop here is faster than any Spark job."""
_FILES_MAX: Final = 1_000
"""With more matching files than that, the whole table is read, as their list would be too long."""
_LOOKED_AT_MAX: Final = 10_000
"""Maximum files whose statistics are checked one by one."""
_NUMBER: Final = "_millrace_number"


def all_there(columns: Iterable[str]) -> SparkColumn:
    """Whether none of the columns is null (``dropna`` doesn't support names with dots)."""
    return reduce(and_, (F.col(quoted(name)).isNotNull() for name in columns))


class Version:
    """A table at one of its versions."""

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
        """Return the table's columns at this version, with their metadata in Delta's log."""
        return StructType.fromJson(json.loads(self._snapshot.schema().json()))

    @property
    def size_bytes(self) -> int:
        """Return the size of its files."""
        checksum = self._snapshot.checksumOpt()
        if checksum.isDefined():  # without it, Delta reconstructs the state
            return int(checksum.get().tableSizeBytes())
        return int(self._snapshot.sizeInBytes())

    @property
    def is_small(self) -> bool:
        """Whether reading it as a whole is faster than selecting files."""
        return self.size_bytes < SMALL_BYTES

    def count(self) -> int:
        """Return the number of rows, by the files in Delta's log."""
        if self.listed is not None:
            numbers = [file.numLogicalRecords() for file in self.listed.values()]
            return sum(int(number.get()) for number in numbers if number.isDefined())
        rows = F.get_json_object("stats", "$.numRecords").cast("bigint")
        files = DataFrame(self._snapshot.allFiles().toDF(), self._target.spark)
        gone = F.coalesce("deletionVector.cardinality", F.lit(0))
        counted = files.agg(F.sum(rows - gone).alias("rows")).first()
        return int(counted["rows"] or 0) if counted is not None else 0

    def rows(self) -> DataFrame:
        """Return all rows."""
        return self._of(self._all_files())

    def stored(self) -> DataFrame:
        """Return all rows, including those that are marked as deleted."""
        return self._target.rows_in(self._snapshot, self._all_files())

    def rows_with(
        self, values: DataFrame, columns: Mapping[str, str], *, nulls: bool = False
    ) -> DataFrame:
        """Return all rows that may have any of the ``values``.

        ``columns``: the column of each value.

        With ``nulls``, null values match null columns; otherwise they match no row. A value may be
        a span of time, for a column with times in it.

        In a large table, only files are read whose statistics don't exclude a match. If all values
        are few, only rows between the least and the greatest are read.
        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
        """
        if self.is_small:
            return self.rows()
        if (lookup := Lookup.of(values, columns, self.bounded, nulls=nulls)) is None:
            return self.rows()
        if lookup.is_empty:
            return self.rows_in([])
        if (listed := self.listed) is not None:
            near = [file for file in listed.values() if lookup.may_be_in(file.stats())]
            return self.rows_in(near).where(lookup.between())
        paths = self._paths_with(lookup)
        rows = self.rows() if len(paths) > _FILES_MAX else self.rows_of(paths)
        return rows.where(lookup.between())

    def _paths_with(self, lookup: Lookup) -> list[str]:
        """Return the files that may have values. If they are too many, return some."""
        files = DataFrame(self._snapshot.allFiles().toDF(), self._target.spark)
        near = files.where(lookup.may_be_near()).select("path", "stats")
        looked_at = near.limit(_LOOKED_AT_MAX + 1).collect()
        if len(looked_at) > _LOOKED_AT_MAX:
            return [row.path for row in looked_at]
        return [row.path for row in looked_at if lookup.may_be_in(row.stats)]

    @cached_property
    def bounded(self) -> dict[str, BoundedColumn]:
        """Return the columns with bounds in files."""
        schema: dict[str, Any] = json.loads(self._snapshot.schema().json())
        return bounded_columns(schema["fields"])

    def deletion_vectors(self) -> DataFrame:
        """Return the path of each file, and its deletion vector, which marks removed rows."""
        vector = F.col("deletionVector")
        text = F.concat_ws(" ", vector.storageType, vector.pathOrInlineDv, vector.offset)
        files = DataFrame(self._snapshot.allFiles().toDF(), self._target.spark)
        return files.select("path", text.alias("vector"))

    def rows_of(self, paths: Sequence[str]) -> DataFrame:
        """Return the rows of some files."""
        chosen = F.col("path").isin(list(paths))._jc  # noqa: SLF001
        files = self._snapshot.allFiles().filter(chosen).collect()
        return self._of(self._sequence.unsafeWrapArray(files))

    @cached_property
    def listed(self) -> dict[tuple[str, str], Any] | None:
        """Return a small table's files, by path and deletion vector. None: it has many."""
        checksum = self._snapshot.checksumOpt()
        if not checksum.isDefined() or checksum.get().numFiles() > _LISTED_MAX:
            return None
        files = self._all_files()
        each = (files.apply(number) for number in range(files.size()))
        return {(str(file.path()), _vector(file)): file for file in each}

    def rows_in(self, files: Sequence[Any]) -> DataFrame:
        """Return the rows of some of the ``listed`` files."""
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        python = jvm.org.apache.spark.api.python.PythonUtils
        return self._of(python.toSeq(list(files)))

    def marked(self, file: Any) -> Any:
        """Return the numbers of a file's rows that are marked as removed.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
        """
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        vectors = jvm.org.apache.spark.sql.delta.deletionvectors
        if file.deletionVector() is None:
            return vectors.RoaringBitmapArray()
        path = jvm.scala.Option.apply(self._target.log().dataPath())
        stored = vectors.DeletionVectorStoredBitmap(file.deletionVector(), path)
        return stored.load(self._vector_store)

    @cached_property
    def _vector_store(self) -> Any:
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        vectors = jvm.org.apache.spark.sql.delta.storage.dv
        stores = getattr(getattr(vectors, "DeletionVectorStore$"), "MODULE$")
        return stores.createInstance(self._target.log().newDeltaHadoopConf())

    def rows_at(self, file: Any, numbers: Any, between: SparkColumn | None = None) -> DataFrame:
        """Return rows of a file by their numbers, a Delta bitmap, and ``between`` some values."""
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        text = F.lit(jvm.java.util.Arrays.toString(numbers.toArray()))
        parsed = F.from_json(text, "array<bigint>")
        chosen = self._target.spark.range(1).select(F.explode(parsed).alias(_NUMBER))
        same = F.col("_metadata.row_index") == F.col(_NUMBER)
        rows = self.rows_in([file])
        rows = rows if between is None else rows.where(between)
        return rows.join(F.broadcast(chosen), same, "left_semi")

    def _all_files(self) -> Any:
        """Return all files. A small table's checksum has them without a job."""
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        return jvm.millrace.sinks.ListedFiles.of(self._snapshot)

    def _of(self, files: Any) -> DataFrame:
        rows = self._target.rows_in(self._snapshot, files)
        return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows


def _vector(file: Any) -> str:
    """Return the unique id of a file's deletion vector. Empty: it has none."""
    unique = file.getDeletionVectorUniqueId()
    return str(unique.get()) if unique.isDefined() else ""

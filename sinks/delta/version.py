"""Versions of Delta tables → their rows, all of them or those that may have some values.

Rows that are marked as deleted aren't there. A version is opened once, and read as often as needed:
Delta resolves every table that a query names, and joining reads each of its tables many times.
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
"""Reading a smaller table as a whole is faster than comparing its files."""
_LISTED_MAX: Final = 64
"""Of so many files, going through them here is faster than any job of Spark's."""
_FILES_MAX: Final = 1_000
"""With more matching files than that, all of the table is read: their list would be too long."""
_LOOKED_AT_MAX: Final = 10_000
"""So many files' statistics are looked at one by one."""
_NUMBER: Final = "_millrace_number"


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

    def stored(self) -> DataFrame:
        """All rows, those that are marked as deleted, too."""
        return self._target.rows_in(self._snapshot, self._all_files())

    def rows_with(
        self, values: DataFrame, columns: Mapping[str, str], *, nulls: bool = False
    ) -> DataFrame:
        """All rows that may have any of the ``values``; ``columns``: of which column each is.

        Rows are also those that have ``nulls`` where the values do; else there is no such row. A
        value may be a span of time, for a column with times in it.

        Of a large table only files are read whose statistics don't exclude it, and of these, where
        all values are few, rows between the least and the greatest.
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
        """The files that may have values; of too many, some."""
        files = DataFrame(self._snapshot.allFiles().toDF(), self._target.spark)
        near = files.where(lookup.may_be_near()).select("path", "stats")
        looked_at = near.limit(_LOOKED_AT_MAX + 1).collect()
        if len(looked_at) > _LOOKED_AT_MAX:
            return [row.path for row in looked_at]
        return [row.path for row in looked_at if lookup.may_be_in(row.stats)]

    @cached_property
    def bounded(self) -> dict[str, BoundedColumn]:
        """The columns that files have bounds of."""
        schema: dict[str, Any] = json.loads(self._snapshot.schema().json())
        return bounded_columns(schema["fields"])

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

    def marked(self, file: Any) -> Any:
        """The numbers of the rows of a file that are marked as gone.

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
        """Rows of a file by their numbers, a bitmap of Delta's, and ``between`` some values."""
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        text = F.lit(jvm.java.util.Arrays.toString(numbers.toArray()))
        parsed = F.from_json(text, "array<bigint>")
        chosen = self._target.spark.range(1).select(F.explode(parsed).alias(_NUMBER))
        same = F.col("_metadata.row_index") == F.col(_NUMBER)
        rows = self.rows_in([file])
        rows = rows if between is None else rows.where(between)
        return rows.join(F.broadcast(chosen), same, "left_semi")

    def _all_files(self) -> Any:
        """All of them; of a small table its checksum has them without any job."""
        jvm: Any = self._target.spark._jvm  # noqa: SLF001
        return jvm.millrace.sinks.ListedFiles.of(self._snapshot)

    def _of(self, files: Any) -> DataFrame:
        rows = self._target.rows_in(self._snapshot, files)
        return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows


def _vector(file: Any) -> str:
    """What tells a file's deletion vector from others; empty: it has none."""
    unique = file.getDeletionVectorUniqueId()
    return str(unique.get()) if unique.isDefined() else ""

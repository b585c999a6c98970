"""Two versions of a Delta table → the rows that one has and the other hasn't.

By their files: those that both have are not read, and so it costs what changed, and not the table.
A file of which rows were marked as gone is another one by its deletion vector.
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#add-file-and-remove-file
"""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.delta.table import DeltaTarget
from sinks.names import POSITION, quoted

_FILES_MAX: Final = 1_000
"""Of more files than that, all of the table are read: a list of them would be longer to look at."""


def difference(
    target: DeltaTarget, before: int, after: int, keys: Sequence[str], columns: Sequence[str]
) -> tuple[DataFrame, DataFrame]:
    """Rows that are in ``before`` only, and in ``after`` only: ``columns``, and their position.

    Rows are the same where their keys and positions are.
    """
    old, new = _Version(target, before), _Version(target, after)
    same = ["path", "mark"]
    gone = old.described.join(new.described, same, "left_anti").select("path")
    come = new.described.join(old.described, same, "left_anti").select("path")
    chosen = [quoted(name) for name in dict.fromkeys([*columns, *keys, POSITION])]
    older = old.rows(_paths(gone)).select(chosen)
    newer = new.rows(_paths(come)).select(chosen)
    row = [*keys, POSITION]
    return older.join(newer, row, "left_anti"), newer.join(older, row, "left_anti")


def _paths(files: DataFrame) -> list[str] | None:
    found = [row["path"] for row in files.limit(_FILES_MAX + 1).collect()]
    return found if len(found) <= _FILES_MAX else None


class _Version:
    """The files of one version."""

    def __init__(self, target: DeltaTarget, version: int) -> None:
        jvm: Any = target.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        self._none = jvm.scala.Option.empty()
        self._sequence = jvm.scala.collection.immutable.ArraySeq
        self._spark = target.spark
        self._log = target.log()
        self._snapshot = self._log.getSnapshotAt(version, self._none, self._none, False)
        self._files = self._snapshot.allFiles()
        mark = F.col("deletionVector")
        self.described = DataFrame(self._files.toDF(), target.spark).select(
            "path",
            F.concat_ws(" ", mark.storageType, mark.pathOrInlineDv, mark.offset).alias("mark"),
        )

    def rows(self, paths: list[str] | None) -> DataFrame:
        """The rows of files; None: of all."""
        files = self._files
        if paths is not None:
            files = files.filter(F.col("path").isin(paths)._jc)  # noqa: SLF001
        listed = self._sequence.unsafeWrapArray(files.collect())
        rows = self._log.createDataFrame(self._snapshot, listed, False, self._none)
        return DataFrame(rows, self._spark)

"""Tables at some cuts → their rows, and what changed between two of them."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sinks.changes.derived import Derived
from sinks.changes.names import DELETED
from sinks.changes.shape import TableShape
from sinks.delta.table import DeltaTarget
from sinks.delta.version import SMALL_BYTES, Version, difference
from sinks.run.summary import TableVersion
from sinks.search.progress_records import Instant
from sinks.spark.jvm import observed
from sinks.spark.session import RECORDS_FEW, tune

_KEPT: Final = "millrace_kept"
_RECORDS_OF_A_DOCUMENT: Final = 5
"""To join one takes about as much as so many records."""


def are_many(documents: int) -> bool:
    """Whether so many documents take a session that isn't made for few records."""
    return documents * _RECORDS_OF_A_DOCUMENT >= RECORDS_FEW


class TableDifference(NamedTuple):
    """A table's rows that only the older one of two cuts has, and those that only the newer has."""

    gone: DataFrame
    come: DataFrame


class TablesAtCut:
    """A lakehouse's tables at one cut."""

    def __init__(self, versions: Mapping[str, Version]) -> None:
        self._versions = versions

    def rows(self, name: str) -> DataFrame:
        """All rows of a table."""
        return _there(self._versions[name].rows())

    def is_small(self, name: str) -> bool:
        """Whether reading the whole table is faster than a search through it."""
        return self._versions[name].is_small

    def near(self, name: str, values: DataFrame, columns: Mapping[str, str]) -> DataFrame:
        """Rows among which are all that have any of these values; see ``Version.rows_with``."""
        return _there(self._versions[name].rows_with(values, columns))


class LakehouseReader:
    """Reads tables at some cuts, in a session tuned for their size and so many ``documents``."""

    def __init__(
        self,
        spark: SparkSession,
        prefix: str,
        derived: Mapping[str, Derived],
        instants: Collection[Instant],
        documents: int,
    ) -> None:
        self.spark = spark
        self._versions: dict[tuple[str, TableVersion], Version] = {}
        for instant in instants:
            for name, version in instant.versions.items():
                if name in derived and (name, version) not in self._versions:
                    target = DeltaTarget(spark, prefix, derived[name])
                    self._versions[name, version] = Version(target, version.version)
        read_bytes = sum(version.size_bytes for version in self._versions.values())
        if not are_many(documents) and read_bytes < SMALL_BYTES:
            tune(spark, 0)

    def at(self, instant: Instant) -> TablesAtCut:
        """The tables at one of the cuts."""
        return TablesAtCut(
            {name: self._versions[name, version] for name, version in instant.versions.items()}
        )

    def change(
        self, name: str, older: Instant, newer: Instant, shape: TableShape, linking: Collection[str]
    ) -> TableDifference | None:
        """What changed between two cuts, by the ``linking`` columns; None: nothing did."""
        before, after = older.versions[name], newer.versions[name]
        if before == after:
            return None
        old, new = self._versions[name, before], self._versions[name, after]
        rows, count = kept(difference(old, new, shape.keys, sorted(linking)))
        if not count:
            return None
        gone = rows.select("gone.*").where(F.col("gone").isNotNull())
        come = rows.select("come.*").where(F.col("come").isNotNull())
        return TableDifference(gone, come)


def kept(rows: DataFrame) -> tuple[DataFrame, int]:
    """Rows that the executors keep, and how many there are: by one job."""
    observing = rows.observe(_KEPT, F.count("*").alias("rows"))
    checkpoint = observing.localCheckpoint()
    summary = observed(observing, _KEPT)
    return checkpoint, int(checkpoint.count() if summary is None else summary.getAs("rows"))


def _there(rows: DataFrame) -> DataFrame:
    """Those that aren't marked as deleted."""
    return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows

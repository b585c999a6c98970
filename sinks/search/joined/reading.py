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
from sinks.run.plan import TableVersion
from sinks.search.progress_records import Instant
from sinks.spark.session import RECORDS_FEW, observed, tune

_KEPT: Final = "millrace_kept"
_RECORDS_OF_A_DOCUMENT: Final = 5
"""To join one takes about as much as so many records."""


def are_many(documents: int) -> bool:
    """Whether so many documents take a session that isn't made for few records."""
    return documents * _RECORDS_OF_A_DOCUMENT >= RECORDS_FEW


class Change(NamedTuple):
    """A table's rows that an older cut has and a newer one hasn't, as they were, and vice versa."""

    gone: DataFrame
    come: DataFrame


class Tables:
    """The tables of one cut."""

    def __init__(self, versions: Mapping[str, Version]) -> None:
        self._versions = versions

    def rows(self, name: str) -> DataFrame:
        """All rows of a table."""
        return _there(self._versions[name].rows())

    def is_small(self, name: str) -> bool:
        """Whether a table is read as a whole sooner than it is looked through."""
        return self._versions[name].is_small

    def near(self, name: str, values: DataFrame, columns: Mapping[str, str]) -> DataFrame:
        """Rows among which are all that have any of these values; see ``Version.rows_with``."""
        return _there(self._versions[name].rows_with(values, columns))


class Reading:
    """The tables of some cuts, in a session that fits their size, and so many ``documents``."""

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

    def at(self, instant: Instant) -> "Tables":
        """The tables at one of the cuts."""
        return Tables(
            {name: self._versions[name, version] for name, version in instant.versions.items()}
        )

    def change(
        self, name: str, older: Instant, newer: Instant, shape: TableShape, linking: Collection[str]
    ) -> Change | None:
        """What changed between two cuts, by the ``linking`` columns; None: nothing did."""
        before, after = older.versions[name], newer.versions[name]
        if before == after:
            return None
        old, new = self._versions[name, before], self._versions[name, after]
        rows, count = kept(difference(old, new, shape.keys, sorted(linking)))
        found = (
            rows.select(f"{side}.*").where(F.col(side).isNotNull()) for side in ("gone", "come")
        )
        return Change(*found) if count else None


def kept(rows: DataFrame) -> tuple[DataFrame, int]:
    """Rows that the executors keep, and how many there are: by one job."""
    counted = rows.observe(_KEPT, F.count("*").alias("rows"))
    there = counted.localCheckpoint()
    found = observed(counted, _KEPT)
    return there, int(there.count() if found is None else found.getAs("rows"))


def _there(rows: DataFrame) -> DataFrame:
    """Those that aren't marked as deleted."""
    return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows

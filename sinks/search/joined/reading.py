"""Tables at some cuts → their rows, and what changed between two of them."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.delta.table import DeltaTarget
from sinks.delta.version import Version, difference
from sinks.derived import Derived
from sinks.names import DELETED
from sinks.plan import TableVersion
from sinks.search.joined.record import Instant
from sinks.session import tune
from sinks.shape import Shape


class Change(NamedTuple):
    """A table's rows that an older cut has and a newer one hasn't, as they were, and vice versa."""

    gone: DataFrame
    come: DataFrame


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
                if (name, version) not in self._versions:
                    target = DeltaTarget(spark, prefix, derived[name])
                    self._versions[name, version] = Version(target, version.version)
        tune(spark, documents, sum(version.size_bytes for version in self._versions.values()))

    def rows(self, name: str, at: Instant) -> DataFrame:
        """The rows of a table at a cut."""
        rows = self._versions[name, at.versions[name]].rows()
        return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows

    def change(
        self, name: str, older: Instant, newer: Instant, shape: Shape, linking: Collection[str]
    ) -> Change | None:
        """What changed between two cuts, by the ``linking`` columns; None: nothing did."""
        before, after = older.versions[name], newer.versions[name]
        if before == after:
            return None
        old, new = self._versions[name, before], self._versions[name, after]
        rows = difference(old, new, shape.keys, sorted(linking)).localCheckpoint()
        found = (
            rows.select(f"{side}.*").where(F.col(side).isNotNull()) for side in ("gone", "come")
        )
        return None if rows.isEmpty() else Change(*found)

"""The lakehouse's Delta tables → fewer, larger files, without those that no version needs.

Safe beside merges: OPTIMIZE changes no row, and a merge that meets it tries again. VACUUM leaves
every file of the last ``retention``, so that a query that is under way, and time travel within
it, still find theirs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cdc.settings import Settings
from sinks.delta.apply import explained
from sinks.delta.run import lakehouse_plans
from sinks.delta.table import DeltaTarget
from sinks.derived import derived_tables

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import SparkSession

RETENTION: Final = timedelta(days=7)
PLANS_KEPT: Final = 1_000
"""How many plans stay, as the record of what each run applied."""


@dataclass(frozen=True, slots=True)
class CompactedTable:
    """What was done to one table."""

    name: str
    files_before: int
    files_after: int
    bytes_after: int
    files_vacuumed: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.files_before:,} files → {self.files_after:,} "
            f"({self.bytes_after / 1e6:,.1f} MB), {self.files_vacuumed:,} old files removed"
        )


def compact_lakehouse(
    settings: Settings, session: Callable[[], "SparkSession"], retention: timedelta = RETENTION
) -> Iterator[CompactedTable]:
    """Compact every table that a run has written; one at a time, as it is asked for."""
    if settings.lakehouse is None:
        return
    location = settings.lakehouse.path
    plans = lakehouse_plans(location, session)
    last = plans.last()
    if last is None:
        return
    plans.forget(last.run - PLANS_KEPT)
    sources = [table.source or name for name, table in last.tables.items()]
    for name, derived in derived_tables(settings.lakehouse, sources).items():
        target = DeltaTarget(session(), last.prefix, derived)
        with explained(name, settings.log.keep):
            if target.exists() and target.applied().run:
                yield _compact(target, retention)


def _compact(target: DeltaTarget, retention: timedelta) -> CompactedTable:
    from delta.tables import DeltaTable

    table = DeltaTable.forPath(target.spark, target.path)
    before = table.detail().select("numFiles").collect()[0]["numFiles"]
    table.optimize().executeCompaction()
    table.vacuum(retention.total_seconds() / 3600)
    after = table.detail().select("numFiles", "sizeInBytes").collect()[0]
    return CompactedTable(
        str(target.name), before, after["numFiles"], after["sizeInBytes"], _vacuumed(table)
    )


def _vacuumed(table: "DeltaTable") -> int:
    """How many files the VACUUM just before removed; Delta tells in the table's history."""
    for entry in table.history(2).collect():
        if entry["operation"] == "VACUUM END":
            return int(entry["operationMetrics"].get("numDeletedFiles", 0))
    return 0

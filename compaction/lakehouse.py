"""The lakehouse's Delta tables → fewer, larger files, without those that no cut needs any more.

Safe beside merges: OPTIMIZE changes no row, and a merge that meets it tries again. VACUUM leaves
every file of the last ``lakehouse.keep``, so that each cut of that time can be queried. A table or
view that nothing comes for stands, for later cuts, at the version that it was left at here: what
older versions are made of is to go some day.

Files that still have values of columns that were removed (``column.drop.policy``) are rewritten
first. Delta tells them by their footers, which are read once for each set of columns: what was
done is noted at the table, by the ids that its columns had before. Who dies in between reads them
again, and finds nothing to rewrite.
https://docs.delta.io/latest/delta-column-mapping.html#purge-dropped-columns
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cdc.errors import MillraceError, SinkUnreachableError
from cdc.settings import Settings
from cdc.settings.views import history_name
from sinks.changes.derived import Derived, derived_tables, derived_view
from sinks.delta.evolution import (
    PURGED_PROPERTY,
    column_ids,
    has_removed_columns,
    retention_properties,
    set_properties,
)
from sinks.delta.table import DerivedDeltaTable
from sinks.run.plans import Plans, lakehouse_plans, require_owner
from sinks.spark.errors import explained
from sinks.spark.session import tune
from sinks.views.records import ViewRecords, view_records

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import SparkSession

RUNS_KEPT: Final = 1_000
"""How many plans stay, as the record of what each run applied; those of cuts to be kept, too."""
FILE_BYTES: Final = 128 << 20
"""What OPTIMIZE makes: large enough to be read fast, small enough for a merge to leave most out."""
SMALL_FILES_MIN: Final = 8
"""With so many files fewer, rewriting the small ones pays."""
DELETED_SHARE_MIN: Final = 0.1
"""So do files of whose rows so many are gone."""
_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(FILE_BYTES // 2),
}


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's files, those of them that OPTIMIZE would put together, and its rows.

    OPTIMIZE would leave ``saved`` fewer files. ``deleted`` rows are still in files; values of
    removed columns may be, where there are such (``purges``).
    """

    files: int
    bytes: int
    saved: int
    rows: int
    deleted: int
    purges: bool = False

    @property
    def pays(self) -> bool:
        """Whether to rewrite some."""
        return self.saved >= SMALL_FILES_MIN or self.deleted > self.rows * DELETED_SHARE_MIN


@dataclass(frozen=True, slots=True)
class CompactedTable:
    """What was done to one table, or would be; ``vacuumed`` files that no cut needs are gone."""

    name: str
    before: TableFiles
    after: TableFiles | None
    vacuumed: int

    def __str__(self) -> str:
        size = f"{self.before.bytes / 1e6:,.1f} MB"
        if self.after is None:
            todo = f"would compact {self.before.saved + 1:,}" if self.before.pays else "good"
            todo += ", would rewrite those with removed columns" * self.before.purges
            return f"{self.name}: {self.before.files:,} files, {size}: {todo}"
        if self.after.files == self.before.files and not self.before.purges:
            done = f"{self.before.files:,} files, {size}: needs no compaction"
        else:
            done = f"{self.before.files:,} files → {self.after.files:,} ({size})"
        if self.before.purges:
            done += ", without the values of removed columns"
        return f"{self.name}: {done}, {self.vacuumed:,} old files removed"


def compact_lakehouse(
    settings: Settings, session: Callable[[], "SparkSession"], *, dry_run: bool = False
) -> Iterator[CompactedTable]:
    """Compact every table and view that a run has written; one at a time, as it is asked for.

    One that can't be compacted holds up no other: what is wrong is raised behind the last.
    """
    lakehouse = settings.require_lakehouse()
    require_owner(lakehouse.path)
    plans = lakehouse_plans(lakehouse.path, session)
    last = plans.last()
    if last is None:
        return
    records = view_records(lakehouse.path, session)
    if not dry_run:
        _forget(plans, records, last.run, lakehouse.keep)
        plans.tidy()
        records.tidy()
    failures = _Failures()
    tables = last.all_tables
    sources = [table.source for table in tables.values()]
    for name, derived in derived_tables(lakehouse, sources).items():
        if name not in tables:
            continue
        spark = session().newSession()
        target = DerivedDeltaTable(spark, last.prefix, derived)
        with failures, explained(name, settings.log.keep):
            there = target.read_applied()
            tune(spark, 0, target.size_bytes())
            if there is not None and there.run:
                yield _compact(target, derived, dry_run=dry_run)
                left = target.read_applied()
                if not dry_run and left is not None and not left.is_between:
                    plans.compact({name: (left.run, left.at)})
    for view in records.names():
        with failures:
            yield from _compact_view(view, settings, plans, records, session, dry_run=dry_run)
    failures.end()


class _Failures:
    """What went wrong with some tables, while others go on; a context manager for each of them."""

    def __init__(self) -> None:
        self._errors: list[MillraceError] = []

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, MillraceError) or isinstance(error, SinkUnreachableError):
            return False
        self._errors.append(error)
        return True

    def end(self) -> None:
        """Raise what went wrong, if anything did."""
        if not self._errors:
            return
        first, *others = self._errors
        first.remedy = "; ".join([first.remedy, *map(str, others)])
        raise first


def _compact_view(
    view: str,
    settings: Settings,
    plans: Plans,
    records: ViewRecords,
    session: Callable[[], "SparkSession"],
    *,
    dry_run: bool,
) -> Iterator[CompactedTable]:
    """Compact a view that stands, and its history."""
    lakehouse, prefix = settings.require_lakehouse(), settings.capture.topic_prefix
    for name, id_ in _tables_of(view, records):
        derived = derived_view(lakehouse, name)
        spark = session().newSession()
        target = DerivedDeltaTable(spark, prefix, derived)
        with explained(derived.name, settings.log.keep):
            there = target.read_applied()
            tune(spark, 0, target.size_bytes())
            if there is not None and (there.at.id == id_ or (not id_ and there.run)):
                yield _compact(target, derived, dry_run=dry_run)
                left = target.read_applied()
                if not dry_run and left is not None:
                    plans.compact({derived.name: (left.run, left.at)})


def _tables_of(view: str, records: ViewRecords) -> Iterator[tuple[str, str]]:
    """The names of the Delta tables of a view that stands, and their ids; a history's isn't known.

    Files of one that is being built aren't in Delta's log yet: to VACUUM they are leftovers.
    """
    record = records.view(view)
    if record is None or record.version is None or record.loading is not None:
        return
    yield view, record.version.id
    if record.serves is not None and record.serves.history:
        yield history_name(view), ""


def _forget(plans: Plans, records: ViewRecords, last_run: int, keep: timedelta) -> None:
    """Remove plans of cuts that needn't be queried any more, and what views were there."""
    oldest_ms = (time.time() - keep.total_seconds()) * 1000
    for run in plans.runs():
        outcome = plans.outcome_of(run)
        if run > last_run - RUNS_KEPT or (outcome is not None and outcome.ts_ms > oldest_ms):
            plans.forget(run)
            records.forget(run)
            return


def _compact(target: DerivedDeltaTable, derived: Derived, *, dry_run: bool) -> CompactedTable:
    from delta.tables import DeltaTable

    before = _files(target)
    if dry_run:
        return CompactedTable(target.name, before, None, 0)
    table = DeltaTable.forPath(target.spark, target.path)
    wanted = retention_properties(derived.keep)
    properties = table.detail().collect()[0]["properties"]
    changes = {key: value for key, value in wanted.items() if properties.get(key) != value}
    set_properties(target, changes)
    for key, value in _SETTINGS.items():
        target.spark.conf.set(key, value)
    if before.purges:
        columns = column_ids(target)
        target.spark.sql(f"REORG TABLE {target.sql_name} APPLY (PURGE)")
        set_properties(target, {PURGED_PROPERTY: columns})
    if before.pays:
        table.optimize().executeCompaction()
    table.vacuum()  # by the table's own retention: another one would be ignored
    return CompactedTable(target.name, before, _files(target), _vacuumed(table))


def _files(target: DerivedDeltaTable) -> TableFiles:
    """By the statistics that Delta's log has of each file; OPTIMIZE leaves partitions apart."""
    from pyspark.sql import functions as F

    is_small = F.col("size") < FILE_BYTES // 2
    rows = F.get_json_object("stats", "$.numRecords").cast("bigint")
    partitions = (
        target.files()
        .groupBy(F.to_json("partitionValues"))
        .agg(
            F.count("*").alias("files"),
            F.sum("size").alias("bytes"),
            F.count_if(is_small).alias("small"),
            F.sum(F.when(is_small, F.col("size"))).alias("small_bytes"),
            F.sum(rows).alias("rows"),
            F.sum("deletionVector.cardinality").alias("deleted"),
        )
    )
    made = F.ceil(F.coalesce("small_bytes", F.lit(0)) / FILE_BYTES)
    names = ("files", "bytes", "rows", "deleted")
    totals = partitions.agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names),
        F.coalesce(F.sum(F.greatest(F.col("small") - made, F.lit(0))), F.lit(0)).alias("saved"),
    ).collect()[0]
    return TableFiles(**totals.asDict(), purges=has_removed_columns(target))


def _vacuumed(table: "DeltaTable") -> int:
    """How many files the VACUUM just before removed; Delta tells in the table's history."""
    for entry in table.history(2).collect():
        if entry["operation"] == "VACUUM END":
            return int(entry["operationMetrics"].get("numDeletedFiles", 0))
    return 0

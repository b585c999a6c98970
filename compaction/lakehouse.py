"""The lakehouse's Delta tables → fewer, larger files, without those that no cut needs.

A table's log shows whether OPTIMIZE pays. VACUUM is due once files replaced since the last one are
older than their retention; the time of a table's changes is recorded for that. A table that needs
nothing costs the read of its log, and no Spark job.

It is safe next to merges: OPTIMIZE changes no row, and a merge that meets it tries again. VACUUM
keeps every file of the last ``lakehouse.keep``, so that each cut of that time can be queried. Later
cuts of a table or view without changes use the version that compaction has left, as files of older
versions are removed some day.

Files that still have values of removed columns (``column.drop.policy``) are rewritten first. Delta
finds them by their footers, which are read once for each set of columns. The table records the ids
of its columns before the rewrite. After an interruption, the next run reads them again, and finds
nothing to rewrite. https://docs.delta.io/latest/delta-column-mapping.html#purge-dropped-columns
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.errors import MillraceError, SinkUnreachableError
from cdc.settings import Settings
from cdc.settings.views import history_name
from compaction.files import FILE_BYTES, SMALL_BYTES, TableFiles, files_left, files_of
from sinks.changes.derived import Derived, derived_tables, derived_view
from sinks.delta.evolution import (
    PURGED_PROPERTY,
    column_ids,
    retention,
    retention_properties,
    set_properties,
)
from sinks.delta.table import DerivedDeltaTable
from sinks.run.owner import require_owner
from sinks.run.plan import RunPlan
from sinks.run.plans import LeftTable, Plans, lakehouse_plans
from sinks.spark.concurrency import tables_at_once
from sinks.spark.errors import explained
from sinks.spark.session import tune
from sinks.views.records import ViewRecords, view_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS_KEPT: Final = 1_000
"""How many plans stay, as the record of each run's work. Plans of kept cuts also stay."""
_RECORD_S: Final = 5.0
"""How often the tables' state is recorded, as the record has all tables."""
_PARTS: Final = 8
"""Resolution of the time of replacement, in parts of the files' retention."""
_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
}


@dataclass(frozen=True, slots=True)
class CompactedTable:
    """The result for one table, real or planned.

    ``vacuumed`` files that no cut needs are removed.
    """

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
    settings: Settings, session: "Callable[[], SparkSession]", *, dry_run: bool = False
) -> Iterator[CompactedTable]:
    """Compact every table and view that a run has written, some of them side by side.

    A failure holds up no other table, and is raised after the last one.
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
    wanted = [*_tables(settings, last), *_views(settings, records, failures)]
    if not wanted:
        failures.end()
        return
    at_once = tables_at_once(session())  # before threads do, which would start two
    compaction = _Compaction(settings, last.prefix, session, plans.compacted(), dry_run=dry_run)

    def attempt(table: _ToCompact) -> CompactedTable | None:
        with failures, explained(table.derived.name, settings.log.keep):
            return compaction.compact(table)
        return None

    recorded, executor = time.monotonic(), ThreadPoolExecutor(at_once)
    try:
        for done in executor.map(attempt, wanted):
            if done is not None:
                yield done
            if time.monotonic() - recorded > _RECORD_S:
                compaction.record(plans)
                recorded = time.monotonic()
    finally:  # after a signal, Spark ends the running tables
        executor.shutdown(wait=False, cancel_futures=True)
        compaction.record(plans)
    failures.end()


class _ToCompact(NamedTuple):
    """A table to compact. ``id``: only if it is still this table."""

    derived: Derived
    id: str = ""


def _tables(settings: Settings, last: RunPlan) -> Iterator[_ToCompact]:
    tables = last.all_tables
    sources = [table.source for table in tables.values()]
    for name, derived in derived_tables(settings.require_lakehouse(), sources).items():
        if name in tables:
            yield _ToCompact(derived)


def _views(settings: Settings, records: ViewRecords, failures: "_Failures") -> Iterator[_ToCompact]:
    """Yield the existing views, and their histories."""
    for view in records.names():
        with failures:
            for name, id_ in _tables_of(view, records):
                yield _ToCompact(derived_view(settings.require_lakehouse(), name), id_)


class _Failures:
    """Errors of some tables, while others continue. A context manager for each table."""

    def __init__(self) -> None:
        self._errors: list[MillraceError] = []

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, MillraceError) or isinstance(error, SinkUnreachableError):
            return False
        self._errors.append(error)
        return True

    def end(self) -> None:
        """Raise the errors, if there are any."""
        if not self._errors:
            return
        first, *others = self._errors
        first.remedy = "; ".join([first.remedy, *map(str, others)])
        raise first


def _tables_of(view: str, records: ViewRecords) -> Iterator[tuple[str, str]]:
    """Yield the names and ids of an existing view's Delta tables. A history's id is unknown.

    Files of a view that is being built aren't in Delta's log yet, so VACUUM would remove them.
    """
    record = records.view(view)
    if record is None or record.version is None or record.loading is not None:
        return
    yield view, record.version.id
    if record.serves is not None and record.serves.history:
        yield history_name(view), ""


def _forget(plans: Plans, records: ViewRecords, last_run: int, keep: timedelta) -> None:
    """Remove plans of cuts that needn't be queried any longer, and the records of their views."""
    oldest_ms = (time.time() - keep.total_seconds()) * 1000
    for run in plans.runs():
        if run > last_run - RUNS_KEPT or (plans.ended_ms(run) or 0) > oldest_ms:
            plans.forget(run)
            records.forget(run)
            return


class _Compaction:
    """Compacts tables, and records their state afterwards.

    A table's own log shows whether anything is due. If nothing is, nothing else is read.
    """

    def __init__(
        self,
        settings: Settings,
        prefix: str,
        session: "Callable[[], SparkSession]",
        left: Mapping[str, LeftTable],
        *,
        dry_run: bool,
    ) -> None:
        self._settings = settings
        self._prefix = prefix
        self._session = session
        self._before = left
        self._left: dict[str, LeftTable] = {}
        self._dry_run = dry_run

    def record(self, plans: Plans) -> None:
        """Record the tables' state since the last call."""
        left = {**self._left}  # other threads continue
        if left:
            plans.compact(left)
        for name in left:
            del self._left[name]

    def compact(self, table: _ToCompact) -> CompactedTable | None:
        """Do the due work for a table. None: no run has created it yet."""
        derived = table.derived
        target = DerivedDeltaTable(self._session(), self._prefix, derived)
        there = target.read_applied()
        if there is None or (there.at.id != table.id if table.id else not there.run):
            return None
        before = self._before.get(derived.name)
        is_same = before is not None and before.at == there.at
        files = files_left(target) if is_same else files_of(target)
        if self._dry_run:
            return CompactedTable(derived.name, files, None, 0)
        properties = target.properties()
        wanted = retention_properties(derived.keep)
        changes = {key: value for key, value in wanted.items() if properties.get(key) != value}
        kept_ms = int(retention(derived.keep) / timedelta(milliseconds=1))
        replaced = {*before.replaced_ms} if before is not None else {0}
        if changes:  # files replaced long ago may be old now
            replaced.add(0)
        if not is_same:
            replaced.add(_part_end_ms(kept_ms))
        old_ms = int(time.time() * 1_000) - kept_ms
        is_old = any(ms <= old_ms for ms in replaced)
        done = CompactedTable(derived.name, files, files, 0)
        if is_old or changes or files.purges or files.pays:
            done = self._rewrite(derived, files, changes, vacuum=is_old)
        elif is_same:
            return done
        replaced = {ms for ms in replaced if ms > old_ms}
        if files.purges or files.pays:
            replaced.add(_part_end_ms(kept_ms))
        left = target.read_applied()
        if left is not None and not left.is_between and left.run == there.run:
            at = LeftTable(run=left.run, at=left.at, replaced_ms=tuple(sorted(replaced)))
            self._left[derived.name] = at
        return done

    def _rewrite(
        self, derived: Derived, before: TableFiles, changes: dict[str, str], *, vacuum: bool
    ) -> CompactedTable:
        """Rewrite what pays, and remove old files, in a session for a table of this size."""
        from delta.tables import DeltaTable

        target = DerivedDeltaTable(self._session().newSession(), self._prefix, derived)
        tune(target.spark, 0, target.size_bytes())
        for key, value in _SETTINGS.items():
            target.spark.conf.set(key, value)
        set_properties(target, changes)
        if before.purges:
            columns = column_ids(target)
            target.spark.sql(f"REORG TABLE {target.sql_name} APPLY (PURGE)")
            set_properties(target, {PURGED_PROPERTY: columns})
        table = DeltaTable.forPath(target.spark, target.path)
        if before.pays:
            table.optimize().executeCompaction()
        vacuumed = 0
        if vacuum:
            table.vacuum()  # by the table's own retention; another one is ignored
            target.read_applied(listed=True)
            vacuumed = target.last_metric("numDeletedFiles")
        after = files_of(target) if before.pays or before.purges else before
        return CompactedTable(target.name, before, after, vacuumed)


def _part_end_ms(kept_ms: int) -> int:
    """Return the end of the current part of the files' retention."""
    now_ms, part_ms = int(time.time() * 1_000), kept_ms // _PARTS
    return now_ms if part_ms <= 0 else -(-now_ms // part_ms) * part_ms

"""A lakehouse and an instant of the source → its tables at the instant.

The newest cut isn't later than the instant. A normal run applies the log's changes between the two
to clones: new Delta tables that begin with the files of the cut's versions. Their folder is removed
once the tables are read. Merges and compaction continue meanwhile, and the comparison checks a
merge's result.
"""

import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.errors import MillraceError, SinkError
from cdc.log.offsets import LogReader
from cdc.records.position import Position
from cdc.settings import LakehouseSettings
from compaction.verify.lakehouse.archived_versions import WholeSince, shown_since
from compaction.verify.lakehouse.logged import LoggedRecords
from sinks.changes.derived import Derived
from sinks.changes.names import DELETED, IS_CURRENT
from sinks.changes.shape import TableShape, derive_shape
from sinks.delta.commit import clone
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.target import LakehouseTarget
from sinks.delta.version import Version
from sinks.log.records import read_raw
from sinks.log.topics import MillraceTopics
from sinks.run.engine import Run
from sinks.run.options import RunContext, RunOptions
from sinks.run.plan import RunPlan, TablePlan, goes_on
from sinks.run.plans import Plans, lakehouse_plans
from sinks.run.rekeyed import versions_at
from sinks.run.summary import RunOutcome
from sinks.run.wanted import CapturedTables, lakehouse_tables
from sinks.spark.concurrency import tables_at_once
from sinks.spark.errors import explained
from sinks.spark.session import tune

_FOLDER: Final = "_millrace/verify"
_ABANDONED_S: Final = 7 * 86_400
_RUNS_MAX: Final = 10_000
"""A cut is searched up to this many runs back."""
_UNSURE: Final = 0.1
"""A fraction of log.keep: records that the log may remove during the read aren't compared."""


class TableAtInstant(NamedTuple):
    """A version of a Delta table that has all of the source's changes up to the instant."""

    derived: Derived
    version: int

    def all_rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows, including earlier versions and deleted rows."""
        return Version(DerivedDeltaTable(spark, "", self.derived), self.version).stored()

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the source's current rows, by this table."""
        rows = self.all_rows(spark)
        if self.derived.kind == "history":
            return rows.where(F.col(IS_CURRENT))
        return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows


class LakehouseAtInstant(NamedTuple):
    """The tables at the instant, and why others are missing."""

    tables: dict[str, TableAtInstant]
    missing: dict[str, str]


class _FinishedRun(NamedTuple):
    """A finished run whose cut isn't later than the instant."""

    plan: RunPlan
    outcome: RunOutcome

    def tables(self) -> dict[str, TablePlan]:
        """Return where each table continues, of those that are at the cut."""
        return {
            name: table
            for name, table in goes_on(self.plan, self.outcome).items()
            if table.base and name in self.outcome.versions and name not in self.outcome.failed
        }


@contextmanager
def lakehouse_at(
    context: RunContext, instant: Position, names: Collection[str] | None
) -> Iterator["ScratchLakehouse"]:
    """Yield the lakehouse's tables, or those with some ``names``.

    The log must have reached the instant. Raise SinkError if no cut leads to it.
    """
    lakehouse = context.settings.require_lakehouse()
    plans = lakehouse_plans(lakehouse.path, context.session)
    standing = _standing(plans, instant)
    topics = MillraceTopics(context, until=instant)
    parent = f"{lakehouse.path.rstrip('/')}/{_FOLDER}"
    _remove_abandoned(context.session(), parent)
    folder = f"{parent}/{int(time.time())}-{secrets.token_hex(8)}"
    try:
        yield ScratchLakehouse(context, topics, standing, plans, folder, names)
    finally:
        topics.forget()
        _remove(context.session(), folder)


def _standing(plans: Plans, instant: Position) -> _FinishedRun:
    """Return the newest finished run whose cut isn't later than the instant."""
    last = plans.last()
    newest = last.run if last is not None else 0
    for run in range(newest, max(0, newest - _RUNS_MAX), -1):
        moved = plans.moved_by(run)
        if moved is None or moved.cut > instant:
            continue
        plan, outcome = plans.plan_of(run), plans.outcome_of(run)
        if plan is not None and outcome is not None:
            if plan.cut.epoch != instant.epoch:
                break
            return _FinishedRun(plan, outcome)
    raise SinkError(
        "no cut of the lakehouse leads to the instant at which the source was read",
        where="the lakehouse",
        remedy="run `millrace merge lakehouse`, then verify again",
    )


class ScratchLakehouse:
    """Tables at a cut, and copies of them that are brought to the instant.

    ``expected`` has each table's columns at the instant. ``missing`` says why others can't be
    brought there. In addition to the ``named`` ones, it has the archives for comparing their
    histories.
    """

    def __init__(
        self,
        context: RunContext,
        topics: MillraceTopics,
        standing: _FinishedRun,
        plans: Plans,
        folder: str,
        names: Collection[str] | None,
    ) -> None:
        self._context = context
        self._keep = context.settings.require_lakehouse().keep
        self._topics = topics
        self._standing = standing
        self._plans = plans
        self._checked = plans.checked()
        lakehouse = context.settings.require_lakehouse()
        self._state = topics.state(standing.plan)
        self.derived = self._derived(lakehouse)
        self._lakehouse = _moved(lakehouse, folder)
        self._copies = self._derived(self._lakehouse)
        before = standing.tables()
        self.named = {name for name in self.derived if names is None or name in names}
        beside = {self.archive_of(name) for name in self.named}
        wanted = [name for name in self.derived if name in self.named or name in beside]
        self.missing = {
            name: why for name in wanted if (why := self._why_missing(name, before)) is not None
        }
        if names is None:
            others = standing.plan.all_tables.keys() - self.derived.keys()
            self.named |= others
            self.missing |= dict.fromkeys(
                others, "it is no longer configured, or no longer in the log"
            )
        self._tables = {name: before[name] for name in wanted if name not in self.missing}
        self.expected = dict[str, TableShape]()
        for name, table in self._tables.items():
            with self._alone(name):
                self._expect(name, table)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Work on one table. Record its error, so that other tables continue."""
        try:
            with explained(name, self._context.settings.log.keep):
                yield
        except MillraceError as error:
            self.missing[name] = error.what

    def _derived(self, lakehouse: LakehouseSettings) -> dict[str, Derived]:
        captured = CapturedTables.of(self._state.tables, self._state.newest_schemas)
        settings = self._context.settings.model_copy(update={"lakehouse": lakehouse})
        derived, _ = lakehouse_tables(settings, captured, self._standing.plan.all_tables)
        return derived

    def _expect(self, name: str, table: TablePlan) -> None:
        """Record the columns of the log's newest schema version at the instant."""
        derived, cut = self.derived[name], self._state.progress.cut
        versions = versions_at(self._state.schemas.get(derived.source, ()), cut)
        if not versions:
            raise SinkError("the log doesn't have its columns")
        self.expected[name] = derive_shape(
            versions,
            table.first_version,
            derived.options,
            derived.reserved,
            salt=derived.salt,
            by_key=derived.kind != "changes",
        )

    def brought(self) -> LakehouseAtInstant:
        """Return the tables at the instant. Those without news since the cut are unchanged."""
        versions = dict[str, int]()
        for name in self.expected:
            with self._alone(name):
                versions[name] = self._version(name)
        moving = {name: version for name, version in versions.items() if self._has_news(name)}
        with ThreadPoolExecutor(tables_at_once(self._context.session(), 0)) as executor:
            list(executor.map(self._clone, moving, moving.values()))
        cloned = moving.keys() - self.missing.keys()
        plans = self._applied(cloned) if cloned else {}
        for name in cloned - self.missing.keys():
            with self._alone(name):
                self._require_expected(name, plans)
                versions[name] = self._moved_version(name)
        tables = {
            name: TableAtInstant((self._copies if name in moving else self.derived)[name], version)
            for name, version in versions.items()
            if name not in self.missing
        }
        return LakehouseAtInstant(tables, self.missing)

    def _require_expected(self, name: str, plans: Mapping[str, TablePlan]) -> None:
        newest = self.expected[name].versions[-1].version
        if name in plans and plans[name].applied_version != newest:
            raise SinkError("its columns are about to change, and no run has changed them yet")

    def described(self, name: str) -> tuple[str, str]:
        """Return the captured table of a derived one, and its kind."""
        of = self.derived.get(name) or self._standing.plan.all_tables[name]
        return of.source, of.kind

    def archive_of(self, name: str) -> str | None:
        """Return the archive that a history is compared with, if it exists."""
        if (of := self.derived[name]).kind != "history":
            return None
        archives = [
            (not other.keeps_records, archive)
            for archive, other in self.derived.items()
            if other.source == of.source and other.kind == "changes"
        ]
        return min(archives)[1] if archives else None

    def whole_since(self, name: str) -> WholeSince:
        """Return when a history or an archive became complete, in its current columns.

        Columns of a new schema version don't change what was known before. Columns that an option
        has added or removed do. If a run's plan is gone, the run is older than the kept ones.
        """
        target = DerivedDeltaTable(
            self._context.session(), self._standing.plan.prefix, self.derived[name]
        )
        table, altered = self._tables[name], target.applied().altered
        since_ms, positions = target.created_ms(), [gap.end for gap in table.gaps]
        if (shown := shown_since(self.expected[name])) is not None:
            positions.append(shown)
        if altered and (plan := self._plans.plan_of(altered, {name})) is not None:
            by_run = plan.all_tables.get(name)
            if by_run is None or by_run.applied_version == by_run.schema_version:
                positions.append(plan.cut)
        elif altered:
            since_ms = max(since_ms, int((time.time() - self._keep.total_seconds()) * 1000))
        return WholeSince(since_ms, max(positions, default=None))

    def in_log(self, name: str) -> LoggedRecords:
        """Return the records that the log surely has of a table, and keeps during the read."""
        context, topic = self._context, self._tables[name].topic
        sure = context.settings.log.keep * (1 - _UNSURE)
        starts, ends = self._state.starts[topic], self._state.ends[topic]
        log = LogReader(context.settings.kafka, context.while_waiting)
        forgotten = log.forgotten({topic: starts}, sure).get(topic, {})
        starts = {**starts, **forgotten}
        raw = read_raw(context.session(), context.settings.kafka, {topic: starts}, {topic: ends})
        since_ms = int((time.time() - sure.total_seconds()) * 1000) if forgotten else None
        return LoggedRecords(raw, starts, since_ms)

    def stands(self, name: str) -> tuple[str, int]:
        """Return the table's own cut, and when a run left it there (ms since 1970)."""
        plan = self._standing.plan
        checked_ms = self._checked.ts_ms if name in self._checked.tables else 0
        return str(plan.cut), max(plan.ts_ms, checked_ms)

    def _why_missing(self, name: str, before: Collection[str]) -> str | None:
        """Return why a table can't be brought to the instant. None: it can."""
        outcome, plan = self._standing.outcome, self._standing.plan
        captured = self._state.tables[self.derived[name].source]
        if (error := outcome.failed.get(name)) is not None:
            return f"its last run failed: {error}"
        if captured.is_set_aside or captured.is_being_completed:
            return _WAITS
        if name in before:
            return None
        return "it was refused, or waits" if name in plan.waiting else "no run has created it yet"

    def _version(self, name: str) -> int:
        """Return the newest version that no later run has written to. Other programs may have."""
        table, spark = self._tables[name], self._context.session()
        target = DerivedDeltaTable(spark, self._standing.plan.prefix, self.derived[name])
        recorded = self._standing.outcome.versions[name].version
        return target.version_of_run(table.base, recorded)

    def _has_news(self, name: str) -> bool:
        """Whether the log may have changes for a table since the cut."""
        table = self._tables[name]
        is_altered = self.expected[name].versions[-1].version != table.applied_version
        return is_altered or table.start != self._state.ends.get(table.topic)

    def _applied(self, names: Collection[str]) -> Mapping[str, TablePlan]:
        """Bring clones to the instant. Return their plans, and record why some are missing."""
        left = SinkError("it isn't verified")
        paused = {name: left for name in self.derived if name not in names}
        context = replace(
            self._context,
            settings=self._context.settings.model_copy(update={"lakehouse": self._lakehouse}),
            options=RunOptions(paused=paused),
        )
        target = LakehouseTarget(context, self._lakehouse)
        target.plans.start(self._standing.plan)
        target.plans.finish(self._standing.outcome)
        target.plans.check(self._checked)
        end = Run(context, self._topics, target).once()
        self.missing |= {name: _WAITS for name in end.waiting if name in names}
        self.missing |= {name: why for name, why in end.failed.items() if name in names}
        # Such a run makes the log's state, instead of the table's.
        self.missing |= {result.name: _FORGOTTEN for result in end.results if result.rebuilt}
        return end.tables

    def _clone(self, name: str, version: int) -> None:
        """Create a Delta table in the scratch folder from the files of the cut's version."""
        spark, prefix = self._context.session().newSession(), self._standing.plan.prefix
        tune(spark, 0)
        with self._alone(name):
            original = DerivedDeltaTable(spark, prefix, self.derived[name])
            copy = DerivedDeltaTable(spark, prefix, self._copies[name])
            clone(original, version, copy, self._tables[name].base)

    def _moved_version(self, name: str) -> int:
        """Return the version of a copy that was brought to the instant."""
        spark, prefix = self._context.session(), self._standing.plan.prefix
        return DerivedDeltaTable(spark, prefix, self._copies[name]).applied().at.version


_WAITS: Final = "its rows are being read again"
_FORGOTTEN: Final = "the log no longer has all changes since its cut (log.keep)"


def _moved(lakehouse: LakehouseSettings, folder: str) -> LakehouseSettings:
    """Return the same tables in another folder, without names in a catalog."""
    tables = tuple(
        table.model_copy(update={"path": None, "catalog": None}) for table in lakehouse.tables
    )
    return lakehouse.model_copy(update={"path": folder, "catalog": None, "tables": tables})


def _remove(spark: SparkSession, folder: str) -> None:
    files, path = _files(spark, folder)
    files.delete(path, True)


def _remove_abandoned(spark: SparkSession, parent: str) -> None:
    """Remove the folders of killed verifies. No verify takes this long."""
    files, path = _files(spark, parent)
    if not files.exists(path):
        return
    for entry in files.listStatus(path):
        begun_s = str(entry.getPath().getName()).partition("-")[0]
        if begun_s.isdigit() and time.time() - int(begun_s) > _ABANDONED_S:
            files.delete(entry.getPath(), True)


def _files(spark: SparkSession, folder: str) -> tuple[Any, Any]:
    """Return the file system of a folder, and its path there."""
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    session: Any = spark._jsparkSession  # noqa: SLF001
    path = jvm.org.apache.hadoop.fs.Path(folder)
    return path.getFileSystem(session.sessionState().newHadoopConf()), path

"""The lakehouse, as a target of runs: its derived tables. Each one is a Delta table."""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.errors import ConfigError, LogForgottenError, MillraceError
from cdc.lines import Lines, on_one_line
from cdc.log.offsets import LogState
from cdc.records.schema import TableSchema
from cdc.records.state import Gap
from cdc.settings import LakehouseSettings
from sinks.changes.derived import Derived, local_path, require_keyless_kind
from sinks.changes.generations import require_one
from sinks.changes.names import DELETED, IS_CURRENT
from sinks.changes.shape import TableShape, derive_shape
from sinks.delta.archive import archived_ends, read_archive, write_events
from sinks.delta.commit import commit, write_nothing
from sinks.delta.covered import is_covered
from sinks.delta.evolution import needs_mapping, set_properties
from sinks.delta.history import write_history
from sinks.delta.keyed import write_all, write_rows
from sinks.delta.keyless import write_all_copies, write_copies
from sinks.delta.readers import MAPPING, VECTORS, warning
from sinks.delta.rebuilt import kept, rebuilt_from
from sinks.delta.table import DerivedDeltaTable, register
from sinks.run.options import RunContext
from sinks.run.owner import LOG_FOLDER
from sinks.run.plan import Lack, RunPlan, TablePlan
from sinks.run.plans import as_compacted, lakehouse_plans
from sinks.run.rekeyed import has_other_key
from sinks.run.summary import Rows, RunOutcome, TableResult, TableVersion
from sinks.run.target import Forgotten, Rebuilt, Target, Wanted
from sinks.run.topics import Examination, ReadChanges, Topics
from sinks.run.wanted import CapturedTables, lakehouse_tables, wanted_in_lakehouse
from sinks.spark.errors import spark_error
from sinks.spark.session import tune

_WRITERS: Final = {"changes": write_events, "history": write_history}
"""Kind → the function that makes the commit. Tables of current rows use keys if they have any."""
GAPS_PROPERTY: Final = "millrace.gaps"
"""The permanent gaps of a history or an archive, the newest ones, in JSON."""
_ACCEPTED: Final[Mapping[bool, tuple[Lack, str]]] = {
    False: ("before", "begins with what the log has, so rows may be missing"),
    True: ("now", "continues, and marks the gap"),
}
"""Whether a table exists → what it lacks after an accepted gap, and the user's message."""


class LakehouseTarget(Target):
    """The derived tables of one lakehouse."""

    sink: ClassVar[str] = "lakehouse"

    def __init__(self, context: RunContext, lakehouse: LakehouseSettings) -> None:
        self.plans = self._plans = lakehouse_plans(lakehouse.path, context.session, context.report)
        self._settings = context.settings
        self._prefix = context.settings.capture.topic_prefix
        self._session = context.session
        self._report = context.report
        self._options = context.options
        self._lakehouse = lakehouse
        self._derived: dict[str, Derived] = {}
        self._replayed: dict[str, str | None] = {}

    def wanted(self, state: LogState, begun: Collection[str]) -> Wanted:
        """Return the derived tables in the configuration, and one of each other table."""
        for table in self._lakehouse.tables:
            if table.source not in state.tables:
                self._report(f"[[lakehouse.tables]]: {table.source} isn't captured (yet)")
        captured = CapturedTables.of(state.tables, state.newest_schemas)
        self._derived, left_out = lakehouse_tables(self._settings, captured, begun)
        accepted = {
            "--accept-gap": self._options.accepted_gaps,
            "--accept-doubt": self._options.accepted_doubts,
            "rebuild": self._options.rebuilt,
        }
        for option, names in accepted.items():
            if unknown := sorted(names - self._derived.keys()):
                raise ConfigError(
                    f"unknown derived table: {', '.join(unknown)}",
                    where=option,
                    remedy=f"the derived tables are: {', '.join(sorted(self._derived))}",
                )
        return Wanted(
            wanted_in_lakehouse(self._lakehouse, self._derived),
            [f"not derived, since the source has no key: {', '.join(left_out)}"]
            if left_out
            else [],
        )

    def is_standing(self, name: str, table: TablePlan, state: LogState) -> bool:
        """Whether a Delta table exists. A remote one is checked only if it has news."""
        folder = local_path(self._derived[name].path)
        if folder is not None:
            return (folder / LOG_FOLDER).is_dir()
        versions = state.schemas.get(table.source, ())
        has_columns = not versions or versions[-1].version == table.applied_version
        has_columns &= self._derived[name].removal in {"", table.removed}
        is_idle = has_columns and table.start == state.ends.get(table.topic)
        return is_idle or self._table(name).exists()

    def settle(self, plan: RunPlan, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome. A table whose error came after its commit hasn't failed."""
        versions = dict(outcome.versions)
        for name in outcome.failed:
            table = plan.tables.get(name)
            if table is None or not table.commits or name not in self._derived:
                continue
            target = self._table(name)
            there = target.read_applied(listed=True)
            if there is not None and there.run == plan.run:
                versions[name] = there.at
                try:
                    _mark_gaps(target, plan.gaps(name))  # that may have caused the failure
                    register(target)
                except MillraceError as error:
                    self._report(Lines(f"{on_one_line(name)}: {error}"))
        failed = {name: why for name, why in outcome.failed.items() if name not in versions}
        return outcome.model_copy(update={"failed": failed, "versions": versions})

    def on_archives(
        self, tables: dict[str, TablePlan], failed: Collection[str], state: LogState
    ) -> dict[str, TablePlan]:
        """Let new tables begin with an archive if the log doesn't reach as far back.

        An archive that has ``failed`` isn't used, as it may be broken.
        """
        archives = self._archives(tables, failed)

        def from_archive(name: str, table: TablePlan) -> TablePlan:
            archive = archives.get(table.source)
            if table.instead_of is not None:
                archive = self._replayed[name]
            elif table.base or table.kind == "changes":
                return table
            is_deleted = state.tables[table.source].cleanup == "delete"
            has_lost_records = any(state.starts[table.topic].values())
            is_in_log = table.kind == "current" and not (is_deleted and has_lost_records)
            if archive is None or (is_in_log and table.instead_of is None):
                return table
            whole = tables[archive]
            update = {"start": whole.start, "replay": archive, "fresh_ms": whole.fresh_ms}
            marks = (*whole.gaps, *whole.marks) if table.kind == "history" else ()
            return table.model_copy(update={**update, "marks": marks})

        return {
            name: from_archive(name, table)
            for name, table in tables.items()
            if table.instead_of is None or (self._replayed[name] or name) in tables
        }

    def _archives(self, tables: Mapping[str, TablePlan], failed: Collection[str]) -> dict[str, str]:
        """Return the archive of each captured table that other tables can be made of."""
        return {
            table.source: name
            for name, table in self._derived.items()
            if table.kind == "changes"
            and table.keeps_records
            and name in tables
            and name not in failed
            and tables[name].base
            and tables[name].lacks == "nothing"
        }

    def rebuilt(
        self,
        before: Mapping[str, TablePlan],
        failed: Collection[str],
        state: LogState,
        topics: Topics,
    ) -> Rebuilt:
        """Return plans from the log's first record or an archive. Refuse tables without either."""
        wanted = before.keys() if self._options.rebuilds_all else self._options.rebuilt
        names = sorted(wanted & before.keys(), key=lambda name: before[name].kind != "changes")
        archives = self._archives(before, failed)
        again, refused = dict[str, TablePlan](), dict[str, MillraceError]()
        for name in names:
            table = before[name]
            archive = archives.get(table.source)
            archive = None if archive in again else archive  # the log has all of its records
            has = kept(topics, name, table, state, archive)
            try:
                self._replayed[name] = rebuilt_from(name, table.kind, has)
            except LogForgottenError as error:
                refused[name] = error
            else:
                again[name] = table.rebuilt(state.starts[table.topic])
        return Rebuilt(again, refused)

    def behind_gap(self, name: str, table: TablePlan, forgotten: Forgotten) -> TablePlan | None:
        """Rebuild current rows in place if the log has the newest state of each.

        A history or an archive, which would have a permanent gap, waits until the user accepts it.
        A new table whose first records are gone waits as well. After a gap, a history treats rows
        that the log lacks as deleted, so it also waits for their new read.
        """
        again, replaced = forgotten.again, forgotten.replaced
        if table.base and table.kind == "current":
            whole = again.model_copy(update={"after": None}) if forgotten.is_compacted else replaced
            return whole and whole.model_copy(update={"lacks": "now"})
        if table.replay is not None or (table.base and not forgotten.can_mark):
            return None
        is_accepted = name in self._options.accepted_gaps
        if replaced is not None and table.kind == "current" and not is_accepted:
            return replaced
        needs_rows = bool(table.base) and table.kind == "history" and not forgotten.has_rows
        if is_accepted and not needs_rows:
            lacks, _ = _ACCEPTED[bool(table.base)]
            return (again if table.base else table).model_copy(update={"lacks": lacks})
        if forgotten.can_mark:
            forgotten.error.remedy = _remedy(name, table, forgotten, needs_rows=needs_rows)
        return None

    def examination(self, tables: Mapping[str, TablePlan], state: LogState) -> Examination:
        """Allow any table to be read early. Archives have the ends of their rows."""
        del state
        archived = {
            name: archived_ends(self._session(), self._configured(table.replay).path)
            for name, table in tables.items()
            if table.replay is not None
        }
        return Examination(self._shape, {}, archived)

    def rows(self, name: str) -> int | None:
        """Return the number of current rows of a table."""
        table = self._derived[name]
        try:
            rows = self._session().read.format("delta").load(table.path)
            if table.kind == "history":
                rows = rows.where(F.col(IS_CURRENT))
            elif table.marks_deletes:
                rows = rows.where(~F.col(DELETED))
            return rows.count()
        except (PySparkException, Py4JError):  # applying the plan reports what is wrong with it
            return None

    def apply(self, spark: SparkSession, name: str, plan: RunPlan, read: ReadChanges) -> Rows:
        """Commit the plan to the Delta table, then register it in the catalog."""
        table = plan.tables[name]
        if not table.commits:
            return Rows()
        derived = replace(self._configured(name), removal=table.removes)
        target = DerivedDeltaTable(spark, self._prefix, derived)
        archived = None
        if table.replay is None:
            tune(spark, table.events, target.size_bytes())
        else:
            archived = read_archive(spark, self._configured(table.replay).path, table.topic)
        with read(archived) as changes:
            if not changes.versions[-1].key:
                require_keyless_kind(target.derived)
            shape = self._shape(name, table, changes.versions)
            is_other = has_other_key(changes.versions, table.applied_version)
            is_rekeyed = bool(table.base and table.kind == "current" and is_other)
            writer = _WRITERS.get(table.kind, write_rows if shape.keys else write_copies)
            if is_rekeyed:
                writer = write_all if shape.keys else write_all_copies
            write = partial(writer, target, plan, changes, shape)
            if not table.writes:  # only its columns change
                write = partial(write_nothing, target, plan.run)
            if not table.base:
                self._report_features(target, plan, shape)
            replaces = is_rekeyed or table.instead_of is not None
            rows = commit(
                target, plan.run, table.base, shape, write, self._report, replaces=replaces
            )
        _mark_gaps(target, plan.gaps(name))
        register(target)
        doubt = table.debezium and table.debezium.doubt
        return rows._replace(is_covered=is_covered(target, doubt, shape.keys)) if doubt else rows

    def _report_features(self, target: DerivedDeltaTable, plan: RunPlan, shape: TableShape) -> None:
        """Report the readers that can't read a new table. Report vectors once for all tables."""
        if needs_mapping(shape.names):
            self._report(warning(MAPPING, [target.name]))
        with_vectors = [
            name
            for name, table in plan.tables.items()
            if not table.base and name in self._derived and self._derived[name].deletion_vectors
        ]
        if with_vectors and with_vectors[0] == target.name:
            self._report(warning(VECTORS, with_vectors))

    def _shape(self, name: str, table: TablePlan, versions: Sequence[TableSchema]) -> TableShape:
        """Return the columns of a derived table for these schema versions."""
        derived = self._derived[name]
        if table.debezium is not None:
            require_one(versions)
        return derive_shape(
            versions,
            table.first_version,
            derived.options,
            derived.reserved,
            salt=derived.salt,
            by_key=derived.kind != "changes",
        )

    def versions(self, plan: RunPlan, results: list[TableResult]) -> dict[str, TableVersion]:
        """Return the version of each table at the plan's cut.

        Those without news have an older one.
        """
        before = self._plans.outcome_of(plan.run - 1)
        failed = {table.name for table in results if table.error is not None}
        inherited = before.versions if before else {}
        compacted = self._plans.compacted()
        versions = {
            name: as_compacted(inherited[name], table.base, compacted.get(name))
            for name, table in plan.tables.items()
            if name in inherited and name not in failed
        }
        new = {table.name: table.version for table in results if table.error is None}
        versions |= {name: version for name, version in new.items() if version is not None}
        # A table that waited, and has no changes, is as its own last run has left it.
        unknown = (plan.tables.keys() & self._derived.keys()) - versions.keys() - failed
        for name in (name for name in unknown if plan.tables[name].base):
            applied = self._table(name).read_applied()
            is_base = applied is not None and applied.run == plan.tables[name].base
            if applied is not None and is_base and not applied.is_between:
                versions[name] = applied.at
        return versions

    def _table(self, name: str) -> DerivedDeltaTable:
        return DerivedDeltaTable(self._session(), self._prefix, self._derived[name])

    def _configured(self, name: str) -> Derived:
        if name not in self._derived:
            raise ConfigError(
                f"{name} is planned, but no longer wanted",
                where="[lakehouse]",
                remedy="none: the next plan leaves it unchanged",
            )
        return self._derived[name]


def _remedy(name: str, table: TablePlan, forgotten: Forgotten, *, needs_rows: bool) -> str:
    """Return the remedy for a table that waits until its gap is accepted."""
    _, what = _ACCEPTED[bool(table.base)]
    accept = f"`millrace merge lakehouse --accept-gap {shlex.quote(name)}` {what}"
    if needs_rows:
        return f"{forgotten.read_again}; then {accept}"
    return f"{forgotten.error.remedy}. Or {accept}" if table.kind == "current" else accept


def _mark_gaps(target: DerivedDeltaTable, gaps: Sequence[Gap]) -> None:
    """Record the gaps in the table's property, oldest first. Raise SinkError.

    Does nothing if it has them already, so a repetition after a crash is safe.
    """
    text = json.dumps([gap.model_dump(mode="json") for gap in gaps], ensure_ascii=False)
    if target.properties().get(GAPS_PROPERTY, "[]") == text:
        return
    try:
        set_properties(target, {GAPS_PROPERTY: text})
    except PySparkException as error:
        raise spark_error(
            "can't mark the table's gaps",
            error,
            where=target.name,
            remedy="its rows are up to date; the next run tries again",
        ) from None

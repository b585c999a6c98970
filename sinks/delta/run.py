"""The log → every Delta table of the lakehouse, up to one cut: one bounded run.

A run first finishes the plan that an interrupted run left. Then it asks the log for anything new,
which needs no JVM. If there is, it takes a census of the new records (the next offsets above the
cut, TRUNCATEs), writes the plan, commits to each table, and records the outcome.
"""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.errors import ConfigError, LogForgottenError, MillraceError
from cdc.log.offsets import LogState
from cdc.settings import LakehouseSettings, Settings
from sinks.changes.derived import Derived, derived_tables, local_path, without_unfit
from sinks.delta.topics import TopicSource
from sinks.log.records import KeptLostError
from sinks.run.options import TABLES_AT_ONCE, Report, RunOptions
from sinks.run.plan import (
    RunOutcome,
    RunPlan,
    TablePlan,
    TableVersion,
    WantedTable,
    changed,
    goes_on,
    has_work,
    require_same_log,
    to_read,
)
from sinks.run.plans import as_compacted, lakehouse_plans
from sinks.run.retention import replayed
from sinks.run.summary import RunSummary, TableResult
from sinks.spark.session import SparkProvider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.delta.table import DeltaTarget

_ATTEMPTS_MAX = 3
"""How often a table is tried whose records executors keep, and these end."""


class LakehouseRun:
    """One run over the topics of one writer; ``once`` is all that there is to call."""

    def __init__(
        self,
        settings: Settings,
        lakehouse: LakehouseSettings,
        session: SparkProvider,
        report: Report,
        options: RunOptions,
        topic_source: TopicSource,
    ) -> None:
        self._settings = settings
        self._lakehouse = lakehouse
        self._location = lakehouse.path
        self._derived: dict[str, Derived] = {}
        self._prefix = settings.capture.topic_prefix
        self._session = session
        self._report = report
        self._options = options
        self._topic_source = topic_source
        self._started = time.monotonic()
        self._plans = lakehouse_plans(lakehouse.path, session)

    def once(self) -> RunSummary:
        """Apply what the topics have; tables that fail are in the summary."""
        last = self._plans.last()
        if last is not None and last.prefix != self._prefix:
            raise ConfigError(
                f"the lakehouse belongs to topic.prefix {last.prefix}",
                where=self._location,
                remedy="give each topic.prefix a lakehouse.path of its own",
            )
        if last is not None and last.written_by != self._topic_source.written_by:
            raise ConfigError(
                f"the lakehouse was begun with topics written by {last.written_by}",
                where="[lakehouse] topics_written_by",
                remedy="give those of another writer a lakehouse.path of their own",
            )
        state = self._topic_source.state()
        if state is None:
            return self._nothing(self._topic_source.empty)
        if last is not None:
            require_same_log(last, state)
        left_out = self._choose(state, last)
        results: list[TableResult] = []
        outcome = self._plans.outcome(last) if last else None
        if last is not None and outcome is None:
            self._report(f"finishing run {last.run}, which was interrupted")
            expired = self._expired(last, state)
            results = self._apply(last, state, expired)
            outcome = self._finished(last, [*results, *expired])
        outcome = self._settled(last, outcome) if last and outcome else None
        before = goes_on(last, outcome) if last and outcome else {}
        before, refused = self._usable(before, state)
        refused |= {
            name: why for name, why in self._options.paused.items() if name in self._derived
        }
        waiting = self._report_errors(refused)
        results += waiting
        versions = outcome.versions if outcome else {}
        tables = self._proposed(before, versions, state, refused)
        if (records_max := self._options.records_max) and to_read(tables) > records_max:
            state = self._topic_source.bounded(state, tables, records_max, last)
            tables = self._proposed(before, versions, state, refused)
        if not has_work(tables):
            checked = [name for name, table in tables.items() if not table.waits]
            self._plans.check(str(state.progress.cut), checked)
            return self._summary(last, results) if results else self._nothing()
        if left_out:
            self._report(f"without a key there is no {', '.join(left_out)}")
        return self._new_run(state, last, tables, results, waiting)

    def _choose(self, state: LogState, last: RunPlan | None) -> list[str]:
        """Set the derived tables; returns the names of those that can't be."""
        keyless = {
            name for name, versions in state.schemas.items() if versions and not versions[-1].key
        }
        begun = [name for name, table in last.tables.items() if table.base] if last else []
        tables = derived_tables(self._lakehouse, state.tables)
        self._derived, left_out = without_unfit(tables, self._lakehouse, keyless, begun)
        return left_out

    def _proposed(
        self,
        before: dict[str, TablePlan],
        versions: dict[str, TableVersion],
        state: LogState,
        refused: Collection[str],
    ) -> dict[str, TablePlan]:
        usable = {name: table for name, table in self._wanted().items() if name not in refused}
        tables = self._rebuilt(self._topic_source.proposed(before, state, usable), state)
        return replayed(tables, versions, self._derived, state)

    def _wanted(self) -> dict[str, WantedTable]:
        return {
            name: WantedTable(table.source, table.kind, table.keeps_records)
            for name, table in self._derived.items()
        }

    def _usable(
        self, before: dict[str, TablePlan], state: LogState
    ) -> tuple[dict[str, TablePlan], dict[str, MillraceError]]:
        """Where tables go on, and which can't; one whose Delta table was removed begins anew."""
        self._check_names(state)
        refused = self._topic_source.refused(before, self._derived, state)
        gone = {name for name in refused.keys() & before.keys() if not self._is_there(name)}
        if gone:
            before = {name: table for name, table in before.items() if name not in gone}
            refused = self._topic_source.refused(before, self._derived, state)
        return before, {**refused, **changed(before, self._wanted())}

    def _check_names(self, state: LogState) -> None:
        """Report a configured table that isn't captured; raises ConfigError for an unknown gap."""
        for table in self._lakehouse.tables:
            if table.source not in state.tables:
                self._report(f"[[lakehouse.tables]]: {table.source} isn't captured (yet)")
        if unknown := sorted(self._options.accepted_gaps - self._derived.keys()):
            raise ConfigError(
                f"there is no derived table {', '.join(unknown)}", where="--accept-gap"
            )

    def _report_errors(self, errors: Mapping[str, MillraceError]) -> list[TableResult]:
        """Report why tables aren't applied; returns their results."""
        results = [TableResult(name, error=error) for name, error in errors.items()]
        for result in results:
            if result.name not in self._options.paused:
                self._report(str(result))
        return results

    def _new_run(
        self,
        state: LogState,
        last: RunPlan | None,
        tables: dict[str, TablePlan],
        results: list[TableResult],
        waiting: list[TableResult],
    ) -> RunSummary:
        retained = self._topic_source.retained_tables(state, tables, self._plans.checked())
        planned = self._topic_source.plan_tables(retained.tables, self._derived, state)
        errors: dict[str, MillraceError] = {**retained.refused, **planned.refused}
        refused = self._report_errors(errors)
        news = any(table.pending or table.commits for table in planned.tables.values())
        if not news and not refused:
            return self._summary(last, results) if results else self._nothing()
        plan = RunPlan(
            run=last.run + 1 if last is not None else 1,
            prefix=self._prefix,
            log=state.progress.log,
            cut=state.progress.cut,
            cut_ts_us=state.progress.cut_ts_us,
            ts_ms=int(time.time() * 1000),
            tables=planned.tables,
            written_by=self._topic_source.written_by,
        )
        self._plans.start(plan)
        applied = self._apply(plan, state, ())
        self._finished(plan, [*applied, *refused, *waiting])
        return self._summary(plan, [*results, *applied, *refused])

    def _finished(self, plan: RunPlan, results: list[TableResult]) -> RunOutcome:
        """Record how the plan ended, and at which version each table has the plan's cut."""
        before = self._plans.outcome_of(plan.run - 1)
        failed = {table.name: str(table.error) for table in results if table.error is not None}
        done = [table for table in results if table.error is None]
        inherited = before.versions if before else {}
        compacted = self._plans.compacted().tables
        versions = {
            name: as_compacted(inherited[name], table, compacted.get(name))
            for name, table in plan.tables.items()
            if name in inherited and name not in failed and not table.waits
        }
        versions |= {table.name: table.version for table in done if table.version is not None}
        outcome = RunOutcome(
            run=plan.run,
            ts_ms=int(time.time() * 1000),
            seconds=round(time.monotonic() - self._started, 3),
            failed=failed,
            versions=versions,
            tables={table.name: table.counts() for table in done},
        )
        self._plans.finish(outcome)
        return outcome

    def _settled(self, plan: RunPlan, outcome: RunOutcome) -> RunOutcome:
        """The outcome, where tables whose error came after their commit haven't failed."""
        versions = dict(outcome.versions)
        for name in outcome.failed:
            table = plan.tables.get(name)
            if table is None or not table.commits or name not in self._derived:
                continue
            target = self._target(name)
            there = target.read_applied(listed=True)
            if there is not None and there.run == plan.run:
                versions[name] = there.at
                self._name_again(target)
        failed = {name: why for name, why in outcome.failed.items() if name not in versions}
        if failed == outcome.failed:
            return outcome
        settled = outcome.model_copy(update={"failed": failed, "versions": versions})
        self._plans.finish(settled)
        return settled

    def _name_again(self, target: "DeltaTarget") -> None:
        """Register a table in the catalog, where that may be what failed."""
        from sinks.delta.table import register

        try:
            register(target)
        except MillraceError as error:
            self._report(f"{target.name}: {error}")

    def _target(self, name: str) -> "DeltaTarget":
        from sinks.delta.table import DeltaTarget

        return DeltaTarget(self._session(), self._prefix, self._derived[name])

    def _removed(self, name: str, table: TablePlan) -> bool:
        """Whether somebody removed the Delta table; elsewhere than here only if it has news."""
        if name not in self._derived:
            return False
        here = local_path(self._derived[name].path) is not None
        return (here or table.pending) and not self._is_there(name)

    def _is_there(self, name: str) -> bool:
        folder = local_path(self._derived[name].path)
        return self._target(name).exists() if folder is None else (folder / "_delta_log").is_dir()

    def _rebuilt(self, tables: dict[str, TablePlan], state: LogState) -> dict[str, TablePlan]:
        """The tables, those from the log's start again whose Delta table somebody removed."""
        return {
            name: table.begun_again(state.starts[table.topic])
            if table.base and self._removed(name, table)
            else table
            for name, table in tables.items()
        }

    def _expired(self, plan: RunPlan, state: LogState) -> list[TableResult]:
        """Tables of a plan that was interrupted for so long that the log may have forgotten since.

        The next plan says what becomes of them.
        """
        planned = {
            name: table
            for name, table in plan.tables.items()
            if table.base and table.source in state.tables
        }
        retained = self._topic_source.retained_tables(state, planned, self._plans.checked())
        error = LogForgottenError(f"run {plan.run} was interrupted for longer than log.keep")
        return [
            TableResult(name, error=retained.refused.get(name, error))
            for name, table in planned.items()
            if retained.tables[name] != table
        ]

    def _apply(
        self, plan: RunPlan, state: LogState, expired: Collection[TableResult]
    ) -> list[TableResult]:
        """Apply the plan to its tables, some of them side by side, and each in its own session.

        A session's configuration carries a table's application transaction; and half of what a
        small table takes is planning, on one core.
        """
        left_out = {table.name for table in expired}
        waiting = [
            name
            for name, table in plan.tables.items()
            if (table.pending or not table.base) and table.commits and name not in left_out
        ]
        if not waiting:
            return []
        spark = self._session()

        def apply(name: str) -> TableResult:
            table = plan.tables[name]
            started = time.monotonic()
            self._report(f"{name}: {table.events:,} events")
            result = self._applied(spark.newSession(), name, plan, state)
            result = replace(result, seconds=time.monotonic() - started)
            self._report(str(result))
            return result

        with ThreadPoolExecutor(TABLES_AT_ONCE) as executor:
            return list(executor.map(apply, waiting))

    def _applied(
        self, spark: "SparkSession", name: str, plan: RunPlan, state: LogState
    ) -> TableResult:
        from sinks.delta.apply import explained
        from sinks.delta.table import DeltaTarget, register

        table = plan.tables[name]
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                with explained(name, self._settings.log.keep):
                    target = DeltaTarget(spark, self._prefix, self._configured(name))
                    archive = self._configured(table.replay.archive).path if table.replay else None
                    rows = self._topic_source.apply(target, plan, state, archive)
                    register(target)
            except KeptLostError as error:
                if attempt == _ATTEMPTS_MAX:
                    return TableResult(name, table.events, error=error)
                self._report(f"{name}: {error.what}; reading them again")
                self._topic_source.forget()
            except MillraceError as error:
                return TableResult(name, table.events, error=error)
            else:
                return TableResult(name, table.events, *rows, rebuilt=table.rebuilds)
        raise AssertionError("the last attempt returns")

    def _configured(self, name: str) -> Derived:
        if name not in self._derived:
            raise ConfigError(
                f"{name} is planned, and isn't wanted any more",
                where="[lakehouse]",
                remedy="nothing to do: the next plan leaves it as it is",
            )
        return self._derived[name]

    def _nothing(self, note: str = "") -> RunSummary:
        return RunSummary("lakehouse", 0, "", time.monotonic() - self._started, note=note)

    def _summary(self, plan: RunPlan | None, results: list[TableResult]) -> RunSummary:
        seconds = time.monotonic() - self._started
        run, cut = (plan.run, plan.where) if plan is not None else (0, "")
        return RunSummary("lakehouse", run, cut, seconds, results)

"""Topics → the tables of a target, up to one cut: one bounded run.

A run does these steps, in this order:

1. It reads the last plan, and asks the topics for their state. Neither needs a JVM.
2. It finishes the last plan if its run was interrupted.
3. It proposes what to read for each table. If there is nothing to read, it records that, and ends.
4. It examines the new records: the next offsets above the cut, and TRUNCATEs.
5. It writes the new plan, applies it to each table, and records the outcome.

So every target has the same answers to a crash, to a second run, and to records that the log no
longer has.
"""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from cdc.errors import LogForgottenError, MillraceError, SinkError
from cdc.faults import FaultPoint, reach
from cdc.lines import Lines, on_one_line
from cdc.log.offsets import LogState
from sinks.run.doubts import accepted, new_doubt
from sinks.run.drops import (
    Drop,
    any_to_empty,
    find_drops,
    not_read_again,
    refusal,
    with_emptied,
)
from sinks.run.options import RunContext
from sinks.run.owner import changed_kinds, require_same_writer
from sinks.run.plan import RunPlan, TablePlan, goes_on, require_same_log, to_read
from sinks.run.reported import RunEnd
from sinks.run.retained import retained_tables
from sinks.run.summary import (
    LastCheck,
    RunOutcome,
    TableResult,
    errors_of,
)
from sinks.run.target import Target
from sinks.run.topics import ExaminedTables, Topics
from sinks.run.wanted import WantedTable
from sinks.spark.concurrency import tables_at_once
from sinks.spark.errors import KeptLostError, explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS_MAX: Final = 3
"""How often a table is tried whose records are kept by executors that end."""


def _has_work(tables: Mapping[str, TablePlan]) -> bool:
    """Whether any table has records to read, or doesn't exist yet."""
    return any(table.pending or table.commits for table in tables.values())


def _rebuilt_by(plan: RunPlan, results: Collection[TableResult]) -> set[str]:
    """Return the tables that a plan has rebuilt, by the results of the run that has finished it."""
    done = {result.name for result in results if result.error is None}
    return {name for name in done if plan.tables[name].instead_of is not None}


def _has_skipped(retained: ExaminedTables, proposed: Mapping[str, TablePlan], name: str) -> bool:
    """Whether a table was planned to continue after records that the log no longer has."""
    table = retained.tables.get(name)
    return table is not None and table.start != proposed[name].start


def _rebuilds(table: TablePlan) -> str:
    """Return the source of a table's rebuild, if it is rebuilt."""
    if table.instead_of is None:
        return ""
    return f"rebuilding it from {table.replay or 'the log'}: "


class Run:
    """One run over the topics of one writer. Callers use only ``once``."""

    def __init__(self, context: RunContext, topics: Topics, target: Target) -> None:
        self._context = context
        self._settings = context.settings
        self._report = context.report
        self._options = context.options
        self._topics = topics
        self._target = target
        self._plans = target.plans
        self._started = time.monotonic()

    def once(self) -> RunEnd:
        """Apply the topics' new records. The results have the tables that fail."""
        self._context.progress(0, 0)
        last = self._plans.last()
        if last is not None:
            prefix, writer = self._settings.capture.topic_prefix, self._topics.written_by
            require_same_writer(last, self._target.sink, prefix, writer)
        state = self._topics.state(last)
        if last is not None:
            require_same_log(last, state.progress.log)
        else:
            self._context.begins()
        begun = [name for name, table in last.all_tables.items() if table.base] if last else []
        wanted, remarks, unfit = self._target.wanted(state, begun)
        outcome, results = self._ended(last, state) if last is not None else (None, [])
        before = goes_on(last, outcome) if last is not None and outcome is not None else {}
        before, refused = self._standing(before, state, wanted)
        results += (not_applied := self._report_errors({**unfit, **refused}))
        usable = {name: table for name, table in wanted.items() if name not in refused}
        failing = outcome.failed if outcome is not None else {}
        done = _rebuilt_by(last, results) if last is not None else set()
        again, not_rebuilt = self._rebuilt(before, done, failing, state, usable)
        results += not_rebuilt

        def proposed(state: LogState) -> dict[str, TablePlan]:
            tables = self._topics.proposed({**before, **again}, state, usable)
            return self._target.on_archives(tables, failing, state)

        tables, whole = proposed(state), state
        drops = find_drops(
            wanted, before, state, self._settings.capture, self._options.accepted_drops
        )
        if refused_drops := refusal(drops, before, self._target.sink):
            self._report(refused_drops)
        if (records_max := self._options.records_max) and to_read(tables) > records_max:
            state = self._topics.bounded(state, tables, records_max, last)
            tables = proposed(state)
            drops = drops if state is whole else {}  # later runs get to the drop
        work = _has_work(tables) or any_to_empty(tables, drops)
        if last is None or work:
            for remark in remarks:
                self._report(remark)
        if not work:
            cut_ts_us = state.progress.cut_ts_us
            self._plans.check(LastCheck(ts_ms=state.read_ms, tables=[*tables], cut_ts_us=cut_ts_us))
            failed = {**failing, **errors_of(not_applied)}
            return RunEnd.of(last, results, state, before, wanted, tables, failed)
        waiting = {name: t for name, t in before.items() if t.base and name not in tables}
        plan, outcome, applied = self._new_run(state, last, tables, waiting, not_applied, drops)
        if plan is None or outcome is None:
            failed = errors_of(not_applied)
            return RunEnd.of(plan, results, state, before, wanted, tables, failed)
        standing = goes_on(plan, outcome)
        return RunEnd.of(
            plan, results + applied, state, standing, wanted, plan.tables, outcome.failed
        )

    def _ended(self, plan: RunPlan, state: LogState) -> tuple[RunOutcome, list[TableResult]]:
        """Return the last plan's outcome.

        If it was interrupted, finish it, and return the results.
        """
        outcome, results = self._plans.outcome(plan), list[TableResult]()
        if outcome is None:
            self._report(f"finishing run {plan.run}, which was interrupted")
            expired = self._expired(plan, state)
            results = self._apply(plan, state, {table.name for table in expired})
            outcome = self._finished(plan, [*results, *expired])
        settled = self._target.settle(plan, outcome)
        settled = accepted(plan, settled, self._options.accepted_doubts, self._report)
        if settled != outcome:
            self._plans.finish(settled)
        return settled, results

    def _expired(self, plan: RunPlan, state: LogState) -> list[TableResult]:
        """Return the tables of an interrupted plan whose records the log may have removed since.

        The next plan decides about them.
        """
        planned = {
            name: table
            for name, table in plan.tables.items()
            if table.base and table.source in state.tables
        }
        retained = self._retained(planned, state)
        error = LogForgottenError(f"run {plan.run} was interrupted for longer than log.keep")
        return [
            TableResult(name, error=retained.refused.get(name, error))
            for name, table in planned.items()
            if retained.tables[name] != table
        ]

    def _standing(
        self, before: dict[str, TablePlan], state: LogState, wanted: Mapping[str, WantedTable]
    ) -> tuple[dict[str, TablePlan], dict[str, MillraceError]]:
        """Return where tables continue, and which can't. A missing one begins again."""
        standing = dict(before)
        for name, table in before.items():
            if name not in wanted or not table.base:
                continue
            starts = state.starts.get(table.topic)  # None: a topic that can't be read is refused
            if starts is not None and not self._target.is_standing(name, table, state):
                standing[name] = table.begun_again(starts)
        refused = {
            **self._topics.refused(standing, wanted, state),
            **changed_kinds(standing, wanted),
            **not_read_again(standing, state, wanted),
            **{name: why for name, why in self._options.paused.items() if name in wanted},
        }
        return standing, refused

    def _rebuilt(
        self,
        before: Mapping[str, TablePlan],
        done: Collection[str],
        failing: Collection[str],
        state: LogState,
        usable: Mapping[str, WantedTable],
    ) -> tuple[Mapping[str, TablePlan], list[TableResult]]:
        """Return the plans of tables to rebuild, and results of those that can't be.

        The latter continue unchanged: they haven't failed, and are at the cut. The plan that this
        run has finished has rebuilt the ``done`` ones.
        """
        standing = {name: table for name, table in before.items() if name in usable and table.base}
        again, refused = self._target.rebuilt(standing, failing, state, self._topics)
        again = {name: table for name, table in again.items() if name not in done}
        planned = self._target.on_archives(
            self._topics.proposed({**before, **again}, state, usable), failing, state
        )
        waiting = SinkError(
            "its rows are being read again: it can't be rebuilt before that is done",
            remedy="`millrace status` shows the progress; then rebuild it",
        )
        refused = {**refused, **{name: waiting for name in again if name not in planned}}
        refused = {name: error for name, error in refused.items() if name not in done}
        for name, error in refused.items():
            self._report(Lines(f"{on_one_line(name)}: not rebuilt: {error}"))
        results = [TableResult(name, error=error) for name, error in refused.items()]
        again = {name: table for name, table in again.items() if name in planned}
        return again, [] if self._options.rebuilds_all else results

    def _retained(self, tables: dict[str, TablePlan], state: LogState) -> ExaminedTables:
        return retained_tables(
            self._topics,
            self._target,
            tables,
            state,
            self._settings.log.keep,
            self._plans.checked(),
        )

    def _report_errors(self, errors: Mapping[str, MillraceError]) -> list[TableResult]:
        """Report why tables aren't applied. Return their results."""
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
        waiting: dict[str, TablePlan],
        not_applied: list[TableResult],
        drops: Mapping[str, Drop],
    ) -> tuple[RunPlan | None, RunOutcome | None, list[TableResult]]:
        """Examine the new records, plan, and apply.

        Return the plan, its outcome and its results.
        """
        proposed, retained = tables, self._retained(tables, state)
        examination = self._target.examination(retained.tables, state)
        examined = self._topics.examined(retained.tables, state, examination)
        errors = {**retained.refused, **examined.refused}
        tables = {name: table for name, table in examined.tables.items() if name not in errors}
        tables = with_emptied(tables, drops, state, self._target.rows, self._report)
        # If this run dies, the next one doesn't know its errors, but its waiting tables.
        waiting |= {name: t for name, t in examined.tables.items() if name in errors}
        unread = self._topics.unread(tables, state)
        left = {name: tables.pop(name).left_alone() for name in unread}
        # A table that is refused only after a gap hasn't reached it.
        behind = {name for name in {**errors, **unread} if _has_skipped(retained, proposed, name)}
        left |= {name: proposed[name].left_alone() for name in behind}
        waiting |= {name: table for name, table in left.items() if table.base}
        refused = self._report_errors({**errors, **unread})
        if not _has_work(tables) and not refused:
            return last, None, []
        plan = RunPlan(
            run=last.run + 1 if last is not None else 1,
            prefix=self._settings.capture.topic_prefix,
            log=state.progress.log,
            cut=state.progress.cut,
            cut_ts_us=state.progress.cut_ts_us,
            ts_ms=int(time.time() * 1000),
            tables=tables,
            waiting=waiting,
            written_by=self._topics.written_by,
            read_ms=state.read_ms,
        )
        self._plans.start(plan)
        reach(FaultPoint.RUN_PLANNED)
        applied = self._apply(plan, state, ())
        outcome = self._finished(plan, [*applied, *refused, *not_applied])
        return plan, outcome, [*applied, *refused]

    def _finished(self, plan: RunPlan, results: list[TableResult]) -> RunOutcome:
        """Record the plan's outcome, and each table's version at the plan's cut."""
        done = [table for table in results if table.error is None]
        outcome = RunOutcome(
            run=plan.run,
            ts_ms=int(time.time() * 1000),
            seconds=round(time.monotonic() - self._started, 3),
            failed=errors_of(results),
            versions=self._target.versions(plan, results),
            tables={table.name: table.counts() for table in done},
            covered=tuple(table.name for table in done if table.is_covered),
        )
        self._plans.finish(outcome)
        return outcome

    def _apply(
        self, plan: RunPlan, state: LogState, left_out: Collection[str]
    ) -> list[TableResult]:
        """Apply the plan to its tables, some of them side by side, and each in its own session.

        A session's configuration has a table's application transaction. A table without an event
        still records its position.
        """
        waiting = [
            name
            for name, table in plan.tables.items()
            if (table.pending or table.commits) and name not in left_out
        ]
        if not waiting:
            return []
        spark, done = self._context.session(), count(1)
        self._context.progress(0, len(waiting))

        def apply(name: str) -> TableResult | None:
            self._context.while_waiting()  # an interrupted command leaves the rest to the next run
            table = plan.tables[name]
            started = time.monotonic()
            if table.commits:
                of = f", columns of schema version {table.schema_version}" * table.evolves
                self._report(f"{name}: {_rebuilds(table)}{table.events:,} events{of}")
            result = self._applied(spark.newSession(), name, plan, state)
            self._context.progress(next(done), len(waiting))
            if result is None:
                return None
            result = replace(result, seconds=time.monotonic() - started)
            if table.commits:
                self._report(str(result))
            signals = self._settings.capture.signal_data_collection
            if (doubt := new_doubt(table, result, signals)) is not None:
                self._report(Lines(f"warning: {doubt}"))
            return result

        records = to_read({name: plan.tables[name] for name in waiting})
        with ThreadPoolExecutor(tables_at_once(spark, records)) as executor:
            return [
                result
                for result in executor.map(apply, waiting)
                if result is not None
                and (result.error is not None or plan.tables[result.name].commits)
            ]

    def _applied(
        self, spark: "SparkSession", name: str, plan: RunPlan, state: LogState
    ) -> TableResult | None:
        table = plan.tables[name]
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                with explained(name, self._settings.log.keep):
                    read = partial(self._topics.changes, spark, name, plan, state)
                    rows = self._target.apply(spark, name, plan, read)
            except KeptLostError as error:
                if attempt == _ATTEMPTS_MAX:
                    return TableResult(name, table.events, error=error)
                self._report(f"{name}: {error.what}; reading them again")
                self._topics.forget()
            except self._target.ends_run:
                raise
            except MillraceError as error:
                self._context.while_waiting()
                return TableResult(name, table.events, error=error)
            else:
                if rows is None:
                    return None
                return TableResult(name, table.events, *rows, rebuilt=table.rebuilds)
        raise AssertionError("the last attempt returns")

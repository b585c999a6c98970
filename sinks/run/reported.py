"""A run's plan and outcome → the results for its caller, and for the log.

The log has reports of a current run, its progress, its end, and each moved table.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Final, Self

from cdc.errors import BusyError, ExitCode, MillraceError
from cdc.log.offsets import LogState
from cdc.log.reports import ReportWriter
from cdc.records.reports import RunKind, RunReport, TableReport
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import RunSummary, Standing, TableResult, errors_of

_FAILED_MAX: Final = 50
_WAITS: Final = "its rows are being read again"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run's results: the last plan, the tables' results, and the log that it has read.

    ``tables`` are the wanted ones, as it left them. The ``waiting`` ones didn't reach the cut, and
    ``failed`` ones have an error.
    """

    plan: RunPlan | None
    results: list[TableResult]
    state: LogState
    tables: Mapping[str, TablePlan]
    waiting: Collection[str]
    failed: Mapping[str, str]

    @classmethod
    def of(
        cls,
        plan: RunPlan | None,
        results: list[TableResult],
        state: LogState,
        standing: Mapping[str, TablePlan],
        wanted: Collection[str],
        brought: Collection[str],
        failed: Mapping[str, str],
    ) -> "RunEnd":
        """Create it with the ``wanted`` tables. Those not ``brought`` to the cut wait."""
        tables = {name: table for name, table in standing.items() if name in wanted}
        return cls(plan, results, state, tables, tables.keys() - brought, failed)

    def summary(self, sink: str, seconds: float) -> RunSummary:
        """Return the run for its caller."""
        progress, plan = self.state.progress, self.plan
        is_own = plan is None or plan.written_by == "millrace"
        summary = RunSummary(
            sink,
            0,
            "",
            seconds,
            self.results,
            standing={name: self._standing(name, table) for name, table in self.tables.items()},
            reached=progress.cut if is_own else None,
            reached_ts_us=progress.cut_ts_us,
            last_run=plan.run if plan is not None else 0,
            log=progress.log,
        )
        if plan is None or not self.results:
            return summary
        return replace(summary, run=plan.run, cut=plan.where)

    def _standing(self, name: str, table: TablePlan) -> Standing:
        is_newest = self.plan is not None and table.after == self.plan.cut
        return Standing(
            source=table.source,
            offsets={table.topic: table.start},
            run=table.base,
            cut=table.after,
            cut_ts_us=self.plan.cut_ts_us if self.plan is not None and is_newest else 0,
            shown=bool(table.base),
            error=self.failed.get(name, _WAITS if name in self.waiting else ""),
        )


class ReportedRun:
    """One run of a sink. This context manager reports its beginning, and its end if it has one.

    It begins with its first ``progress``, once it excludes other runs. A run that another one keeps
    out isn't reported, and neither is one that is interrupted before. A run that is interrupted
    later is reported as such. One that had nothing to do isn't listed.
    """

    def __init__(
        self, reports: ReportWriter, sink: str, job: RunKind, next_in_s: float | None = None
    ) -> None:
        self._reports = reports
        self._next_in_s = next_in_s
        self._has_begun = False
        self._report = RunReport(sink=sink, job=job, started_ms=_now_ms())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        failure: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._report.ended_ms is not None:
            return
        match failure:
            case None:
                self._finish(exit_code=ExitCode.OK)
            case BusyError():
                self._leave()
            case MillraceError():
                self._finish(exit_code=failure.exit_code, error=str(failure))
            case Exception():
                self._finish(
                    exit_code=ExitCode.BUG, error=f"internal error: {type(failure).__name__}"
                )
            case _:
                self._interrupt("interrupted")

    def begins(self) -> None:
        """Report that the sink has nothing yet: earlier reports of tables are of a removed one."""
        self._reports.put(self._report, [])

    def progress(self, done: int, tables: int) -> None:
        """Report that this many of the tables are done."""
        self._has_begun = True
        self._report = self._report.model_copy(update={"done": done, "tables": tables})
        self._reports.put(self._report)

    def end(self, done: RunSummary | MillraceError) -> None:
        """Report how it has ended, and the state of its tables."""
        if isinstance(done, BusyError):
            self._leave()
            return
        if isinstance(done, MillraceError) and done.exit_code == ExitCode.INTERRUPTED:
            self._interrupt(str(done))
            return
        if isinstance(done, MillraceError):
            self._finish(exit_code=done.exit_code, error=str(done))
            return
        counts = ("events", "inserted", "updated", "deleted")
        self._finish(
            [
                self._table(done.log, name, standing)
                for name, standing in sorted(done.standing.items())
            ],
            log=done.log,
            run=done.last_run,
            cut=done.reached,
            where=done.cut,
            cut_ts_us=done.reached_ts_us,
            tables=len(done.standing),
            done=len(done.tables),
            failed=_some(errors_of(done.tables)),
            exit_code=done.exit_code,
            kept_out=done.kept_out,
            **{name: sum(getattr(table, name) for table in done.tables) for name in counts},
        )

    def found(
        self,
        failed: dict[str, str],
        exit_code: ExitCode,
        *,
        tables: int,
        done: int,
        rows: int,
        where: str,
    ) -> None:
        """Report the results of a verify at an instant: the tables that aren't right, and why."""
        self._finish(
            failed=_some(failed),
            exit_code=exit_code,
            tables=tables,
            done=done,
            events=rows,
            where=where,
        )

    def _interrupt(self, error: str) -> None:
        if self._has_begun:
            self._finish(exit_code=ExitCode.INTERRUPTED, error=error)
        else:
            self._leave()

    def _leave(self) -> None:
        """Report nothing of a run that hasn't begun. A run in parallel reports itself."""
        self._report = self._report.model_copy(update={"ended_ms": _now_ms()})
        self._reports.leave()

    def _finish(self, moved: list[TableReport] | None = None, **how: object) -> None:
        ended_ms = _now_ms()
        next_in_s = self._next_in_s
        report = self._report.model_copy(
            update={
                "ended_ms": ended_ms,
                "seconds": round((ended_ms - self._report.started_ms) / 1_000, 3),
                "next_due_ms": None if next_in_s is None else ended_ms + int(next_in_s * 1_000),
                **how,
            }
        )
        self._report = report
        self._reports.put(report, moved, listed=report.exit_code != ExitCode.NOTHING_TO_DO)

    def _table(self, log: str, name: str, standing: Standing) -> TableReport:
        return TableReport(
            sink=self._report.sink,
            table=name,
            log=log,
            source=standing.source,
            offsets={topic: dict(offsets) for topic, offsets in standing.offsets.items()},
            made_of=standing.made_of,
            run=standing.run,
            cut=standing.cut,
            cut_ts_us=standing.cut_ts_us,
            shown=standing.shown,
            error=standing.error,
            reported_ms=self._report.started_ms,
        )


def _some(failed: dict[str, str]) -> dict[str, str]:
    """Return the first of many failures, as a record must fit into its topic."""
    shown = dict(islice(failed.items(), _FAILED_MAX))
    if more := len(failed) - len(shown):
        shown["…"] = f"and {more:,} more"
    return shown


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

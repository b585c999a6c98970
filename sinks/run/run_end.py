"""A run's plan and outcome → what its caller, and the log, are told of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdc.log.offsets import LogState
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import RunSummary, Standing, TableResult

_WAITS: Final = "its rows are being read again"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What a run has come to: the last plan, the tables' results, and the log that it has read.

    ``tables`` are those that are wanted, as it left them; of these the ``waiting`` ones didn't come
    to the cut, and ``failed`` ones have an error.
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
        """With the tables that are ``wanted``, of which some were ``brought`` to the cut."""
        tables = {name: table for name, table in standing.items() if name in wanted}
        return cls(plan, results, state, tables, tables.keys() - brought, failed)

    def summary(self, sink: str, seconds: float) -> RunSummary:
        """The run for its caller."""
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

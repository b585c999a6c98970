"""The lakehouse's newest cut → every view at that cut: one bounded run."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle
from typing import Final, get_args

from cdc.errors import (
    BusyError,
    ConfigError,
    ExitCode,
    MillraceError,
    SinkUnreachableError,
    SparkMissingError,
)
from cdc.lines import Lines
from cdc.settings.lakehouse import TableKind
from sinks.delta.cuts import LakehouseCuts
from sinks.log.topics import MillraceTopics
from sinks.run.cut_run import CutRun
from sinks.run.options import RunContext
from sinks.run.owner import one_at_a_time
from sinks.run.plans import lakehouse_plans
from sinks.run.summary import RunSummary, Standing, TableResult, TableVersion
from sinks.views.pinned import PinnedSession
from sinks.views.records import ViewRecords, ViewsAtCut, view_records
from sinks.views.sources import VIEWS, Sources
from sinks.views.target import ViewTarget

VIEWS_AT_ONCE: Final = 2
"""How many views are updated side by side."""
_OF_ALL: Final = (BusyError, SinkUnreachableError, SparkMissingError)
"""Errors that end a run, as they aren't one view's."""
_NOWHERE: Final = Standing(shown=False)


def run_views(context: RunContext, log: MillraceTopics) -> RunSummary:
    """Bring every view to the newest cut that all of its sources have.

    A view that fails affects only the views that read it. Raise MillraceError if none could be
    updated (the lakehouse can't be reached, another run).
    """
    lakehouse = context.settings.require_lakehouse()
    started = time.monotonic()
    with one_at_a_time(lakehouse.path) as kept_out:
        summary = ViewsRun(context, log).once(started)
        return replace(summary, kept_out=kept_out.count())


class ViewsRun:
    """One run of all views."""

    def __init__(self, context: RunContext, log: MillraceTopics) -> None:
        settings = context.settings
        lakehouse, prefix = settings.require_lakehouse(), settings.capture.topic_prefix
        self._context = context
        self._plans = lakehouse_plans(lakehouse.path, context.session)
        self.records: ViewRecords = view_records(lakehouse.path, context.session)
        self._last = self._plans.last()
        self._state = log.state(self._last)
        cuts = LakehouseCuts(
            lakehouse, prefix, self._state, log.state, context.session, get_args(TableKind)
        )
        names = [view.name for view in settings.views]
        self.sources = Sources(cuts, self.records, lakehouse, prefix, names)
        sessions = min(VIEWS_AT_ONCE, len(names))
        self._sessions = [PinnedSession(context.session) for _ in range(sessions)]
        self._reads: dict[str, set[str]] = {}
        self._is_over = threading.Event()
        self._recording = threading.Lock()
        self._results: list[TableResult] = []
        self._standing: dict[str, Standing] = {}
        self.failed: dict[str, MillraceError] = {}

    def once(self, started: float) -> RunSummary:
        """Bring all of them as far as possible."""
        self._context.settings.require_views(self._context.options.rebuilt)
        try:
            self._bring_all([*self.in_order()])
        except MillraceError as error:
            if error.exit_code == ExitCode.INTERRUPTED:  # some are at the cut
                self._record(time.monotonic() - started)
            raise
        seconds = time.monotonic() - started
        self._record(seconds)
        progress, last = self._state.progress, self._last
        is_named = last is not None and bool(self._results)
        return RunSummary(
            "views",
            last.run if last is not None and is_named else 0,
            last.where if last is not None and is_named else "",
            seconds,
            self._results,
            standing=self._standing,
            reached=progress.cut,
            reached_ts_us=progress.cut_ts_us,
            last_run=self._last.run if self._last is not None else 0,
            log=progress.log,
        )

    def _bring_all(self, targets: Sequence[ViewTarget]) -> None:
        """Update some side by side, each in its session, and after the views that it reads."""
        done = {target.name: threading.Event() for target in targets}

        def bring(session: PinnedSession) -> None:
            own = [target for target in targets if target.session is session]
            try:
                for target in own:
                    for name in self._reads[target.name] & done.keys():
                        done[name].wait()
                    if self._is_over.is_set():
                        return
                    self._bring(target)
                    done[target.name].set()
            except BaseException:
                self._is_over.set()
                raise
            finally:
                for target in own:
                    done[target.name].set()  # otherwise dependent views would wait without limit

        with ThreadPoolExecutor(max(1, len(self._sessions))) as executor:
            try:
                for _ in executor.map(bring, self._sessions):
                    pass
            except BaseException:
                self._is_over.set()  # each ends the current view
                for event in done.values():  # also if the other session's thread didn't start
                    event.set()
                raise
        order = {target.name: place for place, target in enumerate(targets)}
        self._results.sort(key=lambda result: order.get(result.name, -1))

    def _targets(self) -> Iterator[ViewTarget]:
        for view, session in zip(self._context.settings.views, cycle(self._sessions), strict=False):
            try:
                yield ViewTarget(self._context, session, self.sources, self.records, view)
            except MillraceError as error:
                self._fail(view.name, error)

    def in_order(self) -> Iterator[ViewTarget]:
        """Yield views after their sources. Those in a circle fail."""
        reads = self._reads
        targets: dict[str, ViewTarget] = {}
        for target in self._targets():
            try:
                reads[target.name] = {
                    name.removeprefix(VIEWS)
                    for name in target.tables(None)
                    if name.startswith(VIEWS)
                }
                targets[target.name] = target
            except _OF_ALL:
                raise
            except MillraceError as error:
                self._fail(target.name, error)
        done: set[str] = {*self.failed}
        for name in [*targets]:
            if left := sorted(reads[name] - targets.keys() - done):
                self._fail(name, _left(targets.pop(name), left))
                done.add(name)
        while targets:
            ready = [name for name in targets if reads[name] <= done]
            if not ready:
                for name, target in targets.items():
                    self._fail(name, _circle(target, targets, reads))
                return
            for name in ready:
                yield targets.pop(name)
                done.add(name)

    def _bring(self, target: ViewTarget) -> None:
        self._context.while_waiting()
        name, started = target.name, time.monotonic()
        if (paused := self._context.options.paused.get(name)) is not None:
            self._fail(name, paused, target.standing(), is_new=False)
            return
        try:
            rebuilt = name in self._context.options.rebuilt
            changed = CutRun(self.sources, target, self._context.while_waiting).once(
                rebuilt=rebuilt
            )
        except _OF_ALL:
            raise
        except MillraceError as error:
            self._context.while_waiting()
            self._fail(name, error, target.standing())
            return
        at, version = target.record.at, target.record.version
        if at is not None and version is not None:
            left = self._as_compacted(name, version)
            self.sources.bring(at.run, name, left, before=version)
            if any(name in reads for reads in self._reads.values()):
                self._record_read(at.run, name, left)
        self._standing[name] = target.standing()
        if changed:
            self._results.append(target.result(time.monotonic() - started))
            self._context.report(str(self._results[-1]))

    def _as_compacted(self, name: str, version: TableVersion) -> TableVersion:
        """Return the version, or the one that compaction has left since."""
        left = self._plans.compacted().get(f"{VIEWS}{name}")
        return version if left is None else left.since(version)

    def _fail(
        self,
        name: str,
        error: MillraceError,
        standing: Standing = _NOWHERE,
        *,
        is_new: bool = True,
    ) -> None:
        self.failed[name] = error
        self._results.append(TableResult(name, error=error))
        self._standing[name] = standing._replace(error=str(error))
        if is_new:
            self._context.report(str(self._results[-1]))

    def _record_read(self, run: int, name: str, version: TableVersion) -> None:
        """Record at once the state of a view that others read, as their records name its version.

        If this run dies before its end, the next one continues from there.
        """
        with self._recording:
            there = self.records.at_cut(run) or ViewsAtCut(run=run, ts_ms=_now_ms())
            if there.versions.get(name) != version:
                versions = {**there.versions, name: version}
                self.records.finish(there.model_copy(update={"versions": versions}))

    def _record(self, seconds: float) -> None:
        """Record the views' versions at the cuts that they were brought to."""
        results = {result.name: result for result in self._results if result.error is None}
        runs = {*self.sources.brought}
        if self.failed and self._last is not None:
            runs.add(self._last.run)
        for run in sorted(runs):
            versions = self.sources.brought.get(run, {})
            before = self.records.at_cut(run)
            there = before.versions if before is not None else {}
            own = {name.removeprefix(VIEWS): version for name, version in versions.items()}
            is_same = before is not None and there | own == there
            if is_same and not results and not self.failed:
                continue
            if (damage := self.records.damage(run)) is not None:
                self._context.report(Lines(f"recording views at run {run} again: {damage}"))
            self.records.finish(
                ViewsAtCut(
                    run=run,
                    ts_ms=_now_ms(),
                    seconds=seconds,
                    versions=there | own,
                    failed={name: str(error) for name, error in self.failed.items()},
                    tables={name: result.counts() for name, result in results.items()},
                )
            )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _left(target: ViewTarget, views: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"it reads {', '.join(VIEWS + name for name in views)}, which is no longer a view",
        where=target.where,
        remedy="define that view again, or let the query read tables",
    )


def _circle(
    target: ViewTarget, targets: Mapping[str, ViewTarget], reads: Mapping[str, set[str]]
) -> ConfigError:
    path: list[str] = [target.name]
    while (following := _next(path[-1], targets, reads)) not in path:
        path.append(following)
    circle: Sequence[str] = [*path[path.index(following) :], following]
    return ConfigError(
        f"views read each other in a circle: {' → '.join(circle)}",
        where=target.where,
        remedy="let one of them read tables",
    )


def _next(name: str, targets: Mapping[str, ViewTarget], reads: Mapping[str, set[str]]) -> str:
    return min(reads[name] & targets.keys())

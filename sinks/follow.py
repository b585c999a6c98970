"""Runs, one after the other → derived tables that are seconds behind, until ``stop`` is set.

Each run is the same as cron's, with one Spark session for all of them. After a run with changes,
the next one follows. After one without, the progress topic has news: every transaction of the
daemon ends with a record in it. A real Debezium has no such topic, so its topics are checked every
time. docs/decisions/0015-follow.md.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Final, NamedTuple

from cdc.errors import (
    ExitCode,
    LogMissingError,
    MillraceError,
    SparkEndedError,
    SparkTerminatedError,
)
from cdc.lines import Lines
from cdc.log.state import News
from cdc.settings import Settings
from sinks.job import Jobs
from sinks.run.options import PausedTables, Report
from sinks.run.summary import RunSummary, TableResult

IDLE_MAX_S: Final = 60.0
"""A run at least this often records that a table has nothing to do, and so isn't late."""
REPEAT_S: Final = 3600.0
"""Lasting conditions are reported again this often, as users don't read a whole journal."""
_PAUSE_MAX_S: Final = 60.0


def follow(
    jobs: Jobs, settings: Settings, stop: Event, interval_s: float, report: Report
) -> ExitCode:
    """Run until ``stop`` is set. Runs begin at least ``interval_s`` apart.

    Spark starts at once, even if there is nothing to do yet.

    Errors are reported, and failed tables are retried at growing intervals. If Spark's JVM has
    ended, this ends as well, so that a supervisor can restart it. It waits for a missing log, as
    the daemon may start later.
    """
    with suppress(MillraceError):  # the first run reports it
        jobs.session()
    new_lines = _NewLines(report)
    failing: defaultdict[str, _FailingTables] = defaultdict(_FailingTables)
    failures = 0
    news = News(settings.kafka, settings.capture.topic_prefix)
    while not stop.is_set():
        began = time.monotonic()
        paused = {name: tables.paused() for name, tables in failing.items()}
        done = []
        for name, turn in jobs.turns(new_lines, paused, interval_s):
            done.append(turn)
            left = paused.get(name, {})
            _report(new_lines, name, turn, left)
            if isinstance(turn, RunSummary):
                failing[name].record(turn.tables, left)
        ended = [turn for turn in done if isinstance(turn, SparkEndedError)]
        if ended:
            # A supervisor that signals all processes of a service has also signalled the JVM.
            is_stopped = stop.is_set() and isinstance(ended[0], SparkTerminatedError)
            return ExitCode.OK if is_stopped else ended[0].exit_code
        new_lines.begin_turn()
        tables = [t for turn in done if isinstance(turn, RunSummary) for t in turn.tables]
        errors = [turn for turn in done if isinstance(turn, MillraceError)]
        failed = any(not isinstance(error, LogMissingError) for error in errors)
        failures = failures + 1 if failed else 0
        if failed:
            stop.wait(_pause_s(failures))
            continue
        stop.wait(began + interval_s - time.monotonic())
        if all(table.error is not None for table in tables):
            retries = [tables.retry_in_s() for tables in failing.values()]
            news.wait(stop, min([IDLE_MAX_S, *retries]), interval_s)
    return ExitCode.OK


class _TableFailure(NamedTuple):
    error: MillraceError
    times: int
    retry_at: float


class _FailingTables:
    """A sink's failed tables. Each pauses for some time, and so doesn't hold up others."""

    def __init__(self) -> None:
        self._tables: dict[str, _TableFailure] = {}

    def paused(self) -> PausedTables:
        """Return the tables whose retry isn't due yet."""
        now = time.monotonic()
        return {
            name: failure.error for name, failure in self._tables.items() if failure.retry_at > now
        }

    def record(self, tables: Sequence[TableResult], paused: PausedTables) -> None:
        """Record a run's results for the tables that weren't paused.

        A table without a result has nothing to do, and hasn't failed.
        """
        reported = paused.keys() | {table.name for table in tables}
        self._tables = {name: failure for name, failure in self._tables.items() if name in reported}
        for table in tables:
            if table.name in paused:
                continue
            if table.error is None:
                self._tables.pop(table.name, None)
                continue
            last = self._tables.get(table.name)
            times = last.times + 1 if last is not None else 1
            retry_at = time.monotonic() + _pause_s(times)
            self._tables[table.name] = _TableFailure(table.error, times, retry_at)

    def retry_in_s(self) -> float:
        """Return the seconds until the next retry."""
        now = time.monotonic()
        waits = (max(0.0, failure.retry_at - now) for failure in self._tables.values())
        return min(waits, default=IDLE_MAX_S)


class _NewLines:
    """A report that leaves out the lines of the turn before, for an hour."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._before: dict[str, float] = {}  # when each was reported
        self._now: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        reported = self._before.get(line)
        if reported is None or now - reported >= REPEAT_S:
            self._report(line)
            reported = now
        self._now[line] = reported

    def begin_turn(self) -> None:
        """Begin the next turn."""
        self._before, self._now = self._now, {}


def _report(
    report: _NewLines, name: str, turn: RunSummary | MillraceError, paused: PausedTables
) -> None:
    """Report one line for a sink that has done something, or failed."""
    if not isinstance(turn, RunSummary):
        report(Lines(f"{name}: {turn}"))
    elif any(table.name not in paused for table in turn.tables):
        report(turn.line())


def _pause_s(times: int) -> float:
    return min(2.0**times, _PAUSE_MAX_S)

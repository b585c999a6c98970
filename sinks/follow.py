"""Runs, one after the other → derived tables that are seconds behind, until told to stop.

Each run is what cron would start, with one Spark session for all of them. A run that had something
to do is followed by the next one; after one that hadn't, Kafka tells when there is news: every
transaction of the daemon's ends with a record in the progress topic. Topics of a real Debezium have
none, and are looked at every time. docs/decisions/0015-follow.md.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Final, NamedTuple

from cdc.errors import ExitCode, MillraceError, SparkEndedError
from cdc.log.state import News
from cdc.settings import Settings
from sinks.job import Jobs
from sinks.run.options import PausedTables, Report
from sinks.run.summary import RunSummary, TableResult

IDLE_MAX_S: Final = 60.0
"""A run at least as often writes down that a table has nothing to do, and so isn't late."""
_PAUSE_MAX_S: Final = 60.0


def follow(
    jobs: Jobs, settings: Settings, stop: Event, interval_s: float, report: Report
) -> ExitCode:
    """Run until told to ``stop``; runs begin at least ``interval_s`` apart.

    Spark is started at once, also where nothing is to be done yet.

    Errors are reported, and what failed is tried again, later and later. Only where Spark's JVM has
    ended, it ends as well, for whoever started it to do so again.
    """
    with suppress(MillraceError):  # which the first run tells
        jobs.session()
    told, broken = _Told(report), _Broken()
    failures = 0
    news = News(settings.kafka, settings.capture.topic_prefix)
    while not stop.is_set():
        began = time.monotonic()
        paused = broken.paused()
        done = []
        for name, turn in jobs.turns(told, paused):
            done.append(turn)
            _report(told, name, turn, paused)
        if any(isinstance(turn, SparkEndedError) for turn in done):
            return ExitCode.SINK_UNREACHABLE
        told.begin()
        tables = [t for turn in done if isinstance(turn, RunSummary) for t in turn.tables]
        failed = any(isinstance(turn, MillraceError) for turn in done)
        broken.learn(tables, paused, whole=not failed)
        failures = failures + 1 if failed else 0
        if failed:
            stop.wait(_pause_s(failures))
            continue
        stop.wait(began + interval_s - time.monotonic())
        if all(table.error is not None for table in tables):
            news.wait(stop, min(IDLE_MAX_S, broken.again_s()), interval_s)
    return ExitCode.OK


class _Failed(NamedTuple):
    error: MillraceError
    times: int
    again: float


class _Broken:
    """Tables that have failed: each is left alone for a while, not to hold up others."""

    def __init__(self) -> None:
        self._tables: dict[str, _Failed] = {}

    def paused(self) -> PausedTables:
        """Those whose time hasn't come."""
        now = time.monotonic()
        return {name: one.error for name, one in self._tables.items() if one.again > now}

    def learn(self, tables: Sequence[TableResult], paused: PausedTables, *, whole: bool) -> None:
        """Take note of what a run did to the tables that weren't held.

        One that a ``whole`` run doesn't speak of has nothing to do, and so isn't broken.
        """
        if whole:
            spoken_of = paused.keys() | {table.name for table in tables}
            self._tables = {name: one for name, one in self._tables.items() if name in spoken_of}
        for table in tables:
            if table.name in paused:
                continue
            if table.error is None:
                self._tables.pop(table.name, None)
                continue
            last = self._tables.get(table.name)
            times = last.times + 1 if last is not None else 1
            again = time.monotonic() + _pause_s(times)
            self._tables[table.name] = _Failed(table.error, times, again)

    def again_s(self) -> float:
        """Seconds until the next one is tried."""
        now = time.monotonic()
        return min((max(0.0, one.again - now) for one in self._tables.values()), default=IDLE_MAX_S)


class _Told:
    """A report that leaves out what it has told in the turn before, too."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._before: set[str] = set()
        self._now: set[str] = set()

    def __call__(self, line: str) -> None:
        self._now.add(line)
        if line not in self._before:
            self._report(line)

    def begin(self) -> None:
        """Begin the next turn."""
        self._before, self._now = self._now, set()


def _report(told: _Told, name: str, turn: RunSummary | MillraceError, paused: PausedTables) -> None:
    """One line for a sink that has done something, or couldn't."""
    if not isinstance(turn, RunSummary):
        told(f"{name}: {turn}")
    elif any(table.name not in paused for table in turn.tables):
        told(turn.line())
    elif turn.note:
        told(f"{name}: {turn.note}")


def _pause_s(times: int) -> float:
    return min(2.0**times, _PAUSE_MAX_S)

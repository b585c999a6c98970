"""The log's progress, reports and last records → each part's lag, or why it is unknown.

*Capture lag* is the age of the newest proof, a heartbeat or a change of the source, that the log
has everything up to then. *Sink lag* is what a derived table lacks of the log: from its cut to the
newest change there. Their sum is the lag behind the source, and unknown if one of them is.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

from cdc.log.offsets import Offsets
from cdc.log.reports import Reports
from cdc.log.tails import LastRecord, PartitionKey
from cdc.records.reports import RunReport, TableReport
from cdc.records.state import Phase, Progress
from deploy.status.tables import seconds_text

PROOF_S: Final = 15.0
"""A proof is too old after this time, or after two heartbeats, whichever is longer."""
SKEW_S_MAX: Final = 2.0
"""A larger difference between clocks makes every lag wrong."""
_HEARTBEATS: Final = "set heartbeat.source.interval.ms = 10000 in [capture], and restart the daemon"
_SILENT: Final = (
    "check that millrace run is running; if it is, its log and millrace check show what stops it"
    " from reading the source or writing to Kafka"
)
LEAST_S: Final = 0.001
"""Minimum lag of a table that lacks changes, even if clocks or a late retry show none."""


class Lag(BaseModel):
    """Seconds, or why they are unknown; never both."""

    model_config = ConfigDict(frozen=True)

    seconds: float | None = None
    unknown: str = ""
    remedy: str = ""
    """The remedy for an unknown lag. Empty: the sink's next run."""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"unknown, because {self.unknown}"
        return seconds_text(self.seconds)

    def __add__(self, other: "Lag") -> "Lag":
        if self.seconds is None:
            return self
        if other.seconds is None:
            return other
        return Lag(seconds=self.seconds + other.seconds)


NOTHING: Final = Lag(seconds=0.0)


def worst(lags: Iterable[Lag]) -> Lag:
    """Return the largest; unknown if one is."""
    known = NOTHING
    for lag in lags:
        if lag.seconds is None:
            return lag
        known = max(known, lag, key=lambda each: each.seconds or 0.0)
    return known


def capture_lag(
    progress: Progress | None, heartbeat_s: float, *, streams: bool, waiting_bytes: int | None
) -> Lag:
    """Return the possible age of the oldest change that the log lacks.

    ``heartbeat_s`` is how often the daemon writes one (0: never). ``streams``: whether the slot is
    being read. ``waiting_bytes``: how much of its WAL isn't acknowledged (None: unknown).
    """
    if progress is None:
        return Lag(unknown="no daemon has begun the log", remedy="millrace run")
    if progress.phase is not Phase.STREAMING:
        watched = "keep the daemon running, and watch the snapshot: millrace status --watch"
        return Lag(unknown="the first snapshot isn't complete", remedy=watched)
    if heartbeat_s:
        return _proof_age(progress.cut_ts_us, max(PROOF_S, 2 * heartbeat_s))
    if waiting_bytes == 0 and streams:
        return NOTHING  # the server itself reports that everything was read
    if waiting_bytes is None:
        why = "the source doesn't answer"
    else:
        why = "WAL waits to be read" if streams else "no daemon reads the slot"
    return Lag(unknown=f"there are no heartbeats, and {why}", remedy=_HEARTBEATS)


def _proof_age(ts_us: int, age_max_s: float) -> Lag:
    """Return the age of the newest proof, unless it is too old, or from the future."""
    age_s = time.time() - ts_us / 1e6 if ts_us else math.inf
    if age_s < -SKEW_S_MAX:
        ahead = f"the source's clock is {seconds_text(-age_s)} ahead of this machine's"
        return Lag(unknown=ahead, remedy="set both machines' clocks by the same NTP server")
    if age_s <= age_max_s:
        return Lag(seconds=max(LEAST_S, age_s))
    since = "ever" if math.isinf(age_s) else f"for {seconds_text(age_s)}"
    return Lag(unknown=f"no change or heartbeat has come from the source {since}", remedy=_SILENT)


def missing_from(reports: Reports) -> Offsets:
    """Return the first offset of each partition that some derived table lacks."""
    starts: Offsets = {}
    for report in reports.tables.values():
        for topic, numbers in report.offsets.items():
            first = starts.setdefault(topic, {})
            for number, offset in numbers.items():
                first[number] = min(offset, first.get(number, offset))
    return starts


class SinkLags:
    """The changes in the log that derived tables lack, by each partition's last record."""

    def __init__(self, reports: Reports, last: Mapping[PartitionKey, LastRecord]) -> None:
        self._reports = reports
        self._last = last

    def of(self, table: TableReport) -> Lag:
        """Return a derived table's lag."""
        if not table.shown:
            return Lag(unknown=f"{table.table} isn't loaded yet")
        if why := self._unknown(table):
            return Lag(unknown=why)
        newest_us = self.newest_missing_us(table)
        if newest_us is None:
            return Lag(unknown=f"no run has reported which tables {table.table} is made of")
        if newest_us == 0:
            return NOTHING
        committed_us = max(table.cut_ts_us, self._reached_us(table))
        if committed_us == 0:
            return Lag(unknown=f"no run has reported when the cut of {table.table} was committed")
        return Lag(seconds=max(LEAST_S, (newest_us - committed_us) / 1e6))

    def newest_missing_us(self, table: TableReport) -> int | None:
        """Return when the newest missing change was committed (µs since 1970; 0: none is missing).

        None: unknown.
        """
        if self._unknown(table):
            return None
        newest_us = self._newest_us(table)
        for source in self._reports.sources(table).values():
            if source is None:
                return None
            newer_us = source.cut_ts_us if _is_newer(source, table) else 0
            newest_us = max(newest_us, newer_us, self._newest_us(source))
        return newest_us

    def _newest_us(self, table: TableReport) -> int:
        missing = (last.ts_us for _, offset, last in self._last_of(table) if last.offset >= offset)
        return max((max(ts_us, 1) for ts_us in missing), default=0)

    def _unknown(self, table: TableReport) -> str:
        """Return why the missing changes are unknown. Empty: they are known."""
        sources = [each for each in self._reports.sources(table).values() if each is not None]
        reasons = [
            f"topic {topic}: {why}"
            for each in (*sources, table)
            for topic, offset, last in self._last_of(each)
            if (why := last.lacks(offset))
        ]
        reasons += [
            f"no run has reported when the cut of {source.table} was committed"
            for source in sources
            if _is_newer(source, table) and not source.cut_ts_us
        ]
        return next(filter(None, reasons), "")

    def _last_of(self, table: TableReport) -> Iterator[tuple[str, int, LastRecord]]:
        """Yield each partition's topic, first missing offset, and last record."""
        for topic, offsets in table.offsets.items():
            for number, offset in offsets.items():
                if (last := self._last.get((topic, number))) is not None:
                    yield topic, offset, last

    def _reached_us(self, table: TableReport) -> int:
        run = self._reports.ended.get((table.sink, "merge"))
        return run.cut_ts_us if run is not None and has_reached(run, table) else 0


def _is_newer(source: TableReport, table: TableReport) -> bool:
    """Whether a derived table is at a cut that a table made of it lacks."""
    return source.cut is not None and (table.cut is None or source.cut > table.cut)


def has_reached(run: RunReport, table: TableReport) -> bool:
    """Whether a sink's run has brought the table to its cut, even without changes for it."""
    return not (table.error or table.made_of) and run.exit_code in {0, 3, 34}

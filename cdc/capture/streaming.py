"""Bytes of the stream → records in the log → acknowledgement: the loop that runs for months.

In: a started replication stream, and the log's progress. Out: Kafka transactions of data records,
new schema versions and the progress reached; PostgreSQL gets the acknowledgement afterwards. Rules:
docs/decisions/0001 (positions) and 0002 (what is acknowledged when).

While a commit waits for the brokers, the loop reads the stream and hands the records to the other
writer. So batches grow with the backlog, and a single change waits for no other.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing

from cdc.capture.servers import Servers
from cdc.events.metadata import heartbeat
from cdc.faults import FaultPoint, reach
from cdc.kafka.commits import IDLE_WAIT_S, AlternatingWriters
from cdc.postgres.connection import act
from cdc.records.position import Lsn, Position
from cdc.records.record import count
from cdc.records.record import size as record_size
from cdc.records.state import Progress, progress_record
from cdc.settings import CaptureSettings
from cdc.stream.encoding import Actions
from cdc.stream.in_progress import InProgress, spill_directory
from cdc.stream.resumed import Resumed
from cdc.stream.signals import ReadNow, Signals
from cdc.stream.translation import Limits, Translation
from cdc.tables.tables import Tables

COMMIT_PACE_S = 0.005
"""Time from one begin of a commit to the next. Brokers write a transaction's markers after its
commit, and a transaction that the same writer begins during that waits four times as long as this.
"""
COMMIT_AGE_S_MAX = 0.25
"""Maximum age of an open Kafka transaction, as it holds up readers of its partitions."""
TRANSLATE_RECORDS_MAX = 250
"""Maximum records per write. This many are still in the processor's cache."""
IDLE_PROGRESS_S = 3.0
"""How often to record a position that only keepalives have moved."""
BUSY_WAIT_S = 0.01
"""How long a busy stream may be silent before it counts as calm."""


class Streaming:
    """One stay on the slot: from START_REPLICATION until a stop or a fault."""

    def __init__(
        self,
        settings: CaptureSettings,
        servers: Servers,
        tables: Tables,
        actions: Actions,
        progress: Progress,
        *,
        on_commit: Callable[[Progress], None],
        signals: Signals,
        read_now: ReadNow,
    ) -> None:
        """``read_now`` reads tables at a signal's request, while streaming pauses."""
        self._settings = settings
        self._servers = servers
        self._stream = stream = servers.lease.stream()
        self._writers = AlternatingWriters(*servers.writers)
        self._perform = actions.perform
        self._progress = progress
        self._on_commit = on_commit
        self._states = tables.states
        self._pipeline = tables.encoders.pipeline
        self._heartbeat_s = settings.heartbeat_interval_ms / 1_000
        self._next_heartbeat = time.monotonic() + self._heartbeat_s
        self._signals = signals
        self._read_now = read_now
        self._in_progress = InProgress(
            spill_directory(settings.spill_directory), settings.spill_memory_bytes
        )
        self._resumed_at = progress.position.commit_lsn
        self._translation = Translation(
            tables,
            progress,
            actions,
            stream.heard,
            in_progress=self._in_progress,
            signals=signals,
            resumed=Resumed(
                progress.last_commit_lsn, progress.position, progress.cut, servers.lease.begin
            ),
        )
        self._may_acknowledge = False
        """Whether the stream is known to match the log: Resumed has nothing left to check."""
        self._committing = progress
        """The progress in the commit that was begun last."""
        self._events = progress.events
        self._next_commit = 0.0
        self._last_recorded = time.monotonic()

    def run(self, stop: threading.Event, until: Callable[[Position], bool]) -> None:
        """Stream until stopped, or until the cut satisfies ``until``. Commit all of it."""
        with self._writers, closing(self._in_progress):
            while not (stop.is_set() or until(self._translation.cursor.cut)):
                if min(self._room()) <= 0:
                    self._writers.wait()
                elif not self._translate():
                    if self._stream.read(self._patience_s(), self._writers.wake):
                        reach(FaultPoint.RECEIVED)
                    self._translate()
                self._beat()
                self._act_on_signals()
                self._advance()
                self._servers.lease.keep_alive()
            self._finish()

    def _translate(self) -> bool:
        """Translate received bytes to records. Return whether there were any bytes."""
        wire = self._stream.wire
        start = wire.start
        room = self._room()
        limits = Limits(min(room.records_max, TRANSLATE_RECORDS_MAX), room.bytes_max)
        used = self._translation.feed(wire.buffer, start, wire.end, limits)
        if not self._may_acknowledge and self._translation.is_settled:
            self._may_acknowledge = True
            self._stream.send_status(self._progress.flush_lsn, self._progress.flush_lsn)
        self._stream.used(used, self._translation.received)
        self._stream.shorten(self._translation.messages.shortened)
        made = self._translation.take()
        self._writers.current.add(*made)
        self._events += made.events
        if made.records:
            reach(FaultPoint.TRANSLATED)
        return used > start or self._translation.is_behind

    def _beat(self) -> None:
        """If a heartbeat is due (heartbeat.interval.ms), write it and run the user's query."""
        if not self._heartbeat_s or time.monotonic() < self._next_heartbeat:
            return
        self._next_heartbeat = time.monotonic() + self._heartbeat_s
        made = heartbeat(self._settings.topic_prefix, self._settings.heartbeat_topic)
        beat = self._pipeline.of_stream([made], self._translation.cursor.reached)
        self._writers.current.add(beat)
        if (statement := self._settings.heartbeat_action_query) is not None:
            act(self._servers.sql, statement)

    def _act_on_signals(self) -> None:
        """Process signals, and read tables if one asks for that before streaming continues."""
        output = self._signals.turn(self._translation.cursor)
        self._perform(output.effects)
        events = count(output.events)
        size = record_size(output.events)
        self._writers.current.add([*output.states, *output.events], events, size)
        self._events += events
        if self._signals.awaits_stream:
            self._stream.ask()
        if blocking := self._signals.blocking:
            self._finish()
            latest = self._translation.cursor.latest
            self._events += self._read_now(blocking, latest.xid if latest else None)
            self._writers.current.add(self._signals.blocking_done(list(blocking)))

    def _room(self) -> Limits:
        """Return the room in the batch. Records made during a commit belong to the next batch."""
        return Limits(
            self._settings.max_batch_size - self._writers.current.pending_records,
            self._settings.max_batch_size_in_bytes - self._writers.current.pending_bytes,
        )

    def _advance(self) -> None:
        """Write, commit and acknowledge as far as possible without waiting."""
        if self._writers.is_committing and self._writers.has_committed():
            self._acknowledge()
        if self._writers.write() and self._writers.is_committing:
            reach(FaultPoint.NEXT_WRITTEN)
        if not self._writers.is_committing and self._is_due(time.monotonic()):
            self._begin_commit()

    @property
    def _is_busy(self) -> bool:
        """Whether more changes wait, so that small batches cost too much."""
        return self._stream.is_busy or self._translation.is_behind

    def _patience_s(self) -> float:
        """How long a read may wait: until the next action is due."""
        if self._writers.is_committing:
            return IDLE_WAIT_S  # the end of the commit wakes us
        if self._writers.current.pending_records:
            calm_s = self._next_commit - time.monotonic()
            return BUSY_WAIT_S if self._is_busy else max(0.0, calm_s)
        return IDLE_WAIT_S

    def _is_due(self, now: float) -> bool:
        writer = self._writers.current
        if writer.pending_records:
            return (
                writer.transaction_age_s >= COMMIT_AGE_S_MAX
                or min(self._room()) <= 0
                or (not self._is_busy and now >= self._next_commit)
            )
        return self._has_moved and now - self._last_recorded >= IDLE_PROGRESS_S

    def _begin_commit(self) -> None:
        """Commit the written records together with the position reached."""
        cursor = self._translation.cursor
        self._committing = self._progress.model_copy(
            update={
                "position": cursor.reached,
                "cut": cursor.cut,
                "cut_ts_us": cursor.cut_ts_us,
                "flush_lsn": cursor.flush_lsn,
                "last_commit_lsn": self._last_commit(),
                "events": self._events,
                "signal_offsets": {
                    **self._progress.signal_offsets,
                    self._settings.signal_topic: self._signals.offset,
                },
                "checked": self._states.checked,
                "watched_ms": self._states.watched_ms,
                "ts_ms": time.time_ns() // 1_000_000,
            }
        )
        self._last_recorded = time.monotonic()
        self._next_commit = self._last_recorded + COMMIT_PACE_S
        self._writers.current.write(
            [progress_record(self._settings.topic_prefix, self._committing)]
        )
        reach(FaultPoint.BATCH_WRITTEN)
        self._writers.begin_commit()

    def _last_commit(self) -> Lsn:
        """Return the last commit.

        A log that lacks it knows it again after its first new transaction.
        """
        recorded, streamed = self._progress.last_commit_lsn, self._translation.cursor.last_commit
        if not recorded and streamed < self._resumed_at:
            return recorded
        return max(streamed, recorded)

    def _acknowledge(self) -> None:
        """Acknowledge the commit, so that PostgreSQL can remove its WAL."""
        self._progress = progress = self._committing
        reach(FaultPoint.BATCH_COMMITTED)
        if self._may_acknowledge:
            self._stream.send_status(progress.flush_lsn, progress.flush_lsn)
        reach(FaultPoint.ACKNOWLEDGED)
        self._on_commit(progress)

    def _finish(self) -> None:
        """Commit and acknowledge everything that was read."""
        while True:
            if self._writers.is_committing:
                self._writers.end_commit()
                self._acknowledge()
            self._writers.write()
            if not (self._has_moved or self._writers.current.pending_records):
                return
            self._begin_commit()

    @property
    def _has_moved(self) -> bool:
        """Whether the stream or the signals are ahead of the log's progress record."""
        cursor, progress = self._translation.cursor, self._progress
        return (
            cursor.reached != progress.position
            or cursor.flush_lsn != progress.flush_lsn
            or self._signals.offset != progress.signal_offset(self._settings.signal_topic)
        )

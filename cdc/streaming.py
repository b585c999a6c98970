"""Frames → records in the log → acknowledgement: the loop that runs for months.

In: a started replication stream, and the progress that the log has. Out: Kafka transactions of
data records, new schema versions and the progress reached; PostgreSQL is told afterwards.
Rules: docs/decisions/0001 (positions) and 0002 (what is acknowledged when).
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from cdc.errors import CorruptMessageError
from cdc.events import TableEncoder
from cdc.faults import FaultPoint, reach
from cdc.kafka.producer import LogWriter
from cdc.postgres.stream import ReplicationStream
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.state import Progress, progress_record
from cdc.settings import CaptureSettings
from cdc.tables import Tables
from cdc.transactions import Cursor
from cdc.wal import messages
from cdc.wal.decoder import decode
from cdc.wal.frames import PrimaryKeepalive, XLogData

COMMIT_QUIET_MS = 10
"""A batch waits this long for more, as long as more keeps coming."""
COMMIT_AGE_MS_MAX = 250
"""An open Kafka transaction holds up readers of its partitions, so it never lasts longer."""
FRAMES_BUSY = 500
"""A read that brings this many frames says that there is a backlog: batches may grow."""
IDLE_PROGRESS_S = 3.0
"""How often a position that only keepalives moved is recorded."""


class Streaming:
    """One stay on the slot: from START_REPLICATION until stopped or broken."""

    def __init__(
        self,
        settings: CaptureSettings,
        stream: ReplicationStream,
        writer: LogWriter,
        tables: Tables,
        progress: Progress,
        *,
        on_commit: Callable[[Progress], None],
    ) -> None:
        self._settings = settings
        self._stream = stream
        self._writer = writer
        self._tables = tables
        self._progress = progress
        self._on_commit = on_commit
        self._cursor = Cursor(progress.position, progress.cut, progress.flush_lsn)
        self._cut_ts_us = progress.cut_ts_us
        self._events = progress.events
        self._relations: dict[int, messages.Relation] = {}
        self._encoders: dict[int, TableEncoder | None] = {}
        self._active: dict[int, TableEncoder | None] = {}
        self._last_recorded = time.monotonic()
        self._handlers: dict[type, Callable[[Any, XLogData], None]] = {
            messages.Begin: self._begin,
            messages.Commit: self._commit,
            messages.Relation: self._relation,
            messages.Insert: self._insert,
            messages.Update: self._update,
            messages.Delete: self._delete,
            messages.Truncate: self._truncate,
            messages.LogicalMessage: self._logical_message,
            messages.Type: _ignore,
            messages.Origin: _ignore,
        }

    def run(self, stop: threading.Event) -> None:
        """Stream until stopped; what was read by then is committed and acknowledged."""
        self._stream.send_status(self._progress.flush_lsn, self._progress.flush_lsn)
        while not stop.is_set():
            frames = self._stream.read(self._patience_s())
            for frame in frames:
                if isinstance(frame, PrimaryKeepalive):
                    self._cursor.idle_at(frame.wal_end)
                else:
                    self._message(frame)
                    if self._full():
                        self._record()
            if self._due(len(frames)):
                self._record()
            self._stream.keep_alive()
        self._record()

    def _patience_s(self) -> float:
        return 0.002 if self._writer.pending_records else 0.2

    def _full(self) -> bool:
        return (
            self._writer.pending_records >= self._settings.max_batch_size
            or self._writer.pending_bytes >= self._settings.max_batch_size_in_bytes
        )

    def _due(self, frames: int) -> bool:
        if self._writer.pending_records:
            age_ms = self._writer.transaction_age_s * 1_000
            quiet = frames == 0 or (frames < FRAMES_BUSY and age_ms >= COMMIT_QUIET_MS)
            return quiet or age_ms >= COMMIT_AGE_MS_MAX
        moved = self._cursor.reached > self._progress.position or (
            self._cursor.flush_lsn > self._progress.flush_lsn
        )
        return moved and time.monotonic() - self._last_recorded >= IDLE_PROGRESS_S

    def _record(self) -> None:
        """Commit what was written together with the position reached, then acknowledge it."""
        cursor = self._cursor
        progress = self._progress.model_copy(
            update={
                "position": cursor.reached,
                "cut": cursor.cut,
                "cut_ts_us": self._cut_ts_us,
                "flush_lsn": cursor.flush_lsn,
                "events": self._events,
                "ts_ms": time.time_ns() // 1_000_000,
            }
        )
        self._last_recorded = time.monotonic()
        if progress.position == self._progress.position and (
            progress.flush_lsn == self._progress.flush_lsn
        ):
            return
        self._writer.write([progress_record(self._tables.prefix, progress)])
        reach(FaultPoint.BATCH_WRITTEN)
        self._writer.commit()
        reach(FaultPoint.BATCH_COMMITTED)
        self._progress = progress
        self._stream.send_status(cursor.flush_lsn, cursor.flush_lsn)
        self._on_commit(progress)

    def _message(self, frame: XLogData) -> None:
        message = decode(frame.payload)
        handler = self._handlers.get(type(message))
        if handler is None:
            raise CorruptMessageError(
                f"an unexpected {type(message).__name__} message", where=f"LSN {frame.start}"
            )
        handler(message, frame)

    def _begin(self, message: messages.Begin, _frame: XLogData) -> None:
        self._cursor.begin(message.xid, message.final_lsn, message.commit_ts_us)
        self._active.clear()

    def _commit(self, message: messages.Commit, _frame: XLogData) -> None:
        transaction = self._cursor.commit(message.commit_lsn, message.end_lsn)
        self._cut_ts_us = transaction.commit_ts_us

    def _relation(self, message: messages.Relation, _frame: XLogData) -> None:
        self._relations[message.oid] = message
        self._encoders.pop(message.oid, None)
        self._active.pop(message.oid, None)

    def _insert(self, message: messages.Insert, frame: XLogData) -> None:
        position = self._cursor.next()
        if position is not None and (encoder := self._encoder(message.relation_oid, position)):
            self._write(encoder.insert(message.new, frame.start, position))

    def _update(self, message: messages.Update, frame: XLogData) -> None:
        position = self._cursor.next()
        if position is not None and (encoder := self._encoder(message.relation_oid, position)):
            self._write(
                encoder.update(message.old, message.old_is_key, message.new, frame.start, position)
            )

    def _delete(self, message: messages.Delete, frame: XLogData) -> None:
        position = self._cursor.next()
        if position is not None and (encoder := self._encoder(message.relation_oid, position)):
            self._write(encoder.delete(message.old, message.old_is_key, frame.start, position))

    def _truncate(self, message: messages.Truncate, frame: XLogData) -> None:
        position = self._cursor.next()
        if position is not None:
            for oid in message.relation_oids:
                if encoder := self._encoder(oid, position):
                    self._write(encoder.truncate(frame.start, position))

    def _logical_message(self, message: messages.LogicalMessage, _frame: XLogData) -> None:
        if message.transactional:
            self._cursor.next()

    def _encoder(self, oid: int, position: Position) -> TableEncoder | None:
        """The table's encoder, ready for this transaction.

        None when the table isn't captured, or its snapshot has the transaction: older records
        behind newer ones would outlive them when the topic is compacted.
        """
        try:
            return self._active[oid]
        except KeyError:
            pass
        relation = self._relations.get(oid)
        if relation is None:
            raise CorruptMessageError(f"a row of relation {oid}, which wasn't announced")
        if self._tables.has_read(relation, position):
            self._active[oid] = None
            return None
        if oid not in self._encoders:
            self._encoders[oid], schema_records = self._tables.stream_encoder(relation, position)
            self._writer.write(schema_records)
        encoder = self._active[oid] = self._encoders[oid]
        if encoder is not None and self._cursor.transaction is not None:
            encoder.begin(self._cursor.transaction)
        return encoder

    def _write(self, records: list[Record]) -> None:
        self._events += len(records)
        self._writer.write(records)


def _ignore(_message: messages.Message, _frame: XLogData) -> None:
    """Take no notice: what it says is in no record (type names, replication origins)."""

"""CopyData messages → records, in the order of the source, frame by frame.

Common messages stay in the extension (cdc/compiled/fast.pyx). It hands back the rest, and every
invalid message, to ``frame``: frame → message → encoder. Both append to the same list and move the
same cursor.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.errors import ROW_ERRORS, CorruptMessageError, MillraceError
from cdc.events.changes import Row
from cdc.events.metadata import SOURCE_HEARTBEAT
from cdc.faults import FaultPoint, reach
from cdc.records.connect import SourceRecord
from cdc.records.orders import ORDERS
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, RecordOrBatch
from cdc.records.schema import TableName
from cdc.records.state import Progress
from cdc.stream.encoding import Actions, Encoders
from cdc.stream.in_progress import Committed, InProgress
from cdc.stream.logical_messages import LogicalMessages
from cdc.stream.reselection import Reselection
from cdc.stream.resumed import Resumed
from cdc.stream.signals import DDL, WATERMARK, SignalOutput, Signals, StreamedRow
from cdc.tables.tables import Tables
from cdc.wal import messages
from cdc.wal.decoder import decode
from cdc.wal.frames import PrimaryKeepalive, XLogData, parse
from cdc.wal.messages import ABSENT


class Limits(NamedTuple):
    """The limits of one call: events, and bytes of their keys and values."""

    records_max: int
    bytes_max: int


class TranslatedBatch(NamedTuple):
    """Records, the number of events among them, and the bytes of their keys and values."""

    records: list[RecordOrBatch]
    events: int
    size: int


class _FramePosition(NamedTuple):
    """A frame's position, and whether it is new to the log."""

    position: Position
    is_new: bool


class Translation:
    """One stay on the stream. ``records`` are the events made and not taken yet."""

    def __init__(
        self,
        tables: Tables,
        progress: Progress,
        actions: Actions,
        on_keepalive: Callable[[PrimaryKeepalive], None],
        *,
        in_progress: InProgress,
        signals: Signals | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self._tables = tables
        self._follow_order = actions.follow_order
        self._signals = signals
        self._pipeline = tables.encoders.pipeline
        self._markers = tables.encoders.transactions
        self._begin_marker: SourceRecord | None = None
        self._on_keepalive = on_keepalive
        self._in_progress = in_progress
        self._committed: Committed | None = None
        self._encoders = Encoders(tables, signals, actions.perform)
        self.messages = LogicalMessages(
            tables.encoders.messages, self._pipeline, tables.encoders.dead_letters, in_progress
        )
        self._received = Lsn(0)
        self.records: list[RecordOrBatch] = []
        # The markers number a transaction's events as they are made.
        self._reselection = Reselection(actions.reread, one_by_one=self._markers is not None)
        self._being_read: set[TableName] = set()
        """Tables with a waiting row whose values the log may not have elsewhere."""
        self._events = self._bytes = 0
        self.cursor = fast.Cursor(
            progress.position, progress.cut, progress.flush_lsn, progress.cut_ts_us
        )
        # Markers also count the events that the log has.
        tables_of = self._compiled if self._markers is None else None
        self._fast = fast.Translator(self.cursor, self.records, tables_of, self.frame)
        self._resumed = self._fast.resumed = resumed
        self._handlers: dict[type, Callable[[Any, XLogData], None]] = {
            messages.Begin: self._begin,
            messages.Commit: self._commit,
            messages.Relation: self._relation,
            messages.Insert: self._insert,
            messages.Update: self._update,
            messages.Delete: self._delete,
            messages.Truncate: self._truncate,
            messages.LogicalMessage: self._logical_message,
            messages.TypeMessage: lambda _message, _frame: None,  # no record has the type's name
            messages.Origin: self._origin,
            messages.StreamStart: self._stream_start,
            messages.StreamStop: self._stream_stop,
            messages.StreamAbort: lambda message, _frame: in_progress.abort(message),
            messages.StreamCommit: self._stream_commit,
        }

    @property
    def received(self) -> Lsn:
        """The place of the last message in the WAL."""
        return max(self._received, Lsn(self._fast.received))

    def feed(self, data: bytearray, start: int, end: int, limits: Limits) -> int:
        """Process whole CopyData messages from ``start`` on. Return where they end.

        It stops after the message that reaches one of the limits, or at the end of a transaction
        that came in blocks. Further calls translate that one first, while ``is_behind``.
        """
        self._events = self._bytes = 0
        if self._resumed is not None and self._resumed.is_settled:
            self._resumed = self._fast.resumed = None
        if self._encoders.are_stale():
            self._forget_compiled()
        if self._committed is not None and self._committed.fill():
            kept = self._committed
            kept.start = self._translate(kept.buffer, kept.start, len(kept.buffer), limits)
            reach(FaultPoint.PART_TRANSLATED)
            return start
        self._committed = None
        if self._in_progress.is_inside:
            return self._in_progress.keep(data, start, end, self.frame, self.messages.kept)
        return self._translate(data, start, end, limits)

    @property
    def is_settled(self) -> bool:
        """Whether the stream is known to continue the log (Resumed)."""
        return self._resumed is None or self._resumed.is_settled

    @property
    def is_behind(self) -> bool:
        """Whether ``feed`` has more to translate, even without new data."""
        return self._committed is not None

    def _translate(self, data: bytearray, start: int, end: int, limits: Limits) -> int:
        used = self._fast.feed(data, start, end, time.time_ns(), *limits)
        self._events, self._bytes = self._fast.made_records, self._fast.made_bytes
        return used

    def take(self) -> TranslatedBatch:
        """Return the output of the last call of ``feed``, new schema versions first.

        Completes rows that lack unchanged values, with a query to the source.
        """
        if self._reselection.is_waiting:
            self._complete()
        dead_letters = self._tables.encoders.dead_letters
        if dead_letters is not None and dead_letters.has_passed(self.cursor.reached):
            self._forget_compiled()
        records = [*self._encoders.state_records, *self.records]
        made = TranslatedBatch(records, self._events, self._bytes)
        self._encoders.state_records.clear()
        self.records.clear()
        return made

    def _complete(self) -> None:
        events, size = self._reselection.complete(self.records)
        self._events += events
        self._bytes += size
        for oid, error in self._reselection.refused.items():
            self._set_aside(oid, error)
        for table in self._reselection.failed_tables & self._being_read:
            if self._tables.states.is_taken(table):
                # No chunk may have brought the values that the event leaves out, and none will.
                anew = self._tables.reads.read_anew(table, "changed rows lack values")
                self._encoders.state_records += anew
        self._reselection.refused.clear()
        self._reselection.failed_tables.clear()
        self._being_read.clear()
        self._encoders.leave()

    def _set_aside(self, oid: int, error: MillraceError) -> None:
        self._encoders.set_aside(oid, error)
        self._fast.forget(oid)

    def frame(self, payload: bytes) -> bool:
        """Process one CopyData payload. Return whether ``take`` must be called before the next."""
        frame = parse(payload)
        if isinstance(frame, PrimaryKeepalive):
            if self._resumed is not None:
                self._resumed.has_seen_all(frame.wal_end)
            self.cursor.idle_at(frame.wal_end)
            self._on_keepalive(frame)
            return False
        self._received = frame.start
        message = decode(frame.payload)
        handler = self._handlers.get(type(message))
        if handler is None:
            raise CorruptMessageError(
                f"an unexpected {type(message).__name__} message", where=f"LSN {frame.start}"
            )
        try:
            handler(message, frame)
        except ROW_ERRORS as error:
            if not isinstance(message, messages.Update | messages.Delete | messages.Insert):
                raise
            self._set_aside(message.relation_oid, error)
        return self._reselection.is_full or self._in_progress.is_inside or self.is_behind

    def _begin(self, message: messages.Begin, frame: XLogData) -> None:
        if self._resumed is not None:
            self._resumed.begins(message.final_lsn)
        transaction = self.cursor.begin(message.xid, message.final_lsn, message.commit_ts_us)
        if self._markers is not None:
            self._begin_marker = self._markers.begin(transaction, frame.start)

    def _origin(self, message: messages.Origin, frame: XLogData) -> None:
        if self._in_progress.is_inside:
            self._in_progress.set_origin(frame)
        else:
            self.cursor.came_from(message)

    def _stream_start(self, message: messages.StreamStart, frame: XLogData) -> None:
        if self.cursor.transaction is not None:
            raise CorruptMessageError(
                "Stream Start inside of a transaction", where=f"LSN {frame.start}"
            )
        self._in_progress.start(message, frame.start)

    def _stream_stop(self, _message: messages.StreamStop, _frame: XLogData) -> None:
        self._in_progress.stop()
        reach(FaultPoint.BLOCK_KEPT)

    def _stream_commit(self, message: messages.StreamCommit, frame: XLogData) -> None:
        if self.cursor.transaction is not None:
            raise CorruptMessageError(
                "Stream Commit inside of a transaction", where=f"LSN {frame.start}"
            )
        self._committed = Committed(self._in_progress.commit(message, frame.start))

    def _commit(self, message: messages.Commit, frame: XLogData) -> None:
        transaction = self.cursor.transaction
        if transaction is not None:
            position = self.cursor.position
            if self._resumed is not None:
                self._resumed.ends(message.commit_lsn, position.index)
            if self._markers is not None and position.index > 0 and not self.cursor.is_ended:
                end = self._markers.end(transaction, frame.start)
                self.records += self._pipeline.of_stream([end], position)
        self.cursor.commit(message.commit_lsn, message.end_lsn)

    def _next(self) -> _FramePosition | None:
        """Return the next frame's position. None: the log has it, and nothing needs it.

        A transaction's markers count all of its events, including those that the log has.
        """
        position = self.cursor.next()
        if position is None:
            return None if self._markers is None else _FramePosition(self.cursor.position, False)
        if self._begin_marker is not None and position.index == 1:
            self.records += self._pipeline.of_stream([self._begin_marker], position)
        return _FramePosition(position, True)

    def _write(self, records: list[Record], *, new: bool) -> None:
        if new:
            self.records += records

    def _relation(self, message: messages.Relation, _frame: XLogData) -> None:
        self._encoders.announce(message)
        self._fast.forget(message.oid)

    def _insert(self, message: messages.Insert, frame: XLogData) -> None:
        if (at := self._next()) and (encoder := self._encoder(message.relation_oid, at.position)):
            self._write(encoder.insert(message.new, frame.start, at.position), new=at.is_new)
            self._show(message.relation_oid, at, None, message.new)
        elif at and self._encoders.is_heard(message.relation_oid, at.position):
            self._show(message.relation_oid, at, None, message.new)

    def _update(self, message: messages.Update, frame: XLogData) -> None:
        if (at := self._next()) and (encoder := self._encoder(message.relation_oid, at.position)):
            lacks = at.is_new and ABSENT in message.new
            if not (lacks and self._waits(message, encoder, frame, at.position)):
                records = encoder.update(
                    message.old, message.old_is_key, message.new, frame.start, at.position
                )
                if not records:
                    return  # the reader of the row writes it in its earlier form
                self._write(records, new=at.is_new)
            self._show(message.relation_oid, at, message.old, message.new)

    def _waits(
        self, message: messages.Update, encoder: Encoder, frame: XLogData, position: Position
    ) -> bool:
        """Whether the row lacks values that are read again when the batch ends."""
        transaction = self.cursor.transaction
        if not encoder.reselects or transaction is None:
            return False
        relation = self._encoders.relation(message.relation_oid)
        waits = self._reselection.defer(
            message, relation, encoder, self.records, frame.start, position, transaction
        )
        table = TableName(relation.namespace, relation.name)
        if waits and not self._tables.states.is_whole(table):
            self._being_read.add(table)
        return waits

    def _delete(self, message: messages.Delete, frame: XLogData) -> None:
        if (at := self._next()) and (encoder := self._encoder(message.relation_oid, at.position)):
            old, is_key = message.old, message.old_is_key
            self._write(encoder.delete(old, is_key, frame.start, at.position), new=at.is_new)
            self._show(message.relation_oid, at, message.old, None)
        elif at and self._encoders.is_heard(message.relation_oid, at.position):
            self._show(message.relation_oid, at, message.old, None)

    def _truncate(self, message: messages.Truncate, frame: XLogData) -> None:
        if at := self._next():
            for oid in message.relation_oids:
                try:
                    if encoder := self._encoder(oid, at.position):
                        self._write(encoder.truncate(frame.start, at.position), new=at.is_new)
                        self._show(oid, at, None, None)
                except ROW_ERRORS as error:
                    self._set_aside(oid, error)

    def _logical_message(self, message: messages.LogicalMessage, frame: XLogData) -> None:
        if message.prefix == SOURCE_HEARTBEAT:
            return  # not counted, so its transaction makes no events either
        if message.prefix == WATERMARK:
            self._watermark(message)
            return
        if message.prefix == DDL:
            if self._signals is not None:
                self._signals.note_ddl()
            return
        if message.transactional:
            at = self._next()
        else:
            position = self.cursor.message_at(frame.start)
            at = _FramePosition(position, True) if position is not None else None
        if at is not None and message.prefix in ORDERS:
            transaction = self.cursor.transaction
            if at.is_new and transaction is not None:
                self.records += self._follow_order(
                    message.prefix, message.content, at.position, transaction
                )
        elif at is not None:
            latest = self.cursor.latest
            made = self.messages.records(message, latest, frame.start, at.position)
            self._write(made, new=at.is_new)

    def _watermark(self, message: messages.LogicalMessage) -> None:
        """Process a watermark. It isn't counted: chunks are at the begin of their transactions.

        Its name identifies its owner, and can't be guessed.
        """
        name = message.content.decode(errors="replace")
        transaction = self.cursor.transaction if message.transactional else None
        if transaction is not None and self._signals is not None:
            position = Position(self.cursor.reached.epoch, transaction.commit_lsn, 0)
            # A keepalive may have ended exactly where this transaction's commit starts.
            if position >= self.cursor.reached:
                self._add_output(self._signals.note_watermark(name, position))

    def _show(self, oid: int, at: _FramePosition, old: Row | None, new: Row | None) -> None:
        """Show a row that the log doesn't have yet to signals, and to what acts on them."""
        transaction = self.cursor.transaction
        if self._signals is None or transaction is None or not at.is_new:
            return
        if self._encoders.is_watched(oid):
            relation = self._encoders.relation(oid)
            row = StreamedRow(relation, old, new, transaction, at.position)
            self._add_output(self._signals.note_row(row))

    def _add_output(self, output: SignalOutput) -> None:
        self.records += output.events
        self._encoders.state_records += output.states

    def _forget_compiled(self) -> None:
        for oid in self._encoders.announced:
            self._fast.forget(oid)

    def _compiled(self, oid: int, position: Position) -> Any:
        """Return the table for the extension. False: it is for ``frame``. None: unwanted."""
        encoder = self._encoder(oid, position)
        if encoder is None:
            return False if self._encoders.is_heard(oid, position) else None
        return self._encoders.compiled(oid, encoder) or False

    def _encoder(self, oid: int, position: Position) -> Encoder | None:
        return self._encoders.of(oid, self.cursor.transaction, position)

"""Requests, watermarks and changed rows → the rows of chunks, at their positions in the stream.

Chunks are read while the stream goes on (DBLog). A chunk's rows get into the log where its
watermark arrives, with that position, together with how far the table is: a start goes on with what
is missing. Rows of which the stream had a newer state are left out (overtaken.py).

Between two chunks an update may move a row to a page that was read before. Its event is in the log
then, with values that it left unchanged: those are read again while a table has requests
(cdc/stream/reselection.py).
https://arxiv.org/abs/2010.12597
"""

import time
from collections.abc import Callable
from typing import Final, Literal

import structlog

from cdc.compiled import fast
from cdc.errors import MillraceError, TableGoneError
from cdc.events.changes import Read
from cdc.events.reference import INCREMENTAL
from cdc.faults import FaultPoint, reach
from cdc.postgres.described import CapturedTable
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, RecordOrBatch
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome, SnapshotRequest
from cdc.stream.signals import NOTHING, KeyTracking, SignalOutput, StreamedRow
from cdc.stream.translation import Limits
from cdc.tables.tables import Tables
from cdc.wal.messages import Relation
from snapshots.chunk import AlteredError, Chunk
from snapshots.copied_rows import Copied
from snapshots.joining import OpenTransactions
from snapshots.requests import queued
from snapshots.table_read import PendingChunk, TableRead
from snapshots.watermarks import WATERMARK_REMEDY, WatermarkError, is_past
from snapshots.windows import WindowReader

log = structlog.get_logger()
_IN_FLIGHT: Final = 2
"""Chunks per thread: one is read while another one waits for its watermark."""
LAG_S: Final = 1.0
"""A stream that takes longer to what was read is behind: it isn't given more to do."""
_UNLIMITED: Final = Limits(1 << 60, 1 << 60)
KINDS: Final = ("initial", "incremental")
"""The kinds of requests that are served here."""


class IncrementalSnapshots:
    """Serves the requests of kinds initial and incremental, some chunks at a time."""

    def __init__(
        self,
        reader: WindowReader,
        tables: Tables,
        chunk_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``chunk_bytes``: of a table's file, at most."""
        self._reader = reader
        self._tables = tables
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._reads: dict[TableName, TableRead] = {}
        self._open_transactions = OpenTransactions(reader, clock)
        self._served = -1
        self._cursor: fast.Cursor | None = None
        self._reached: Position | None = None
        """What the stream had reached a turn before."""

    def watches(self, table: TableName) -> bool:
        """Whether a table is being read."""
        return table in self._reads

    def key_tracking(self, relation: Relation) -> KeyTracking | None:
        """How its changed keys are noted; None: its rows have to be shown."""
        read = self._reads.get(TableName(relation.namespace, relation.name))
        names = [column.name for column in relation.columns]
        key = read.changes.key if read is not None else ()
        if read is None or not key or not set(key) <= set(names):
            return None
        return KeyTracking(tuple(map(names.index, key)), read.changes.of)

    def announce(self, relation: Relation) -> None:
        """Take notice of how a table's rows look from here on."""
        read = self._reads.get(TableName(relation.namespace, relation.name))
        if read is not None:
            read.changes.announce(relation)

    def changed(self, row: StreamedRow) -> None:
        """Take notice of a change to a table that is being read."""
        if row.table in self._reads:
            self._reads[row.table].changes.note(row)

    def turn(self, cursor: fast.Cursor) -> SignalOutput:
        """Begin chunks where threads are free; returns what is due without a watermark."""
        self._cursor = cursor
        if self._open_transactions.turn():
            self._served = -1
        output = self._landed(cursor)
        self._reached = cursor.reached
        if self._served != self._tables.states.requested_changes:
            self._served = self._tables.states.requested_changes
            self._follow_requests(cursor.reached.commit_lsn)
        now = self._clock()
        for read in list(self._reads.values()):
            output.states.extend(self._take_results(read, now))
        reads = sorted(self._reads.values(), key=lambda read: read.request.order)
        self._reader.measure(is_busy=bool(reads))
        if any(read.waits_s(now) > LAG_S for read in reads):
            return output
        free = _IN_FLIGHT * self._reader.threads - sum(read.in_flight for read in reads)
        for read in reads:
            while free > 0 and now >= read.not_before and self._begin(read):
                free -= 1
        return output

    @property
    def awaits_stream(self) -> bool:
        """Whether something was read whose position the stream hasn't reached: no watermark."""
        return any(job.behind for read in self._reads.values() for job in read.jobs.values())

    def _landed(self, cursor: fast.Cursor) -> SignalOutput:
        """What has no watermark, and whose position the stream has reached."""
        output = SignalOutput([], [])
        if cursor.transaction is not None:
            return output
        for read in list(self._reads.values()):
            for number, job in read.jobs.items():
                if job.behind is not None and is_past(cursor.flush_lsn, job.behind):
                    # A TRUNCATE has to be behind what is recorded; rows may be where that ends.
                    if number in read.marks and self._is_in_log(cursor.reached):
                        continue
                    if read.has_joined_at(cursor.reached.commit_lsn):
                        continue
                    chunk = self.note_watermark(number, cursor.reached)
                    output.events.extend(chunk.events)
                    output.states.extend(chunk.states)
        return output

    def note_watermark(self, watermark: str, position: Position) -> SignalOutput:
        """Take notice of a watermark; returns the chunk's rows, which have its position."""
        for name, read in self._reads.items():
            requests = self._tables.states[name].requests
            if not any(read.request.is_same(request) for request in requests):
                read.forget(watermark)
                continue  # a signal has ended it, right before
            if (mark := read.marks.pop(watermark, None)) is not None and mark.result:
                return NOTHING if self._is_in_log(position) else self._reset(read, position)
            if (pending := read.chunks.pop(watermark, None)) is not None:
                output = self._chunk(read, pending, position)
                read.changes.ended(watermark)
                return output
        return NOTHING

    def _is_in_log(self, position: Position) -> bool:
        """Whether the log may say that it has all up to where a TRUNCATE would be."""
        return self._reached is not None and position.just_before() <= self._reached

    def close(self) -> None:
        """End what goes on in the background."""
        self._reader.close()

    def _follow_requests(self, reached: Lsn) -> None:
        """Begin to watch tables that are to be read, and leave those that aren't any more."""
        wanted: dict[TableName, SnapshotRequest] = {}
        for name in self._tables.states.requested:
            requests = [each for each in self._tables.states[name].requests if each.kind in KINDS]
            if requests:
                wanted[name] = min(requests, key=lambda request: request.order)
        before = set(self._reads)
        for name, read in list(self._reads.items()):
            request = wanted.get(name)
            if request is None or not read.request.is_same(request):
                del self._reads[name]
            else:
                read.request = request
        # Not all at once: changes of each cost something to remember.
        room = _IN_FLIGHT * self._reader.threads
        now = self._clock()
        busy = (read for read in self._reads.values() if read.not_before <= now)
        room -= sum(not read.request.paused for read in busy)
        missing = wanted.keys() - self._reads.keys()
        for name in sorted(missing, key=lambda table: wanted[table].order):
            is_free = room > 0 and not wanted[name].paused
            if is_free and self._open_transactions.have_ended(name, wanted[name]):
                room -= 1
                self._watch(name, wanted[name], reached)
        if before != set(self._reads):
            self._reset_tracking()

    def _watch(self, name: TableName, request: SnapshotRequest, reached: Lsn) -> None:
        state = self._tables.states[name]
        captured = CapturedTable(state.oid, name)
        fence = max(reached, state.snapshot_lsn)  # earlier changes aren't noted
        is_joining = request.kind == "initial" and request.behind_xid > 0
        joined = state.snapshot_lsn if is_joining else Lsn(0)
        self._reads[name] = TableRead(captured, request, fence, self._chunk_bytes, joined)

    def _reset_tracking(self) -> None:
        """Changes are noted in another way from here on; the requests are the same."""
        is_served = self._served == self._tables.states.requested_changes
        self._tables.states.reset_tracking()
        self._served = self._tables.states.requested_changes if is_served else -1

    def _take_results(self, read: TableRead, now: float) -> list[Record]:
        """Take in what came to an end without a watermark."""
        assert self._cursor is not None  # noqa: S101 (turn sets it)
        reached = self._cursor.reached
        read.remember(reached.commit_lsn)
        records: list[Record] = []
        between = self._cursor.transaction is None
        for error in read.failures(self._cursor.flush_lsn if between else Lsn(0)):
            records += self._failed(read, error, now)
            if self._reads.get(read.captured.name) is not read:  # it is given up
                return records
        if (described := read.new_description) is not None:
            before = read.changes.key
            read.learn(described)
            read.remember(reached.commit_lsn)
            if read.changes.key != before:
                self._reset_tracking()
            if read.is_read and not read.request.reset:  # nothing is there to be read
                records += self._finish(read, reached)
        return records

    def _begin(self, read: TableRead) -> bool:
        """Begin what comes next for a table; returns whether there is anything."""
        assert self._cursor is not None  # noqa: S101 (turn sets it)
        if read.request.paused:
            return False
        if read.described is None:
            if read.description_job is not None:
                return False
            read.description_job = self._reader.describe(read.captured, self._streamed(read))
            return True
        if read.request.reset:
            if not read.marks:
                job = self._reader.mark()
                read.marks[job.id] = job
            return False
        rows_max = self._reader.rows_max
        chunk_range = read.next_chunk(rows_max) if rows_max else None
        if chunk_range is None:
            return False
        chunk_job = self._reader.read(read.described, chunk_range, self._streamed(read))
        read.add(chunk_job, chunk_range)
        return True

    def _streamed(self, read: TableRead) -> Lsn:
        """What a chunk has to show: all whole transactions, and the one that the fence is in."""
        assert self._cursor is not None  # noqa: S101 (turn sets it)
        whole = self._cursor.flush_lsn
        return Lsn(read.fence + 1) if read.fence > whole else whole

    def _reset(self, read: TableRead, position: Position) -> SignalOutput:
        """Empty the table in the log, and begin its read again."""
        assert read.described is not None  # noqa: S101 (it was, before the watermark was written)
        requests = self._tables.states[read.captured.name].requests
        (now,) = (request for request in requests if request.is_same(read.request))
        first = SnapshotRequest(
            kind="initial", signal=now.signal, order=now.order, paused=now.paused
        )
        others = (each for each in requests if each is not now and each.kind != "initial")
        events, states = self._tables.begin_anew(read.described.table, position, (first, *others))
        return SignalOutput([*events], states)

    def _chunk(self, read: TableRead, pending: PendingChunk, at: Position) -> SignalOutput:
        chunk = pending.result
        self._reader.pace.took(chunk.row_count if chunk else 0, pending.chunk_range.rows_max)
        stale = None if chunk is None else self._stale(read, chunk, pending)
        if chunk is None or stale is None:
            return NOTHING  # its range is still missing: it is read once more
        read.changes.settle(chunk.visibility, list(read.chunks))
        started = self._clock()
        copied, states = self._copied(read, chunk, stale, at)
        events: list[RecordOrBatch] = []
        fed, size = 0, len(chunk.rows)
        while fed < size:
            fed = copied.feed(chunk.rows, fed, size, _UNLIMITED)
            events += copied.take()
        read.has_read(chunk, pending.chunk_range, copied.rows, self._clock() - started)
        states += self._finish(read, at) if read.is_read else self._advance(read, at)
        reach(FaultPoint.CHUNK_TAKEN)
        return SignalOutput(events, states)

    def _stale(
        self, read: TableRead, chunk: Chunk, pending: PendingChunk
    ) -> frozenset[bytes] | None:
        """The keys of rows that are left out; None: nothing of the chunk can be used."""
        assert self._cursor is not None  # noqa: S101 (chunks are begun by turn)
        if (
            pending.forgotten != read.changes.forgotten
            or chunk.described.table.identifying_columns != read.changes.key
            or not read.changes.fits(chunk.described.table, pending.announced)
        ):
            return None
        if pending.fence:
            if not chunk.visibility.shows_all_before(pending.fence, self._cursor.committed_at):
                return None
            read.fence = Lsn(0)
        return read.changes.stale(chunk.visibility)

    def _copied(
        self, read: TableRead, chunk: Chunk, stale: frozenset[bytes], at: Position
    ) -> tuple[Copied, list[Record]]:
        table, states = chunk.described.table, list[Record]()
        columns = [column.name for column in table.columns]
        is_first = read.request.kind == "initial"
        kind = Read() if is_first else Read(INCREMENTAL)
        if read.encoder is None or read.encoded_table is not table:
            schema, states = self._tables.schemas.described(table, at)
            read.encoder = self._tables.encoders.encoder(schema)
            read.encoded_table = table
        key = tuple(map(columns.index, table.identifying_columns))
        copied = Copied(read.encoder, at, at.commit_lsn, chunk.read_us, kind, key=key, extra=1)
        copied.stale = stale
        return copied, states

    def _advance(self, read: TableRead, at: Position) -> list[Record]:
        name, request = read.captured.name, read.request
        before = self._tables.states[name]  # the description may be missing
        total, done = read.pages if read.described else (before.pages_total, before.pages_done)
        state = self._tables.reads.advance(name, request, total, done)
        if request.kind == "initial" or request.is_own:
            return [state]
        left = queued(self._tables)
        tell = self._tables.notifications
        return [state, *tell.chunk(at, left, name, request.signal, done, total)]

    def _finish(self, read: TableRead, at: Position, reason: str = "") -> list[Record]:
        """Note how a table has ended, and tell; ``reason`` is why it couldn't be read."""
        name, request = read.captured.name, read.request
        pages = read.pages.total if read.described else self._tables.states[name].pages_total
        del self._reads[name]
        self._reset_tracking()
        tell, rows = self._tables.notifications, request.rows
        if not reason:
            log.info("table read", table=str(name), rows=rows, snapshot=request.kind)
        status: Literal["SUCCEEDED", "EMPTY", "SQL_EXCEPTION"]
        status = "SQL_EXCEPTION" if reason else "SUCCEEDED" if rows else "EMPTY"
        outcome = SnapshotOutcome(signal=request.signal, status=status, rows=rows, reason=reason)
        if request.kind == "initial":
            requested = outcome if request.signal else None
            records = [self._tables.reads.finish(name, request, at, pages, requested)]
            if read.described is not None:
                records += self._tables.schemas.described(read.described.table, at)[1]
            records += tell.initial_table_done(at, [name], name, rows)
            if self._tables.reads.is_all_read:
                records += tell.initial("COMPLETED", at)
            return records
        if request.is_own:
            return [self._tables.reads.finish(name, request, at, pages)]
        records = tell.table_done(at, queued(self._tables), name, outcome)
        records.insert(0, self._tables.reads.finish(name, request, at, pages, outcome))
        if not queued(self._tables):
            records += tell.incremental("COMPLETED", at, request.signal)
            if not read.is_end_marked:
                self._reader.tell_end()
        return records

    def _failed(self, read: TableRead, error: Exception, now: float) -> list[Record]:
        """Something came to nothing: try again, or give up where that can't help."""
        read.described = None
        if isinstance(error, AlteredError):
            return []
        name, remedy = str(read.captured.name), ""
        if isinstance(error, WatermarkError):
            error, remedy = error.reason, WATERMARK_REMEDY
        if not isinstance(error, MillraceError):
            raise error  # a bug of ours
        fields = {"table": name, "reason": error.what, "remedy": remedy or error.remedy}
        if read.gives_up(error):
            log.warning("an incremental snapshot is given up", signal=read.request.signal, **fields)
            assert self._cursor is not None  # noqa: S101 (turn sets it)
            reason = ": ".join(filter(None, (error.what, fields["remedy"])))
            return self._finish(read, self._cursor.reached, reason)
        if isinstance(error, TableGoneError):
            log.warning("a table is gone before all of it was read", **fields)
            return self._leave(read)
        if read.wait(now):
            self._served = -1  # another one has its turn meanwhile
            delay_s = round(read.not_before - now, 1)
            log.warning("a table can't be read: trying again", delay_s=delay_s, **fields)
        return []

    def _leave(self, read: TableRead) -> list[Record]:
        """Nothing more is to be read of a table, which never gets whole."""
        del self._reads[name := read.captured.name]
        requests = self._tables.states[name].requests
        left = (request for request in requests if not request.is_same(read.request))
        records = [self._tables.states.set_requests(name, left)]
        is_first = read.request.kind == "initial"
        if is_first and self._tables.reads.is_all_read and self._cursor is not None:
            records += self._tables.notifications.initial("COMPLETED", self._cursor.reached)
        return records

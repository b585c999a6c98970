"""Requests, watermarks and changed rows → the rows of chunks, at their positions in the stream.

Chunks are read while the stream continues (DBLog). A chunk's rows enter the log at its watermark,
with that position and the table's progress: a start continues with the missing chunks. Rows are
left out if the stream had a newer state of them (table_read.py).

Between two chunks an update may move a row to a page that was read before. Then its event is in the
log, with values that it left unchanged. Those are read again while a table has requests
(cdc/stream/reselection.py).
https://arxiv.org/abs/2010.12597
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

import structlog

from cdc.compiled import fast
from cdc.errors import ROW_ERRORS, MillraceError, TableGoneError, TableRefusedError
from cdc.events.changes import Read
from cdc.events.reference import INCREMENTAL
from cdc.faults import FaultPoint, reach
from cdc.postgres.described import CapturedTable
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, RecordOrBatch
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome, SnapshotRequest
from cdc.stream.signals import NOTHING, SignalOutput
from cdc.stream.translation import Limits
from cdc.tables.obstacles import reason_of
from cdc.tables.tables import Tables
from snapshots.chunk import AlteredError
from snapshots.copied_rows import copier
from snapshots.joining import OpenTransactions
from snapshots.signals.requests import queued
from snapshots.table_read import Changes, PendingChunk, TableRead
from snapshots.watermarks import is_past
from snapshots.windows import WindowReader

log = structlog.get_logger()
_IN_FLIGHT: Final = 2
"""Chunks per thread: one is read while another one waits for its watermark."""
LAG_S: Final = 1.0
"""The stream is behind if it takes longer to a chunk's watermark. Then no chunk begins."""
_UNLIMITED: Final = Limits(1 << 60, 1 << 60)


class IncrementalSnapshots:
    """Serves requests of the kinds initial and incremental, some chunks at a time."""

    def __init__(
        self,
        reader: WindowReader,
        tables: Tables,
        chunk_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``chunk_bytes``: the most of a table's file in a chunk."""
        self._reader = reader
        self._tables = tables
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._reads: dict[TableName, TableRead] = {}
        self._open_transactions = OpenTransactions(reader, clock)
        self._served = -1
        self._cursor: fast.Cursor
        """The cursor of the last turn. Nothing begins before the first turn."""
        self._reached: Position | None = None
        """The stream's position a turn before."""

    def changes_of(self, table: TableName) -> Changes | None:
        """Return the stream's changes of a table that is being read."""
        read = self._reads.get(table)
        return None if read is None else read.changes

    def turn(self, cursor: fast.Cursor) -> SignalOutput:
        """Begin chunks on free threads. Return the output that needs no watermark."""
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
        jobs = [job for read in reads for job in read.jobs.values()]
        if any(job.ended and now - job.ended > LAG_S for job in jobs):
            return output
        described = sum(read.description_job is not None for read in reads)
        free = _IN_FLIGHT * self._reader.threads - len(jobs) - described
        for read in reads:
            while free > 0 and now >= read.not_before and self._begin(read):
                free -= 1
        return output

    @property
    def awaits_stream(self) -> bool:
        """Whether rows without a watermark wait for the stream to reach their position."""
        return any(job.behind for read in self._reads.values() for job in read.jobs.values())

    def _landed(self, cursor: fast.Cursor) -> SignalOutput:
        """Return output without a watermark whose position the stream has reached."""
        output = SignalOutput([], [])
        if cursor.transaction is not None:
            return output
        for read in list(self._reads.values()):
            for number, job in read.jobs.items():
                if job.behind is not None and is_past(cursor.flush_lsn, job.behind):
                    # A TRUNCATE must be after the recorded progress. Rows may be at its end.
                    is_early = number in read.marks and self._is_in_log(cursor.reached)
                    if is_early or cursor.reached.commit_lsn <= read.joined:
                        continue
                    chunk = self.note_watermark(number, cursor.reached)
                    output.events.extend(chunk.events)
                    output.states.extend(chunk.states)
        return output

    def note_watermark(self, watermark: str, position: Position) -> SignalOutput:
        """Process a watermark. Return the chunk's rows, at its position."""
        for name, read in self._reads.items():
            requests = self._tables.states[name].requests
            if not any(read.request.is_same(request) for request in requests):
                read.forget(watermark)
                continue  # a signal has ended it
            try:
                if (mark := read.marks.pop(watermark, None)) is not None and mark.result:
                    return NOTHING if self._is_in_log(position) else self._reset(read, position)
                if (pending := read.chunks.pop(watermark, None)) is not None:
                    output = self._chunk(read, pending, position)
                    read.changes.ended(watermark)
                    return output
            except TableRefusedError as error:  # it was altered since it was checked
                return SignalOutput([], self._tables.obstacles.set_aside(name, error))
        return NOTHING

    def _is_in_log(self, position: Position) -> bool:
        """Whether the log may record progress up to where a TRUNCATE would be."""
        return self._reached is not None and position.just_before() <= self._reached

    def close(self) -> None:
        """End the background work."""
        self._reader.close()

    def _follow_requests(self, reached: Lsn) -> None:
        """Begin to watch tables with requests. Leave tables without them."""
        wanted: dict[TableName, SnapshotRequest] = {}
        for name in self._tables.states.requested:
            state = self._tables.states[name]
            requests = [
                each
                for each in state.requests
                if each.kind != "blocking" and (each.reset or not state.is_set_aside)
            ]
            if requests:
                wanted[name] = min(requests, key=lambda request: request.order)
        self._open_transactions.keep(wanted.keys())
        before = set(self._reads)
        for name, read in list(self._reads.items()):
            request = wanted.get(name)
            if request is None or not read.request.is_same(request):
                del self._reads[name]
            else:
                read.request = request
        # Limit the number at once: remembering a table's changes has a cost.
        room = _IN_FLIGHT * self._reader.threads
        now = self._clock()
        busy = (read for read in self._reads.values() if read.not_before <= now)
        room -= sum(not read.request.paused for read in busy)
        missing = wanted.keys() - self._reads.keys()
        for name in sorted(missing, key=lambda table: wanted[table].order):
            is_free, state = room > 0 and not wanted[name].paused, self._tables.states[name]
            table = CapturedTable(state.oid, name)
            if is_free and self._open_transactions.have_ended(table, wanted[name]):
                room -= 1
                self._reads[name] = TableRead(state, wanted[name], reached, self._chunk_bytes)
        if before != set(self._reads):
            self._reset_tracking()

    def _reset_tracking(self) -> None:
        """Record changed keys in another way from here on. The requests are the same."""
        is_served = self._served == self._tables.states.requested_changes
        self._tables.states.reset_tracking()
        self._served = self._tables.states.requested_changes if is_served else -1

    def _take_results(self, read: TableRead, now: float) -> list[Record]:
        """Process results that need no watermark."""
        reached = self._cursor.reached
        read.remember(reached.commit_lsn)
        records: list[Record] = []
        between = self._cursor.transaction is None
        for error in read.failures(self._cursor.flush_lsn if between else Lsn(0)):
            records += self._failed(read, error, now)
            if self._reads.get(read.captured.name) is not read:  # it is abandoned
                return records
        described = read.description_job.result if read.description_job else None
        if described is not None:
            if (obstacle := self._tables.obstacles.of(described.table)) is not None:
                read.description_job = None
                return [*records, *self._hindered(read, obstacle, now)]
            before = read.changes.key
            read.learn(described)
            if read.lacks_partition(self._tables.states[read.captured.name]):
                reason = "a partition to be replaced was dropped, and others may have its rows"
                return [*records, *self._tables.reads.read_anew(read.captured.name, reason)]
            read.remember(reached.commit_lsn)
            if read.changes.key != before:
                self._reset_tracking()
            if read.is_read and not read.request.reset:  # no part is missing
                records += self._finish(read, reached)
        return records

    def _begin(self, read: TableRead) -> bool:
        """Begin the next step for a table. Return whether one has begun."""
        if read.request.paused:
            return False
        if read.described is None:
            if read.description_job is not None:
                return False
            read.described_at = self._cursor.reached
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
        forgotten, announced = read.changes.forgotten, read.changes.announced
        begun = self._cursor.reached
        pending = PendingChunk(chunk_job, chunk_range, forgotten, announced, read.fence, begun)
        read.chunks[chunk_job.id] = pending
        return True

    def _streamed(self, read: TableRead) -> Lsn:
        """Return what a chunk must show: all whole transactions, and the one at the fence."""
        whole = self._cursor.flush_lsn
        return Lsn(read.fence + 1) if read.fence > whole else whole

    def _reset(self, read: TableRead, position: Position) -> SignalOutput:
        """Empty the table in the log, or partitions of it, and begin its read again."""
        assert read.described is not None  # noqa: S101 (it was, before the watermark was written)
        if self._is_outdated(read):
            read.described = None  # it is described, and marked, again
            return NOTHING
        state = self._tables.states[read.captured.name]
        if not state.is_in_log:  # it has no topic yet: it gets one when it joins
            return SignalOutput([], self._finish(read, position, "it can't be captured"))
        requests = state.requests
        (now,) = (request for request in requests if request.is_same(read.request))
        # The catalog check must still find, and wait for, differences that it doesn't know.
        known = state.fingerprint or read.described.table.fingerprint
        table, bounds = replace(read.described.table, fingerprint=known), None
        doubt = self._tables.states.to_settle(table)
        if doubt is not None and not now.signal and self._tables.schemas.is_newest(table):
            is_begun = now.kind == "initial"
            bounds = self._tables.ended.replaced(state.name, doubt, is_begun=is_begun)
        if known is not None and bounds is None:
            table = replace(table, fingerprint=known.without_bounds(known.gone_bounds))
        first = SnapshotRequest(
            kind="initial",
            signal=now.signal,
            order=now.order,
            paused=now.paused,
            read=() if bounds is None else now.read,
            behind_xid=max(now.behind_xid, state.doubt.behind_xid if state.doubt else 0),
        )
        left = (each for each in requests if each is not now and not each.is_own)
        others = (each for each in left if each.kind != "initial")
        events, states = self._tables.begin_anew(table, position, (first, *others), bounds=bounds)
        return SignalOutput([*events], states)

    def _is_outdated(self, read: TableRead) -> bool:
        """Whether the stream, or a check, has brought DDL later than the table's description."""
        if read.described is None or read.described_at is None:
            return False
        return self._tables.schemas.is_outdated(read.described.table, read.described_at)

    def _chunk(self, read: TableRead, pending: PendingChunk, at: Position) -> SignalOutput:
        chunk, schemas = pending.job.result, self._tables.schemas
        self._reader.pace.took(chunk.row_count if chunk else 0, pending.chunk_range.rows_max)
        stale = None if chunk is None else read.stale(chunk, pending, self._cursor)
        if chunk and schemas.is_outdated(chunk.described.table, pending.begun):
            stale = None
        if chunk is None or stale is None:
            return NOTHING  # its range is still missing, and is read again
        read.changes.settle(chunk.visibility, list(read.chunks))
        started, table = self._clock(), chunk.described.table
        events: list[RecordOrBatch] = []
        states: list[Record] = []
        kind = Read() if read.request.kind == "initial" else Read(INCREMENTAL)
        columns = [column.name for column in table.columns]
        key = tuple(map(columns.index, table.identifying_columns))
        try:
            if read.encoded is None or read.encoded[0] is not table:
                schema, states = self._tables.schemas.described(table, at)
                read.encoded = table, self._tables.encoders.encoder(schema)
            encoder, us = read.encoded[1], chunk.read_us
            made = copier(events, encoder, at, us, kind, key=key, stale=stale, extra=1)
            made.feed(chunk.rows, 0, len(chunk.rows), time.time_ns(), *_UNLIMITED)
        except ROW_ERRORS as error:
            # The log gets a new schema version even so, as it is reported only once.
            return SignalOutput([], [*states, *self._tables.obstacles.set_aside(table.name, error)])
        read.has_read(chunk, pending.chunk_range, made.row_count, self._clock() - started)
        states += self._finish(read, at) if read.is_read else self._advance(read, at)
        reach(FaultPoint.CHUNK_TAKEN)
        return SignalOutput(events, states)

    def _advance(self, read: TableRead, at: Position) -> list[Record]:
        name, request = read.captured.name, read.request
        before = self._tables.states[name]  # the description may be missing
        total, done = read.pages or (before.pages_total, before.pages_done)
        states = self._tables.reads.advance(name, request, total, done)
        if request.kind == "initial" or request.is_own:
            return states
        tell = self._tables.notifications
        left = queued(self._tables) if tell.is_on else []
        return [*states, *tell.chunk(at, left, name, request.signal, done, total)]

    def _finish(self, read: TableRead, at: Position, reason: str = "") -> list[Record]:
        """Record how a table's read ended, and notify. ``reason``: why it couldn't be read."""
        name, request = read.captured.name, read.request
        pages = read.pages[0] if read.pages else self._tables.states[name].pages_total
        del self._reads[name]
        self._reset_tracking()
        tell, rows = self._tables.notifications, request.rows
        if not reason:
            log.info("table read", table=str(name), rows=rows, snapshot=request.kind)
        status: Literal["SUCCEEDED", "EMPTY", "SQL_EXCEPTION"] = (
            "SQL_EXCEPTION" if reason else "SUCCEEDED" if rows else "EMPTY"
        )
        outcome = SnapshotOutcome(signal=request.signal, status=status, rows=rows, reason=reason)
        requested, refused = outcome if request.signal else None, reason if request.is_own else ""
        queue = queued(self._tables) if tell.is_on else []
        records = self._tables.reads.finish(name, request, at, pages, requested, refused)
        if request.kind == "initial":
            if read.described is not None and not self._is_outdated(read):
                records += self._tables.schemas.described(read.described.table, at)[1]
            records += tell.initial_table_done(at, [name], name, rows)
            if self._tables.reads.is_all_read:
                records += tell.initial("COMPLETED", at)
        elif requested is not None:
            records += tell.table_done(at, queue, name, outcome)
            if not queued(self._tables):
                records += tell.incremental("COMPLETED", at, request.signal)
                if not read.is_end_marked:
                    self._reader.tell_end()
        return records

    def _failed(
        self, read: TableRead, error: MillraceError | AlteredError, now: float
    ) -> list[Record]:
        """Handle a failure: try again, or end the request if that can't help."""
        described, read.described = read.described, None
        if isinstance(error, AlteredError):
            return []
        told = self._tables.obstacles.explained(error, described and described.table)
        fields = {"table": str(read.captured.name), "reason": told.what, "remedy": told.remedy}
        if read.gives_up(error):
            log.warning("a snapshot is abandoned", signal=read.request.signal, **fields)
            return self._finish(read, self._cursor.reached, reason_of(told))
        if isinstance(error, TableGoneError):
            log.warning("a table was dropped before all of it was read", **fields)
            return self._leave(read)
        if read.wait(now, reason_of(told)):
            self._served = -1  # another one gets a turn in between
            delay_s = round(read.not_before - now, 1)
            log.warning("a table can't be read: trying again", delay_s=delay_s, **fields)
            return self._advance(read, self._cursor.reached)
        return []

    def _hindered(self, read: TableRead, error: TableRefusedError, now: float) -> list[Record]:
        """Handle a requested table that can't be captured now."""
        name = read.captured.name
        if self._tables.states.is_set_aside(name) and not read.request.is_own:
            return self._failed(read, error, now)  # the requester gets the reason
        return self._tables.obstacles.set_aside(name, error)

    def _leave(self, read: TableRead) -> list[Record]:
        """End the read of a table that no longer exists, and so stays incomplete."""
        del self._reads[name := read.captured.name]
        states = self._tables.states
        left = [each for each in states[name].requests if not each.is_same(read.request)]
        # Its changes are skipped from here on: a gap if the table was complete before.
        update = {"right_until": states.right_until(name)} if states[name].was_whole else {}
        records = states.set_requests(name, left, None, **update)
        is_first = read.request.kind == "initial"
        if is_first and self._tables.reads.is_all_read:
            records += self._tables.notifications.initial("COMPLETED", self._cursor.reached)
        return records

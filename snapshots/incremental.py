"""Requests, watermarks and changed rows → the rows of chunks, in their place in the stream.

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

from cdc.errors import MillraceError, TableGoneError
from cdc.events.changes import Read
from cdc.events.reference import INCREMENTAL
from cdc.faults import FaultPoint, reach
from cdc.postgres.described import CapturedTable
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, RecordOrBatch
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome, SnapshotRequest
from cdc.stream.signals import NOTHING, KeyTracking, SignalOutput, StreamCursor, StreamedRow
from cdc.stream.translation import Limits
from cdc.tables.tables import Tables
from cdc.wal.messages import Relation
from snapshots.chunk import AlteredError, Chunk
from snapshots.copied_rows import Copied
from snapshots.joining import Elders
from snapshots.requests import queued
from snapshots.table_read import Begun, Work
from snapshots.watermarks import WATERMARK_REMEDY, WatermarkError, is_past
from snapshots.windows import WindowReader

log = structlog.get_logger()
_IN_FLIGHT: Final = 2
"""Chunks per thread: one is read while another one waits for its watermark."""
LAG_S: Final = 1.0
"""A stream that takes longer to what was read is behind: it isn't given more to do."""
_UNLIMITED: Final = Limits(1 << 60, 1 << 60)
ASKED: Final = ("initial", "incremental")
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
        self._joining = tables.joining
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._works: dict[TableName, Work] = {}
        self._elders = Elders(reader, clock)
        self._served = -1
        self._cursor: StreamCursor | None = None
        self._reached: Position | None = None
        """What the stream had reached a turn before."""

    def watches(self, table: TableName) -> bool:
        """Whether a table is being read."""
        return table in self._works

    def key_tracking(self, relation: Relation) -> KeyTracking | None:
        """How its changes are told."""
        work = self._works.get(TableName(relation.namespace, relation.name))
        names = [column.name for column in relation.columns]
        key = work.changes.key if work is not None else ()
        if work is None or not key or not set(key) <= set(names):
            return None
        return KeyTracking(tuple(map(names.index, key)), work.changes.of)

    def announce(self, relation: Relation) -> None:
        """Take notice of how a table's rows look from here on."""
        work = self._works.get(TableName(relation.namespace, relation.name))
        if work is not None:
            work.changes.announce(relation)

    def changed(self, row: StreamedRow) -> None:
        """Take notice of a change to a table that is being read."""
        if row.table in self._works:
            self._works[row.table].changes.note(row)

    def turn(self, cursor: StreamCursor) -> SignalOutput:
        """Begin chunks where threads are free; returns what is due without a watermark."""
        self._cursor = cursor
        if self._elders.turn():
            self._served = -1
        output = self._landed(cursor)
        self._reached = cursor.reached
        if self._served != self._tables.states.requested_changes:
            self._served = self._tables.states.requested_changes
            self._follow_requests(cursor.reached.commit_lsn)
        now = self._clock()
        for work in list(self._works.values()):
            output.states.extend(self._look_after(work, now))
        works = sorted(self._works.values(), key=lambda one: one.request.order)
        self._reader.measure(is_busy=bool(works))
        if any(work.waits_s(now) > LAG_S for work in works):
            return output
        free = _IN_FLIGHT * self._reader.threads - sum(work.in_flight for work in works)
        for work in works:
            while free > 0 and now >= work.not_before and self._begin(work):
                free -= 1
        return output

    @property
    def awaits_stream(self) -> bool:
        """Whether something was read whose position the stream hasn't reached: no watermark."""
        return any(job.behind for work in self._works.values() for job in work.jobs.values())

    def _landed(self, cursor: StreamCursor) -> SignalOutput:
        """What has no watermark, and whose position the stream has reached."""
        output = SignalOutput([], [])
        if cursor.transaction is not None:
            return output
        for work in list(self._works.values()):
            for number, job in work.jobs.items():
                if job.behind is not None and is_past(cursor.flush_lsn, job.behind):
                    # A TRUNCATE has to be behind what is recorded; rows may be where that ends.
                    if number in work.marks and self._is_told(cursor.reached):
                        continue
                    if work.has_joined_at(cursor.reached.commit_lsn):
                        continue
                    passed = self.note_watermark(number, cursor.reached)
                    output.events.extend(passed.events)
                    output.states.extend(passed.states)
        return output

    def note_watermark(self, watermark: str, position: Position) -> SignalOutput:
        """Take notice of a watermark; returns the chunk's rows, which have its position."""
        for name, work in self._works.items():
            asked = self._tables.states[name].requests
            if not any(work.request.is_same(one) for one in asked):
                work.forget(watermark)
                continue  # a signal has ended it, right before
            if (mark := work.marks.pop(watermark, None)) is not None and mark.found:
                return NOTHING if self._is_told(position) else self._reset(work, position)
            if (begun := work.chunks.pop(watermark, None)) is not None:
                output = self._chunk(work, begun, position)
                work.changes.ended(watermark)
                return output
        return NOTHING

    def _is_told(self, position: Position) -> bool:
        """Whether the log may say that it has all up to where a TRUNCATE would be."""
        return self._reached is not None and position.just_before() <= self._reached

    def close(self) -> None:
        """End what goes on in the background."""
        self._reader.close()

    def _follow_requests(self, reached: Lsn) -> None:
        """Begin to watch tables that are to be read, and leave those that aren't any more."""
        wanted: dict[TableName, SnapshotRequest] = {}
        for name in self._tables.states.requested:
            asked = [one for one in self._tables.states[name].requests if one.kind in ASKED]
            if asked:
                wanted[name] = min(asked, key=lambda one: one.order)
        before = set(self._works)
        for name, work in list(self._works.items()):
            request = wanted.get(name)
            if request is None or not work.request.is_same(request):
                del self._works[name]
            else:
                work.request = request
        # Not all at once: changes of each cost something to remember.
        room = _IN_FLIGHT * self._reader.threads
        now = self._clock()
        busy = (one for one in self._works.values() if one.not_before <= now)
        room -= sum(not work.request.paused for work in busy)
        for name in sorted(wanted.keys() - self._works.keys(), key=lambda one: wanted[one].order):
            is_free = room > 0 and not wanted[name].paused
            if is_free and self._elders.have_ended(name, wanted[name]):
                room -= 1
                self._watch(name, wanted[name], reached)
        if before != set(self._works):
            self._tell_anew()

    def _watch(self, name: TableName, request: SnapshotRequest, reached: Lsn) -> None:
        state = self._tables.states[name]
        captured = CapturedTable(state.oid, name)
        fence = max(reached, state.snapshot_lsn)  # what is before that isn't told
        is_joining = request.kind == "initial" and request.behind_xid > 0
        joined = state.snapshot_lsn if is_joining else Lsn(0)
        self._works[name] = Work(captured, request, fence, self._chunk_bytes, joined)

    def _tell_anew(self) -> None:
        """Changes are to be told in another way from here on; nothing else was asked for."""
        is_served = self._served == self._tables.states.requested_changes
        self._tables.states.watched_anew()
        self._served = self._tables.states.requested_changes if is_served else -1

    def _look_after(self, work: Work, now: float) -> list[Record]:
        """Take in what came to an end without a watermark."""
        assert self._cursor is not None  # noqa: S101 (turn sets it)
        reached = self._cursor.reached
        work.remember(reached.commit_lsn)
        records: list[Record] = []
        between = self._cursor.transaction is None
        for error in work.failures(self._cursor.flush_lsn if between else Lsn(0)):
            records += self._failed(work, error, now)
            if self._works.get(work.captured.name) is not work:  # it is given up
                return records
        if work.looking is not None and (known := work.looking.found) is not None:
            before = work.changes.key
            work.learn(known)
            work.remember(reached.commit_lsn)
            if work.changes.key != before:
                self._tell_anew()
            if work.is_read and not work.request.reset:  # nothing is there to be read
                records += self._finish(work, reached)
        return records

    def _begin(self, work: Work) -> bool:
        """Begin what comes next for a table; returns whether there is anything."""
        assert self._cursor is not None  # noqa: S101 (turn sets it)
        if work.request.paused:
            return False
        if work.known is None:
            if work.looking is not None:
                return False
            work.looking = self._reader.look(work.captured, self._streamed(work))
            return True
        if work.request.reset:
            if not work.marks:
                job = self._reader.mark()
                work.marks[job.id] = job
            return False
        rows_max = self._reader.rows_max
        place = work.next_place(rows_max) if rows_max else None
        if place is None:
            return False
        work.add(self._reader.read(work.known, place, self._streamed(work)), place)
        return True

    def _streamed(self, work: Work) -> Lsn:
        """What a chunk has to show: all whole transactions, and the one that the fence is in."""
        assert self._cursor is not None  # noqa: S101 (turn sets it)
        whole = self._cursor.flush_lsn
        return Lsn(work.fence + 1) if work.fence > whole else whole

    def _reset(self, work: Work, position: Position) -> SignalOutput:
        """From here on the log has nothing of the table: it begins anew."""
        assert work.known is not None  # noqa: S101 (it was, before the watermark was written)
        asked = self._tables.states[work.captured.name].requests
        (now,) = (one for one in asked if one.is_same(work.request))
        first = SnapshotRequest(
            kind="initial", signal=now.signal, order=now.order, paused=now.paused
        )
        others = (one for one in asked if one is not now and one.kind != "initial")
        events, states = self._joining.begin_anew(work.known.table, position, (first, *others))
        return SignalOutput([*events], states)

    def _chunk(self, work: Work, begun: Begun, at: Position) -> SignalOutput:
        chunk = begun.found
        self._reader.pace.took(chunk.number if chunk else 0, begun.place.rows_max)
        stale = None if chunk is None else self._stale(work, chunk, begun)
        if chunk is None or stale is None:
            return NOTHING  # its range is still missing: it is read once more
        work.changes.settle(chunk.visibility, list(work.chunks))
        started = self._clock()
        copied, states = self._copied(work, chunk, stale, at)
        events: list[RecordOrBatch] = []
        fed, size = 0, len(chunk.rows)
        while fed < size:
            fed = copied.feed(chunk.rows, fed, size, _UNLIMITED)
            events += copied.take()
        work.has_read(chunk, begun.place, copied.rows, self._clock() - started)
        states += self._finish(work, at) if work.is_read else self._advance(work, at)
        reach(FaultPoint.CHUNK_TAKEN)
        return SignalOutput(events, states)

    def _stale(self, work: Work, chunk: Chunk, begun: Begun) -> frozenset[bytes] | None:
        """The keys of rows that are left out; None: nothing of the chunk can be used."""
        assert self._cursor is not None  # noqa: S101 (chunks are begun by turn)
        if (
            begun.forgotten != work.changes.forgotten
            or chunk.known.table.identifying_columns != work.changes.key
            or not work.changes.fits(chunk.known.table, begun.announced)
        ):
            return None
        if begun.fence:
            if not chunk.visibility.shows_all_before(begun.fence, self._cursor.committed_at):
                return None
            work.fence = Lsn(0)
        return work.changes.stale(chunk.visibility)

    def _copied(
        self, work: Work, chunk: Chunk, stale: frozenset[bytes], at: Position
    ) -> tuple[Copied, list[Record]]:
        table, states = chunk.known.table, list[Record]()
        columns = [column.name for column in table.columns]
        is_first = work.request.kind == "initial"
        read = Read() if is_first else Read(INCREMENTAL)
        if work.encoder is None or work.encoder[0] is not table:
            schema, states = self._tables.schemas.described(table, at)
            encoders = self._tables.encoders
            encoder = encoders.encoder(schema) if is_first else encoders.readable(schema)
            work.encoder = table, encoder
        key = tuple(map(columns.index, table.identifying_columns))
        copied = Copied(work.encoder[1], at, at.commit_lsn, chunk.read_us, read, key=key, extra=1)
        copied.stale = stale
        return copied, states

    def _advance(self, work: Work, at: Position) -> list[Record]:
        name, request = work.captured.name, work.request
        before = self._tables.states[name]  # what the table is like may have to be asked anew
        total, done = work.pages if work.known else (before.pages_total, before.pages_done)
        state = self._tables.reads.advance(name, request, total, done)
        if request.kind == "initial" or request.is_own:
            return [state]
        left = queued(self._tables)
        tell = self._tables.notifications
        return [state, *tell.chunk(at, left, name, request.signal, (done, total))]

    def _finish(self, work: Work, at: Position, reason: str = "") -> list[Record]:
        """Note how a table has ended, and tell; ``reason`` is why it couldn't be read."""
        name, request = work.captured.name, work.request
        pages = work.pages[0] if work.known else self._tables.states[name].pages_total
        del self._works[name]
        self._tell_anew()
        tell, rows = self._tables.notifications, request.rows
        if not reason:
            log.info("table read", table=str(name), rows=rows, snapshot=request.kind)
        status: Literal["SUCCEEDED", "EMPTY", "SQL_EXCEPTION"]
        status = "SQL_EXCEPTION" if reason else "SUCCEEDED" if rows else "EMPTY"
        outcome = SnapshotOutcome(signal=request.signal, status=status, rows=rows, reason=reason)
        if request.kind == "initial":
            asked = outcome if request.signal else None
            records = [self._tables.reads.finish(name, request, at, pages, asked)]
            if work.known is not None:
                records += self._tables.schemas.described(work.known.table, at)[1]
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
            if not work.is_end_told:
                self._reader.tell_end()
        return records

    def _failed(self, work: Work, error: Exception, now: float) -> list[Record]:
        """Something came to nothing: try again, or give up where that can't help."""
        work.known = None
        if isinstance(error, AlteredError):
            return []
        name, remedy = str(work.captured.name), ""
        if isinstance(error, WatermarkError):
            error, remedy = error.reason, WATERMARK_REMEDY
        if not isinstance(error, MillraceError):
            raise error  # a bug of ours
        told = {"table": name, "reason": error.what, "remedy": remedy or error.remedy}
        if work.gives_up(error):
            log.warning("an incremental snapshot is given up", signal=work.request.signal, **told)
            assert self._cursor is not None  # noqa: S101 (turn sets it)
            reason = ": ".join(filter(None, (error.what, told["remedy"])))
            return self._finish(work, self._cursor.reached, reason)
        if isinstance(error, TableGoneError):
            log.warning("a table is gone before all of it was read", **told)
            return self._leave(work)
        if work.wait(now):
            self._served = -1  # another one has its place meanwhile
            delay_s = round(work.not_before - now, 1)
            log.warning("a table can't be read: trying again", delay_s=delay_s, **told)
        return []

    def _leave(self, work: Work) -> list[Record]:
        """Nothing more is to be read of a table, which never gets whole."""
        del self._works[name := work.captured.name]
        asked = self._tables.states[name].requests
        left = (one for one in asked if not one.is_same(work.request))
        records = [self._tables.states.set_requests(name, left)]
        is_first = work.request.kind == "initial"
        if is_first and self._tables.reads.is_all_read and self._cursor is not None:
            records += self._tables.notifications.initial("COMPLETED", self._cursor.reached)
        return records

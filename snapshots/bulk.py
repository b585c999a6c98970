"""An exported snapshot and tables → batches of records, from several connections at once.

Each connection COPYs a chunk (pages of a leaf) at a time, in a transaction of its own that imports
the snapshot: so the lock of a plain SELECT goes when a chunk is done. One thread takes what has
arrived from all of them, and makes records of it; a chunk counts as read with its last row.

A table that was rewritten between the snapshot and our lock looks empty to the snapshot
(https://www.postgresql.org/docs/current/mvcc-caveats.html), which would lose its rows without a
word. So its file is compared first: pg_class is read as of the snapshot, pg_relation_filenode()
as of now. What can't be read so, and what there is no time for, is left to be read while streaming.
"""

import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import psycopg
import structlog

from cdc.convert.pipeline import Encoder
from cdc.errors import MillraceError, TableLockedError
from cdc.postgres.connection import connect, query
from cdc.postgres.described import Leaf, TableDescription
from cdc.postgres.failures import blaming
from cdc.postgres.slot import ExportedSnapshot
from cdc.records.position import Position
from cdc.records.state import LeafRead
from cdc.settings import CaptureSettings, LibraryOptions
from cdc.tables.reads import SnapshotBatch
from snapshots import reader
from snapshots.copied_rows import Copied
from snapshots.copy_out import copy_out
from snapshots.pace import Pace, Probe
from snapshots.reader import ALL, LIMITS, Range, merged, next_range, pages_of

log = structlog.get_logger()

_RECEIVE_BUFFER_BYTES: Final = 64 << 10
"""What the kernel may hold for us of a COPY whose rate is limited: the rest waits at the source."""
_CHUNK_S: Final = 5.0
"""A chunk is no longer than that, however low the rate is."""
_LOCKED_S: Final = 10.0
_AGAIN_S: Final = 1.0
"""A table that was locked so long while others were read isn't waited for; how often it's tried."""


class _LeafRange(NamedTuple):
    """What a chunk reads; without a leaf: all that the user's own SELECT gives."""

    leaf: Leaf | None
    tids: Range


class _BulkTable:
    """What of a table was read, is being read, and is missing."""

    def __init__(
        self,
        table: TableDescription,
        statement: str | None,
        statement_key: str | None,
        chunk_bytes: int,
    ) -> None:
        """``statement``: a SELECT of the user's own, which comes from ``statement_key``."""
        self.table = table
        self.statement = statement
        self.statement_key = statement_key
        self.rows = 0
        self.is_left = False
        """Whether the rest is read another time."""
        self.not_before = 0.0
        """When (monotonic) its lock is tried again, after somebody held it."""
        self._locked_since = math.inf
        self.encoder: Encoder | None = None
        self._chunk_pages = max(1, chunk_bytes // table.block_bytes)
        self._taken: dict[int, list[Range]] = {leaf.oid: [] for leaf in table.leaves}
        self._done: dict[int, tuple[Range, ...]] = {leaf.oid: () for leaf in table.leaves}
        self._files: dict[int, int] = {}
        self._is_given = self._is_read = statement is None

    def next_chunk(self, rows_max: float) -> _LeafRange | None:
        """What nobody reads yet, of about so many rows at most."""
        if self.is_left:
            return None
        if self.statement is not None:
            self._is_given, before = True, self._is_given
            return None if before else _LeafRange(None, ALL)
        for leaf in self.table.leaves:
            taken = self._taken[leaf.oid]
            pages = self._chunk_pages
            if rows_max < math.inf:
                per_page = max(1.0, self.table.rows_estimated / max(1, self.table.pages))
                pages = max(1, min(pages, int(rows_max / per_page)))
            if (tids := next_range(taken, leaf.pages, pages)) is not None:
                taken.append(tids)
                return _LeafRange(leaf, tids)
        return None

    def put_off(self, chunk: _LeafRange) -> None:
        """Nobody reads a chunk now, after all: the table is locked."""
        self._locked_since = min(self._locked_since, time.monotonic())
        self.not_before = time.monotonic() + _AGAIN_S
        if chunk.leaf is None:
            self._is_given = False
        else:
            self._taken[chunk.leaf.oid].remove(chunk.tids)

    @property
    def is_waited_for(self) -> bool:
        """Whether its lock may still come soon."""
        return not self.table.is_chunked or time.monotonic() - self._locked_since < _LOCKED_S

    def has_read(self, chunk: _LeafRange, file: int) -> None:
        """A chunk is done."""
        self._locked_since = math.inf
        if chunk.leaf is None:
            self._is_read = True
            return
        oid = chunk.leaf.oid
        self._files[oid] = file
        self._done[oid] = merged([*self._done[oid], chunk.tids])

    @property
    def is_done(self) -> bool:
        """Whether all of it was read."""
        return self._is_read and all(done == (ALL,) for done in self._done.values())

    @property
    def read(self) -> tuple[LeafRead, ...]:
        """What was read."""
        return tuple(
            LeafRead(leaf=oid, file=self._files[oid], ranges=ranges)
            for oid, ranges in self._done.items()
            if ranges
        )

    @property
    def pages_done(self) -> int:
        """How many pages that is."""
        return sum(pages_of(self._done[leaf.oid], leaf.pages) for leaf in self.table.leaves)


class _Worker:
    """One connection, and the chunk that it reads."""

    def __init__(self, source: LibraryOptions, exported: ExportedSnapshot, pace: Pace) -> None:
        self._connection = connect(source, purpose="snapshot")
        self._pace = pace
        if pace.limit < math.inf:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as way:
                way.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._copy = copy_out(self._connection)
        self._exported = exported
        self._file = 0
        self._copied: Copied | None = None
        self.table: _BulkTable | None = None
        self.chunk: _LeafRange | None = None
        self.is_throttled = False
        """Whether rows that have arrived wait until they may be taken."""

    def begin(
        self, table: _BulkTable, chunk: _LeafRange, position: Position, *, patient: bool
    ) -> None:
        """Begin to read a chunk; ``patient``: the table's lock is waited for."""
        reader.begin(self._connection, self._exported, patient=patient)
        if chunk.leaf is not None:
            self._file = reader.lock(self._connection, chunk.leaf)
        ((now_us,),) = query(self._connection, reader.NOW_US)
        assert table.encoder is not None  # noqa: S101 (it is made with the first chunk)
        self._copied = Copied(table.encoder, position, position.commit_lsn, now_us)
        columns = [column.name for column in table.table.columns]
        if chunk.leaf is None:
            statement = reader.of_statement(table.statement or "", columns)
        else:
            statement = reader.of_range(chunk.leaf, columns, chunk.tids, [table.table.row_filter])
        self.table, self.chunk = table, chunk
        self._copy.begin(reader.copying(statement))

    def take(self) -> Iterator[SnapshotBatch]:
        """Make batches of what has arrived; the last one of a chunk says so."""
        table, copied, copy = self.table, self._copied, self._copy
        assert table is not None and copied is not None and self.chunk is not None  # noqa: S101, PT018
        is_filled = self.is_throttled = False
        before = copied.rows
        while not copy.ended():
            if self._pace.wait_s() > 0:
                self.is_throttled = True
                return
            at = copy.start
            limits = LIMITS._replace(records_max=min(LIMITS.records_max, self._pace.room()))
            copy.start = copied.feed(copy.buffer, copy.start, copy.end, limits)
            if copy.start > at:
                self._pace.took(copied.rows - before)
                table.rows += copied.rows - before
                before = copied.rows
                yield SnapshotBatch(table.table.name, copied.take(), table.rows)
            elif is_filled or not copy.fill():
                return
            else:
                is_filled = True
        query(self._connection, "COMMIT")
        table.has_read(self.chunk, self._file)
        self.table = None
        yield batch_of(table)

    def give_up(self) -> None:
        """Leave the chunk; the connection goes on with another one."""
        self.table = None
        query(self._connection, "ROLLBACK")

    def fileno(self) -> int:
        """Readable when something has arrived."""
        return self._copy.fileno()

    @property
    def wait_s_max(self) -> float:
        """How long a poll may last."""
        return self._copy.wait_s_max

    def close(self) -> None:
        """Disconnect; a COPY under way ends by that."""
        self._copy.close()
        self._connection.close()


def batch_of(table: _BulkTable) -> SnapshotBatch:
    """No rows, but how far the table is."""
    return SnapshotBatch(
        table.table.name, (), table.rows, table.read, table.pages_done, table.is_done
    )


class Bulk:
    """One read of tables; ``batches`` is what there is to it."""

    def __init__(
        self,
        settings: CaptureSettings,
        source: LibraryOptions,
        exported: ExportedSnapshot,
        position: Position,
        encoder: Callable[[TableDescription], Encoder],
        until_s: float | None,
        pace: Pace,
    ) -> None:
        """``until_s``: when (monotonic) the stream's readers take over; None: there are none."""
        self._settings = settings
        self._source = source
        self._exported = exported
        self._position = position
        self._encoder = encoder
        self._until_s = until_s
        self._pace = pace
        self._probe = Probe(source, pace)
        self._workers: list[_Worker] = []
        self._waiting: list[_BulkTable] = []
        """Tables of which something is to be begun."""

    def batches(
        self,
        tables: Sequence[TableDescription],
        statements: Mapping[str, str],
        statement_key: Callable[[TableDescription], str | None],
    ) -> Iterator[SnapshotBatch]:
        """Every row of the tables that the snapshot sees; a table's last batch says so."""
        chunk_bytes = self._settings.snapshot_chunk_bytes
        to_read = [
            _BulkTable(table, statements.get(str(table.name)), statement_key(table), chunk_bytes)
            for table in tables
        ]
        try:
            with self._probe.measuring():
                yield from self._batches(to_read)
        finally:
            for worker in self._workers:
                with suppress(MillraceError, psycopg.Error):
                    worker.close()

    def _batches(self, tables: Sequence[_BulkTable]) -> Iterator[SnapshotBatch]:
        for table in tables:
            if table.is_done:  # a partitioned table without partitions
                self._encode(table)
                yield batch_of(table)
        self._waiting = list(tables)
        while self._begin():
            ready = self._ready()
            for worker in ready:
                yield from self._taken(worker)
            if not ready:  # whoever waits for us has a turn, too
                busy = next(worker.table for worker in self._workers if worker.table is not None)
                yield SnapshotBatch(busy.table.name, (), busy.rows)

    def _begin(self, *, patient: bool = False) -> bool:
        """Let free connections begin what comes next; returns whether anything is under way."""
        for table in list(self._waiting):
            while (worker := self._free_worker()) is not None:
                if not self._begin_chunk(worker, table, patient=patient):
                    break
            else:
                return True
        if not self._is_busy and self._waiting:  # all of them are locked, and nobody else is left
            return self._begin(patient=True)
        return self._is_busy

    def _begin_chunk(self, worker: _Worker, table: _BulkTable, *, patient: bool) -> bool:
        """Begin what comes next of a table; returns whether more of it may follow at once."""
        patient = patient and not self._is_busy  # who waits for a lock keeps all others waiting
        if time.monotonic() < table.not_before and not patient:
            return False
        chunk = None if self._is_timed_out(table) else table.next_chunk(self._pace.rate * _CHUNK_S)
        if chunk is None:
            self._waiting.remove(table)
            return False
        self._encode(table)
        try:
            worker.begin(table, chunk, self._position, patient=patient and table.is_waited_for)
            self._probe.chunk()
        except reader.OF_ONE_TABLE as error:
            if isinstance(error, TableLockedError) and not patient and table.is_waited_for:
                worker.give_up()
                table.put_off(chunk)
                return False
            self._leave(worker, table, error)
        return True

    @property
    def _is_busy(self) -> bool:
        return any(worker.table is not None for worker in self._workers)

    def _is_timed_out(self, table: _BulkTable) -> bool:
        if self._until_s is None or time.monotonic() < self._until_s or table.is_left:
            return False
        if not table.table.is_chunked or table.statement is not None:
            return False
        if not table.is_done:
            log.info(
                "the first snapshot has lasted as long as it may: the rest is read while streaming",
                table=str(table.table.name),
            )
            table.is_left = True
        return True

    def _free_worker(self) -> _Worker | None:
        for worker in self._workers:
            if worker.table is None:
                return worker
        if len(self._workers) < self._settings.snapshot_max_threads:
            self._workers.append(_Worker(self._source, self._exported, self._pace))
            return self._workers[-1]
        return None

    def _encode(self, table: _BulkTable) -> None:
        if table.encoder is None:
            table.encoder = self._encoder(table.table)

    def _ready(self) -> list[_Worker]:
        """Those that have rows for us to take, as soon as any may be taken."""
        if (wait_s := self._pace.wait_s()) > 0:
            time.sleep(min(wait_s, reader.PAUSE_S))
            return []
        # Whoever was first last time is last now: there may not be room for all.
        self._workers.append(self._workers.pop(0))
        busy = {worker.fileno(): worker for worker in self._workers if worker.table is not None}
        poller = select.poll()
        for descriptor in busy:
            poller.register(descriptor, select.POLLIN)
        is_throttled = any(worker.is_throttled for worker in busy.values())
        wait_s_max = min(worker.wait_s_max for worker in busy.values())
        wait_s = 0.0 if is_throttled else min(reader.WAIT_S, wait_s_max)
        readable = {descriptor for descriptor, _ in poller.poll(wait_s * 1_000)}
        return [
            worker
            for descriptor, worker in busy.items()
            # libpq may hold what the socket doesn't show
            if descriptor in readable or worker.is_throttled or worker.wait_s_max < reader.WAIT_S
        ]

    def _taken(self, worker: _Worker) -> Iterator[SnapshotBatch]:
        table = worker.table
        assert table is not None  # noqa: S101 (it is busy)
        try:
            with blaming(table.statement_key):
                yield from worker.take()
        except reader.OF_ONE_TABLE as error:
            self._leave(worker, table, error)

    def _leave(self, worker: _Worker, table: _BulkTable, error: MillraceError) -> None:
        """Leave a table that can't be read now to be read while streaming, if it can be so."""
        if self._until_s is None or not table.table.is_chunked or table.statement is not None:
            raise error
        worker.give_up()
        if not table.is_left:
            name = str(table.table.name)
            log.warning("a table is read while streaming", table=name, reason=error.what)
        table.is_left = True

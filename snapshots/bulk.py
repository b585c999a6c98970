"""An exported snapshot and tables → batches of records, read over several connections at once.

Each connection COPYs one chunk (pages of a leaf) at a time, in its own transaction that imports the
snapshot. So the lock of a plain SELECT ends with the chunk. One thread takes the rows that arrive
on all connections, and makes records of them. A chunk counts as read with its last row.

A table that was rewritten between the snapshot and our lock looks empty to the snapshot
(https://www.postgresql.org/docs/current/mvcc-caveats.html), which would lose its rows silently. So
its file is compared first: pg_class is read as of the snapshot, pg_relation_filenode() as of now.
Tables that can't be read this way, or that the time limit cuts off, are left for reads while
streaming.
"""

import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import psycopg
import structlog

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.errors import ROW_ERRORS, MillraceError, TableLockedError
from cdc.postgres.connection import connect, query
from cdc.postgres.copy_out import copy_out
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import blaming
from cdc.postgres.slot import ExportedSnapshot
from cdc.records.position import Position
from cdc.records.record import RecordOrBatch
from cdc.settings import CaptureSettings, LibraryOptions
from cdc.tables.reads import ReadProgress, SnapshotBatch
from snapshots import reader
from snapshots.bulk_tables import CHUNK_S, BulkTable, LeafRange, Statement
from snapshots.copied_rows import copier
from snapshots.pace import Pace, Probe
from snapshots.reader import LIMITS

log = structlog.get_logger()

_RECEIVE_BUFFER_BYTES: Final = 64 << 10
"""The kernel's receive buffer for a COPY with a limited rate. The rest waits at the source."""


class _Worker:
    """One connection, and the chunk that it reads."""

    def __init__(self, source: LibraryOptions, exported: ExportedSnapshot, pace: Pace) -> None:
        self._connection = connect(source, purpose="snapshot")
        self._pace = pace
        if pace.limit < math.inf:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as way:
                way.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self.copy = copy_out(self._connection)
        self._exported = exported
        self._file = 0
        self._records: list[RecordOrBatch] = []
        self._copier: fast.Copier
        self._chunk: LeafRange
        self.table: BulkTable | None = None
        self.is_throttled = False
        """Whether rows that have arrived wait until the pace lets them through."""

    def begin(
        self,
        table: BulkTable,
        encoder: Encoder,
        chunk: LeafRange,
        position: Position,
        *,
        patient: bool,
    ) -> None:
        """Begin to read a chunk. ``patient``: wait for the table's lock."""
        reader.begin(self._connection, self._exported, patient=patient)
        columns = [column.name for column in table.table.columns]
        if chunk.leaf is not None:
            self._file, now_us = reader.lock(self._connection, chunk.leaf)
            select = reader.of_range(chunk.leaf, columns, chunk.tids, [table.table.row_filter])
        elif table.own is not None:
            select = reader.of_statement(table.own.text, columns)
            ((now_us,),) = query(self._connection, reader.NOW_US)
        self._records = []
        self._copier = copier(self._records, encoder, position, now_us)
        self.table, self._chunk = table, chunk
        self.copy.begin(reader.copying(select))

    def take(self) -> Iterator[SnapshotBatch]:
        """Yield batches of arrived rows. A chunk's last one says so, or has a failure."""
        table, made, copy = self.table, self._copier, self.copy
        assert table is not None  # noqa: S101 (it is busy)
        is_filled = self.is_throttled = False
        while not copy.ended():
            if self._pace.wait_s() > 0:
                self.is_throttled = True
                return
            start, before = copy.start, made.row_count
            limits = min(LIMITS.records_max, self._pace.room()), LIMITS.bytes_max
            try:
                copy.start = made.feed(copy.buffer, start, copy.end, time.time_ns(), *limits)
            except ROW_ERRORS as error:
                yield SnapshotBatch(ReadProgress(table.table.name, table.rows), failure=error)
                return
            if copy.start > start:
                self._pace.took(made.row_count - before)
                table.rows += made.row_count - before
                records = [*self._records]
                self._records.clear()
                progress = ReadProgress(table.table.name, table.rows)
                yield SnapshotBatch(progress, records, made.made_records, made.made_bytes)
            elif is_filled or not copy.fill():
                return
            else:
                is_filled = True
        query(self._connection, "ROLLBACK")  # undoes settings by the table owner's code, too
        table.has_read(self._chunk, self._file)
        self.table = None
        yield SnapshotBatch(table.progress)

    def give_up(self) -> None:
        """Abandon the chunk. The connection continues with another one."""
        self.table = None
        query(self._connection, "ROLLBACK")

    def close(self) -> None:
        """Disconnect, which ends a COPY under way."""
        self.copy.close()
        self._connection.close()


class Bulk:
    """One read of tables, by ``batches``."""

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
        """``until_s``: when (monotonic) reads while streaming take over. None: there are none."""
        self._settings = settings
        self._source = source
        self._exported = exported
        self._position = position
        self._encoder = encoder
        self._until_s = until_s
        self._pace = pace
        self._probe = Probe(source, pace)
        self._workers: list[_Worker] = []
        self._waiting: list[BulkTable] = []
        """Tables with chunks that haven't begun."""
        self._failures: list[SnapshotBatch] = []

    def batches(
        self,
        tables: Sequence[TableDescription],
        statements: Mapping[str, Statement],
    ) -> Iterator[SnapshotBatch]:
        """Yield every row of the tables that the snapshot sees. A table's last batch says so."""
        to_read = [
            BulkTable(table, statements.get(str(table.name)), self._settings.snapshot_chunk_bytes)
            for table in tables
        ]
        try:
            with self._probe.measuring():
                yield from self._batches(to_read)
        finally:
            for worker in self._workers:
                with suppress(MillraceError, psycopg.Error):
                    worker.close()

    def _batches(self, tables: Sequence[BulkTable]) -> Iterator[SnapshotBatch]:
        for table in tables:  # a partitioned table without partitions is done
            if table.is_done and self._encoder_of(table) is not None:
                yield SnapshotBatch(table.progress)
        self._waiting = list(tables)
        while self._begin() or self._failures:
            yield from self._failures
            self._failures.clear()
            if not self._is_busy:
                continue
            ready = self._ready()
            for worker in ready:
                yield from self._taken(worker)
            if not ready:  # the caller gets a turn while no rows arrive
                busy = next(worker.table for worker in self._workers if worker.table is not None)
                yield SnapshotBatch(ReadProgress(busy.table.name, busy.rows))

    def _begin(self, *, patient: bool = False) -> bool:
        """Start the next chunks on free connections. Return whether any read is active."""
        for table in list(self._waiting):
            while (worker := self._free_worker()) is not None:
                if not self._begin_chunk(worker, table, patient=patient):
                    break
            else:
                return True
        if not self._is_busy and self._waiting:  # all of them are locked, and nothing else is left
            return self._begin(patient=True)
        return self._is_busy

    def _begin_chunk(self, worker: _Worker, table: BulkTable, *, patient: bool) -> bool:
        """Start the next chunk of a table. Return whether another may follow at once."""
        patient = patient and not self._is_busy  # a wait for a lock would hold up all connections
        if time.monotonic() < table.not_before and not patient:
            return False
        chunk = None if self._is_timed_out(table) else table.next_chunk(self._pace.rate * CHUNK_S)
        encoder = self._encoder_of(table) if chunk is not None else None
        if chunk is None or encoder is None:
            self._waiting.remove(table)
            return False
        patience = patient and table.is_waited_for
        try:
            worker.begin(table, encoder, chunk, self._position, patient=patience)
            self._probe.chunks += 1
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

    def _is_timed_out(self, table: BulkTable) -> bool:
        if self._until_s is None or time.monotonic() < self._until_s or not table.may_be_left:
            return False
        if not (table.is_left or table.is_done):
            log.info(
                "the first snapshot has reached its time limit: the rest is read while streaming",
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

    def _encoder_of(self, table: BulkTable) -> Encoder | None:
        """Return the table's encoder. None, with a failure recorded, if it can't be made."""
        try:
            table.encoder = table.encoder or self._encoder(table.table)
        except ROW_ERRORS as error:
            progress = ReadProgress(table.table.name, table.rows)
            self._failures.append(SnapshotBatch(progress, failure=error))
        return table.encoder

    def _ready(self) -> list[_Worker]:
        """Return the workers with rows to take, as soon as the pace allows any."""
        if (wait_s := self._pace.wait_s()) > 0:
            time.sleep(min(wait_s, reader.PAUSE_S))
            return []
        # The first worker of the last turn is the last one now: there may not be room for all.
        self._workers.append(self._workers.pop(0))
        busy = [worker for worker in self._workers if worker.table is not None]
        poller = select.poll()
        for worker in busy:
            poller.register(worker.copy.fileno(), select.POLLIN)
        is_throttled = any(worker.is_throttled for worker in busy)
        wait_s = min(reader.WAIT_S, *(worker.copy.wait_s_max for worker in busy))
        readable = {number for number, _ in poller.poll(0 if is_throttled else wait_s * 1_000)}
        return [
            worker
            for worker in busy
            # libpq may hold rows that the socket doesn't show
            if worker.copy.fileno() in readable
            or worker.is_throttled
            or worker.copy.wait_s_max < reader.WAIT_S
        ]

    def _taken(self, worker: _Worker) -> Iterator[SnapshotBatch]:
        table = worker.table
        if table is None:
            return  # it was abandoned in this turn
        try:
            with blaming(table.own.key if table.own else None):
                for batch in worker.take():
                    if batch.failure is not None:
                        self._give_up(table)
                    yield batch
        except reader.OF_ONE_TABLE as error:
            self._leave(worker, table, error)

    def _give_up(self, table: BulkTable) -> None:
        """Stop reading a table that is set aside. Its COPYs end with their connections."""
        table.is_left = True
        for worker in [worker for worker in self._workers if worker.table is table]:
            self._workers.remove(worker)
            worker.table = None
            worker.close()

    def _leave(self, worker: _Worker, table: BulkTable, error: MillraceError) -> None:
        """Leave a table for a read while streaming, or raise the error if that is impossible."""
        if self._until_s is None or not table.may_be_left:
            raise error
        worker.give_up()
        if not table.is_left:
            name = str(table.table.name)
            log.warning("a table is read while streaming", table=name, reason=error.what)
        table.is_left = True

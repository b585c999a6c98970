"""Batches of existing rows → the log, with each table's progress in the same Kafka transactions.

The daemon must not import the snapshots package; what it needs of it is the protocol below.
"""

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import structlog

from cdc.errors import SourceError, TableChangedError
from cdc.faults import FaultPoint, reach
from cdc.kafka.producer import LogWriter
from cdc.postgres.catalog import TableDescription
from cdc.postgres.slot import ExportedSnapshot
from cdc.readable import Encoder
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.settings import CaptureSettings
from cdc.tables import Tables

log = structlog.get_logger()
COMMIT_AGE_S_MAX = 0.5
"""Kafka transactions of snapshot rows stay well under a second: readers wait for them."""


class Again(NamedTuple):
    """How tables are read that the log has already.

    ``statements``: SELECTs that give some tables' rows. ``xid``: the last transaction that was
    streamed, which Debezium names in the rows' events.
    """

    statements: Mapping[TableName, str] = MappingProxyType({})
    xid: int | None = None


FIRST: Final = Again()
"""They aren't: they are read for the first time."""


class SnapshotBatch(NamedTuple):
    """Some rows of one chunk; ``rows`` counts those of the table so far, this batch included."""

    table: TableName
    records: Sequence[Record]
    rows: int
    chunks_done: int
    chunks_total: int

    @property
    def table_done(self) -> bool:
        """Whether these were the table's last rows."""
        return self.chunks_done == self.chunks_total


class Backfill(Protocol):
    """Reads existing rows under an exported snapshot."""

    def read(
        self,
        exported: ExportedSnapshot,
        position: Position,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], Encoder],
        again: Again = FIRST,
    ) -> Iterator[SnapshotBatch]:
        """Every row of the tables, table by table, at a position, in batches of bounded size."""
        ...


class SnapshotObserver(Protocol):
    """Is told how far a snapshot has come."""

    def snapshot_started(self, tables: Sequence[TableDescription]) -> None:
        """Tell that these tables are about to be read."""
        ...

    def snapshot_batch(self, batch: SnapshotBatch) -> None:
        """Tell that a batch was written."""
        ...


class SnapshotWriter:
    """Writes a backfill's batches to the log, a Kafka transaction at a time."""

    def __init__(
        self,
        settings: CaptureSettings,
        writer: LogWriter,
        tables: Tables,
        *,
        epoch: int,
        keep_alive: Callable[[], None],
        observer: SnapshotObserver,
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._tables = tables
        self._epoch = epoch
        self._keep_alive = keep_alive
        self._observer = observer

    def write(
        self,
        backfill: Backfill,
        exported: ExportedSnapshot,
        described: Sequence[TableDescription],
        stop: threading.Event,
        asked: Container[str] = (),
    ) -> int:
        """Snapshot the tables; returns the number of events, all of them durable.

        A table that the settings leave out counts as read, unless it was ``asked`` for by name.
        Told to stop, it ends early: the tables that aren't whole are read again by the next start.
        """
        writer, position = self._writer, self._position(exported)
        known, read = [], []
        for table in described:
            name = str(table.name)
            wanted = name in asked or self._settings.snapshots(name)
            if wanted and table.name in self._tables.states:
                known.append(table)
            writer.write(self._tables.begin_snapshot(table, position))
            if wanted:
                read.append(table)
            else:
                writer.write([self._tables.advance_snapshot(table.name, 0, (1, 1))])
        events = self._forget_rows(known, position) if self._settings.lossless else 0
        writer.commit()
        self._observer.snapshot_started(read)
        for batch in backfill.read(exported, position, read, self._encoder(position)):
            writer.write(batch.records)
            events += len(batch.records)
            chunk_done = batch.chunks_done > self._tables.states[batch.table].chunks_done
            if chunk_done or batch.table_done:
                writer.write(
                    [
                        self._tables.advance_snapshot(
                            batch.table, batch.rows, (batch.chunks_done, batch.chunks_total)
                        )
                    ]
                )
                reach(FaultPoint.CHUNK_WRITTEN)
            if self._full() or batch.table_done:
                writer.commit()
                reach(FaultPoint.SNAPSHOT_COMMITTED)
            self._observer.snapshot_batch(batch)
            self._keep_alive()
            if stop.is_set():
                writer.commit()
                break
        return events

    def write_again(
        self,
        backfill: Backfill,
        exact: AbstractContextManager[ExportedSnapshot],
        describe: Callable[[], Sequence[TableDescription]],
        stop: threading.Event,
        again: Again,
    ) -> int:
        """Write rows of tables that the log has; returns the number of events.

        Nothing of the tables' states changes: changes that the stream still has follow the rows.
        Told to stop, it ends early; so it does, with a warning, where the source refuses to go on.
        """
        events = 0
        try:
            with exact as exported:
                described = describe()
                self._observer.snapshot_started(described)
                position = self._position(exported)
                encoder = self._encoder(position)
                for batch in backfill.read(exported, position, described, encoder, again):
                    self._writer.write(batch.records)
                    events += len(batch.records)
                    if self._full():
                        self._writer.commit()
                    self._observer.snapshot_batch(batch)
                    self._keep_alive()
                    if stop.is_set():
                        break
        except SourceError as error:
            # A SELECT of the signal's own may name what isn't there, however often it is tried.
            if error.retry and not isinstance(error, TableChangedError):
                raise
            log.warning("a blocking snapshot is given up", reason=error.what, remedy=error.remedy)
        self._writer.commit()
        return events

    def _position(self, exported: ExportedSnapshot) -> Position:
        return Position(self._epoch, exported.consistent_point, 0)

    def _encoder(self, position: Position) -> Callable[[TableDescription], Encoder]:
        def encoder(table: TableDescription) -> Encoder:
            made, schema_records = self._tables.snapshot_encoder(table, position)
            self._writer.write(schema_records)
            return made

        return encoder

    def _forget_rows(self, tables: Sequence[TableDescription], position: Position) -> int:
        """Let tables that are read once more be what they are now: rows that are gone go."""
        events = 0
        for table in tables:
            encoder, schema_records = self._tables.snapshot_encoder(table, position)
            self._writer.write(schema_records)
            now_us = time.time_ns() // 1_000
            records = encoder.snapshot_truncate(position, now_us)
            self._writer.write(records)
            events += len(records)
        return events

    def _full(self) -> bool:
        return (
            self._writer.pending_records >= self._settings.max_batch_size
            or self._writer.pending_bytes >= self._settings.max_batch_size_in_bytes
            or self._writer.transaction_age_s >= COMMIT_AGE_S_MAX
        )

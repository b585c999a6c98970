"""Batches of existing rows → the log, with each table's progress in the same Kafka transactions.

The daemon must not import the snapshots package, so the protocol below has what it needs.
"""

import math
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import structlog

from cdc.convert.pipeline import Encoder
from cdc.errors import ConfigError, SourceError, TableChangedError
from cdc.faults import FaultPoint, reach
from cdc.kafka.commits import AlternatingWriters
from cdc.kafka.producer import LogWriter
from cdc.postgres.described import TableDescription
from cdc.postgres.slot import ExportedSnapshot
from cdc.records.position import Position
from cdc.records.record import Record, RecordOrBatch, count
from cdc.records.record import size as record_size
from cdc.records.schema import TableName
from cdc.records.state import SnapshotRequest
from cdc.settings import CaptureSettings
from cdc.tables.reads import FIRST, Again, ReadProgress, SnapshotBatch
from cdc.tables.tables import Tables

log = structlog.get_logger()
COMMIT_AGE_S_MAX = 0.5
"""Maximum age of a Kafka transaction with snapshot rows, as readers wait for its end."""


class Backfill(Protocol):
    """A reader of existing rows under an exported snapshot."""

    def read(
        self,
        exported: ExportedSnapshot,
        position: Position,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], Encoder],
        again: Again = FIRST,
        limit_s: float | None = None,
    ) -> Iterator[SnapshotBatch]:
        """Yield every row of the tables at a position, in batches of bounded size.

        ``limit_s`` limits the use of the snapshot for tables that can be read while streaming.
        None: those tables aren't read.
        """
        ...


class SnapshotObserver(Protocol):
    """An observer of a snapshot's progress."""

    def snapshot_started(self, tables: Sequence[TableDescription]) -> None:
        """Report that the reading of these tables begins."""
        ...

    def snapshot_progress(self, progress: ReadProgress) -> None:
        """Report the progress of a table whose batch was written."""
        ...


class SnapshotWriter:
    """Writer of one backfill's batches to the log, one Kafka transaction at a time."""

    def __init__(
        self,
        settings: CaptureSettings,
        writers: tuple[LogWriter, LogWriter],
        tables: Tables,
        *,
        epoch: int,
        keep_alive: Callable[[], None],
        observer: SnapshotObserver,
    ) -> None:
        self._settings = settings
        self._writers = AlternatingWriters(*writers)
        self._tables = tables
        self._epoch = epoch
        self._keep_alive = keep_alive
        self._observer = observer
        self._progress: dict[TableName, tuple[ReadProgress, Position]] = {}
        """How far first reads are whose states aren't in the Kafka transaction yet."""
        self._progress_since = math.inf
        """When (monotonic) the first of them came."""

    def write(
        self,
        backfill: Backfill,
        exported: ExportedSnapshot,
        described: Sequence[TableDescription],
        stop: threading.Event,
        named: Container[str],
        limit_s: float,
    ) -> int:
        """Write the tables' rows, and return the number of events, all of them durable.

        A table that the settings exclude counts as read, unless it is in ``named``. The method ends
        early when ``stop`` is set or the limit is over. The rest is read while streaming.
        """
        position = self._position(exported)
        tell = self._tables.notifications
        with self._writers:
            read, events = self._begin(described, position, named)
            names = [table.name for table in read]
            self._add(tell.initial("STARTED" if read else "SKIPPED", position, names))
            self._finish()
            self._observer.snapshot_started(read)
            encoder = self._encoder(position, names)
            for batch in backfill.read(exported, position, read, encoder, limit_s=limit_s):
                events += self._write(batch, position, names, is_first=True)
                if stop.is_set():
                    break
            if all(map(self._tables.states.is_whole, names)):
                self._add(tell.initial("COMPLETED", position, names))
            elif stop.is_set():
                self._add(tell.initial("ABORTED", position))
            self._finish()
        return events

    def _begin(
        self, described: Sequence[TableDescription], position: Position, named: Container[str]
    ) -> tuple[list[TableDescription], int]:
        """Record that the tables are being read; return those tables and the number of events.

        The events remove the rows that the log has of these tables.
        """
        read, events = [], 0
        for order, table in enumerate(described):
            name = str(table.name)
            wanted = name in named or self._settings.snapshots(name)
            request = SnapshotRequest(kind="initial", order=order)
            records, states = self._tables.begin_anew(table, position, (request,))
            if not wanted:
                self._add([*states, *self._tables.take_as_read(table, position)])
                continue
            self._add([*states, *records])
            events += len(records)
            if not self._tables.states.is_set_aside(table.name):
                read.append(table)
        return read, events

    def _write(
        self,
        batch: SnapshotBatch,
        position: Position,
        names: Sequence[TableName],
        *,
        is_first: bool,
    ) -> int:
        """Write a batch and the progress of its table's first read. Return the number of events."""
        self._writers.current.add(batch.records, batch.events, batch.size)
        self._hold_back()
        progress = batch.progress
        if batch.failure is not None:
            self._progress.pop(progress.table, None)
            self._add(self._tables.obstacles.set_aside(progress.table, batch.failure))
        is_noted = is_first and progress.read is not None
        if is_noted:
            if not self._progress:
                self._progress_since = time.monotonic()
            self._progress[progress.table] = progress, position
        if is_noted and progress.is_done:
            self._add(self._note(progress.table))
        if progress.is_done:
            tell = self._tables.notifications
            self._add(tell.initial_table_done(position, names, progress.table, progress.rows))
        if is_noted:
            reach(FaultPoint.CHUNK_WRITTEN)
        self._observer.snapshot_progress(progress)
        return batch.events

    def _note(self, table: TableName) -> list[Record]:
        """Return the table's progress, for the Kafka transaction of the last chunk's rows.

        A transaction has one for each table, not one for each chunk.
        """
        (progress, position), reads = self._progress.pop(table), self._tables.reads
        state = self._tables.states[table]
        assert state.initial is not None  # noqa: S101 (it has one until it is done)
        update = {"read": progress.read, "rows": progress.rows}
        request = state.initial.model_copy(update=update)
        if progress.is_done:
            return reads.finish(table, request, position, state.pages_total)
        return reads.advance(table, request, state.pages_total, progress.pages_done)

    def write_again(
        self,
        backfill: Backfill,
        exact: AbstractContextManager[ExportedSnapshot],
        describe: Callable[[], Sequence[TableDescription]],
        stop: threading.Event,
        again: Again,
    ) -> int:
        """Write rows of tables that the log already has, and return the number of events.

        The tables' states don't change: the stream's later changes follow the rows. The method ends
        early when ``stop`` is set. It ends with a warning when the source refuses to continue.
        """
        events = 0
        position: Position | None = None
        tell = self._tables.notifications
        with self._writers:
            try:
                with exact as exported:
                    described = describe()
                    self._observer.snapshot_started(described)
                    position = self._position(exported)
                    names = [table.name for table in described]
                    encoder = self._encoder(position, names)
                    self._add(tell.initial("STARTED", position, names))
                    for batch in backfill.read(exported, position, described, encoder, again):
                        events += self._write(batch, position, names, is_first=False)
                        if stop.is_set():
                            self._add(tell.initial("ABORTED", position))
                            break
                    else:
                        self._add(tell.initial("COMPLETED", position, names))
            except (SourceError, ConfigError) as error:
                # The SELECT of a signal, or of the configuration (a ConfigError), can name
                # something that doesn't exist. Another attempt doesn't help then.
                if error.retry and not isinstance(error, TableChangedError):
                    raise
                fields = {"reason": error.what, "remedy": error.remedy}
                log.warning("a blocking snapshot is abandoned", **fields)
                if position is not None:
                    self._add(tell.initial("ABORTED", position))
            self._finish()
        return events

    def _position(self, exported: ExportedSnapshot) -> Position:
        return Position(self._epoch, exported.consistent_point, 0)

    def _encoder(
        self, position: Position, names: Sequence[TableName]
    ) -> Callable[[TableDescription], Encoder]:
        tell = self._tables.notifications

        def encoder(table: TableDescription) -> Encoder:
            schema, new = self._tables.schemas.described(table, position)
            self._add([*new, *tell.initial_table(position, names, table.name)])
            return self._tables.encoders.encoder(schema)

        return encoder

    def _add(self, records: Sequence[RecordOrBatch]) -> None:
        """Add records behind those already written. Waits while too many are in flight."""
        self._writers.current.add(records, count(records), record_size(records))
        self._hold_back()

    def _hold_back(self) -> None:
        """Wait while too many records are in flight."""
        self._advance()
        while self._is_full:
            self._writers.wait()
            self._keep_alive()
            self._advance()
        self._keep_alive()

    def _advance(self) -> None:
        """Write, and begin to commit, as far as possible without waiting."""
        writers = self._writers
        if writers.is_committing and writers.has_committed():
            reach(FaultPoint.SNAPSHOT_COMMITTED)
        writers.write()
        waited_s = time.monotonic() - self._progress_since if self._progress else 0
        is_old = max(writers.current.transaction_age_s, waited_s) >= COMMIT_AGE_S_MAX
        if not writers.is_committing and (is_old or self._is_full):
            self._begin_commit()

    def _begin_commit(self) -> None:
        """Begin to commit what was written, with how far the tables are by it."""
        for table in [*self._progress]:
            records = self._note(table)
            self._writers.current.add(records, len(records), record_size(records))
        self._writers.write()
        self._writers.begin_commit()

    def _finish(self) -> None:
        """Commit everything that was added."""
        writers = self._writers
        while writers.is_committing or writers.current.pending_records or self._progress:
            if writers.is_committing:
                writers.end_commit()
                reach(FaultPoint.SNAPSHOT_COMMITTED)
            writers.write()
            if writers.current.pending_records or self._progress:
                self._begin_commit()

    @property
    def _is_full(self) -> bool:
        return (
            self._writers.current.pending_records >= self._settings.max_batch_size
            or self._writers.current.pending_bytes >= self._settings.max_batch_size_in_bytes
        )

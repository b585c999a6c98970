"""Tables at an instant of the source → their rows' hashes, read by several sessions at once.

Each chunk, pages of a leaf, has a transaction that imports the snapshot, so the lock of a plain
SELECT ends with the chunk. If a table was rewritten after the instant, the snapshot sees it empty,
and its columns may have changed. After each lock, the table's file and columns are compared with
those at the instant.
https://www.postgresql.org/docs/current/mvcc-caveats.html
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from cdc.compiled.digests import Digests
from cdc.errors import MillraceError, SourceError, TableChangedError, TableRefusedError
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable, Leaf, TableDescription
from cdc.settings import CaptureSettings, Settings
from compaction.verify.hashed import PENDING_BYTES, ROWS_OF_GROUPS, RowHashes
from compaction.verify.instant import SourceInstant, open_session
from compaction.verify.report import SinkTable
from compaction.verify.rules import ComparedTable
from compaction.verify.slices import SlicedKeys
from snapshots import reader
from snapshots.bulk_tables import CHUNK_S, BulkTable
from snapshots.pace import Pace, Probe

CHUNK_BYTES: Final = 64 << 20
_COLUMNS: Final = """
SELECT attname::text, attnum::int4, atttypid::int8, atttypmod
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(slots=True)
class SourceRead:
    """A table that is read: its compared columns, and the results."""

    place: SinkTable
    description: TableDescription
    compared: ComparedTable
    hashes: RowHashes
    columns: Mapping[int, Sequence[tuple[object, ...]]]
    """The columns of each leaf at the instant, by the leaf's OID."""
    chunks: BulkTable
    """The chunks that were taken, and those that are left."""
    sliced: SlicedKeys | None = None
    """The rows that are read. None: all."""
    running: int = 0
    """The number of chunks that are being read."""
    error: MillraceError | None = None


def described_sources(
    instant: SourceInstant, capture: CaptureSettings, names: Collection[str]
) -> tuple[dict[str, TableDescription], dict[str, str]]:
    """Return the captured tables with these names, and why some can't be described.

    The query for a table's size waits for a lock on the table. This must not fail other tables.
    """
    connection, refused = instant.connection, dict[str, str]()
    tables = captured_tables(connection, capture)
    tables = [table for table in tables if str(table.name) in names]
    described = list[TableDescription]()
    try:
        described += _described(connection, capture, tables)
    except reader.OF_ONE_TABLE:
        for table in tables:
            try:
                described += _described(connection, capture, [table])
            except reader.OF_ONE_TABLE as error:
                refused[str(table.name)] = error.what
    return {str(table.name): table for table in described}, refused


def _described(
    connection: psycopg.Connection, capture: CaptureSettings, tables: Sequence[CapturedTable]
) -> list[TableDescription]:
    """Describe tables within the instant's transaction, which survives a failure."""
    query(connection, "SAVEPOINT described")
    try:
        described = described_tables(connection, capture, tables)
    except reader.OF_ONE_TABLE:
        query(connection, "ROLLBACK TO described")
        raise
    query(connection, "RELEASE described")
    return described


def table_read(
    instant: SourceInstant,
    place: SinkTable,
    description: TableDescription,
    compared: ComparedTable,
    folder: Path,
) -> SourceRead:
    """Return the read of a table, in chunks. Its files are in the ``folder``."""
    pages = max(1, CHUNK_BYTES // description.block_bytes)
    is_large = description.rows_estimated >= ROWS_OF_GROUPS or description.pages > pages
    columns = {leaf.oid: _columns(instant.connection, leaf.oid) for leaf in description.leaves}
    hashes = RowHashes(compared, folder, is_large=is_large)
    chunks = BulkTable(description, None, CHUNK_BYTES)
    return SourceRead(place, description, compared, hashes, columns, chunks)


class SourceReader:
    """Reads tables at one instant. ``progress`` gets the number of new rows."""

    def __init__(
        self,
        settings: Settings,
        instant: SourceInstant,
        *,
        sessions: int,
        age_max_s: float,
        rows_per_second: int = 0,
        progress: Callable[[int], None] = lambda _rows: None,
    ) -> None:
        self._settings = settings
        self._instant = instant
        self._sessions = sessions
        self._age_max_s = age_max_s
        self._pace = Pace(rows_per_second)
        self._probe = Probe(settings.source, self._pace)
        self._progress = progress
        self._taking = threading.Lock()
        self._stopped = threading.Event()
        self._now = open_session(settings)
        """Sees the current catalog."""

    def close(self) -> None:
        """End the reader's session."""
        self._now.close()

    def rows_at_once(self, most: int) -> int:
        """Return a few seconds' worth of rows, as the session would end during a longer wait."""
        return max(1, int(min(most, self._pace.rate * CHUNK_S)))

    def took(self, rows: int) -> None:
        """Count rows that were read by their keys."""
        self._pace.took(rows)

    def measuring(self) -> AbstractContextManager[None]:
        """Measure the source's response while rows are read by their keys."""
        return self._probe.measuring()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped.set()

    def read(self, tables: Sequence[SourceRead]) -> None:
        """Read all chunks. Record a table's error in it."""
        with self._probe.measuring(), ThreadPoolExecutor(self._sessions) as executor:
            running = [executor.submit(self._work, tables) for _ in range(self._sessions)]
            for each in running:
                each.result()

    def _work(self, tables: Sequence[SourceRead]) -> None:
        """Read chunks in one session until none is left."""
        own: tuple[SinkTable, Digests] | None = None
        with closing(open_session(self._settings)) as connection:
            try:
                while (chunk := self._next(tables)) is not None:
                    table, leaf, tids = chunk
                    if own is None or own[0] != table.place or not table.hashes.has(own[1]):
                        own = table.place, table.hashes.digests()
                    try:
                        self._read_chunk(connection, table, leaf, tids, own[1])
                    except SourceError as error:
                        if error.retry and not isinstance(error, reader.OF_ONE_TABLE):
                            raise
                        table.error = table.error or error
                        query(connection, "ROLLBACK")
                    self._done(table)
            except BaseException:
                self.stop()
                raise

    def _done(self, table: SourceRead) -> None:
        with self._taking:
            table.running -= 1
            if not table.running and table.chunks.is_taken:
                table.hashes.sum_up()

    def _next(self, tables: Sequence[SourceRead]) -> tuple[SourceRead, Leaf, reader.Range] | None:
        with self._taking:
            for table in tables:
                if self._stopped.is_set():
                    break
                if table.error is None and not table.chunks.is_taken and self._is_in_time(table):
                    chunk = table.chunks.next_chunk(self._pace.rate * CHUNK_S)
                    if chunk is not None and chunk.leaf is not None:
                        self._probe.chunks += 1
                        table.running += 1
                        return table, chunk.leaf, chunk.tids
        return None

    def _is_in_time(self, table: SourceRead) -> bool:
        if self._instant.age_s <= self._age_max_s:
            return True
        table.error = TableRefusedError(
            f"it can't be read within {self._age_max_s:.0f} s",
            where=f"table {table.place.name}",
            remedy="keep the snapshot longer with --max-age",
        )
        return False

    def _read_chunk(
        self,
        connection: psycopg.Connection,
        table: SourceRead,
        leaf: Leaf,
        tids: reader.Range,
        digests: Digests,
    ) -> None:
        reader.begin(connection, self._instant.snapshot)
        reader.lock(connection, leaf)
        self.require_same_columns(table, leaf)
        columns = [column.source for column in table.compared.columns]
        in_slice = table.sliced.at_source() if table.sliced is not None else None
        conditions = [table.description.row_filter, in_slice]
        select = reader.of_range(leaf, columns, tids, conditions)
        before = digests.rows
        for _ in reader.read(connection, select, digests.feed):
            came, before = digests.rows - before, digests.rows
            self._pace.took(came)
            self._progress(came)
            if digests.pending_bytes > PENDING_BYTES:
                table.hashes.write(digests)
            if not self.may_go_on(table):
                return  # in the middle of a COPY: the session reads nothing else, and is closed
        query(connection, "ROLLBACK")
        table.hashes.write(digests)

    def may_go_on(self, table: SourceRead) -> bool:
        """Wait until more may be read. Return whether the read continues."""
        while not self._stopped.is_set() and self._is_in_time(table):
            if (wait_s := self._pace.wait_s()) <= 0:
                return True
            time.sleep(min(wait_s, reader.PAUSE_S))
        return False

    def require_same_columns(self, table: SourceRead, leaf: Leaf) -> None:
        """Raise TableChangedError unless a locked leaf has the columns of the instant."""
        with self._taking:
            now = _columns(self._now, leaf.oid)
        if now != table.columns[leaf.oid]:
            raise TableChangedError(
                f"the columns of table {leaf.name} changed after the instant",
                where="the source",
                remedy="verify the table again",
            )


def _columns(connection: psycopg.Connection, oid: int) -> list[tuple[object, ...]]:
    return query(connection, _COLUMNS, [oid])

"""Tables that are asked for → the next chunk, read between two watermarks in the signal table.

One window at a time, on a connection and in a thread of its own, so that the stream is read on
meanwhile. Both watermarks come back by the stream, which tells when the chunk was read.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from cdc.errors import MillraceError, SourceUnreachableError
from cdc.postgres.catalog import CapturedTable
from cdc.postgres.connection import connect, query
from cdc.records.schema import TableName
from cdc.records.state import SnapshotRequest
from cdc.settings import CaptureSettings, LibraryOptions
from snapshots.keyset import Chunk, read_chunk

OPEN: Final = "snapshot-window-open"
CLOSE: Final = "snapshot-window-close"
_ID_COLUMN: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum LIMIT 1
"""


class Wanted(NamedTuple):
    """A table, and what is asked of it."""

    table: CapturedTable
    request: SnapshotRequest


class Refused(NamedTuple):
    """A table that can't be read, and why."""

    wanted: Wanted
    error: MillraceError


class Window(NamedTuple):
    """What was read: rows of the first table that had some, and the tables that ended before it."""

    chunk: Chunk | None
    of: Wanted | None
    finished: tuple[Wanted, ...]
    refused: tuple[Refused, ...]


class WatermarkError(Exception):
    """A watermark couldn't be written; ``reason`` says why."""

    def __init__(self, reason: MillraceError) -> None:
        super().__init__(reason.what)
        self.reason = reason


class Reading:
    """A window that is being read, in the background.

    ``window`` is there before the second watermark is, whose commit may then wait for a standby.
    """

    def __init__(self, name: str) -> None:
        """``name`` is what its watermarks' ids begin with."""
        self.name = name
        self.window: Window | None = None
        self.failure: MillraceError | WatermarkError | None = None
        self.job: Future[None] | None = None


class WindowReader:
    """Reads window after window."""

    def __init__(
        self, source: LibraryOptions, settings: CaptureSettings, signal_table: TableName
    ) -> None:
        self._source = source
        self._settings = settings
        self._signal_table = sql.Identifier(*signal_table)
        self._deletes = settings.incremental_snapshot_watermarking_strategy == "insert_delete"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="incremental-snapshot")
        self._connection: psycopg.Connection | None = None

    def start(self, name: str, wanted: Sequence[Wanted]) -> Reading:
        """Begin to read a window, once the last one is done."""
        reading = Reading(name)
        reading.job = self._thread.submit(self._read, reading, wanted)
        return reading

    def close(self) -> None:
        """Give up what is being read."""
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel()
        self._thread.shutdown(cancel_futures=True)
        self._disconnect()

    def _read(self, reading: Reading, wanted: Sequence[Wanted]) -> None:
        try:
            connection = self._connected()
            opened = _now()
            self._open(connection, reading.name, opened)
            reading.window = self._first_rows(connection, wanted)
            self._close(connection, reading.name, opened)
        except (MillraceError, WatermarkError) as error:
            self._disconnect()
            reading.failure = error

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = connect(self._source, purpose="incremental snapshot")
            # A transaction that commits before a watermark is to be visible when that is written.
            query(self._connection, "SET synchronous_commit = remote_apply")
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _first_rows(self, connection: psycopg.Connection, wanted: Sequence[Wanted]) -> Window:
        finished: list[Wanted] = []
        refused: list[Refused] = []
        for one in wanted:
            try:
                chunk = read_chunk(connection, self._settings, one.table, one.request)
            except SourceUnreachableError:
                raise
            except MillraceError as error:
                refused.append(Refused(one, error))
                continue
            if chunk.rows:
                return Window(chunk, one, tuple(finished), tuple(refused))
            finished.append(one)
        return Window(None, None, tuple(finished), tuple(refused))

    def _open(self, connection: psycopg.Connection, window: str, opened: str) -> None:
        self._insert(connection, f"{window}-open", OPEN, {"openWindowTimestamp": opened})

    def _close(self, connection: psycopg.Connection, window: str, opened: str) -> None:
        if not self._deletes:
            data = {"openWindowTimestamp": opened, "closeWindowTimestamp": _now()}
            self._insert(connection, f"{window}-close", CLOSE, data)
            return
        table = self._signal_table.as_string(connection)
        ((column,),) = query(connection, _ID_COLUMN, [table])
        statement = sql.SQL("DELETE FROM {} WHERE {} = %s")
        self._mark(
            connection,
            statement.format(self._signal_table, sql.Identifier(column)),
            [f"{window}-open"],
        )

    def _insert(
        self, connection: psycopg.Connection, row_id: str, kind: str, data: dict[str, str]
    ) -> None:
        statement = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s)").format(self._signal_table)
        self._mark(connection, statement, [row_id, kind, json.dumps(data)])

    def _mark(
        self, connection: psycopg.Connection, statement: sql.Composed, values: list[str]
    ) -> None:
        try:
            query(connection, statement, values)
        except SourceUnreachableError:
            raise
        except MillraceError as error:
            raise WatermarkError(error) from error


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")

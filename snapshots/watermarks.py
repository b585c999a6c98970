"""The sides of a chunk's window → marks in the stream where its rows belong, by strategy.

Three strategies write: a transactional logical message, or rows of the signal table as Debezium
writes them. One only asks for the WAL's position. Then the rows belong where the stream reaches it.
https://arxiv.org/abs/2010.12597
"""

import json
import time
from datetime import UTC, datetime
from typing import Final

import psycopg
from psycopg import sql

from cdc.errors import MillraceError, SourceUnreachableError
from cdc.postgres.catalog import new_xid
from cdc.postgres.checks.rights import emit_remedy
from cdc.postgres.connection import current_insert_lsn, query
from cdc.postgres.failures import server_address
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.settings import CaptureSettings
from cdc.stream.signals import WATERMARK

OPEN: Final = "snapshot-window-open"
CLOSE: Final = "snapshot-window-close"
_EMIT: Final = "SELECT pg_logical_emit_message(true, %s, %s::text)"
_ID_COLUMN: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum LIMIT 1
"""
_COMMIT_BYTES: Final = 40
"""The size of the shortest commit in the WAL."""
_SEGMENT_BYTES_MIN: Final = 1 << 20
_WAITS_FOR_STANDBY: Final = "SELECT current_setting('synchronous_standby_names') <> ''"
_NEWEST: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
_HAS_ENDED: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8"
_WAIT_S: Final = 10.0
_POLL_S: Final = 0.05
_TABLE_REMEDY: Final = (
    "allow the role in [source] to INSERT into (and DELETE from) the signal table; its first"
    " columns must be id, type and data"
)


class Watermarks:
    """The settings' strategy, at the primary."""

    def __init__(self, settings: CaptureSettings, signal_table: TableName | None) -> None:
        """``signal_table``: the table for watermarks. None: they are messages, if any."""
        strategy = settings.incremental_snapshot_watermarking_strategy
        self.is_read_only = strategy == "read_only"
        self._deletes = strategy == "insert_delete"
        self._table = None if signal_table is None else sql.Identifier(*signal_table)

    def settle(self, connection: psycopg.Connection) -> None:
        """Wait until everything streamed before is visible.

        A transaction isn't visible while its commit waits for a synchronous standby.
        """
        if not self.is_read_only:
            query(connection, "SET synchronous_commit = remote_apply")
            _mark(connection, _EMIT, [WATERMARK, ""])  # waits for earlier commits
            query(connection, "SET synchronous_commit = local")
        elif query(connection, _WAITS_FOR_STANDBY) == [(True,)]:
            newest = query(connection, _NEWEST)[0]
            until = time.monotonic() + _WAIT_S
            while query(connection, _HAS_ENDED, newest) != [(True,)]:
                if time.monotonic() > until:
                    raise SourceUnreachableError(
                        "transactions are open, and one of them may be committed and wait for a"
                        " synchronous standby",
                        where=server_address(connection.pgconn),
                        remedy="end the oldest one (pg_stat_activity.xact_start), or choose another"
                        " incremental.snapshot.watermarking.strategy",
                    )
                time.sleep(_POLL_S)

    def step(self, connection: psycopg.Connection) -> bool:
        """Move the WAL forward, even if no session may write. Return True."""
        if self.is_read_only:  # this writes the end of an empty transaction
            new_xid(connection)
        return True

    def open(self, connection: psycopg.Connection, job: str, opened: str) -> None:
        """Write a low watermark, if the strategy has one."""
        if self._table is not None:
            self._insert(connection, f"{job}-open", OPEN, {"openWindowTimestamp": opened})

    def close(self, connection: psycopg.Connection, job: str, opened: str) -> Lsn:
        """Write the high watermark, if any. Return the position that the stream must reach."""
        if self._table is None:
            if not self.is_read_only:
                _mark(connection, _EMIT, [WATERMARK, job])
        elif self._deletes:
            table = self._table.as_string(None)
            ((column,),) = query(connection, _ID_COLUMN, [table])
            statement = sql.SQL("DELETE FROM {} WHERE {} = %s").format(
                self._table, sql.Identifier(column)
            )
            _mark(connection, statement, [f"{job}-open"])
        else:
            data = {"openWindowTimestamp": opened, "closeWindowTimestamp": now()}
            self._insert(connection, f"{job}-close", CLOSE, data)
        return current_insert_lsn(connection)

    def _insert(
        self, connection: psycopg.Connection, row_id: str, kind: str, data: dict[str, str]
    ) -> None:
        statement = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s)").format(self._table)
        _mark(connection, statement, [row_id, kind, json.dumps(data)])


def is_past(streamed: Lsn, end: Lsn) -> bool:
    """Whether nothing was committed between the stream's position and an insert position.

    On an empty page, the insert position is after the page's header. The stream's position is at
    the end of a record, which is before the header.
    """
    left = end - streamed
    return left < _COMMIT_BYTES or (left == _COMMIT_BYTES and streamed % _SEGMENT_BYTES_MIN == 0)


def now() -> str:
    """Return the time in the form of Debezium's watermarks."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _mark(connection: psycopg.Connection, statement: sql.Composed | str, values: list[str]) -> None:
    try:
        query(connection, statement, values)
    except MillraceError as error:
        if not isinstance(error, SourceUnreachableError):
            error.remedy = emit_remedy(connection) if statement is _EMIT else _TABLE_REMEDY
        raise

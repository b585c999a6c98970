"""Strategies of marking, in the stream, where a chunk's rows belong: the sides of a window.

Three write: a transactional logical message, or rows of the signal table as Debezium writes them.
One only asks how far the WAL is; the rows belong where the stream has come so far.
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
"""The shortest commit in the WAL."""
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
    """What the settings' strategy does at the primary."""

    def __init__(self, settings: CaptureSettings, signal_table: TableName | None) -> None:
        """``signal_table``: where watermarks are written; None: as messages, if at all."""
        strategy = settings.incremental_snapshot_watermarking_strategy
        self.is_read_only = strategy == "read_only"
        self._deletes = strategy == "insert_delete"
        self._table = None if signal_table is None else sql.Identifier(*signal_table)

    def settle(self, connection: psycopg.Connection) -> None:
        """Wait until all is visible that was streamed before.

        It may not be as long as its commit waits for a synchronous standby.
        """
        if not self.is_read_only:
            query(connection, "SET synchronous_commit = remote_apply")
            _mark(connection, _EMIT, [WATERMARK, ""])  # waits behind it
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
        """See to it that the WAL goes on, though nobody may write; returns True."""
        if self.is_read_only:  # what is written is the end of a transaction that did nothing
            new_xid(connection)
        return True

    def open(self, connection: psycopg.Connection, job: str, opened: str) -> None:
        """Write a low watermark, where the strategy has one."""
        if self._table is not None:
            self._insert(connection, f"{job}-open", OPEN, {"openWindowTimestamp": opened})

    def close(self, connection: psycopg.Connection, job: str, opened: str) -> Lsn:
        """Write the high watermark, if there is one; returns how far the stream has to come."""
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
    """Whether nothing was committed between what was streamed and an insert position.

    At the beginning of a page that position is behind the page's header, as long as the page is
    empty; the stream is at the end of a record, which is before.
    """
    left = end - streamed
    return left < _COMMIT_BYTES or (left == _COMMIT_BYTES and streamed % _SEGMENT_BYTES_MIN == 0)


def now() -> str:
    """The time, as Debezium writes it into watermarks."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _mark(connection: psycopg.Connection, statement: sql.Composed | str, values: list[str]) -> None:
    try:
        query(connection, statement, values)
    except MillraceError as error:
        if not isinstance(error, SourceUnreachableError):
            error.remedy = emit_remedy(connection) if statement is _EMIT else _TABLE_REMEDY
        raise

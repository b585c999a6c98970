"""A table and the last key that was read → the next rows in the order of the key.

Each chunk is read in a transaction of its own that first takes the lock of a plain SELECT, so that
the table's description, its rows and the snapshot that tells which transactions they show belong
together. It is read only, and one statement a time by the extended protocol: a condition comes from
whoever may write to the signal table.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

import psycopg
from psycopg import pq, sql
from psycopg.pq.abc import PGresult

from cdc.errors import TableRefusedError
from cdc.postgres.captured import described_tables
from cdc.postgres.catalog import CapturedTable, TableDescription
from cdc.postgres.connection import at_one_instant, query
from cdc.postgres.failures import explained, place, raise_result
from cdc.records.state import SnapshotRequest
from cdc.settings import CaptureSettings
from cdc.tables import key_names
from snapshots.copytext import Row

Key = tuple[bytes | None, ...]

_LOCK_TIMEOUT: Final = "2s"
"""We try again later: whoever waits for the lock behind us shouldn't wait for long."""
_XID_BITS: Final = 32


class Visibility(NamedTuple):
    """Which transactions a snapshot shows: pg_current_snapshot()."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``xmin:xmax:xid,xid…``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def shows(self, xid: int) -> bool:
        """Whether it shows what a transaction, as the stream numbers it (32 bits), has done."""
        half = 1 << (_XID_BITS - 1)
        distance = (xid - self.xmax + half) % (1 << _XID_BITS) - half
        full = self.xmax + distance
        return full < self.xmin or (full < self.xmax and full not in self.running)


class Chunk(NamedTuple):
    """Rows of one table, in the key's order; without rows the table's end is reached."""

    table: TableDescription
    rows: tuple[Row, ...]
    keys: tuple[Key, ...]
    max_key: tuple[str, ...] | None
    visibility: Visibility
    read_us: int


def read_chunk(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    captured: CapturedTable,
    request: SnapshotRequest,
) -> Chunk:
    """Read the rows that follow; raises TableRefusedError for a table without a key."""
    with _reading(connection, captured):
        ((snapshot, read_us),) = query(
            connection,
            "SELECT pg_current_snapshot()::text, (extract(epoch FROM now()) * 1000000)::int8",
        )
        found = described_tables(connection, settings, [captured])
        if not found:
            raise TableRefusedError("the table is gone", where=f"table {captured.name}")
        (table,) = found
        names = key_names(table.columns)
        if not names:
            raise TableRefusedError(
                "an incremental snapshot needs a table with a primary key",
                where=f"table {table.name}",
                remedy="ask for a snapshot of type blocking, or run millrace snapshot",
            )
        max_key = request.max_key
        if max_key is None:
            found_max = _rows(connection, _statement(table, settings, request, names, None))
            max_key = _as_text(found_max[0]) if found_max else None
        rows: tuple[Row, ...] = ()
        if max_key is not None:
            rows = _rows(connection, _statement(table, settings, request, names, max_key))
    columns = [column.name for column in table.columns]
    at = [columns.index(name) for name in names]
    keys = tuple(tuple(row[index] for index in at) for row in rows)
    return Chunk(table, rows, keys, max_key, Visibility.parse(snapshot), read_us)


def _statement(
    table: TableDescription,
    settings: CaptureSettings,
    request: SnapshotRequest,
    names: Sequence[str],
    max_key: tuple[str, ...] | None,
) -> sql.Composed:
    """The SELECT of a chunk up to the highest key; without one, that of the highest key."""
    key = [sql.Identifier(name) for name in names]
    given = (table.row_filter or "true", request.condition or "true")
    compared: list[sql.Composable] = [sql.SQL(f"({condition}\n)") for condition in given]
    if max_key is not None:
        compared.append(_compare(key, "<=", max_key))
        if request.last_key is not None:
            compared.append(_compare(key, ">", request.last_key))
    descending = sql.SQL("{} DESC")
    own_rows = settings.lossless and not table.partitioned
    return sql.SQL("SELECT {} FROM {} {} WHERE {} ORDER BY {} LIMIT {}").format(
        sql.SQL(", ").join(
            key if max_key is None else [sql.Identifier(column.name) for column in table.columns]
        ),
        sql.SQL("ONLY" if own_rows else ""),
        sql.Identifier(*table.name),
        sql.SQL(" AND ").join(compared),
        sql.SQL(", ").join(key if max_key is not None else [descending.format(k) for k in key]),
        sql.Literal(settings.incremental_snapshot_chunk_size if max_key is not None else 1),
    )


def _compare(key: Sequence[sql.Identifier], operator: str, values: Sequence[str]) -> sql.Composed:
    """A row comparison; literals without a type take the columns'."""
    return sql.SQL("ROW({}) {} ROW({})").format(
        sql.SQL(", ").join(key),
        sql.SQL(operator),
        sql.SQL(", ").join(map(sql.Literal, values)),
    )


@contextmanager
def _reading(connection: psycopg.Connection, captured: CapturedTable) -> Iterator[None]:
    with at_one_instant(connection):
        query(connection, f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        # Before the transaction's snapshot: rows of a table rewritten since would be hidden by it.
        lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
        query(connection, lock.format(sql.Identifier(*captured.name)))
        yield


def _rows(connection: psycopg.Connection, statement: sql.Composed) -> tuple[Row, ...]:
    pgconn = connection.pgconn
    with explained(pgconn):
        result: PGresult = pgconn.exec_params(statement.as_bytes(connection), None)
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise_result(result, place(pgconn))
    width = range(result.nfields)
    return tuple(
        tuple(result.get_value(row, column) for column in width) for row in range(result.ntuples)
    )


def _as_text(key: Row) -> tuple[str, ...]:
    return tuple((value if isinstance(value, bytes) else b"").decode() for value in key)

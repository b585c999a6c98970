"""A chunk, a table or a SELECT → its rows, in batches of bounded size, by COPY … TO STDOUT.

Columns are asked for by name, since a partition may have them in another order than its root, and
of the leaf ONLY, since an inheritance parent would bring its children's rows along. Nothing is kept
but the batch being filled. A generator that is left early leaves the connection in the middle of a
COPY: whoever does that closes the connection.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.pq.abc import PGconn

from cdc.postgres.connection import query, wait_readable
from cdc.postgres.failures import explained, place, raise_result
from cdc.records.schema import TableName
from snapshots.chunks import Chunk
from snapshots.copytext import Row, parse

_WAIT_S: Final = 1.0
"""How often a wait for rows gives signals their turn."""


class Limits(NamedTuple):
    """When a batch is full: a row beyond these begins the next one."""

    rows_max: int = 2_000
    bytes_max: int = 1 << 20


class Rows(NamedTuple):
    """A SELECT, and how many columns it gives."""

    select: sql.Composed
    width: int


def of_chunk(chunk: Chunk, columns: Sequence[str], row_filter: str | None = None) -> Rows:
    """A chunk's rows; ``row_filter`` is the publication's, as the server wrote it."""
    first, end = chunk.pages
    conditions = [sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)"))]
    if end is not None:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({end},0)")))
    if row_filter is not None:
        # As it is: PostgreSQL's own text of its own expression, which has no parameters.
        conditions.append(sql.SQL("({})").format(sql.SQL(row_filter)))
    select = sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
        _names(columns), sql.Identifier(*chunk.leaf.name), sql.SQL(" AND ").join(conditions)
    )
    return Rows(select, len(columns))


def of_tree(table: TableName, columns: Sequence[str], row_filter: str | None = None) -> Rows:
    """The rows of a table and of all that inherit from it, its partitions too."""
    select = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        _names(columns), sql.Identifier(*table), sql.SQL(f"({row_filter or 'true'})")
    )
    return Rows(select, len(columns))


def of_statement(statement: str, columns: Sequence[str]) -> Rows:
    """The rows that the user's own SELECT gives, in its order."""
    own = sql.SQL(statement.strip().rstrip(";"))
    select = sql.SQL("SELECT {} FROM ({}) AS given").format(_names(columns), own)
    return Rows(select, len(columns))


def read(
    connection: psycopg.Connection,
    rows: Rows,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
) -> Iterator[list[Row]]:
    """The rows in their order, a batch at a time; each value as text, None for NULL."""
    batch: list[Row] = []
    size = 0
    copy = sql.SQL("COPY ({}) TO STDOUT").format(rows.select)
    for line in _lines(connection.pgconn, copy.as_bytes()):
        batch.append(parse(line) if rows.width else ())
        size += len(line)
        if len(batch) >= limits.rows_max or size >= limits.bytes_max:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def any_row(connection: psycopg.Connection, rows: Rows) -> bool:
    """Whether there is one."""
    return query(connection, sql.SQL("SELECT EXISTS ({})").format(rows.select)) == [(True,)]


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _lines(pgconn: PGconn, copy: bytes) -> Iterator[bytes]:
    with explained(pgconn):
        # Not send_query(): a SELECT of somebody's own must stay one statement.
        pgconn.send_query_params(copy, None)
    while pgconn.is_busy():
        wait_readable(pgconn, _WAIT_S)
    _check(pgconn, pq.ExecStatus.COPY_OUT)
    take = pgconn.get_copy_data
    while True:
        with explained(pgconn):
            size, data = take(1)
            while size > 0:
                yield bytes(data)
                size, data = take(1)
        if size < 0:
            break
        wait_readable(pgconn, _WAIT_S)
    _check(pgconn, pq.ExecStatus.COMMAND_OK)
    with explained(pgconn):
        while pgconn.get_result() is not None:
            pass


def _check(pgconn: PGconn, expected: pq.ExecStatus) -> None:
    with explained(pgconn):
        result = pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            while pgconn.get_result() is not None:
                pass
    if result is None or result.status != expected:
        assert result is not None, "a COPY without a result"  # noqa: S101 (libpq's promise)
        raise_result(result, place(pgconn))

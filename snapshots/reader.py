"""A chunk → its rows, in batches of bounded size, by COPY … TO STDOUT.

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

from cdc.postgres.connection import wait_readable
from cdc.postgres.failures import explained, place, raise_result
from snapshots.chunks import Chunk
from snapshots.copytext import Row, parse

_WAIT_S: Final = 1.0
"""How often a wait for rows gives signals their turn."""


class Limits(NamedTuple):
    """When a batch is full: a row beyond these begins the next one."""

    rows_max: int = 2_000
    bytes_max: int = 1 << 20


def statement(chunk: Chunk, columns: Sequence[str], row_filter: str | None) -> sql.Composed:
    """The COPY that reads a chunk; ``row_filter`` is the publication's, as the server wrote it."""
    first, end = chunk.pages
    conditions = [sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)"))]
    if end is not None:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({end},0)")))
    if row_filter is not None:
        # As it is: PostgreSQL's own text of its own expression, which has no parameters.
        conditions.append(sql.SQL("({})").format(sql.SQL(row_filter)))
    return sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.Identifier(*chunk.leaf.name),
        sql.SQL(" AND ").join(conditions),
    )


def read(
    connection: psycopg.Connection,
    chunk: Chunk,
    columns: Sequence[str],
    row_filter: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
) -> Iterator[list[Row]]:
    """The chunk's rows, in the heap's order; each value as text, None for NULL."""
    batch: list[Row] = []
    size = 0
    for line in _lines(connection.pgconn, statement(chunk, columns, row_filter).as_bytes()):
        batch.append(parse(line) if columns else ())
        size += len(line)
        if len(batch) >= limits.rows_max or size >= limits.bytes_max:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _lines(pgconn: PGconn, copy: bytes) -> Iterator[bytes]:
    with explained(pgconn):
        pgconn.send_query(copy)
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

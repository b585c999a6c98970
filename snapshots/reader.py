"""A chunk, a table or a SELECT → its rows, by COPY … TO STDOUT.

Columns are asked for by name, since a partition may have them in another order than its root, and
of the leaf ONLY, since an inheritance parent would bring its children's rows along.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import psycopg
from psycopg import sql

from cdc.errors import SourceUnreachableError
from cdc.postgres.connection import query
from cdc.postgres.described import Leaf
from cdc.records.record import Part
from cdc.records.schema import TableName
from cdc.stream.translation import Limits
from cdc.wal.frames import copy_data_end
from snapshots.copy_out import copy_out, wait
from snapshots.pages import END, Range, tid

WAIT_S: Final = 1.0
"""How often a wait for rows gives signals their turn."""
PAUSE_S: Final = 0.1
"""The same, where rows that have come may not be taken yet."""
LIMITS: Final = Limits(250, 1 << 20)
"""When a batch is full: few enough that the processor's cache has them when they are sent."""


class Taker(Protocol):
    """What makes records of rows: snapshots.copied_rows.Copied."""

    def feed(self, data: bytearray, start: int, end: int, limits: Limits) -> int:
        """Take in CopyData messages; returns where those end."""
        ...

    def take(self) -> list[Part]:
        """What was made since the last time."""
        ...


def of_range(
    leaf: Leaf, columns: Sequence[str], tids: Range, conditions: Sequence[str | None]
) -> sql.Composed:
    """The SELECT of a leaf's rows at these TIDs; conditions are SQL, None of them is none."""
    first, end = tids
    where = [sql.SQL("ctid >= {}::tid").format(sql.Literal(tid(first)))]
    if end < END:
        where.append(sql.SQL("ctid < {}::tid").format(sql.Literal(tid(end))))
    # As they are, on lines of their own: they have no parameters, and may end with a comment.
    where += [sql.Composed([sql.SQL(f"({one}\n)")]) for one in conditions if one is not None]
    return sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
        _names(columns), sql.Identifier(*leaf.name), sql.SQL(" AND ").join(where)
    )


def of_tree(table: TableName, columns: Sequence[str], row_filter: str | None) -> sql.Composed:
    """The rows of a table and of all that inherit from it, its partitions too."""
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(
        _names(columns), sql.Identifier(*table), sql.SQL(f"({row_filter or 'true'})")
    )


def of_statement(statement: str, columns: Sequence[str]) -> sql.Composed:
    """The rows that the user's own SELECT gives, in its order."""
    own = sql.SQL(statement.strip().rstrip(";"))
    return sql.SQL("SELECT {} FROM ({}\n) AS given").format(_names(columns), own)


def copying(select: sql.Composed) -> bytes:
    """The statement that copies a SELECT's rows to us."""
    return sql.SQL("COPY ({}) TO STDOUT").format(select).as_bytes()


def any_row(connection: psycopg.Connection, select: sql.Composed) -> bool:
    """Whether there is one."""
    return query(connection, sql.SQL("SELECT EXISTS ({})").format(select)) == [(True,)]


def read(
    connection: psycopg.Connection, select: sql.Composed, taker: Taker, limits: Limits = LIMITS
) -> Iterator[list[Part]]:
    """What ``taker`` makes of the rows in their order, a batch at a time; it may be nothing.

    Left early, it leaves the connection in the middle of a COPY: whoever does that closes it.
    """
    copy = copy_out(connection)
    try:
        copy.begin(copying(select))
        while not copy.ended():
            used = taker.feed(copy.buffer, copy.start, copy.end, limits)
            if used > copy.start:
                copy.start = used
                yield taker.take()
            elif not copy.fill():
                wait(copy, WAIT_S)
    finally:
        copy.close()


class Frames(NamedTuple):
    """Rows as CopyData messages; ``last`` is the last one's last column."""

    text: bytearray
    rows: int
    last: bytes | None
    is_cut: bool


def frames(connection: psycopg.Connection, select: sql.Composed, bytes_max: int) -> Frames:
    """The rows of a SELECT, up to the one that reaches the limit; its transaction ends with it."""
    copy = copy_out(connection)
    text, rows, size = bytearray(), 0, 0
    try:
        copy.begin(copying(select))
        while not copy.ended():
            at = copy.start
            while (stop := copy_data_end(copy.buffer, copy.start, copy.end)) > copy.start:
                if len(text) < bytes_max:
                    size = stop - copy.start
                    text += memoryview(copy.buffer)[copy.start : stop]
                    rows += 1
                    if len(text) >= bytes_max:
                        with suppress(psycopg.Error):  # then the rest is read, and passed over
                            connection.cancel_safe(timeout=WAIT_S)
                copy.start = stop
            if copy.start == at and not copy.fill():
                wait(copy, WAIT_S)
    except SourceUnreachableError:
        if len(text) < bytes_max or connection.closed:
            raise
    finally:
        copy.close()
    last = bytes(text[len(text) - size :]).rstrip(b"\n").rpartition(b"\t")[2] if rows else None
    return Frames(text, rows, last, len(text) >= bytes_max)


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))

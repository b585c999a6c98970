"""A chunk, a table or a SELECT → its rows, by COPY … TO STDOUT; and the ranges left to read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from cdc.errors import (
    SourceError,
    SourcePrivilegeError,
    SourceUnreachableError,
    TableChangedError,
    TableLockedError,
    TableRefusedError,
)
from cdc.postgres.connection import query
from cdc.postgres.copy_out import copy_out, wait
from cdc.postgres.described import Leaf
from cdc.postgres.failures import server_address
from cdc.postgres.slot import ExportedSnapshot
from cdc.records.schema import TableName
from cdc.stream.translation import Limits
from cdc.wal.frames import copy_data_end

Range = tuple[int, int]
Ranges = tuple[Range, ...]

_OFFSET_BITS: Final = 16
END: Final = 1 << 48
ALL: Final[Range] = (0, END)


OF_ONE_TABLE: Final = (TableRefusedError, TableLockedError, SourcePrivilegeError)
"""Errors of a single table, which don't keep other tables from being read."""
NOW_US: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_LOCK_TIMEOUT: Final = "10s"
_SHORT_TIMEOUT: Final = "100ms"
# A single statement, next to _BEGIN: a table may have thousands of leaves.
_LOCKED: Final = """
SELECT
    to_regclass(format('%%I.%%I', %s::text, %s::text))::oid,
    c.oid IS NOT NULL,
    c.relfilenode::int8,
    pg_relation_filenode(c.oid)::int8,
    (extract(epoch FROM clock_timestamp()) * 1000000)::int8
FROM (VALUES (1)) AS one LEFT JOIN pg_class c ON c.oid = %s
"""
_BEGIN: Final = sql.SQL(
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = {};"
    " SET TRANSACTION SNAPSHOT {}"
)
WAIT_S: Final = 1.0
"""How often a wait for rows gives signals their turn."""
PAUSE_S: Final = 0.1
"""The same while rows that have arrived may not be taken yet."""
LIMITS: Final = Limits(250, 1 << 20)
"""When a batch is full. It is small, so the processor's cache still has it when it is sent."""


def merged(ranges: Iterable[Range]) -> Ranges:
    """Return the same rows in as few ranges as possible, in order."""
    done: list[Range] = []
    for first, end in sorted(ranges):
        if done and first <= done[-1][1]:
            done[-1] = done[-1][0], max(done[-1][1], end)
        elif first < end:
            done.append((first, end))
    return tuple(done)


def missing(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield the ranges before, between and after these."""
    first = 0
    for start, end in merged(ranges):
        if first < start:
            yield first, start
        first = end
    if first < END:
        yield first, END


def next_range(taken: Iterable[Range], pages: int, chunk_pages: int) -> Range | None:
    """Return the first free pages, at most ``chunk_pages``. None: all are taken.

    ``pages`` is the leaf's presumed size. A range that reaches its last page has no end.
    """
    for first, end in missing(taken):
        stop = ((first >> _OFFSET_BITS) + chunk_pages) << _OFFSET_BITS
        return first, end if stop >= pages << _OFFSET_BITS else min(stop, end)
    return None


def pages_of(ranges: Iterable[Range], pages: int) -> int:
    """Return about how many of a leaf's pages are in the ranges."""
    limit = pages << _OFFSET_BITS
    sizes = (min(end, limit) - min(first, limit) for first, end in merged(ranges))
    return sum(sizes) >> _OFFSET_BITS


def tid(number: int) -> str:
    """Return a TID in PostgreSQL's form: ``(page,offset)``."""
    return f"({number >> _OFFSET_BITS},{number & ((1 << _OFFSET_BITS) - 1)})"


def parse_tid(text: bytes) -> int:
    """Parse ``(page,offset)``."""
    page, _, offset = text.strip(b"()").partition(b",")
    return int(page) << _OFFSET_BITS | int(offset)


def begin(
    connection: psycopg.Connection, exported: ExportedSnapshot, *, patient: bool = True
) -> None:
    """Begin the transaction. Raise SourceUnreachableError if the snapshot is gone.

    ``patient``: wait for locks.
    """
    timeout = sql.Literal(_LOCK_TIMEOUT if patient else _SHORT_TIMEOUT)
    try:
        query(connection, _BEGIN.format(timeout, sql.Literal(exported.name)))
    except SourceUnreachableError:
        raise
    except SourceError as error:
        raise SourceUnreachableError(
            f"the exported snapshot no longer exists: {error.what}",
            where=error.where,
            remedy="start again: the missing rows are read again, and no row is lost",
        ) from error


class LockedLeaf(NamedTuple):
    """A leaf's filenode, and the source's time (µs since 1970, UTC) when it was locked."""

    file: int
    now_us: int


def lock(connection: psycopg.Connection, leaf: Leaf) -> LockedLeaf:
    """Take the lock of a plain SELECT, and check that the snapshot's rows still exist.

    Raise TableChangedError if they don't, and TableLockedError if the lock isn't free in time.
    """
    where = server_address(connection.pgconn)
    try:
        name = sql.Identifier(*leaf.name)
        query(connection, sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(name))
    except TableLockedError as error:
        raise TableLockedError(
            f"table {leaf.name} can't be read: {error.what}", where=where, remedy=error.remedy
        ) from error
    except TableRefusedError as error:
        raise _gone(leaf, where) from error
    ((oid, is_shown, shown_file, file, now_us),) = query(
        connection, _LOCKED, [*leaf.name, leaf.oid]
    )
    if oid != leaf.oid:
        raise _gone(leaf, where)
    # A leaf that isn't shown is younger than the snapshot: all of its rows are in the stream.
    if is_shown and shown_file != file:
        raise TableChangedError(
            f"table {leaf.name} was rewritten (ALTER TABLE, TRUNCATE, VACUUM FULL, CLUSTER) after"
            " the snapshot was taken, which hides its rows from the snapshot",
            where=where,
            remedy="start again: the daemon takes a new snapshot, and no row is lost",
        )
    return LockedLeaf(file if is_shown else 0, now_us)


def _gone(leaf: Leaf, where: str) -> TableChangedError:
    return TableChangedError(
        f"table {leaf.name} was dropped or renamed before its rows were read",
        where=where,
        remedy="start again: the daemon then reads the tables that exist",
    )


def of_range(
    leaf: Leaf,
    columns: Sequence[str],
    tids: Range,
    conditions: Sequence[str | None],
) -> sql.Composed:
    """Return the SELECT of a leaf's rows at these TIDs. Conditions are our own SQL, or None."""
    first, end = tids
    where = [sql.SQL("ctid >= {}::tid").format(sql.Literal(tid(first)))]
    if end < END:
        where.append(sql.SQL("ctid < {}::tid").format(sql.Literal(tid(end))))
    where += [
        sql.Composed([sql.SQL(f"({condition})")])
        for condition in conditions
        if condition is not None
    ]
    return sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
        _names(columns), sql.Identifier(*leaf.name), sql.SQL(" AND ").join(where)
    )


def of_tree(table: TableName, columns: Sequence[str], row_filter: str | None) -> sql.Composed:
    """Return the SELECT of a table and everything that inherits from it, also partitions."""
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(
        _names(columns), sql.Identifier(*table), sql.SQL(f"({row_filter or 'true'})")
    )


def of_statement(statement: str, columns: Sequence[str]) -> sql.Composed:
    """Return the SELECT of the rows of the user's own statement, in its order."""
    own = sql.SQL(statement.strip().rstrip(";"))
    return sql.SQL("SELECT {} FROM ({}\n) AS given").format(_names(columns), own)


def copying(select: sql.Composed) -> bytes:
    """Return the statement that copies a SELECT's rows to us."""
    return sql.SQL("COPY ({}) TO STDOUT").format(select).as_bytes()


def read(
    connection: psycopg.Connection,
    select: sql.Composed,
    feed: Callable[[bytearray, int, int], int],
) -> Iterator[None]:
    """Pass the rows to ``feed`` as CopyData messages, in order. Yield after each progress.

    ``feed`` returns the end of the messages that it has processed. A caller that leaves early must
    close the connection, as it is in the middle of a COPY.
    """
    copy = copy_out(connection)
    try:
        copy.begin(copying(select))
        while not copy.ended():
            used = feed(copy.buffer, copy.start, copy.end)
            if used > copy.start:
                copy.start = used
                yield
            elif not copy.fill():
                wait(copy, WAIT_S)
    finally:
        copy.close()


class Frames(NamedTuple):
    """Rows as CopyData messages. ``last`` is the last column of the last row."""

    text: bytearray
    rows: int
    last: bytes | None
    is_cut: bool


def frames(connection: psycopg.Connection, select: sql.Composed, bytes_max: int) -> Frames:
    """Return a SELECT's rows, up to the row that reaches the limit.

    At the limit the query is cancelled, which ends its transaction.
    """
    text, rows, size = bytearray(), 0, 0

    def take(data: bytearray, start: int, end: int) -> int:
        nonlocal rows, size
        while (stop := copy_data_end(data, start, end)) > start:
            if len(text) < bytes_max:
                rows, size = rows + 1, stop - start
                text.extend(memoryview(data)[start:stop])
                if len(text) >= bytes_max:
                    with suppress(psycopg.Error):  # if this fails, the rest is read and discarded
                        connection.cancel_safe(timeout=WAIT_S)
            start = stop
        return start

    try:
        for _ in read(connection, select, take):
            pass
    except SourceUnreachableError:
        if len(text) < bytes_max or connection.closed:
            raise
    last = bytes(text[len(text) - size :]).rstrip(b"\n").rpartition(b"\t")[2] if rows else None
    return Frames(text, rows, last, len(text) >= bytes_max)


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))

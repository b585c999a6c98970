"""A table's description and a key → the row as it is now, as the texts that the stream would have.

With short timeouts, since the stream waits meanwhile. Rows that the publication filters out count
as gone, and so do those whose key is equal without being the same (`1.0`, `1.00`).
"""

import time
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from cdc.errors import SourceUnreachableError
from cdc.events.changes import Row
from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import explained
from cdc.postgres.reselect import PATIENCE_S, is_visible

_POLL_S: Final = 0.005
_LIMITS: Final = (
    "BEGIN READ ONLY",
    f"SET LOCAL statement_timeout = '{PATIENCE_S:.0f}s'",
    "SET LOCAL lock_timeout = '2s'",
)


def current_row(
    connection: psycopg.Connection, table: TableDescription, key: tuple[bytes, ...]
) -> Row | None:
    """The row under this key, whose texts are in the order of the table's columns."""
    keyed = [column for column in table.columns if column.key is not None]
    same = [
        sql.SQL("{} = {}::{}").format(
            sql.Identifier(column.name), sql.Literal(text.decode()), sql.SQL(column.declared)
        )
        for column, text in zip(keyed, key, strict=True)
    ]
    statement = sql.SQL("SELECT {} FROM {} {} WHERE {} AND ({})").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        sql.SQL("" if table.partitioned else "ONLY"),
        sql.Identifier(*table.name),
        sql.SQL(" AND ").join(same),
        sql.SQL(table.row_filter or "true"),
    )
    for setting in _LIMITS:
        query(connection, setting)
    try:
        with explained(connection.pgconn):
            result = connection.execute(statement).pgresult
    finally:
        if not connection.broken:
            query(connection, "ROLLBACK")
    places = [table.columns.index(column) for column in keyed]
    for number in range(result.ntuples if result is not None else 0):
        assert result is not None  # noqa: S101 (it has rows)
        row = tuple(result.get_value(number, index) for index in range(len(table.columns)))
        if tuple(row[place] for place in places) == key:
            return row
    return None


def wait_until_visible(
    connection: psycopg.Connection, xid: int, while_waiting: Callable[[], None]
) -> None:
    """A commit is in the WAL before others see it: an older state of a row is no answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_visible(_snapshot(connection), frozenset({xid})):
        if time.monotonic() > deadline:
            raise SourceUnreachableError(
                f"transaction {xid} isn't visible {PATIENCE_S:.0f} s after its commit",
                remedy="does it wait for a synchronous standby?",
            )
        while_waiting()
        time.sleep(_POLL_S)


def _snapshot(connection: psycopg.Connection) -> str:
    ((text,),) = query(connection, "SELECT pg_current_snapshot()::text")
    return str(text)

"""Keys of rows → current values of their columns, which complete unchanged TOASTed values.

The replica identity's index always finds the rows: the planner of this session may use nothing
else, with short timeouts. If the source doesn't allow the read (a lock, a missing right, a changed
table), values stay absent, with a warning. Capturing must not wait for a VACUUM FULL while the slot
keeps WAL. A lost connection is an error as elsewhere.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import psycopg
import structlog
from psycopg import sql

from cdc.errors import TableRefusedError
from cdc.events.changes import ABSENT, IdentityKey, RereadRequest, Row, Value
from cdc.postgres.connection import at_one_instant, connect, query
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import explained
from cdc.settings import LibraryOptions

log = structlog.get_logger()

PATIENCE_S: Final = 4.0
"""How long one query may take. The server ends a connection after 10 s of silence."""
PAUSE_S: Final = 10.0
"""Pause of a table's reads after a query that failed."""
_POLL_S: Final = 0.005

_SESSION: Final = (
    f"SET statement_timeout = '{PATIENCE_S:.0f}s'",
    "SET lock_timeout = '2s'",
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
    "SET max_parallel_workers_per_gather = 0",
)
_UNREADABLE_KEY: Final = "has no unique index, or has a type with checks by functions of its owner"
INVISIBLE: Final = (
    f"a transaction isn't visible {PATIENCE_S:.0f} s after its commit (it may wait for a"
    " synchronous standby)"
)
_TABLE: Final = """
SELECT n.nspname, c.relname, c.relkind = 'p', a.attname, a.atttypid, a.atttypmod,
       format_type(b.oid, b.modifier), b.oid < 16384 OR NOT EXISTS (
    WITH RECURSIVE part AS (
        SELECT b.oid
        UNION
        SELECT within.oid FROM part JOIN pg_type t ON t.oid = part.oid CROSS JOIN LATERAL (
            SELECT t.typelem WHERE t.typelem <> 0 UNION ALL
            SELECT m.atttypid FROM pg_attribute m
            WHERE m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped UNION ALL
            SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        ) AS within (oid)
    )
    SELECT FROM part JOIN pg_type t ON t.oid = part.oid WHERE t.typtype = 'd'
)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
CROSS JOIN LATERAL (
    WITH RECURSIVE base AS (
        SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod, a.atttypmod AS modifier
        FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod,
               CASE base.typtypmod WHEN -1 THEN base.modifier ELSE base.typtypmod END
        FROM base JOIN pg_type t ON t.oid = base.typbasetype WHERE base.typtype = 'd'
    )
    SELECT oid, modifier FROM base WHERE typtype <> 'd'
) AS b
WHERE c.oid = %s
"""
"""A type is plain if its owner's functions check no value of it. A domain's CHECK doesn't run if
its base type replaces it. It does for a domain in an array, a range or a composite type.
"""
# The equality of each unique index of the table. An extension's type has its own.
_INDEXES: Final = """
SELECT array_agg(a.attname::text), array_agg(format('OPERATOR(%%I.%%s)', n.nspname, o.oprname))
FROM pg_index i
CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[]) WITH ORDINALITY
    AS k (attnum, opclass, ordinal)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
JOIN pg_opclass c ON c.oid = k.opclass
JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
JOIN pg_amop e ON e.amopfamily = c.opcfamily AND e.amopstrategy = 3
    AND e.amoplefttype = c.opcintype AND e.amoprighttype = c.opcintype
JOIN pg_operator o ON o.oid = e.amopopr
JOIN pg_namespace n ON n.oid = o.oprnamespace
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND k.ordinal <= i.indnkeyatts
GROUP BY i.indexrelid, i.indnkeyatts
HAVING count(*) = i.indnkeyatts
"""
_SELECT: Final = sql.SQL(
    "SELECT {columns} FROM (VALUES {keys}) AS k ({names}) JOIN {only} {table} AS t ON {same}"
    " WHERE {name}::regclass = {oid}::oid"
)
_LEFT_ABSENT: Final = ("22", "23", "40", "42", "55", "57014")
"""SQLSTATEs, or their beginnings, that concern only this table."""


PATIENCE: Final = (
    f"SET LOCAL statement_timeout = '{PATIENCE_S:.0f}s'",
    "SET LOCAL lock_timeout = '2s'",
)
"""Limits of a transaction that the stream waits for."""


class _CurrentColumn(NamedTuple):
    """A column's current type. ``base`` is its base type in SQL, if it is a domain."""

    type_oid: int
    modifier: int
    base: str
    is_plain: bool


class _CurrentTable(NamedTuple):
    """A table's current state. ``operators`` has the equality operator of each key column."""

    namespace: str
    name: str
    partitioned: bool
    columns: Mapping[str, _CurrentColumn]
    operators: Mapping[str, str]


class _UnreadableError(Exception):
    """The reason why values can't be read."""


class Rereading:
    """Reads rows again. Connects at the first request."""

    def __init__(self, source: LibraryOptions, keep_alive: Callable[[], None]) -> None:
        """``keep_alive`` is called before each query, and during a wait for a transaction."""
        self._source = source
        self._keep_alive = keep_alive
        self._connection: psycopg.Connection | None = None
        self._paused: dict[int, float] = {}
        self._warned_until: dict[int, float] = {}
        """Relation → when to repeat the warning about its lost columns."""

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def __call__(self, request: RereadRequest) -> Mapping[IdentityKey, Row] | None:
        """Return the existing rows; see cdc.events.changes.Reread."""
        relation = request.relation
        if self._paused.get(relation.oid, 0.0) > time.monotonic():
            return None
        self._keep_alive()
        try:
            return self._read(request)
        except psycopg.Error as error:
            connection = self._connection
            if connection is None:
                raise
            code = error.sqlstate or ""
            if connection.broken or not code.startswith(_LEFT_ABSENT):
                with explained(connection.pgconn):
                    raise
            reason = error.diag.message_primary or str(error)
        except _UnreadableError as error:
            reason = str(error)
        self._paused[relation.oid] = time.monotonic() + PAUSE_S
        _warn(request, reason, again_in_s=PAUSE_S)
        return None

    def _read(self, request: RereadRequest) -> Mapping[IdentityKey, Row] | None:
        connection = self._open()
        if not await_visible(connection, request.xids, self._keep_alive):
            raise _UnreadableError(INVISIBLE)
        # The transaction's end reverts settings made by an owner's function.
        with at_one_instant(connection):
            return self._read_now(connection, request)

    def _read_now(
        self, connection: psycopg.Connection, request: RereadRequest
    ) -> Mapping[IdentityKey, Row] | None:
        names = [request.relation.columns[index].name for index in request.identity]
        table = _current_table(connection, request.relation.oid, names)
        if table is None:
            return {}
        wanted = [index for index in request.columns if _is_same(request, index, table)]
        if len(wanted) < len(request.columns):
            self._warn_of_lost(request, set(request.columns).difference(wanted))
        if not wanted:
            return None
        if not all(_is_same(request, index, table) for index in request.identity) or (
            set(names) != table.operators.keys()
        ):
            raise _UnreadableError("the table's key has changed")
        if not all(table.columns[name].is_plain for name in names):
            raise _UnreadableError(f"the key {_UNREADABLE_KEY}")
        statement = _statement(table, request, names, wanted)
        return _rows(connection.execute(statement.as_bytes()), request, wanted)

    def _warn_of_lost(self, request: RereadRequest, lost: Iterable[int]) -> None:
        """Warn of columns that can't be distinguished from dropped ones, and stay unfilled."""
        oid = request.relation.oid
        if self._warned_until.get(oid, 0.0) > time.monotonic():
            return
        self._warned_until[oid] = time.monotonic() + PAUSE_S
        names = ", ".join(request.relation.columns[index].name for index in sorted(lost))
        _warn(request, f"dropped, renamed, or of another type now: {names}")

    def _open(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = connect(self._source, purpose="completion")
            for statement in _SESSION:
                query(self._connection, statement)
        return self._connection


def await_visible(
    connection: psycopg.Connection, xids: frozenset[int], keep_alive: Callable[[], None]
) -> bool:
    """Wait until the session sees committed transactions (32 bits). Return whether it does.

    The WAL has a commit before other sessions see it, and an older state of a row is no answer.
    Raises psycopg.Error, as callers treat a cancelled query differently.
    """
    deadline = time.monotonic() + PATIENCE_S
    seen = "SELECT pg_current_snapshot()::text"
    while not is_visible(str(connection.execute(seen).fetchall()[0][0]), xids):
        if time.monotonic() > deadline:
            return False
        keep_alive()
        time.sleep(_POLL_S)
    return True


def _warn(request: RereadRequest, reason: str, **more: float) -> None:
    log.warning(
        "unchanged values stay absent",
        table=f"{request.relation.namespace}.{request.relation.name}",
        rows=len(request.keys),
        reason=reason,
        **more,
    )


def is_visible(snapshot: str, xids: frozenset[int]) -> bool:
    """Whether a snapshot (``xmin:xmax:xip,…``, 64 bits) sees committed transactions (32 bits)."""
    _, end, running = snapshot.split(":")
    xmax = int(end)
    open_ones = {int(xid) for xid in running.split(",") if xid}
    for xid in xids:
        distance = (xmax - xid) & 0xFFFF_FFFF
        if distance == 0 or distance > 1 << 31 or xmax - distance in open_ones:
            return False
    return True


def _current_table(
    connection: psycopg.Connection, oid: int, key: list[str]
) -> _CurrentTable | None:
    """Return the current table. None: it is gone. Without an index of ``key``: no operators."""
    rows = connection.execute(_TABLE, [oid]).fetchall()
    if not rows:
        return None
    columns = {
        column: _CurrentColumn(type_oid, modifier, base, is_plain)
        for _namespace, _name, _partitioned, column, type_oid, modifier, base, is_plain in rows
    }
    indexes = [
        dict(zip(names, operators, strict=True))
        for names, operators in connection.execute(_INDEXES, [oid]).fetchall()
    ]
    same = next((index for index in indexes if index.keys() == set(key)), {})
    namespace, name, partitioned, *_column = rows[0]
    return _CurrentTable(namespace, name, partitioned, columns, same)


def _is_same(request: RereadRequest, index: int, table: _CurrentTable) -> bool:
    """Whether the table still has the column, of the same type."""
    column = request.relation.columns[index]
    current = table.columns.get(column.name)
    return current is not None and (
        (current.type_oid, current.modifier) == (column.type_oid, column.modifier)
    )


def _statement(
    table: _CurrentTable,
    request: RereadRequest,
    names: list[str],
    wanted: list[int],
) -> sql.Composed:
    """Return the SELECT of some columns of the requested rows."""
    qualified_name = sql.Identifier(table.namespace, table.name)
    comma = sql.SQL(", ")
    read = [*names, *(request.relation.columns[index].name for index in wanted)]
    types = [table.columns[name].base for name in names]
    # No parameters, as a name may contain a percent sign.
    keys = ",".join(
        f"({','.join(f'{_literal(text).as_string(None)}::{kind}' for text, kind in pairs)})"
        for pairs in (zip(key, types, strict=True) for key in request.keys)
    )
    return _SELECT.format(
        columns=comma.join(sql.Identifier("t", name) for name in read),
        keys=sql.SQL(keys),
        names=comma.join(map(sql.Identifier, names)),
        only=sql.SQL("" if table.partitioned else "ONLY"),
        table=qualified_name,
        same=sql.SQL(" AND ").join(
            sql.SQL("{} {} {}").format(
                sql.Identifier("t", name),
                sql.SQL(table.operators[name]),
                sql.Identifier("k", name),
            )
            for name in names
        ),
        name=sql.Literal(qualified_name.as_string(None)),
        oid=sql.Literal(request.relation.oid),
    )


def _rows(
    cursor: psycopg.Cursor, request: RereadRequest, wanted: list[int]
) -> dict[IdentityKey, Row]:
    width = len(request.identity)
    rows: dict[IdentityKey, Row] = {}
    for texts in _texts(cursor):
        values: dict[int, Value] = dict(zip(wanted, texts[width:], strict=True))
        key = tuple(text or b"" for text in texts[:width])
        rows[key] = tuple(values.get(index, ABSENT) for index in request.columns)
    return rows


def _texts(cursor: psycopg.Cursor) -> list[tuple[bytes | None, ...]]:
    """Return a SELECT's rows as the texts received."""
    result = cursor.pgresult
    assert result is not None  # noqa: S101 (it was executed)
    columns = range(result.nfields)
    return [
        tuple(result.get_value(number, column) for column in columns)
        for number in range(result.ntuples)
    ]


def current_row(
    connection: psycopg.Connection, table: TableDescription, key: tuple[bytes, ...]
) -> Row | None:
    """Return the row with this key, in the table's order. TableRefusedError: it can't be found."""
    keyed = [column for column in table.columns if column.key is not None]
    for setting in ("BEGIN READ ONLY", *PATIENCE):
        query(connection, setting)
    try:
        with explained(connection.pgconn):
            names = [column.name for column in keyed]
            if (now := _current_table(connection, table.oid, names)) is None:
                return None
            statement = _of_one(table, now, dict(zip(names, key, strict=True)))
            rows = _texts(connection.execute(statement.as_bytes()))
    finally:
        if not connection.broken:
            query(connection, "ROLLBACK")
    indexes = [table.columns.index(column) for column in keyed]
    return next((row for row in rows if tuple(row[index] for index in indexes) == key), None)


def _of_one(table: TableDescription, now: _CurrentTable, key: Mapping[str, bytes]) -> sql.Composed:
    """Return the SELECT of the row with a key: its columns' texts, by name."""
    if not all(name in now.operators and now.columns[name].is_plain for name in key):
        raise TableRefusedError(f"the key of table {table.name} {_UNREADABLE_KEY}")
    same = [
        sql.SQL("{} {} {}::{}").format(
            sql.Identifier(name),
            sql.SQL(now.operators[name]),
            _literal(text),
            sql.SQL(now.columns[name].base),
        )
        for name, text in key.items()
    ]
    return sql.SQL("SELECT {} FROM {} {} WHERE {} AND ({})").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        sql.SQL("" if table.partitioned else "ONLY"),
        sql.Identifier(*table.name),
        sql.SQL(" AND ").join(same),
        sql.SQL(table.row_filter or "true"),
    )


def _literal(text: bytes) -> sql.Composable:
    """Return a text in SQL. In a SQL_ASCII database it may not be UTF-8."""
    try:
        return sql.Literal(text.decode())
    except UnicodeDecodeError:
        return sql.SQL("convert_from({}, 'SQL_ASCII')").format(sql.Literal(text))

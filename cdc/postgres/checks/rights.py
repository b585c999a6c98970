"""Captured tables and the role → its missing rights, with the SQL that grants them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import psycopg

from cdc.errors import ConfigError, MillraceError, SourcePrivilegeError, TablePrivilegeError
from cdc.lines import Lines, name_first
from cdc.postgres.captured import create_statement, may_not_create, publication_exists
from cdc.postgres.checks.risk import Risk
from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import server_address
from cdc.records.schema import TableName
from cdc.records.sql_names import quote, sql_names
from cdc.settings import CaptureSettings

_UNREADABLE: Final = """
SELECT c.oid, has_schema_privilege(c.relnamespace, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'), has_any_column_privilege(c.oid, 'SELECT'),
       row_security_active(c.oid)
FROM pg_class c WHERE c.oid = ANY (%s)
"""
_OWNED: Final = """
SELECT c.oid, pg_get_userbyid(c.relowner)::text FROM pg_class c
WHERE c.oid = ANY (%s) AND NOT pg_has_role(c.relowner, 'USAGE')
"""
_MAY_CREATE: Final = """
SELECT current_database(), has_database_privilege(current_database(), 'CREATE')
"""
# Since PostgreSQL 17 it has one more argument.
_EMITTING: Final = """
SELECT oid::regprocedure::text, has_function_privilege(oid, 'EXECUTE') FROM pg_proc
WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace
  AND proargtypes[2] = 'text'::regtype
"""
_USAGE: Final = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s"
_WRITABLE: Final = """
SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'INSERT'),
       has_table_privilege(c.oid, 'DELETE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""


def leaves(tables: Iterable[TableDescription]) -> dict[int, TableName]:
    """Return the units that a snapshot reads: tables and partitions, by their OIDs."""
    return {leaf.oid: leaf.name for table in tables for leaf in table.leaves}


def unreadable(
    connection: psycopg.Connection, names: Mapping[int, TableName], where: str
) -> Iterator[SourcePrivilegeError]:
    """Yield why the role can't read all rows of these leaves.

    SELECT on columns isn't enough: with it, a role can't lock a table or read rows' places (ctid).
    """
    rows = query(connection, _UNREADABLE, [list(names)]) if names else []
    role = quote(connection.info.user)
    unusable = sorted({names[oid].namespace for oid, usage, *_ in rows if not usage})
    unread = sorted(names[oid] for oid, _, select, _, _ in rows if not select)
    by_column = sorted(names[oid] for oid, _, select, some, _ in rows if some and not select)
    hidden = sorted(names[oid] for oid, *_, secured in rows if secured)
    if unusable or unread:
        grants = [f"GRANT USAGE ON SCHEMA {quote(name)} TO {role};" for name in unusable]
        if unread:
            grants.append(f"GRANT SELECT ON {sql_names(unread)} TO {role};")
        what = f"the role {role} lacks SELECT on {len({*unread}) or 'the'} captured tables"
        if by_column:
            what += f"; SELECT on columns, as on {by_column[0]}, isn't enough"
        yield SourcePrivilegeError(
            what,
            where=where,
            remedy=Lines("let their owner run" + "".join(f"\n      {each}" for each in grants)),
        )
    if hidden:
        yield SourcePrivilegeError(
            f"row-level security hides rows of {name_first(hidden)} from the role {role}",
            where=where,
            remedy=f"let a superuser run ALTER ROLE {role} BYPASSRLS;",
        )


def check_readable(connection: psycopg.Connection, tables: Sequence[TableDescription]) -> None:
    """Raise TablePrivilegeError where the role may not read rows of one of the tables."""
    for error in unreadable(connection, leaves(tables), server_address(connection.pgconn)):
        what = f"table {name_first(table.name for table in tables)}: {error.what}"
        raise TablePrivilegeError(what, where=error.where, remedy=error.remedy)


def unpublishable(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    tables: Iterable[TableDescription],
    where: str,
) -> Iterator[SourcePrivilegeError]:
    """Yield why the role can't create the publication, if it must."""
    name = settings.publication_name
    is_managed = settings.publication_autocreate_mode == "filtered"
    if not is_managed or publication_exists(connection, name):
        return
    names = {table.oid: table.name for table in tables}
    ((database, may_create),) = query(connection, _MAY_CREATE)
    foreign = dict(query(connection, _OWNED, [list(names)]))
    role = quote(connection.info.user)
    if foreign:
        owned = sorted((names[oid], owner) for oid, owner in foreign.items())
        more = f", and {len(owned) - 1} more do" if len(owned) > 1 else ""
        why = f"table {owned[0][0]} belongs to {owned[0][1]}{more}, not to {role}"
        statement = create_statement(name, names.values())
        yield may_not_create(name, statement, why, where)
    elif not may_create:
        yield SourcePrivilegeError(
            f"the role lacks the right to create publication {name}: CREATE on the database",
            where=where,
            remedy="let the database's owner run GRANT CREATE ON DATABASE"
            f" {quote(database)} TO {role};",
        )


def unwritable(
    connection: psycopg.Connection, settings: CaptureSettings, where: str
) -> Iterator[MillraceError]:
    """Yield why the role can't write the stream's watermarks of concurrent reads.

    Like its heartbeats, these are messages in the WAL. Rows of the signal table come in addition.
    """
    if settings.watermarks_in_table and settings.signal_data_collection is not None:
        yield from _unwritable_table(connection, settings, settings.signal_data_collection, where)
    strategy = settings.incremental_snapshot_watermarking_strategy
    if strategy != "read_only" or settings.heartbeat_source_interval_ms:
        signature, may_emit = emitting(connection)
        if not may_emit:
            role = quote(connection.info.user)
            yield SourcePrivilegeError(
                f"the role {role} lacks EXECUTE on {signature}: it can't write heartbeats, or"
                " watermarks for snapshots during the stream",
                where=where,
                remedy=emit_remedy(connection),
            )


def signals_unseen(connection: psycopg.Connection, settings: CaptureSettings) -> Iterator[Risk]:
    """Yield a risk if watermarks aren't its rows, and the stream lacks the signal table."""
    signals = settings.signal_data_collection
    is_read = signals is not None and "source" in settings.signal_enabled_channels
    if signals is None or not is_read or settings.watermarks_in_table:
        return
    name = TableName(*signals.split(".", 1))
    if not list(query(connection, _WRITABLE, [*name])):
        yield Risk(
            "signal table",
            f"the signal table {sql_names([name])} doesn't exist: no signal can arrive through it",
            _create_signals(connection, name, ["SELECT"]),
        )


def _create_signals(connection: psycopg.Connection, name: TableName, rights: list[str]) -> str:
    """Return SQL that creates a signal table as Debezium describes it."""
    table, role, schema = sql_names([name]), quote(connection.info.user), quote(name.namespace)
    usage = query(connection, _USAGE, [name.namespace])
    make = "" if usage else f"CREATE SCHEMA {schema}; "
    use = "" if usage == [(True,)] else f"GRANT USAGE ON SCHEMA {schema} TO {role}; "
    return (
        f"run {make}{use}CREATE TABLE {table} (id varchar(64) PRIMARY KEY, type varchar(32) NOT"
        f" NULL, data varchar(2048)); GRANT {', '.join(rights)} ON {table} TO {role};"
    )


def _unwritable_table(
    connection: psycopg.Connection, settings: CaptureSettings, signals: str, where: str
) -> Iterator[MillraceError]:
    """Yield why watermarks can't be rows of the signal table: it is missing, or rights are."""
    namespace, _, name = signals.partition(".")
    table, role = sql_names([TableName(namespace, name)]), quote(connection.info.user)
    deletes = settings.incremental_snapshot_watermarking_strategy == "insert_delete"
    needed = ["INSERT", "DELETE"] if deletes else ["INSERT"]
    rows = query(connection, _WRITABLE, [namespace, name])
    if not rows:
        yield ConfigError(
            f"the signal table {table} doesn't exist, but watermarks must be written to it",
            where=f"signal.data.collection; {where}",
            remedy=_create_signals(connection, TableName(namespace, name), ["SELECT", *needed]),
        )
    for usage, *may in rows:
        lacking = [right for right, has in zip(needed, may, strict=False) if not has]
        grants = [] if usage else [f"GRANT USAGE ON SCHEMA {quote(namespace)} TO {role};"]
        grants += [f"GRANT {', '.join(lacking)} ON {table} TO {role};"] if lacking else []
        if grants:
            yield SourcePrivilegeError(
                f"the role {role} lacks rights to write watermarks to the signal table {table}",
                where=where,
                remedy=Lines("let its owner run" + "".join(f"\n      {g}" for g in grants)),
            )


def emitting(connection: psycopg.Connection) -> tuple[str, bool]:
    """Return this server's function that writes messages into the WAL, and whether we may."""
    ((signature, may_emit),) = query(connection, _EMITTING)
    return signature, may_emit


def emit_remedy(connection: psycopg.Connection) -> str:
    """Return the SQL that lets the role write messages into the WAL."""
    signature, _ = emitting(connection)
    role = quote(connection.info.user)
    return f"let a superuser run GRANT EXECUTE ON FUNCTION {signature} TO {role};"

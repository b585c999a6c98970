"""Captured tables and the role → which of them it may not read, with the lines that let it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import psycopg

from cdc.errors import SourcePrivilegeError, TablePrivilegeError
from cdc.lines import Lines
from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import quote, server_address, sql_names
from cdc.records.schema import TableName

_UNREADABLE: Final = """
SELECT c.oid, has_schema_privilege(c.relnamespace, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'), has_any_column_privilege(c.oid, 'SELECT'),
       row_security_active(c.oid)
FROM pg_class c WHERE c.oid = ANY (%s)
"""


def leaves(tables: Iterable[TableDescription]) -> dict[int, TableName]:
    """What a snapshot reads, each by itself: tables and partitions, by their OIDs."""
    return {leaf.oid: leaf.name for table in tables for leaf in table.leaves}


def unreadable(
    connection: psycopg.Connection, names: Mapping[int, TableName], where: str
) -> Iterator[SourcePrivilegeError]:
    """What keeps the role from reading all rows of these leaves.

    SELECT on columns isn't enough: PostgreSQL lets nobody lock a table, nor read where its rows
    stand (ctid), by that.
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
        what = f"the role {role} may not read {len({*unread}) or 'the'} captured tables"
        if by_column:
            what += f"; SELECT on columns isn't enough, as {by_column[0]} has it"
        yield SourcePrivilegeError(
            what,
            where=where,
            remedy=Lines("let their owner run" + "".join(f"\n      {each}" for each in grants)),
        )
    if hidden:
        yield SourcePrivilegeError(
            f"row-level security hides rows of {', '.join(map(str, hidden))} from the role {role}",
            where=where,
            remedy=f"let a superuser run ALTER ROLE {role} BYPASSRLS;",
        )


def check_readable(connection: psycopg.Connection, table: TableDescription) -> None:
    """Raise TablePrivilegeError for a table whose rows the role may not read."""
    for error in unreadable(connection, leaves([table]), server_address(connection.pgconn)):
        what = f"table {table.name}: {error.what}"
        raise TablePrivilegeError(what, where=error.where, remedy=error.remedy)

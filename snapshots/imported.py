"""A connection and an exported snapshot → a transaction that reads what the snapshot sees."""

from typing import Final

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
from cdc.postgres.described import Leaf
from cdc.postgres.failures import place
from cdc.postgres.slot import ExportedSnapshot

OF_ONE_TABLE: Final = (TableRefusedError, TableLockedError, SourcePrivilegeError)
"""What is wrong with one table, and no reason to leave others unread."""
NOW_US: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_LOCK_TIMEOUT: Final = "10s"
_SHORT_TIMEOUT: Final = "100ms"
_FILES: Final = """
SELECT c.relfilenode::int8, pg_relation_filenode(c.oid)::int8 FROM pg_class c WHERE c.oid = %s
"""
_CURRENT_OID: Final = "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))::oid"


def begin(
    connection: psycopg.Connection, exported: ExportedSnapshot, *, patient: bool = True
) -> None:
    """Begin the transaction; raises SourceUnreachableError where the snapshot is gone.

    ``patient``: locks are waited for.
    """
    query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    timeout = sql.Literal(_LOCK_TIMEOUT if patient else _SHORT_TIMEOUT)
    query(connection, sql.SQL("SET LOCAL lock_timeout = {}").format(timeout))
    try:
        statement = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported.name))
        query(connection, statement)
    except SourceUnreachableError:
        raise
    except SourceError as error:
        raise SourceUnreachableError(
            f"the exported snapshot is gone: {error.what}",
            where=error.where,
            remedy="start again: what is missing is read anew, and no row is missed",
        ) from error


def lock(connection: psycopg.Connection, leaf: Leaf) -> int:
    """Take the lock of a plain SELECT, and make sure that the snapshot's rows are still there.

    Returns the leaf's filenode. Raises TableChangedError where they aren't.
    """
    where = place(connection.pgconn)
    try:
        name = sql.Identifier(*leaf.name)
        query(connection, sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(name))
    except TableLockedError as error:
        raise TableLockedError(
            f"table {leaf.name} can't be read: {error.what}", where=where, remedy=error.remedy
        ) from error
    except TableRefusedError as error:
        raise _gone(leaf, where) from error
    if query(connection, _CURRENT_OID, [*leaf.name]) != [(leaf.oid,)]:
        raise _gone(leaf, where)
    # No row: the table is younger than the snapshot, so all of its rows are in the stream.
    files = query(connection, _FILES, [leaf.oid])
    if files and files[0][0] != files[0][1]:
        raise TableChangedError(
            f"table {leaf.name} was rewritten (ALTER TABLE, TRUNCATE, VACUUM FULL, CLUSTER) after"
            " the snapshot was taken, which hides its rows from the snapshot",
            where=where,
            remedy="start again: the snapshot is taken anew, and no row is missed",
        )
    return int(files[0][1]) if files else 0


def _gone(leaf: Leaf, where: str) -> TableChangedError:
    return TableChangedError(
        f"table {leaf.name} was dropped or renamed before its rows were read",
        where=where,
        remedy="start again: the tables are looked up anew",
    )

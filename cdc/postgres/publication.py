"""Captured tables → a publication of exactly these, or an explanation of how the existing differs.

The publication comes before the slot: a slot decodes with the catalog as of each change, so a
publication made later is missing for every change written before it.
https://www.postgresql.org/docs/current/sql-createpublication.html
"""

from collections.abc import Iterable, Sequence
from typing import Final

import psycopg
from psycopg import sql

from cdc.errors import PublicationError, SourcePrivilegeError
from cdc.postgres.catalog import publication_exists
from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable
from cdc.postgres.failures import quote, server_address
from cdc.records.schema import TableName
from cdc.settings import CaptureSettings

_OPERATIONS: Final = (
    "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
)
_PUBLICATION: Final = """
SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot
FROM pg_publication WHERE pubname = %s
"""
_TABLES: Final = """
SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2
"""
_SCHEMAS: Final = """
SELECT count(*) FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid
WHERE p.pubname = %s
"""
_NAMES_MAX: Final = 20
"""A message names at most this many tables; the SQL line to run names them all."""


def ensure(
    connection: psycopg.Connection, settings: CaptureSettings, tables: Sequence[CapturedTable]
) -> bool:
    """Create the publication, or check the existing one; returns whether it was created.

    Mode ``filtered``: it publishes exactly these tables, every operation, through partition roots,
    else PublicationError. Mode ``disabled``: it exists; it is used as it is.
    """
    name = settings.publication_name
    exists = publication_exists(connection, name)
    if settings.publication_autocreate_mode == "disabled":
        if not exists:
            raise PublicationError(
                f"publication {name} doesn't exist",
                where=server_address(connection.pgconn),
                remedy="create it, or let Millrace do so: publication.autocreate.mode = filtered",
            )
        return False
    if exists:
        _compare(connection, name, {table.name for table in tables})
        return False
    _create(connection, name, [table.name for table in tables])
    return True


def drop(connection: psycopg.Connection, name: str) -> bool:
    """Drop the publication; returns whether there was one."""
    if not publication_exists(connection, name):
        return False
    query(connection, sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return True


def create_statement(name: str, tables: Iterable[TableName]) -> str:
    """The line that makes the publication, for people and for the server."""
    return f"CREATE PUBLICATION {quote(name)} FOR TABLE {_only(tables)} WITH ({_OPERATIONS});"


def _create(connection: psycopg.Connection, name: str, tables: list[TableName]) -> None:
    statement = create_statement(name, tables)
    try:
        query(connection, statement)
    except SourcePrivilegeError as error:
        raise SourcePrivilegeError(
            f"the role may not create publication {name}: {error.what}",
            where=error.where,
            remedy="the role needs CREATE on the database and must own the tables; or let their"
            f" owner run\n      {statement}\n    and set publication.autocreate.mode = disabled",
        ) from error


def _compare(connection: psycopg.Connection, name: str, wanted: set[TableName]) -> None:
    ((all_tables, complete),) = query(connection, _PUBLICATION, [name])
    published = {TableName(*row) for row in query(connection, _TABLES, [name])}
    if complete and published == wanted:
        return
    missing, extra = wanted - published, published - wanted
    problems = []
    if missing:
        problems.append(f"it lacks {_names(missing)}")
    if extra:
        problems.append(f"it publishes {_names(extra)} too")
    if not complete:
        problems.append("it doesn't publish every operation through partition roots")
    raise PublicationError(
        f"publication {name} isn't what the configuration asks for: {'; '.join(problems)}",
        where=server_address(connection.pgconn),
        remedy=_remedy(
            connection, name, wanted, published, all_tables=all_tables, complete=complete
        ),
    )


def _remedy(
    connection: psycopg.Connection,
    name: str,
    wanted: set[TableName],
    published: set[TableName],
    *,
    all_tables: bool,
    complete: bool,
) -> str:
    alter = f"ALTER PUBLICATION {quote(name)}"
    lines = [] if complete else [f"{alter} SET ({_OPERATIONS});"]
    if wanted != published and all_tables:
        lines = [f"DROP PUBLICATION {quote(name)};", create_statement(name, wanted)]
    elif wanted != published and _publishes_schemas(connection, name):
        lines.append(f"{alter} SET TABLE {_only(wanted)};")
    else:
        if wanted - published:
            lines.append(f"{alter} ADD TABLE {_only(wanted - published)};")
            names = " ".join(str(name) for name in sorted(wanted - published))
            lines.append(f"-- if captured before: millrace snapshot {names}")
        if published - wanted:
            lines.append(f"{alter} DROP TABLE {_only(published - wanted)};")
    sql_lines = "".join(f"\n      {line}" for line in lines)
    return (
        f"let its owner run{sql_lines}\n    or change table.include.list and table.exclude.list,"
        " or use it as it is with publication.autocreate.mode = disabled"
    )


def _publishes_schemas(connection: psycopg.Connection, name: str) -> bool:
    if connection.info.server_version < 150_000:
        return False
    ((count,),) = query(connection, _SCHEMAS, [name])
    return bool(count)


def _only(tables: Iterable[TableName]) -> str:
    """Without ONLY, an inheritance parent would bring its children along."""
    return ", ".join(f"ONLY {quote(t.namespace)}.{quote(t.name)}" for t in sorted(tables))


def _names(tables: Iterable[TableName]) -> str:
    names = sorted(str(table) for table in tables)
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more

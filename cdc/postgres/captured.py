"""Settings and pg_catalog → the captured tables, their rows' keys, and their publication.

The publication comes before the slot. A slot decodes with the catalog of each change's time, so
every change written before a later publication lacks it.
https://www.postgresql.org/docs/current/sql-createpublication.html
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import psycopg
import structlog
from psycopg import sql

from cdc.errors import (
    ConfigError,
    PublicationError,
    SourcePrivilegeError,
    TablePublicationError,
)
from cdc.lines import Lines, name_first, on_one_line
from cdc.postgres import catalog
from cdc.postgres.connection import at_one_instant, query
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.failures import server_address
from cdc.postgres.fingerprints import fingerprints
from cdc.postgres.ownership import comment_statement
from cdc.records.schema import Column, TableName, is_readable_name
from cdc.records.sql_names import quote
from cdc.settings import CaptureSettings

log = structlog.get_logger()
_KEYS: Final = """
SELECT DISTINCT ON (i.indrelid) i.indrelid, array(
    SELECT a.attname::text
    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, ordinal)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.ordinal <= i.indnkeyatts
    ORDER BY k.ordinal)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = ANY (%s) AND i.indisunique
ORDER BY i.indrelid, i.indisprimary DESC, i.indisclustered DESC, x.relname
"""


_USER_TABLES: Final = """
SELECT c.oid, n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND c.oid >= 16384
ORDER BY n.nspname, c.relname
"""
# As Debezium, which asks the database, not the publication: includes partitions and unlogged
# tables.
_ALL_TABLES: Final = """
SELECT c.oid, n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence IN ('p', 'u')
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND c.oid >= 16384
ORDER BY n.nspname, c.relname
"""
_PUBLISHED_TABLES: Final = """
SELECT c.oid, n.nspname, c.relname
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %s
ORDER BY n.nspname, c.relname
"""
_PUBLICATION_EXISTS: Final = "SELECT 1 FROM pg_publication WHERE pubname = %s"
_MAY_DROP: Final = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s"
_PUBLICATION_NAMES: Final = "SELECT pubname::text FROM pg_publication WHERE oid = ANY (%s)"
_OPERATIONS: Final = (
    "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
)
_PUBLICATION: Final = """
SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot
FROM pg_publication WHERE pubname = %s
"""
_PUBLISHED_NAMES: Final = """
SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2
"""
_SCHEMAS: Final = """
SELECT count(*) FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid
WHERE p.pubname = %s
"""


def require_captured(names: Iterable[str], captured: Iterable[TableName]) -> None:
    """Raise ConfigError for a name (``schema.table``) of no captured table."""
    if missing := set(names) - {str(table) for table in captured}:
        raise ConfigError(
            f"not captured: {name_first(sorted(missing))}",
            where="table.include.list and the publication",
            remedy="name tables as schema.table; the lists and the publication must have them",
        )


def keyed_tables(
    connection: psycopg.Connection, tables: Iterable[TableDescription]
) -> list[TableDescription]:
    """Return the described tables with Debezium's keys."""
    described = list(tables)
    keys = _keys(connection, [table.oid for table in described])
    return [
        replace(
            table,
            columns=_keyed(table.columns, keys.get(table.oid, ())),
            primary_key=keys.get(table.oid, ()),
        )
        for table in described
    ]


def keyed_columns(
    connection: psycopg.Connection, oid: int, columns: tuple[Column, ...]
) -> tuple[Column, ...]:
    """Return the columns of a Relation message with the table's current key."""
    return _keyed(columns, _keys(connection, [oid]).get(oid, ()))


def _keys(connection: psycopg.Connection, oids: list[int]) -> dict[int, tuple[str, ...]]:
    return {oid: tuple(names) for oid, names in query(connection, _KEYS, [oids])}


def _keyed(columns: tuple[Column, ...], names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(
        column.model_copy(
            update={"key": names.index(column.name) + 1 if column.name in names else None}
        )
        for column in columns
    )


def captured_tables(
    connection: psycopg.Connection, settings: CaptureSettings
) -> list[CapturedTable]:
    """Return the relations that the configuration asks for, by name.

    With publication.autocreate.mode = disabled, these are the publication's tables that pass the
    lists. If nothing must be kept that Debezium loses, they are all tables that pass, as Debezium
    reads them. Records can't have a name that isn't UTF-8 (checks/risks.py reports it).
    """
    if settings.publication_autocreate_mode == "filtered":
        rows = query(connection, _USER_TABLES)
    else:
        _require_publication(connection, settings.publication_name)
        if settings.lossless:
            rows = query(connection, _PUBLISHED_TABLES, [settings.publication_name])
        else:
            rows = query(connection, _ALL_TABLES)
    tables = (CapturedTable(oid, TableName(namespace, name)) for oid, namespace, name in rows)
    captured = [table for table in tables if settings.captures(str(table.name))]
    return [table for table in captured if is_readable_name(table.name)]


def described_tables(
    connection: psycopg.Connection, settings: CaptureSettings, captured: Sequence[CapturedTable]
) -> list[TableDescription]:
    """Describe tables with the configured columns and keys. Dropped tables are omitted."""
    publication = settings.publication_name
    if not settings.lossless:
        described = catalog.describe(connection, captured, publication, generated=True)
        return keyed_tables(connection, described)
    with at_one_instant(connection):
        described = catalog.describe(connection, captured, publication)
        now = fingerprints(connection, [table.oid for table in described], publication)
    return [replace(table, fingerprint=now[table.oid].fingerprint) for table in described]


def ensure_publication(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    tables: Sequence[CapturedTable],
    has_begun: Callable[[], bool] = bool,
) -> bool:
    """Create the publication, or check the existing one. Return whether it was created.

    Mode ``filtered``: it publishes exactly these tables, every operation, through partition roots;
    otherwise raise PublicationError. Once the log ``has_begun``, a missing table is an obstacle of
    that table only, and additional tables cause a warning. Mode ``disabled``: it must exist, and is
    used unchanged.
    """
    if check_publication(connection, settings, tables, has_begun):
        return False
    create_publication(connection, settings, [table.name for table in tables])
    return True


def check_publication(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    tables: Sequence[CapturedTable],
    has_begun: Callable[[], bool] = bool,
) -> bool:
    """Check the publication without creating it. Return whether it exists."""
    name = settings.publication_name
    if settings.publication_autocreate_mode == "disabled":
        _require_publication(connection, name)
        return True
    if not publication_exists(connection, name):
        return False
    _compare(connection, name, {table.name for table in tables}, has_begun)
    return True


def publication_exists(connection: psycopg.Connection, name: str) -> bool:
    """Whether the database has a publication of that name."""
    return bool(query(connection, _PUBLICATION_EXISTS, [name]))


def may_drop_publication(connection: psycopg.Connection, name: str) -> bool:
    """Whether the role owns the publication, or has the owner's rights."""
    return query(connection, _MAY_DROP, [name]) == [(True,)]


def publication_names(connection: psycopg.Connection, oids: Iterable[int]) -> list[str]:
    """Return the names of existing publications by their OIDs."""
    rows = query(connection, _PUBLICATION_NAMES, [list(oids)])
    return [name for (name,) in rows]


def _require_publication(connection: psycopg.Connection, name: str) -> None:
    if not publication_exists(connection, name):
        raise PublicationError(
            f"publication {name} doesn't exist",
            where=server_address(connection.pgconn),
            remedy="create it, or set publication.autocreate.mode = filtered: Millrace then"
            " creates it",
        )


def drop_publication(connection: psycopg.Connection, name: str) -> bool:
    """Drop the publication. Return whether it existed."""
    if not publication_exists(connection, name):
        return False
    query(connection, sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return True


def create_statement(name: str, tables: Iterable[TableName]) -> str:
    """Return the SQL that creates the publication, for people and for the server."""
    listed = f" FOR TABLE {only}" if (only := _only(tables)) else ""
    return f"CREATE PUBLICATION {quote(name)}{listed} WITH ({_OPERATIONS});"


def create_publication(
    connection: psycopg.Connection, settings: CaptureSettings, tables: Iterable[TableName]
) -> None:
    """Create this capture's own publication. Raise SourcePrivilegeError if it may not."""
    name = settings.publication_name
    statement = create_statement(name, tables)
    try:
        with connection.transaction():
            query(connection, statement)
            query(connection, comment_statement(settings))
    except SourcePrivilegeError as error:
        raise may_not_create(name, statement, error.what, error.where) from error


def may_not_create(name: str, statement: str, why: str, where: str) -> SourcePrivilegeError:
    """Return the error for a role without the right to create the publication."""
    return SourcePrivilegeError(
        f"the role lacks the right to create publication {name}: {why}",
        where=where,
        remedy=Lines(
            "the role needs CREATE on the database and must own the tables; or let their owner"
            f" run\n      {statement}\n    and set publication.autocreate.mode = disabled"
        ),
    )


def unpublished(publication: str, table: TableName) -> TablePublicationError:
    """Return the error for a table that passes the lists, but that Millrace can't add."""
    return TablePublicationError(
        f"table {table} passes the lists, but isn't published",
        remedy=Lines(
            f"let its owner run\n      {add_statement(publication, [table])}\n    or add it to"
            " table.exclude.list"
        ),
    )


def publish_whole(publication: str, table: TableName) -> str:
    """Return SQL that publishes a table's rows and columns, one line each, in one transaction.

    With two transactions, the changes in between would be lost.
    """
    steps = (_alter(publication, step, [table]) for step in ("DROP", "ADD"))
    return Lines("".join(f"\n      {step}" for step in ("BEGIN;", *steps, "COMMIT;")))


def add_statement(publication: str, tables: Iterable[TableName]) -> str:
    """Return SQL that adds tables to the publication."""
    return _alter(publication, "ADD", tables)


def _alter(publication: str, step: str, tables: Iterable[TableName]) -> str:
    return f"ALTER PUBLICATION {quote(publication)} {step} TABLE {_only(tables)};"


def _compare(
    connection: psycopg.Connection,
    name: str,
    wanted: set[TableName],
    has_begun: Callable[[], bool],
) -> None:
    ((all_tables, complete),) = query(connection, _PUBLICATION, [name])
    rows = {TableName(*row) for row in query(connection, _PUBLISHED_NAMES, [name])}
    published = {table for table in rows if is_readable_name(table)}  # no line drops the others
    if complete and published == wanted:
        return
    missing, extra = wanted - published, published - wanted
    if complete and has_begun():
        if extra:
            log.warning(
                "the publication has tables that the lists leave out: PostgreSQL decodes their"
                " changes, and Millrace drops them",
                tables=name_first(sorted(extra)),
                remedy=_alter(name, "DROP", extra),
            )
        return
    problems = []
    if missing:
        problems.append(f"it lacks {name_first(sorted(missing))}")
    if extra:
        problems.append(f"it also publishes {name_first(sorted(extra))}")
    if not complete:
        problems.append("it doesn't publish all operations, or not through partition roots")
    raise PublicationError(
        f"publication {name} doesn't match the configuration: {'; '.join(problems)}",
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
            lines.append(add_statement(name, wanted - published))
            names = " ".join(
                shlex.quote(on_one_line(str(name))) for name in sorted(wanted - published)
            )
            lines.append(f"-- if captured before: millrace snapshot {names}")
        if published - wanted:
            lines.append(_alter(name, "DROP", published - wanted))
    sql_lines = "".join(f"\n      {line}" for line in lines)
    return Lines(
        f"let its owner run{sql_lines}\n    or change table.include.list and table.exclude.list,"
        " or use the publication unchanged with publication.autocreate.mode = disabled"
    )


def _publishes_schemas(connection: psycopg.Connection, name: str) -> bool:
    if connection.info.server_version < 150_000:
        return False
    ((count,),) = query(connection, _SCHEMAS, [name])
    return bool(count)


def _only(tables: Iterable[TableName]) -> str:
    """List the tables with ONLY. Without it, an inheritance parent would add its children."""
    return ", ".join(f"ONLY {quote(t.namespace)}.{quote(t.name)}" for t in sorted(tables))

"""Settings and pg_catalog → the tables that are captured, and what their rows' keys are."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import psycopg

from cdc.errors import PublicationError
from cdc.postgres import catalog
from cdc.postgres.catalog import publication_exists
from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.failures import server_address
from cdc.records.schema import Column, TableName
from cdc.settings import CaptureSettings

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
# As Debezium, which asks the database and not the publication: partitions, unlogged tables too.
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


def keyed_tables(
    connection: psycopg.Connection, tables: Iterable[TableDescription]
) -> list[TableDescription]:
    """Described tables with Debezium's keys."""
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
    """The columns of a Relation message with the key that the table has now."""
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
    """The relations that the configuration asks for, by name.

    With publication.autocreate.mode = disabled: those of the publication that pass the lists; or
    all that do, as Debezium reads them, where nothing has to be kept that Debezium loses.
    """
    if settings.publication_autocreate_mode == "filtered":
        rows = query(connection, _USER_TABLES)
    else:
        if not publication_exists(connection, settings.publication_name):
            raise PublicationError(
                f"publication {settings.publication_name} doesn't exist",
                where=server_address(connection.pgconn),
                remedy="create it, or let Millrace do so: publication.autocreate.mode = filtered",
            )
        if settings.lossless:
            rows = query(connection, _PUBLISHED_TABLES, [settings.publication_name])
        else:
            rows = query(connection, _ALL_TABLES)
    tables = (CapturedTable(oid, TableName(namespace, name)) for oid, namespace, name in rows)
    return [table for table in tables if settings.captures(str(table.name))]


def described_tables(
    connection: psycopg.Connection, settings: CaptureSettings, captured: Sequence[CapturedTable]
) -> list[TableDescription]:
    """Describe tables as the settings have their columns and keys; those that are gone are not."""
    described = catalog.describe(
        connection, captured, settings.publication_name, generated=not settings.lossless
    )
    return described if settings.lossless else keyed_tables(connection, described)

"""Settings and pg_catalog → the tables that are captured."""

from collections.abc import Sequence
from typing import Final

import psycopg

from cdc.errors import PublicationError
from cdc.postgres import catalog
from cdc.postgres.catalog import publication_exists
from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.failures import place
from cdc.postgres.unique_keys import keyed_tables
from cdc.records.schema import TableName
from cdc.settings import CaptureSettings

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
                where=place(connection.pgconn),
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

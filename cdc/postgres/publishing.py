"""Tables that are new, and a publication that Millrace has made → the publication has them."""

from collections.abc import Iterable
from typing import Final

import psycopg
import structlog

from cdc.errors import SourceError, TableRefusedError
from cdc.postgres.captured import add_statement, described_tables
from cdc.postgres.checks.preflight import check_joining
from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable
from cdc.postgres.ownership import is_own
from cdc.records.schema import TableName
from cdc.settings import CaptureSettings

log = structlog.get_logger()
# PostgreSQL lets an owner of both add a table.
_ADDABLE: Final = """
SELECT c.oid FROM pg_publication p JOIN pg_class c ON c.oid = ANY (%s)
WHERE p.pubname = %s AND NOT p.puballtables
  AND pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')
  AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
"""
_PATIENCE: Final = "SET LOCAL lock_timeout = '100ms'"


def addable(
    connection: psycopg.Connection, settings: CaptureSettings, tables: Iterable[CapturedTable]
) -> list[CapturedTable]:
    """Those that the publication lacks, where Millrace has made that, and the role may add them."""
    asked = {table.oid: table for table in tables}
    is_managed = settings.publication_autocreate_mode == "filtered"
    if not (asked and is_managed and is_own(connection, settings)):
        return []
    rows = query(connection, _ADDABLE, [list(asked), settings.publication_name])
    return [asked[oid] for (oid,) in rows]


def add(
    connection: psycopg.Connection, settings: CaptureSettings, tables: Iterable[CapturedTable]
) -> None:
    """Add tables that are ``addable``, one by one; one that somebody has locked waits.

    One that can't be captured isn't added: published, the user's UPDATEs of it might fail.
    """
    addable_tables = list(tables)
    for table in described_tables(connection, settings, addable_tables) if addable_tables else ():
        try:
            check_joining(connection, settings, table)
        except TableRefusedError:
            continue  # whoever looks for new tables tells why
        _add(connection, settings.publication_name, table.name)


def _add(connection: psycopg.Connection, publication: str, table: TableName) -> None:
    try:
        with connection.transaction():
            query(connection, _PATIENCE)
            query(connection, add_statement(publication, [table]))
    except SourceError as error:
        if connection.broken:
            raise
        reason = error.what
        what = "a table can't be added to the publication yet"
        log.warning(what, table=str(table), reason=reason)
    else:
        log.info("a new table is added to the publication", table=str(table))

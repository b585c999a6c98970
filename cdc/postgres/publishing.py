"""New tables, and a publication that Millrace has created → the publication has the tables."""

from collections.abc import Iterable, MutableMapping
from typing import Final

import psycopg
import structlog

from cdc.errors import SourceError, TableLockedError, TableRefusedError
from cdc.postgres.captured import add_statement, create_publication, described_tables
from cdc.postgres.checks.preflight import check_joining
from cdc.postgres.connection import query
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.ownership import is_own
from cdc.records.state import TableState
from cdc.settings import CaptureSettings

log = structlog.get_logger()
# PostgreSQL lets a role that owns both add a table.
_ADDABLE: Final = """
SELECT c.oid FROM pg_publication p JOIN pg_class c ON c.oid = ANY (%s)
WHERE p.pubname = %s AND NOT p.puballtables
  AND pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')
  AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
"""
_OWNED: Final = """
SELECT oid FROM pg_class WHERE oid = ANY (%s) AND pg_has_role(relowner, 'USAGE')
"""
_PATIENCE: Final = "SET LOCAL lock_timeout = '100ms'"


def addable(
    connection: psycopg.Connection, settings: CaptureSettings, tables: Iterable[CapturedTable]
) -> list[CapturedTable]:
    """Return the tables to add, if Millrace has created the publication, and the role may."""
    asked = {table.oid: table for table in tables}
    is_managed = settings.publication_autocreate_mode == "filtered"
    if not (asked and is_managed and is_own(connection, settings)):
        return []
    rows = query(connection, _ADDABLE, [list(asked), settings.publication_name])
    return [asked[oid] for (oid,) in rows]


def create(
    connection: psycopg.Connection, settings: CaptureSettings, tables: Iterable[TableDescription]
) -> None:
    """Create the publication after a first start, with our tables that can be captured.

    As in ``add``, others stay out: once published, the user's UPDATEs of them might fail. Raise
    SourcePrivilegeError if the role owns none, or may create none.
    """
    able = [table for table in tables if _can_join(connection, settings, table)]
    owned = {oid for (oid,) in query(connection, _OWNED, [[table.oid for table in able]])}
    ours = [table.name for table in able if table.oid in owned]
    create_publication(connection, settings, ours or [table.name for table in able])


def unknown(tables: Iterable[CapturedTable], states: Iterable[TableState]) -> list[CapturedTable]:
    """Return tables that the log doesn't have. A user has removed others from the publication.

    In a new epoch, the states have no OIDs.
    """
    in_log = [state for state in states if state.is_in_log]
    oids = {state.oid for state in in_log}
    names = {state.name for state in in_log if not state.oid}
    return [table for table in tables if table.oid not in oids and table.name not in names]


def add(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    tables: Iterable[CapturedTable],
    told: MutableMapping[int, str],
) -> set[int]:
    """Add ``addable`` tables, one by one. Return the OIDs of locked ones, to try again.

    A table that can't be captured isn't added: once published, the user's UPDATEs of it might fail.
    ``told`` has, by OIDs, why others couldn't be added. Each reason is reported once.
    """
    locked = set[int]()
    addable_tables = list(tables)
    for table in described_tables(connection, settings, addable_tables) if addable_tables else ():
        if _can_join(connection, settings, table):
            try:
                _add(connection, settings.publication_name, table, told)
            except TableLockedError:
                locked.add(table.oid)
    return locked


def _can_join(
    connection: psycopg.Connection, settings: CaptureSettings, table: TableDescription
) -> bool:
    try:
        check_joining(connection, settings, table)
    except TableRefusedError:
        return False  # the search for new tables reports the reason
    return True


def _add(
    connection: psycopg.Connection,
    publication: str,
    table: TableDescription,
    told: MutableMapping[int, str],
) -> None:
    statement = add_statement(publication, [table.name])
    try:
        with connection.transaction():
            query(connection, _PATIENCE)
            query(connection, statement)
    except SourceError as error:
        if connection.broken:
            raise
        if told.get(table.oid) != error.what:
            log.warning(
                "the daemon can't add a table to the publication yet, and retries",
                table=str(table.name),
                reason=error.what,
                remedy=f"let the table's owner run: {statement}; or add it to table.exclude.list",
            )
        told[table.oid] = error.what
        if isinstance(error, TableLockedError):
            raise
    else:
        told.pop(table.oid, None)
        log.info("the daemon adds a new table to the publication", table=str(table.name))

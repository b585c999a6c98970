"""heartbeat.action.query → run as in any session, and never a reason to stop."""

import psycopg
import structlog

from cdc.errors import SourceError
from cdc.postgres.connection import query

log = structlog.get_logger()


def act(connection: psycopg.Connection, statement: str) -> None:
    """Run the user's statement; as with Debezium its failing is told, and streaming goes on.

    Our sessions look names up in pg_catalog alone, the user's statement where PostgreSQL does.
    """
    query(connection, 'SET search_path = "$user", public')
    try:
        query(connection, statement)
    except SourceError as error:
        if connection.closed:
            raise
        log.warning("heartbeat.action.query failed", reason=error.what)
    query(connection, "SET search_path = pg_catalog")

"""The server's settings → what a failover would break, told before it happens.

https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (slot synchronization)
"""

from typing import Final

import psycopg
import structlog

from cdc.postgres.connection import query
from cdc.postgres.slot import has_failover

log = structlog.get_logger()
_UNGUARDED: Final = """
SELECT slot_name::text FROM pg_replication_slots
WHERE slot_type = 'physical' AND NOT temporary
  AND current_setting('synchronized_standby_slots') = ''
ORDER BY slot_name
"""


def warn(connection: psycopg.Connection, wanted: bool) -> None:
    """Warn where a slot that is copied to standbys may be ahead of them after a failover."""
    if not wanted:
        return
    if not has_failover(connection.pgconn):
        log.info("PostgreSQL copies slots to standbys from 17 on: a failover loses this one")
        return
    standbys = [name for (name,) in query(connection, _UNGUARDED)]
    if standbys:
        log.warning(
            "synchronized_standby_slots is empty: after a failover the log may have changes that"
            " the new primary hasn't, which stops the daemon",
            standbys=standbys,
            remedy=f"ALTER SYSTEM SET synchronized_standby_slots = '{', '.join(standbys)}';"
            " SELECT pg_reload_conf()",
        )

"""pg_locks → the open transactions, and those that may have written to given tables.

A transaction that writes to a table, or to a partition of it, holds a lock on it until its end is
visible. A prepared transaction does the same. A subtransaction's locks belong to its transaction.
Its rollback removes its writes and its lock.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import psycopg

from cdc.postgres.connection import query

_OLDEST: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text, pg_is_in_recovery()"
# Reads all locks at once. PREPARE TRANSACTION changes the virtual transaction, not the number.
_WRITERS: Final = """
WITH RECURSIVE member (root, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS root (oid)
  UNION
    SELECT m.root, i.inhrelid FROM member m JOIN pg_inherits i ON i.inhparent = m.oid
), held AS MATERIALIZED (SELECT * FROM pg_locks WHERE granted)
SELECT DISTINCT m.root, own.transactionid::text::int8
FROM member m
JOIN held written ON written.locktype = 'relation' AND written.relation = m.oid
    AND written.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND written.mode IN ('RowExclusiveLock', 'AccessExclusiveLock')
JOIN held own ON own.virtualtransaction = written.virtualtransaction
    AND own.locktype = 'transactionid' AND own.mode = 'ExclusiveLock'
"""
_TELLS_RUNNING: Final = {14: 140_018, 15: 150_013, 16: 160_009, 17: 170_005}
"""By major version, the first release that decodes with the new catalog everything that a
transaction does after DDL. This holds even if the transaction was open, and the DDL locked no table
(ALTER TYPE, ALTER PUBLICATION). https://www.postgresql.org/docs/release/17.5/
"""


class Running(NamedTuple):
    """The open transactions: all below ``oldest`` (64 bits) have ended.

    ``writers`` has, by the OIDs of tables, the transactions and subtransactions (32 bits) that may
    have written to each. It is None if those aren't enough, or unknown: at a standby, and if a
    transaction that was open at DDL may later write in the old form. ``oldest_at_primary`` is the
    value that a standby reaches once it has replayed everything.
    """

    oldest: int
    writers: Mapping[int, frozenset[int]] | None
    oldest_at_primary: int = 0


def running(connection: psycopg.Connection, tables: Collection[int]) -> Running:
    """Return the open transactions, and those that have written to tables."""
    ((oldest, is_standby),) = query(connection, _OLDEST)
    version = connection.info.server_version
    if is_standby or version < _TELLS_RUNNING.get(version // 10_000, 0):
        return Running(int(oldest), None)
    writers = defaultdict[int, set[int]](set)
    for table, xid in query(connection, _WRITERS, [list(tables)]):
        writers[table].add(xid)
    return Running(int(oldest), {oid: frozenset(writers[oid]) for oid in tables})

"""The source → a snapshot of it at an exact position, for as long as it takes to read.

A temporary slot exports the snapshot of its consistent point P: it shows every transaction whose
commit record begins below P, and no other. The slot's creation waits for open transactions. A
session imports the snapshot and exports it again, and the slot is removed. The slot holds WAL for
seconds only, and the session holds only an xmin.
https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-CREATE-REPLICATION-SLOT
https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-SNAPSHOT-SYNCHRONIZATION
"""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Final

import psycopg

from cdc.errors import MillraceError, NotDoneError
from cdc.postgres.connection import connect, query
from cdc.postgres.slot import ExportedSnapshot, exact_snapshot, snapshot_slots
from cdc.records.position import Lsn
from cdc.settings import Settings
from snapshots import reader

PURPOSE: Final = "verify"
_SESSION: Final = {"idle_in_transaction_session_timeout": "30s"}
"""After this time the source ends the sessions of a verify that has died silently."""
_IDENTIFIER: Final = "SELECT system_identifier::text FROM pg_control_system()"
_TIMELINE: Final = """
SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int8
"""
_DEAD_S: Final = 5
"""If this process has died, the server stops waiting this long after the timeout."""
_PING_S: Final = 5.0
_OLDEST: Final = """
SELECT format('pid %s, open for %s s, user %s, application %s, %s', pid,
              extract(epoch FROM clock_timestamp() - xact_start)::int8, usename,
              application_name, state)
FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL
SELECT format('prepared transaction %s, open for %s s', gid,
              extract(epoch FROM clock_timestamp() - prepared)::int8)
FROM pg_prepared_xacts
"""
_OLDEST_FIRST: Final = (
    "SELECT text FROM ({}) AS open (text) ORDER BY"
    " substring(text FROM 'open for (\\d+) s')::int8 DESC LIMIT 3"
)

_OLDER_SESSIONS: Final = """
SELECT format('a session of another verify (pid %%s, for %%s s)', pid,
              coalesce(extract(epoch FROM clock_timestamp() - backend_start)::int8::text, '?'))
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %s AND pid <> pg_backend_pid()
"""
_OLDER_SLOTS: Final = """
SELECT format('the temporary slot %%s (pid %%s)', slot_name, active_pid) FROM pg_replication_slots
WHERE database = current_database() AND temporary AND starts_with(slot_name, %s)
"""
_LEAVING_S: Final = 0.3
"""Sessions that ended shortly before may still be listed."""


class SourceInstant:
    """The source at ``lsn``. Sessions can import its ``snapshot`` while it is held.

    ``connection`` is in a separate transaction that shows that instant.
    """

    def __init__(self, connection: psycopg.Connection, lsn: Lsn, snapshot: str) -> None:
        self.connection = connection
        self.lsn = lsn
        ((identifier,),) = query(connection, _IDENTIFIER)
        self.system_identifier: str = identifier
        ((timeline,),) = query(connection, _TIMELINE)
        self.timeline: int = timeline
        self.snapshot = ExportedSnapshot(lsn, snapshot)
        self._taken = time.monotonic()

    @property
    def age_s(self) -> float:
        """Return how long the source has kept the snapshot."""
        return time.monotonic() - self._taken


@contextmanager
def source_at_instant(settings: Settings, timeout_s: float) -> Iterator[SourceInstant]:
    """Yield the source at the current instant, while the context lasts.

    Raise NotDoneError if transactions stay open for longer than the timeout.
    """

    def on_wait(waited_s: float) -> None:
        if waited_s > timeout_s:
            raise _held_up(settings, timeout_s)

    source = settings.source
    with closing(connect(source, purpose=PURPOSE, pinned=_SESSION)) as connection:
        name, wait_s_max = settings.capture.slot_name, int(timeout_s) + _DEAD_S
        with exact_snapshot(source, name, on_wait, wait_s_max) as exported:
            reader.begin(connection, exported)
            ((name,),) = query(connection, "SELECT pg_export_snapshot()")
        ended = threading.Event()
        pinging = threading.Thread(target=_ping, args=(connection, ended), daemon=True)
        pinging.start()
        try:
            yield SourceInstant(connection, exported.consistent_point, name)
        finally:
            ended.set()
            pinging.join()


def older_readings(settings: Settings) -> list[str]:
    """Return other snapshot readers of the source: verifies, and slots that export a snapshot.

    If [source] gives all sessions one name, a verify's sessions can't be identified.
    """
    own = snapshot_slots(settings.capture.slot_name)
    with closing(open_session(settings)) as connection:
        name = connection.info.parameter_status("application_name")
        asked = [(_OLDER_SLOTS, own)]
        if "application_name" not in settings.source:
            asked.insert(0, (_OLDER_SESSIONS, name or ""))

        def look() -> list[str]:
            with suppress(MillraceError):  # these may be hidden from the role
                rows = (query(connection, statement, [value]) for statement, value in asked)
                return [text for (text,) in chain.from_iterable(rows)]
            return []

        if not look():
            return []
        time.sleep(_LEAVING_S)
        return look()


def open_session(settings: Settings) -> psycopg.Connection:
    """Open a session that reads a part of the source."""
    return connect(settings.source, purpose=PURPOSE, pinned=_SESSION)


def _ping(connection: psycopg.Connection, ended: threading.Event) -> None:
    """Keep the session alive. If it has ended, the next read reports it."""
    while not ended.wait(_PING_S):
        with suppress(MillraceError):
            query(connection, "SELECT 1")


def _held_up(settings: Settings, timeout_s: float) -> NotDoneError:
    oldest = "this role can't see them"
    with suppress(MillraceError), closing(open_session(settings)) as connection:
        rows = query(connection, _OLDEST_FIRST.format(_OLDEST))
        oldest = "; ".join(text for (text,) in rows) or oldest
    return NotDoneError(
        f"no instant could be compared within {timeout_s:.0f} s: transactions that write are open"
        f" ({oldest})",
        where="the source",
        remedy="end them, or wait longer with --timeout",
    )

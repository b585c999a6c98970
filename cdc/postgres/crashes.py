"""A session → whether the server has ended it because one of its processes had crashed.

After a crash PostgreSQL ends all sessions and replays its WAL. A warning gives each session the
reason; the crashed process itself reports nothing. A server that is shut down, or killed as a
whole, reports another reason, or none.
https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

import time
from contextlib import suppress
from typing import Final

import psycopg
from psycopg import pq
from psycopg.errors import CrashShutdown, Diagnostic

from cdc.errors import SourceError
from cdc.postgres.connection import wait_readable

_PATIENCE_S: Final = 1.0
"""How long the server may take from the end of one session to the end of another."""


class CrashNotice:
    """The server's message to an idle session as it ends it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._has_come = False
        connection.add_notice_handler(self._take)

    def has_come(self) -> bool:
        """Whether the server reports a crash. Waits for its message, up to a second."""
        pgconn = self._connection.pgconn
        deadline = time.monotonic() + _PATIENCE_S
        pgconn.is_busy()  # reads what came with the end and a failed statement leaves
        while not self._has_come and pgconn.status == pq.ConnStatus.OK:
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            with suppress(SourceError):
                wait_readable(pgconn, left_s)
            pgconn.is_busy()
        return self._has_come

    def _take(self, notice: Diagnostic) -> None:
        self._has_come |= notice.sqlstate == CrashShutdown.sqlstate

"""A session → whether the server has ended it because one of its processes had crashed.

After a crash PostgreSQL ends all sessions and replays its WAL. It tells each why, by a warning; the
process that has crashed tells nothing. A server that is shut down, or killed as a whole, says
something else, or nothing. https://www.postgresql.org/docs/current/errcodes-appendix.html
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
"""How long the server may take, behind the end of one session, to end another one."""


class CrashNotice:
    """What the server says to an idle session as it ends it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._has_come = False
        connection.add_notice_handler(self._take)

    def has_come(self) -> bool:
        """Whether it says that it has crashed; waits until it says something, or for a second."""
        pgconn = self._connection.pgconn
        deadline = time.monotonic() + _PATIENCE_S
        pgconn.is_busy()  # takes in what came with the end, which a failed statement leaves
        while not self._has_come and pgconn.status == pq.ConnStatus.OK:
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            with suppress(SourceError):
                wait_readable(pgconn, left_s)
            pgconn.is_busy()
        return self._has_come

    def _take(self, notice: Diagnostic) -> None:
        self._has_come |= notice.sqlstate == CrashShutdown.sqlstate

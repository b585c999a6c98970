"""COPY … TO STDOUT on an ordinary connection → CopyData messages as they come, in one buffer.

As wire.py reads the stream: past libpq where the connection isn't encrypted. When the COPY has
ended, libpq finds its connection as it left it. The statement goes by the extended protocol, which
takes one statement only: the SELECT in it may be somebody's own.
https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY
"""

import math
import select
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn

from cdc.postgres.failures import RefusedError, server_address, statement_error
from cdc.postgres.wire import POLL_TLS_S, SocketBuffer, copy_data_of, error_fields, message

_BIND: Final = message(b"B", b"\0\0" + struct.pack(">HHH", 0, 0, 0))
_EXECUTE: Final = message(b"E", b"\0" + struct.pack(">I", 0))
_SYNC: Final = message(b"S")


def copy_out(connection: psycopg.Connection) -> "CopyOut":
    """The fastest way to read COPYs from this connection, on which no statement is running."""
    pgconn = connection.pgconn
    if pgconn.ssl_in_use or pgconn.used_gssapi:
        return LibpqCopy(pgconn)
    return PlainCopy(pgconn)


def wait(copy: "CopyOut", timeout_s: float) -> None:
    """Wait until something may have arrived."""
    poller = select.poll()
    poller.register(copy.fileno(), select.POLLIN)
    poller.poll(min(timeout_s, copy.wait_s_max) * 1_000)


class PlainCopy(SocketBuffer):
    """Reads the socket past libpq."""

    wait_s_max = math.inf

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self._where = server_address(pgconn)
        self._runs = False
        self._refusal: RefusedError | None = None

    def begin(self, statement: bytes) -> None:
        """Parse, Bind, Execute, Sync."""
        self._runs, self._refusal = True, None
        parse = message(b"P", b"\0" + statement + b"\0\0\0")
        with _explained(self._where):
            self._send(parse + _BIND + _EXECUTE + _SYNC)

    def fill(self) -> int:
        """Read once, into as much room as there is."""
        with _explained(self._where, self._refusal):
            self.flush()
            return super().fill()

    def fileno(self) -> int:
        """Our socket."""
        return self.socket.fileno()

    def ended(self) -> bool:
        """Whether ReadyForQuery has come."""
        while self._runs:
            with _explained(self._where, self._refusal):
                kind = self._kind()
                if kind in {None, b"d"}:
                    break
                body = self._skip()
                if kind == b"E":
                    self._refusal = RefusedError(*error_fields(body))
                elif kind in {b"G", b"W"}:
                    raise RefusedError("08P01", "the server didn't begin COPY TO STDOUT")
                elif kind == b"Z":
                    self._runs = False
                    if self._refusal is not None:
                        raise self._refusal
        return not self._runs

    def close(self) -> None:
        """Close our descriptor."""
        self.let_go()


class LibpqCopy:
    """Reads through libpq, for connections that are encrypted."""

    wait_s_max = POLL_TLS_S

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._where = server_address(pgconn)
        self._runs = self._copies = False
        self._refusal: RefusedError | None = None
        self.buffer = bytearray()
        self.start = self.end = 0

    def begin(self, statement: bytes) -> None:
        """Let libpq send it."""
        self._runs, self._copies, self._refusal = True, False, None
        with _explained(self._where):
            self._pgconn.send_query_params(statement, None)

    def fill(self) -> int:
        """Take whole messages, up to the buffer's size."""
        del self.buffer[: self.start]
        self.start, before = 0, len(self.buffer)
        with _explained(self._where):
            if not self._copies:
                self._pgconn.consume_input()
                self._take_results()
            if self._copies:
                self._copies = not copy_data_of(self._pgconn, self.buffer)
        self.end = len(self.buffer)
        return self.end - before

    def fileno(self) -> int:
        """Libpq's socket."""
        return self._pgconn.socket

    def ended(self) -> bool:
        """Whether libpq has had all results, and we all rows."""
        if self._copies or self.start < self.end:
            return False
        with _explained(self._where):
            self._take_results()
            if not self._runs and self._refusal is not None:
                raise self._refusal
        return not self._runs

    def close(self) -> None:
        """Nothing to do: all that there is is libpq's."""

    def _take_results(self) -> None:
        while self._runs and not self._copies and not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                self._runs = False
            elif result.status == pq.ExecStatus.COPY_OUT:
                self._copies = True
            elif result.status == pq.ExecStatus.FATAL_ERROR:
                self._refusal = RefusedError.of(result)


CopyOut: TypeAlias = PlainCopy | LibpqCopy
"""``buffer[start:end]`` has been received and not yet been used; who uses it moves ``start``.

``begin`` sends a statement, without waiting for an answer. Ask whether it has ``ended``, use
CopyData up to anything else, and ``fill`` when there was none to use: it takes as much as is there,
and returns how many bytes that is. A server that refuses or ends the COPY, and a connection that
breaks, is one of the errors of failures.statement_error. ``wait_s_max``: how long a poll of
``fileno`` may last at most. ``close`` lets go of the connection, which is of no more use if its
COPY hasn't ended.
"""


@contextmanager
def _explained(where: str, refusal: RefusedError | None = None) -> Iterator[None]:
    """Raise what a failure within means, or what the server had said before."""
    try:
        yield
    except (RefusedError, psycopg.Error) as error:
        first = refusal or error
        raise statement_error(first.sqlstate, str(first), where) from error

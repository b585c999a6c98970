"""COPY … TO STDOUT on an ordinary connection → CopyData messages as they come, in one buffer.

Like wire.py, it reads past libpq if the connection isn't encrypted. After the COPY, libpq finds its
connection unchanged. The statement uses the extended protocol, which takes only one statement, as
the SELECT in it may come from a user.
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
    """Return the fastest reader of COPYs for this connection, on which no statement runs."""
    pgconn = connection.pgconn
    if pgconn.ssl_in_use or pgconn.used_gssapi:
        return LibpqCopy(pgconn)
    return PlainCopy(pgconn)


def wait(copy: "CopyOut", timeout_s: float) -> None:
    """Wait until data may have arrived."""
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
        """Read once, into the available room."""
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
        """Whether libpq has received all results, and we all rows."""
        if self._copies or self.start < self.end:
            return False
        with _explained(self._where):
            self._take_results()
            if not self._runs and self._refusal is not None:
                raise self._refusal
        return not self._runs

    def close(self) -> None:
        """Do nothing, as libpq owns everything."""

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
"""``buffer[start:end]`` has been received and not used yet. Its user moves ``start``.

``begin`` sends a statement without waiting for an answer. Ask whether it has ``ended``, use
CopyData up to any other message, and call ``fill`` when none is left: it takes the available bytes,
and returns their number. If the server refuses or ends the COPY, or the connection breaks, it
raises an error of failures.statement_error. ``wait_s_max`` limits a poll of ``fileno``. ``close``
releases the connection, which is unusable if its COPY hasn't ended.
"""


@contextmanager
def _explained(where: str, refusal: RefusedError | None = None) -> Iterator[None]:
    """Raise the meaning of a failure in the block, or of the server's earlier refusal."""
    try:
        yield
    except (RefusedError, psycopg.Error) as error:
        first = refusal or error
        raise statement_error(first.sqlstate, str(first), where) from error

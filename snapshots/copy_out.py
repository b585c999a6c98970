"""COPY … TO STDOUT on an ordinary connection → CopyData messages as they come, in one buffer.

As cdc/postgres/wire.py reads the stream: past libpq where the connection isn't encrypted. When the
COPY has ended, libpq finds its connection as it left it. The statement goes by the extended
protocol, which takes one statement only: the SELECT in it may be somebody's own.
https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY
"""

import math
import select
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn

from cdc.errors import MillraceError
from cdc.postgres.failures import RefusedError, explained, server_address
from cdc.postgres.wire import SocketBuffer, copy_data_of, error_fields, message

_BIND: Final = message(b"B", b"\0\0" + struct.pack(">HHH", 0, 0, 0))
_EXECUTE: Final = message(b"E", b"\0" + struct.pack(">I", 0))
_SYNC: Final = message(b"S")
_POLL_TLS_S: Final = 0.05
"""Decrypted bytes can wait inside of libpq while the socket is silent: look this often."""


class CopyOut(Protocol):
    """``buffer[start:end]`` has been received and not yet been used; who uses it moves ``start``.

    Ask whether it has ``ended``, use CopyData up to anything else, and ``fill`` when there was none
    to use: it takes as much as is there. A server that refuses or
    ends the COPY, and a connection that breaks, is one of the errors of failures.statement_error.
    ``wait_s_max``: how long a poll of ``fileno`` may last at most.
    """

    buffer: bytearray
    start: int
    end: int
    wait_s_max: float

    def begin(self, statement: bytes) -> None:
        """Send ``COPY … TO STDOUT``, without waiting for an answer."""
        ...

    def fill(self) -> int:
        """Take what has arrived, without waiting; returns how many bytes that is."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that is readable when something has arrived."""
        ...

    def ended(self) -> bool:
        """Whether the COPY is over, and the connection free; takes in what isn't CopyData."""
        ...

    def close(self) -> None:
        """Let go of the connection, which is of no more use if its COPY hasn't ended."""
        ...


def copy_out(connection: psycopg.Connection) -> CopyOut:
    """The fastest way to read COPYs from this connection, on which no statement is running."""
    pgconn = connection.pgconn
    if pgconn.ssl_in_use or pgconn.used_gssapi:
        return LibpqCopy(pgconn)
    return PlainCopy(pgconn)


def wait(copy: CopyOut, timeout_s: float) -> None:
    """Wait until something may have arrived."""
    poller = select.poll()
    poller.register(copy.fileno(), select.POLLIN)
    poller.poll(min(timeout_s, copy.wait_s_max) * 1_000)


class PlainCopy(SocketBuffer):
    """Reads the socket past libpq."""

    wait_s_max: float = math.inf

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self._where = server_address(pgconn)
        self._runs = False
        self._refusal: RefusedError | None = None

    def begin(self, statement: bytes) -> None:
        """Parse, Bind, Execute, Sync."""
        self._runs = True
        self._refusal = None
        parse = message(b"P", b"\0" + statement + b"\0\0\0")
        with self._explained():
            self._send(parse + _BIND + _EXECUTE + _SYNC)

    def fill(self) -> int:
        """Read once, into as much room as there is."""
        with self._explained():
            self.flush()
            return super().fill()

    def fileno(self) -> int:
        """Our socket."""
        return self.socket.fileno()

    def ended(self) -> bool:
        """Whether ReadyForQuery has come."""
        with self._explained():
            while self._runs and (kind := self._kind()) not in {None, b"d"}:
                body = self._skip()
                if kind == b"E":
                    self._refusal = RefusedError(*error_fields(body))
                elif kind in {b"G", b"W"}:
                    raise RefusedError("08P01", "the server didn't begin to COPY TO STDOUT")
                elif kind == b"Z":
                    self._runs = False
                    if self._refusal is not None:
                        raise self._refusal
        return not self._runs

    def close(self) -> None:
        """Close our descriptor."""
        self.let_go()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            raise _error_of(self._refusal or error, self._where) from error


class LibpqCopy:
    """Reads through libpq, for connections that are encrypted."""

    wait_s_max: float = _POLL_TLS_S

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._where = server_address(pgconn)
        self._runs = self._copies = False
        self._refusal: RefusedError | None = None
        self.buffer = bytearray()
        self.start = self.end = 0

    def begin(self, statement: bytes) -> None:
        """Let libpq send it."""
        self._runs, self._copies = True, False
        self._refusal = None
        with explained(self._pgconn):
            self._pgconn.send_query_params(statement, None)

    def fill(self) -> int:
        """Take whole messages, up to the buffer's size."""
        del self.buffer[: self.start]
        self.start, before = 0, len(self.buffer)
        with explained(self._pgconn):
            if not self._copies:
                self._pgconn.consume_input()
                self._take_results()
        if self._copies:
            try:
                self._copies = not copy_data_of(self._pgconn, self.buffer)
            except RefusedError as error:
                raise _error_of(error, self._where) from error
        self.end = len(self.buffer)
        return self.end - before

    def fileno(self) -> int:
        """Libpq's socket."""
        return self._pgconn.socket

    def ended(self) -> bool:
        """Whether libpq has had all results, and we all rows."""
        if self._copies or self.start < self.end:
            return False
        with explained(self._pgconn):
            self._take_results()
        if not self._runs and self._refusal is not None:
            raise _error_of(self._refusal, self._where)
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


def _error_of(refusal: RefusedError, where: str) -> MillraceError:
    """What a refusal means."""
    return refusal.error(where)

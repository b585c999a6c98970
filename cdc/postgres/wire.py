"""A replication connection ⇄ bytes: CopyData messages as they come, in one buffer.

Without encryption the socket is read directly: libpq takes 0.7 µs per row for what costs 0.1 µs so.
libpq has connected and authenticated by then, and takes no part in the rest. Under TLS and GSSAPI
the session lives inside of libpq, which then gives its messages one by one; they are put into the
buffer in the same form. Whoever reads moves ``start`` on, up to a message that isn't CopyData:
``control`` takes that one.
https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-COPY
https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

import select
import time
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from cdc.postgres.failures import result_sqlstate, result_text
from cdc.postgres.socket_buffer import (
    RefusedError,
    SocketBuffer,
    copy_data_of,
    error_fields,
    message,
)

_CLOSE_S: Final = 2.0
_POLL_TLS_S: Final = 0.05
"""Decrypted bytes can wait inside of libpq while the socket is silent: look this often."""

OnNotice = Callable[[str | None, str], None]
"""Takes the SQLSTATE and the text of a notice."""


class Wire(Protocol):
    """``buffer[start:end]`` has been received and not yet been used."""

    buffer: bytearray
    start: int
    end: int

    def begin(self, command: str) -> None:
        """Send START_REPLICATION; returns when the stream has begun."""
        ...

    def fill(self) -> int:
        """Take what has arrived, without waiting; returns how many bytes that is."""
        ...

    def control(self) -> None:
        """Deal with a whole message at ``start`` that isn't CopyData, if there is one."""
        ...

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Wait for bytes, or for ``wake`` to be readable; returns whether there may be bytes."""
        ...

    def send(self, payload: bytes) -> None:
        """Send CopyData as far as that goes without waiting."""
        ...

    def flush(self) -> bool:
        """Send on; returns whether that was all."""
        ...

    def close(self) -> None:
        """End the stream so that the server has seen all that we sent, and disconnect."""
        ...

    def drop(self) -> None:
        """Disconnect without a word: the stream hasn't begun."""
        ...


def wire(pgconn: PGconn, on_notice: OnNotice) -> Wire:
    """The fastest way to read this connection, on which no command is running."""
    if pgconn.ssl_in_use or pgconn.used_gssapi:
        return LibpqWire(pgconn, on_notice)
    return PlainWire(pgconn, on_notice)


class PlainWire(SocketBuffer):
    """Reads the socket past libpq."""

    def __init__(self, pgconn: PGconn, on_notice: OnNotice) -> None:
        super().__init__(pgconn)
        self._pgconn = pgconn
        self._on_notice = on_notice

    def begin(self, command: str) -> None:
        """Send the command as a simple query, and read up to CopyBothResponse."""
        self._send(message(b"Q", command.encode() + b"\0"))
        while True:
            self.flush()
            while (kind := self._kind()) is not None:
                if kind == b"W":
                    self._skip()
                    return
                if kind in {b"d", b"Z"}:
                    raise RefusedError(None, "the server didn't begin the stream")
                self.control()
            if self.wait(1.0, None):
                self.fill()

    def control(self) -> None:
        """ErrorResponse, NoticeResponse, the end of the copy; anything else tells us nothing."""
        kind = self._kind()
        if kind is None or kind == b"d":
            return
        body = self._skip()
        if kind == b"E":
            raise RefusedError(*error_fields(body))
        if kind == b"N":
            self._on_notice(*error_fields(body))
        elif kind == b"c":
            raise RefusedError(None, "the server ended the stream")

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Poll the socket."""
        return _readable(self.socket.fileno(), timeout_s, wake)

    def send(self, payload: bytes) -> None:
        """Wrap it into CopyData."""
        self._send(message(b"d", payload))

    def close(self) -> None:
        """CopyDone, then read until the server has answered; libpq says good-bye."""
        try:
            self._send(message(b"c"))
            deadline = time.monotonic() + _CLOSE_S
            while time.monotonic() < deadline:
                self.flush()
                if self.wait(0.1, None):
                    self.fill()
                while self._kind() == b"d":
                    self._skip()
                self.control()
        except RefusedError:
            pass
        finally:
            self.drop()

    def drop(self) -> None:
        """Close both descriptors, ours and libpq's."""
        self.let_go()
        self._pgconn.finish()


class LibpqWire:
    """Reads through libpq, for connections that are encrypted."""

    def __init__(self, pgconn: PGconn, on_notice: OnNotice) -> None:
        self._pgconn = pgconn
        self._on_notice = on_notice
        self.buffer = bytearray()
        self.start = self.end = 0

    def begin(self, command: str) -> None:
        """Let libpq run the command."""
        self._pgconn.notice_handler = self._notice
        try:
            result = self._pgconn.exec_(command.encode())
        except psycopg.Error as error:
            raise RefusedError(None, str(error)) from error
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise RefusedError(result_sqlstate(result), result_text(result))
        self._pgconn.nonblocking = 1

    def fill(self) -> int:
        """Take whole messages, up to the buffer's size."""
        del self.buffer[: self.start]
        self.start, before = 0, len(self.buffer)
        if copy_data_of(self._pgconn, self.buffer):
            self._ended()
        self.end = len(self.buffer)
        return self.end - before

    def _ended(self) -> NoReturn:
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            raise RefusedError(None, "the server ended the stream")
        raise RefusedError(result_sqlstate(result), result_text(result))

    def _notice(self, notice: PGresult) -> None:
        self._on_notice(result_sqlstate(notice), result_text(notice))

    def control(self) -> None:
        """Nothing to do: libpq keeps everything but CopyData to itself."""

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Poll the socket, not for long."""
        return _readable(self._pgconn.socket, min(timeout_s, _POLL_TLS_S), wake)

    def send(self, payload: bytes) -> None:
        """Hand it to libpq."""
        try:
            self._pgconn.put_copy_data(payload)
        except psycopg.Error as error:
            raise RefusedError(None, str(error)) from error
        self.flush()

    def flush(self) -> bool:
        """Send what libpq holds back."""
        try:
            return self._pgconn.flush() == 0
        except psycopg.Error as error:
            raise RefusedError(None, str(error)) from error

    def close(self) -> None:
        """End the copy, then read to the server's answer."""
        try:
            if self._pgconn.status == pq.ConnStatus.OK:
                self._pgconn.put_copy_end()
                deadline = time.monotonic() + _CLOSE_S
                while time.monotonic() < deadline:
                    self.flush()
                    size, _ = self._pgconn.get_copy_data(1)
                    if size < 0:
                        break
                    if size == 0 and self.wait(0.1, None):
                        self._pgconn.consume_input()
        except (psycopg.Error, RefusedError):
            pass
        finally:
            self.drop()

    def drop(self) -> None:
        """Let libpq close it."""
        self._pgconn.finish()


def _readable(descriptor: int, timeout_s: float, wake: int | None) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if wake is not None:
        poller.register(wake, select.POLLIN)
    return any(ready == descriptor for ready, _ in poller.poll(max(0.0, timeout_s) * 1_000))

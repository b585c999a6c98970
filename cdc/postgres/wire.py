"""A connection ⇄ bytes of PostgreSQL's protocol: messages as they come, in one buffer.

Without encryption the socket is read directly: libpq takes 0.7 µs per row for what costs 0.1 µs so.
libpq has connected and authenticated by then, and takes no part in the rest. Under TLS and GSSAPI
the session lives inside of libpq, which then gives its messages one by one; they are put into a
buffer in the same form. Whoever reads moves ``start`` on, up to a message that isn't CopyData:
``control`` takes that one.
https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-COPY
https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from cdc.postgres.failures import RefusedError

BUFFER_BYTES: Final = 1 << 20
_ROOM_BYTES_MIN: Final = 128 << 10
_MESSAGE_BYTES_MAX: Final = 1 << 30
"""PostgreSQL's own limit (MaxAllocSize) is a byte less: a larger length isn't one."""
_LOOKS_MAX: Final = 2
_CLOSE_S: Final = 2.0
POLL_TLS_S: Final = 0.05
"""Decrypted bytes can wait inside of libpq while the socket is silent: look this often."""
_HEAD: Final = struct.Struct(">cI")
_COPY_DATA: Final = ord("d")
_BEGUN_BYTES: Final = 4_096
"""So much of a message tells what it is."""

OnNotice = Callable[[str | None, str], None]
"""Takes the SQLSTATE and the text of a notice."""


class SocketBuffer:
    """``buffer[start:end]`` has been received from a connection's socket, and not yet been used."""

    def __init__(self, pgconn: PGconn) -> None:
        self.socket = socket.socket(fileno=os.dup(pgconn.socket))
        self.socket.setblocking(False)
        self._unsent = b""
        self.buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self.buffer)
        self.start = self.end = 0

    def fill(self) -> int:
        """Read once, without waiting, into as much room as there is; returns how many bytes."""
        self._make_room()
        with _broken():
            try:
                size = self.socket.recv_into(self._view[self.end :])
            except BlockingIOError:
                return 0
        if size == 0:
            raise RefusedError(None, "the server closed the connection unexpectedly")
        self.end += size
        return size

    def _make_room(self) -> None:
        """Bring what is left to the front; the buffer is as large as the message that it has.

        It grows by what has come of the message, not by what its first bytes promise.
        """
        left = self.end - self.start
        if left == 0:
            self.start = self.end = 0
        whole = self._message_bytes() + _ROOM_BYTES_MIN if left >= _HEAD.size else 0
        if len(self.buffer) - left < _ROOM_BYTES_MIN:
            self._resize(max(left, min(whole, 2 * left)) + _ROOM_BYTES_MIN)
        elif len(self.buffer) > BUFFER_BYTES and (left == 0 or 0 < whole <= BUFFER_BYTES):
            self._resize(max(BUFFER_BYTES, left + _ROOM_BYTES_MIN))
        elif len(self.buffer) - self.end < _ROOM_BYTES_MIN:
            self._view[:left] = self._view[self.start : self.end]
            self.start, self.end = 0, left

    def _resize(self, size: int) -> None:
        left = self.end - self.start
        other = bytearray(size)
        other[:left] = self._view[self.start : self.end]
        self._view.release()
        self.buffer, self._view = other, memoryview(other)
        self.start, self.end = 0, left

    def _message_bytes(self) -> int:
        """How long the message at the start is; what can't be a length has lost the thread."""
        length = int(_HEAD.unpack_from(self.buffer, self.start)[1])
        if not 4 <= length <= _MESSAGE_BYTES_MAX:
            raise RefusedError(
                None, f"a message has {length} bytes: this isn't PostgreSQL's protocol"
            )
        return 1 + length

    def _kind(self) -> bytes | None:
        """What the message at the start is, if all of it is there."""
        if self.end - self.start < _HEAD.size or self.end - self.start < self._message_bytes():
            return None
        return bytes(self._view[self.start : self.start + 1])

    def _skip(self) -> bytes:
        """Go on to the next message; returns what this one had."""
        begin, self.start = self.start, self.start + self._message_bytes()
        return bytes(self._view[begin + 5 : self.start])

    def _send(self, message: bytes) -> None:
        self._unsent += message
        self.flush()

    def flush(self) -> bool:
        """Send on, without waiting; returns whether that was all."""
        with _broken():
            try:
                while self._unsent:
                    self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def let_go(self) -> None:
        """Close our descriptor; libpq's stays."""
        self._view.release()
        self.socket.close()


class PlainWire(SocketBuffer):
    """Reads the socket of a replication connection past libpq."""

    def __init__(self, pgconn: PGconn, on_notice: OnNotice) -> None:
        super().__init__(pgconn)
        self._pgconn = pgconn
        self._on_notice = on_notice
        self._useless = 0
        """How many bytes are still to come of a message that another one has replaced."""

    def begin(self, command: str) -> None:
        """Send START_REPLICATION as a simple query; returns when the stream has begun."""
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
        """Take a whole message at ``start`` that isn't CopyData, if there is one.

        ErrorResponse, NoticeResponse, the end of the copy; anything else tells us nothing.
        """
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

    def fill(self) -> int:
        """Read once, without waiting; what has no use is read, and forgotten."""
        size = super().fill()
        useless = min(size, self._useless)
        if useless:
            self._useless -= useless
            self.end -= size
            self._view[self.end : self.end + size - useless] = self._view[
                self.end + useless : self.end + size
            ]
            self.end += size - useless
        return size

    def begun(self) -> tuple[bytes, int] | None:
        """The first bytes of a large CopyData payload that hasn't come whole, and its size."""
        has = self.end - self.start
        if self._useless or has < _BEGUN_BYTES or self._view[self.start] != _COPY_DATA:
            return None
        size = self._message_bytes()
        if size <= max(has, BUFFER_BYTES):
            return None
        begin = self.start + _HEAD.size
        return bytes(self._view[begin : self.start + _BEGUN_BYTES]), size - _HEAD.size

    def replace(self, payload: bytes) -> None:
        """Have another payload, of fewer bytes than are there, in the place of what has begun."""
        has, other = self.end - self.start, message(b"d", payload)
        self._useless = self._message_bytes() - has
        self.end = self.start + len(other)
        self._view[self.start : self.end] = other

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Wait for bytes, or for ``wake`` to be readable; returns whether there may be bytes."""
        return _readable(self.socket.fileno(), timeout_s, wake)

    def send(self, payload: bytes) -> None:
        """Send CopyData as far as that goes without waiting."""
        self._send(message(b"d", payload))

    def close(self) -> None:
        """End the stream so that the server has seen all that we sent, and disconnect.

        CopyDone, then read until the server has answered; libpq says good-bye.
        """
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
    """The same through libpq, for connections that are encrypted."""

    def __init__(self, pgconn: PGconn, on_notice: OnNotice) -> None:
        self._pgconn = pgconn
        self._on_notice = on_notice
        self.buffer = bytearray()
        self.start = self.end = 0

    def begin(self, command: str) -> None:
        """Let libpq run the command."""
        self._pgconn.notice_handler = self._notice
        with _broken():
            result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise RefusedError.of(result)
        self._pgconn.nonblocking = 1

    def fill(self) -> int:
        """Take whole messages, up to the buffer's size."""
        del self.buffer[: self.start]
        self.start, before = 0, len(self.buffer)
        if copy_data_of(self._pgconn, self.buffer):
            result = self._pgconn.get_result()
            if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
                raise RefusedError(None, "the server ended the stream")
            raise RefusedError.of(result)
        self.end = len(self.buffer)
        return self.end - before

    def _notice(self, notice: PGresult) -> None:
        said = RefusedError.of(notice)
        self._on_notice(said.sqlstate, said.text)

    def begun(self) -> None:
        """Nothing: libpq gives whole messages."""

    def replace(self, payload: bytes) -> None:
        """Nothing has begun that could be replaced."""

    def control(self) -> None:
        """Nothing to do: libpq keeps everything but CopyData to itself."""

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Poll the socket, not for long."""
        return _readable(self._pgconn.socket, min(timeout_s, POLL_TLS_S), wake)

    def send(self, payload: bytes) -> None:
        """Hand it to libpq."""
        with _broken():
            self._pgconn.put_copy_data(payload)
        self.flush()

    def flush(self) -> bool:
        """Send what libpq holds back."""
        with _broken():
            return self._pgconn.flush() == 0

    def close(self) -> None:
        """End the copy, then read to the server's answer."""
        try:
            with suppress(psycopg.Error, RefusedError):
                if self._pgconn.status == pq.ConnStatus.OK:
                    self._end_copy()
        finally:
            self.drop()

    def _end_copy(self) -> None:
        self._pgconn.put_copy_end()
        deadline = time.monotonic() + _CLOSE_S
        while time.monotonic() < deadline:
            self.flush()
            size, _ = self._pgconn.get_copy_data(1)
            if size < 0:
                return
            if size == 0 and self.wait(0.1, None):
                self._pgconn.consume_input()

    def drop(self) -> None:
        """Let libpq close it."""
        self._pgconn.finish()


Wire = PlainWire | LibpqWire


def wire(pgconn: PGconn, on_notice: OnNotice) -> Wire:
    """The fastest way to read this replication connection, on which no command is running."""
    is_encrypted = pgconn.ssl_in_use or pgconn.used_gssapi
    return (LibpqWire if is_encrypted else PlainWire)(pgconn, on_notice)


def copy_data_of(pgconn: PGconn, buffer: bytearray) -> bool:
    """Append what libpq has of a COPY, up to the buffer's size; returns whether that has ended."""
    take, looks = pgconn.get_copy_data, 0
    with _broken():
        while len(buffer) < BUFFER_BYTES:
            size, data = take(1)
            if size > 0:
                buffer += _HEAD.pack(b"d", size + 4)
                buffer += data
                looks = 0
            elif size < 0:
                return True
            elif looks < _LOOKS_MAX:
                looks += 1
                pgconn.consume_input()
            else:
                break
    return False


def message(kind: bytes, body: bytes = b"") -> bytes:
    """A message of ours."""
    return _HEAD.pack(kind, len(body) + 4) + body


def error_fields(body: bytes) -> tuple[str | None, str]:
    """SQLSTATE and text of an ErrorResponse or NoticeResponse: message, detail and hint."""
    fields = {
        field[:1]: field[1:].decode("utf-8", "replace") for field in body.split(b"\0") if field
    }
    text = "; ".join(fields[kind] for kind in (b"M", b"D", b"H") if kind in fields)
    return fields.get(b"C"), text


@contextmanager
def _broken() -> Iterator[None]:
    """A connection that fails within refuses everything."""
    try:
        yield
    except (psycopg.Error, OSError) as error:
        raise RefusedError(None, str(error)) from error


def _readable(descriptor: int, timeout_s: float, wake: int | None) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if wake is not None:
        poller.register(wake, select.POLLIN)
    return any(ready == descriptor for ready, _ in poller.poll(max(0.0, timeout_s) * 1_000))

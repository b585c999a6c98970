"""A connection ⇄ bytes of PostgreSQL's protocol: messages as they come, in one buffer.

Without encryption this reads the socket directly: libpq takes 0.7 µs per row, this takes 0.1 µs.
libpq has connected and authenticated before, and takes no further part. Under TLS and GSSAPI the
session is inside libpq, which returns its messages one by one; the buffer then has them in the same
form. The reader moves ``start`` up to a message that isn't CopyData, which ``control`` takes.
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
"""PostgreSQL's own limit (MaxAllocSize) is one byte less, so a larger length is invalid."""
_LOOKS_MAX: Final = 2
_CLOSE_S: Final = 2.0
POLL_TLS_S: Final = 0.05
"""Decrypted bytes can wait inside libpq while the socket is silent. This is the poll interval."""
_HEAD: Final = struct.Struct(">cI")
_COPY_DATA: Final = ord("d")
_BEGUN_BYTES: Final = 4_096
"""This much of a message shows its kind."""

OnNotice = Callable[[str | None, str], None]
"""Takes the SQLSTATE and the text of a notice."""


class SocketBuffer:
    """A buffer: ``buffer[start:end]`` was received from a connection's socket and isn't used."""

    def __init__(self, pgconn: PGconn) -> None:
        self.socket = socket.socket(fileno=os.dup(pgconn.socket))
        self.socket.setblocking(False)
        self._unsent = b""
        self.buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self.buffer)
        self.start = self.end = 0

    def fill(self) -> int:
        """Read once, without waiting, into the available room. Return the number of bytes."""
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
        """Move the rest to the front. The buffer is as large as the message in it.

        It grows with the bytes received of the message, not with its announced length.
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
        """Return the length of the message at the start. An invalid length breaks the protocol."""
        length = int(_HEAD.unpack_from(self.buffer, self.start)[1])
        if not 4 <= length <= _MESSAGE_BYTES_MAX:
            raise RefusedError(
                None, f"a message has {length} bytes: this isn't PostgreSQL's protocol"
            )
        return 1 + length

    def _kind(self) -> bytes | None:
        """Return the kind of the message at the start, if it is complete."""
        if self.end - self.start < _HEAD.size or self.end - self.start < self._message_bytes():
            return None
        return bytes(self._view[self.start : self.start + 1])

    def _skip(self) -> bytes:
        """Skip to the next message. Return the body of this one."""
        begin, self.start = self.start, self.start + self._message_bytes()
        return bytes(self._view[begin + 5 : self.start])

    def _send(self, message: bytes) -> None:
        self._unsent += message
        self.flush()

    def flush(self) -> bool:
        """Send pending bytes without waiting. Return whether that was all."""
        with _broken():
            try:
                while self._unsent:
                    self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def let_go(self) -> None:
        """Close our descriptor. libpq's stays open."""
        self._view.release()
        self.socket.close()


class PlainWire(SocketBuffer):
    """Reads the socket of a replication connection past libpq."""

    def __init__(self, pgconn: PGconn, on_notice: OnNotice) -> None:
        super().__init__(pgconn)
        self._pgconn = pgconn
        self._on_notice = on_notice
        self._useless = 0
        """The bytes still to come of a message that another one has replaced."""

    def begin(self, command: str) -> None:
        """Send START_REPLICATION as a simple query. Return when the stream has begun."""
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

        Handles ErrorResponse, NoticeResponse and the end of the copy; others have no meaning here.
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
        """Read once, without waiting. Discard bytes of a replaced message."""
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
        """Return the first bytes of a large CopyData payload that is incomplete, and its size."""
        has = self.end - self.start
        if self._useless or has < _BEGUN_BYTES or self._view[self.start] != _COPY_DATA:
            return None
        size = self._message_bytes()
        if size <= max(has, BUFFER_BYTES):
            return None
        begin = self.start + _HEAD.size
        return bytes(self._view[begin : self.start + _BEGUN_BYTES]), size - _HEAD.size

    def replace(self, payload: bytes) -> None:
        """Replace the incomplete payload with one that is shorter than the bytes received."""
        has, other = self.end - self.start, message(b"d", payload)
        self._useless = self._message_bytes() - has
        self.end = self.start + len(other)
        self._view[self.start : self.end] = other

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Wait for bytes, or for ``wake`` to be readable. Return whether there may be bytes."""
        return _readable(self.socket.fileno(), timeout_s, wake)

    def send(self, payload: bytes) -> None:
        """Send CopyData as far as possible without waiting."""
        self._send(message(b"d", payload))

    def close(self) -> None:
        """End the stream so that the server has seen everything sent, and disconnect.

        Sends CopyDone, then reads until the server answers. libpq ends the session.
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
        """Return nothing, as libpq returns whole messages."""

    def replace(self, payload: bytes) -> None:
        """Do nothing, as no message is incomplete."""

    def control(self) -> None:
        """Do nothing, as libpq handles everything but CopyData."""

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Poll the socket for a short time."""
        return _readable(self._pgconn.socket, min(timeout_s, POLL_TLS_S), wake)

    def send(self, payload: bytes) -> None:
        """Pass it to libpq."""
        with _broken():
            self._pgconn.put_copy_data(payload)
        self.flush()

    def flush(self) -> bool:
        """Send what libpq holds back."""
        with _broken():
            return self._pgconn.flush() == 0

    def close(self) -> None:
        """End the copy, then read up to the server's answer."""
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
    """Return the fastest reader of this replication connection, on which no command runs."""
    is_encrypted = pgconn.ssl_in_use or pgconn.used_gssapi
    return (LibpqWire if is_encrypted else PlainWire)(pgconn, on_notice)


def copy_data_of(pgconn: PGconn, buffer: bytearray) -> bool:
    """Append libpq's COPY data, up to the buffer's size. Return whether the COPY has ended."""
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
    """Return a message to send."""
    return _HEAD.pack(kind, len(body) + 4) + body


def error_fields(body: bytes) -> tuple[str | None, str]:
    """Return SQLSTATE and text of an ErrorResponse or NoticeResponse: message, detail and hint."""
    fields = {
        field[:1]: field[1:].decode("utf-8", "replace") for field in body.split(b"\0") if field
    }
    text = "; ".join(fields[kind] for kind in (b"M", b"D", b"H") if kind in fields)
    return fields.get(b"C"), text


@contextmanager
def _broken() -> Iterator[None]:
    """Turn a failure of the connection in the block into a RefusedError."""
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

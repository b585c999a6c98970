"""A replication connection ⇄ bytes: CopyData messages as they come, in one buffer.

Without encryption the socket is read directly: libpq takes 0.7 µs per row for what costs 0.1 µs so.
libpq has connected and authenticated by then, and is told nothing of the rest. Under TLS and GSSAPI
the session lives inside of libpq, which then gives its messages one by one; they are put into the
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
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from cdc.postgres.failures import result_sqlstate, result_text

BUFFER_BYTES: Final = 1 << 20
_ROOM_BYTES_MIN: Final = 128 << 10
_MESSAGE_BYTES_MAX: Final = 1 << 30
"""PostgreSQL's own limit (MaxAllocSize) is a byte less: a larger length isn't one."""
_CLOSE_S: Final = 2.0
_POLL_TLS_S: Final = 0.05
"""Decrypted bytes can wait inside of libpq while the socket is silent: look this often."""
_LOOKS_MAX: Final = 2
_COPY_DATA: Final = ord("d")
_HEAD: Final = struct.Struct(">cI")

OnNotice = Callable[[str | None, str], None]
"""Takes the SQLSTATE and the text of a notice."""


class RefusedError(Exception):
    """The server ends the stream, or doesn't begin it; without an SQLSTATE the connection broke."""

    def __init__(self, sqlstate: str | None, text: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.text = text


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


class PlainWire:
    """Reads the socket past libpq."""

    def __init__(self, pgconn: PGconn, on_notice: OnNotice) -> None:
        self._pgconn = pgconn
        self._on_notice = on_notice
        self.socket = socket.socket(fileno=os.dup(pgconn.socket))
        self.socket.setblocking(False)
        self._unsent = b""
        self.buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self.buffer)
        self.start = self.end = 0

    def begin(self, command: str) -> None:
        """Send the command as a simple query, and read up to CopyBothResponse."""
        text = command.encode() + b"\0"
        self._send(_HEAD.pack(b"Q", len(text) + 4) + text)
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

    def fill(self) -> int:
        """Read once, into as much room as there is."""
        self._make_room()
        try:
            size = self.socket.recv_into(self._view[self.end :])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise RefusedError(None, str(error)) from error
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
            raise RefusedError(None, f"a message of {length} bytes: what comes isn't the protocol")
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

    def control(self) -> None:
        """ErrorResponse, NoticeResponse, the end of the copy; anything else tells us nothing."""
        kind = self._kind()
        if kind is None or kind == b"d":
            return
        body = self._skip()
        if kind == b"E":
            raise RefusedError(*_fields(body))
        if kind == b"N":
            self._on_notice(*_fields(body))
        elif kind == b"c":
            raise RefusedError(None, "the server ended the stream")

    def wait(self, timeout_s: float, wake: int | None) -> bool:
        """Poll the socket."""
        return _readable(self.socket.fileno(), timeout_s, wake)

    def send(self, payload: bytes) -> None:
        """Wrap it into CopyData."""
        self._send(_HEAD.pack(b"d", len(payload) + 4) + payload)

    def _send(self, message: bytes) -> None:
        self._unsent += message
        self.flush()

    def flush(self) -> bool:
        """Send what was left."""
        while self._unsent:
            try:
                sent = self.socket.send(self._unsent)
            except BlockingIOError:
                return False
            except OSError as error:
                raise RefusedError(None, str(error)) from error
            self._unsent = self._unsent[sent:]
        return True

    def close(self) -> None:
        """CopyDone, then read until the server has answered; libpq says good-bye."""
        try:
            self._send(_HEAD.pack(b"c", 4))
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
        self._view.release()
        self.socket.close()
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
        buffer = self.buffer
        del buffer[: self.start]
        self.start, before = 0, len(buffer)
        take, looks = self._pgconn.get_copy_data, 0
        try:
            while len(buffer) < BUFFER_BYTES:
                size, data = take(1)
                if size > 0:
                    buffer += _HEAD.pack(b"d", size + 4)
                    buffer += data
                    looks = 0
                elif size < 0:
                    self._ended()
                elif looks < _LOOKS_MAX:
                    looks += 1
                    self._pgconn.consume_input()
                else:
                    break
        except psycopg.Error as error:
            raise RefusedError(None, str(error)) from error
        self.end = len(buffer)
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


def _fields(body: bytes) -> tuple[str | None, str]:
    """SQLSTATE and text of an ErrorResponse or NoticeResponse: message, detail and hint."""
    parts = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    text = "; ".join(parts[kind] for kind in (b"M", b"D", b"H") if kind in parts)
    return parts.get(b"C"), text

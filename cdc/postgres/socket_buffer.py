"""Bytes of PostgreSQL's protocol as they come, in one buffer: messages, and where they lie.

Without encryption the socket is read directly: libpq takes 0.7 µs per row for what costs 0.1 µs so.
libpq has connected and authenticated by then, and takes no part in the rest. Under TLS and GSSAPI
the session lives inside of libpq, which then gives its messages one by one; they are put into a
buffer in the same form.
https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

import os
import socket
import struct
from typing import Final

import psycopg
from psycopg.pq.abc import PGconn

BUFFER_BYTES: Final = 1 << 20
_ROOM_BYTES_MIN: Final = 128 << 10
_MESSAGE_BYTES_MAX: Final = 1 << 30
"""PostgreSQL's own limit (MaxAllocSize) is a byte less: a larger length isn't one."""
_LOOKS_MAX: Final = 2
_HEAD: Final = struct.Struct(">cI")


class RefusedError(Exception):
    """The server ends the stream, or doesn't begin it; without an SQLSTATE the connection broke."""

    def __init__(self, sqlstate: str | None, text: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.text = text


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

    def let_go(self) -> None:
        """Close our descriptor; libpq's stays."""
        self._view.release()
        self.socket.close()


def copy_data_of(pgconn: PGconn, buffer: bytearray) -> bool:
    """Append what libpq has of a COPY, up to the buffer's size; returns whether that has ended."""
    take, looks = pgconn.get_copy_data, 0
    try:
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
    except psycopg.Error as error:
        raise RefusedError(None, str(error)) from error
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

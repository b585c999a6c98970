"""A message's bytes → its fields: reads that never pass the end and never guess.

All integers are big-endian and unsigned unless named otherwise; every read that the bytes don't
allow raises CorruptMessageError with the kind of message and the offset.
https://www.postgresql.org/docs/current/protocol-message-types.html
"""

import struct

from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, PostgreSQL's zero of time, in µs since 1970."""

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")
_I64_MAX = (1 << 63) - 1


class MessageReader:
    """One message and an offset in it; each read moves the offset on."""

    __slots__ = ("_data", "offset")

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self.offset = offset

    @property
    def remaining(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self.offset

    def corrupt(self, what: str) -> CorruptMessageError:
        """An error that names the message and the offset."""
        return corrupt(what, self._data, self.offset)

    def byte(self) -> int:
        """Int8."""
        if self.offset >= len(self._data):
            raise self.corrupt("message ends too early")
        self.offset += 1
        return self._data[self.offset - 1]

    def u16(self) -> int:
        """Int16."""
        return self._integer(_U16)

    def u32(self) -> int:
        """Int32: OIDs and transaction ids use all 32 bits."""
        return self._integer(_U32)

    def i32(self) -> int:
        """Int32 with a sign: a type modifier, where -1 is none."""
        return self._integer(_I32)

    def lsn(self) -> Lsn:
        """Int64: an LSN."""
        return Lsn(self._integer(_U64))

    def timestamp_us(self) -> int:
        """Int64 of µs since 2000, as µs since 1970, UTC: as PostgreSQL's, within 64 bits."""
        value = self._integer(_I64) + POSTGRES_EPOCH_US
        if value > _I64_MAX:
            raise self.corrupt("a time beyond 64 bits")
        return value

    def text(self) -> str:
        """A name: UTF-8 up to a zero byte."""
        end = self._data.find(b"\0", self.offset)
        if end < 0:
            raise self.corrupt("text without an end")
        raw = self._data[self.offset : end]
        try:
            decoded = raw.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt("a name that isn't UTF-8") from error
        self.offset = end + 1
        return decoded

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if size > self.remaining:
            raise self.corrupt("message ends too early")
        start, self.offset = self.offset, self.offset + size
        return self._data[start : self.offset]

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self.remaining:
            raise self.corrupt(f"{self.remaining} bytes too many")

    def _integer(self, layout: struct.Struct) -> int:
        try:
            value: int = layout.unpack_from(self._data, self.offset)[0]
        except struct.error as error:
            raise self.corrupt("message ends too early") from error
        self.offset += layout.size
        return value


def corrupt(what: str, data: bytes, offset: int) -> CorruptMessageError:
    """The error for bytes that aren't what the protocol says; it never shows the bytes."""
    kind = repr(chr(data[0])) if data else "empty"
    return CorruptMessageError(what, where=f"{kind} message of {len(data)} bytes, byte {offset}")

"""One pgoutput message's bytes → a typed message, or CorruptMessageError, and no other error.

The first byte selects a decode function from a table. Each has the wire layout in its docstring
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html). A length that
points past the end needs no check of its own: the next read then fails, and so does the final
comparison with the message's size.
"""

import struct
from collections.abc import Callable
from typing import Final, cast

from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn
from cdc.wal import messages
from cdc.wal.frames import POSTGRES_EPOCH_US, corrupt
from cdc.wal.messages import ABSENT, Message, ReplicaIdentity, Row, Value

_ABSENT: Final = ord("u")
_NULL: Final = ord("n")
_TEXT: Final = ord("t")
_NEW: Final = ord("N")
_KEY: Final = ord("K")
_OLD: Final = ord("O")
_I64_MAX: Final = (1 << 63) - 1
_XID_BYTES: Final = 4
_PREFIX_AT: Final = 10
"""After a logical message's kind, flags and LSN."""
_LENGTH_BYTES: Final = 4
_TWO_PHASE: Final = dict.fromkeys(
    (b"b", b"P", b"K", b"r", b"p"),
    "a message of a prepared transaction: the slot was created with two_phase, which Millrace"
    " doesn't support",
)

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_i32 = struct.Struct(">i").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_i64 = struct.Struct(">q").unpack_from


def decode(payload: bytes) -> Message:
    """Decode one message without its own xid, as outside Stream Start and Stop."""
    read = _DECODERS.get(payload[0]) if payload else None
    if read is None:
        raise corrupt(_TWO_PHASE.get(payload[:1], "unknown message"), payload, 0)
    reader = MessageReader(payload)
    try:
        message = read(reader)
    except (struct.error, IndexError) as error:
        raise corrupt("message ends too early", payload, len(payload)) from error
    if reader.remaining:
        what = "bytes too many" if reader.remaining > 0 else "message ends too early"
        raise corrupt(what, payload, min(reader.offset, len(payload)))
    return message


class MessageReader:
    """One message and an offset in it. Each read advances the offset.

    All integers are big-endian, and unsigned unless stated otherwise. A read past the end raises
    struct.error or IndexError, or leaves the offset there.
    """

    __slots__ = ("_data", "offset")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.offset = 1

    @property
    def remaining(self) -> int:
        """The number of bytes left."""
        return len(self._data) - self.offset

    def corrupt(self, what: str) -> CorruptMessageError:
        """Return an error with the message and the offset."""
        return corrupt(what, self._data, self.offset)

    def byte(self) -> int:
        """Int8."""
        self.offset += 1
        return self._data[self.offset - 1]

    def flags(self, most: int, what: str) -> int:
        """Int8 with some valid bits: all values up to ``most`` are valid."""
        flags = self.byte()
        if flags > most:
            raise self.corrupt(f"unknown {what}")
        return flags

    def u16(self) -> int:
        """Int16."""
        self.offset += 2
        return int(_u16(self._data, self.offset - 2)[0])

    def u32(self) -> int:
        """Int32: OIDs and transaction ids use all 32 bits."""
        self.offset += 4
        return int(_u32(self._data, self.offset - 4)[0])

    def i32(self) -> int:
        """Int32 with a sign: a type modifier; -1: none."""
        self.offset += 4
        return int(_i32(self._data, self.offset - 4)[0])

    def lsn(self) -> Lsn:
        """Int64: an LSN."""
        self.offset += 8
        return Lsn(_u64(self._data, self.offset - 8)[0])

    def timestamp_us(self) -> int:
        """Int64 of µs since 2000, as µs since 1970, UTC, within 64 bits as in PostgreSQL."""
        self.offset += 8
        value = int(_i64(self._data, self.offset - 8)[0]) + POSTGRES_EPOCH_US
        if value > _I64_MAX:
            raise self.corrupt("a time beyond 64 bits")
        return value

    def text(self) -> str:
        """Text up to a zero byte. Names in a SQL_ASCII database may not be UTF-8."""
        end = self._data.find(b"\0", self.offset)
        if end < 0:
            raise self.corrupt("text without an end")
        decoded = self._data[self.offset : end].decode("utf-8", "replace")
        self.offset = end + 1
        return decoded

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        self.offset += size
        return self._data[self.offset - size : self.offset]

    def row(self) -> Row:
        """Int16 columns, then per column 'n' | 'u' | 't' Int32 length, text.

        Cuts out the columns without a call for each of them.
        """
        data, values = self._data, list[Value]()
        append, count = values.append, self.u16()
        offset = self.offset
        for _ in range(count):
            kind = data[offset]
            if kind == _TEXT:
                start = offset + 5
                (length,) = _u32(data, offset + 1)
                offset = start + length
                append(data[start:offset])
            elif kind == _NULL:
                offset += 1
                append(None)
            elif kind == _ABSENT:
                offset += 1
                append(ABSENT)
            else:
                raise corrupt("a column that is neither text, null nor unchanged", data, offset)
        self.offset = offset
        return tuple(values)


def _insert(reader: MessageReader) -> Message:
    """'I', Int32 relation, 'N', tuple."""
    oid = reader.u32()
    return messages.Insert(oid, _new_row(reader, reader.byte()))


def _update(reader: MessageReader) -> Message:
    """'U', Int32 relation, ['K' or 'O', tuple], 'N', tuple."""
    oid, kind, old = reader.u32(), reader.byte(), None
    is_key = kind == _KEY
    if is_key or kind == _OLD:
        old, kind = reader.row(), reader.byte()
    return messages.Update(oid, old, is_key, _new_row(reader, kind))


def _new_row(reader: MessageReader, kind: int) -> Row:
    if kind != _NEW:
        raise reader.corrupt("no new row")
    return reader.row()


def _delete(reader: MessageReader) -> Message:
    """'D', Int32 relation, 'K' or 'O', tuple."""
    oid, kind = reader.u32(), reader.byte()
    if kind not in {_KEY, _OLD}:
        raise reader.corrupt("no old row")
    return messages.Delete(oid, reader.row(), kind == _KEY)


def _begin(reader: MessageReader) -> Message:
    """'B', Int64 final LSN, Int64 commit time, Int32 xid."""
    return messages.Begin(reader.lsn(), reader.timestamp_us(), reader.u32())


def _commit(reader: MessageReader) -> Message:
    """'C', Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 commit time."""
    reader.flags(0, "flags")
    return messages.Commit(reader.lsn(), reader.lsn(), reader.timestamp_us())


def _origin(reader: MessageReader) -> Message:
    """'O', Int64 commit LSN at the origin, String name."""
    return messages.Origin(reader.lsn(), reader.text())


def _relation(reader: MessageReader) -> Message:
    """'R', Int32 oid, String schema, String name, Int8 identity, Int16 columns.

    Per column: Int8 flags (1: of the replica identity), String name, Int32 type, Int32 modifier.
    An empty schema means pg_catalog.
    """
    oid, namespace, name = reader.u32(), reader.text() or "pg_catalog", reader.text()
    identity = chr(reader.byte())
    if identity not in "dnfi":
        raise reader.corrupt("unknown replica identity")
    columns = tuple(
        messages.RelationColumn(
            reader.flags(1, "column flags") == 1, reader.text(), reader.u32(), reader.i32()
        )
        for _ in range(reader.u16())
    )
    return messages.Relation(oid, namespace, name, cast("ReplicaIdentity", identity), columns)


def _type(reader: MessageReader) -> Message:
    """'Y', Int32 oid, String schema, String name."""
    return messages.TypeMessage(reader.u32(), reader.text() or "pg_catalog", reader.text())


def _truncate(reader: MessageReader) -> Message:
    """'T', Int32 relations, Int8 options (1 cascade, 2 restart), Int32 each oid."""
    count, options = reader.u32(), reader.flags(3, "truncate options")
    if count * 4 != reader.remaining:
        raise reader.corrupt("a wrong number of relations")
    oids = tuple(reader.u32() for _ in range(count))
    return messages.Truncate(oids, bool(options & 1), bool(options & 2))


def _logical_message(reader: MessageReader) -> Message:
    """'M', Int8 flags (1: transactional), Int64 LSN, String prefix, Int32 n, Byten."""
    transactional = reader.flags(1, "message flags") == 1
    lsn, prefix = reader.lsn(), reader.text()
    return messages.LogicalMessage(transactional, lsn, prefix, reader.take(reader.u32()))


def logical_message_prefix(begun: bytes, *, in_block: bool) -> tuple[str, bool]:
    """Return the prefix of a logical message that may be incomplete, and whether it is whole.

    ``in_block``: its transaction is sent before it ends, so the message has its xid.
    """
    begin = _PREFIX_AT + (_XID_BYTES if in_block else 0)
    prefix, end, _ = begun[begin:].partition(b"\0")
    return prefix.decode(errors="replace"), bool(end)


def without_content(begun: bytes, prefix: str, *, in_block: bool) -> bytes:
    """Return the same logical message with this prefix, and without content."""
    begin = _PREFIX_AT + (_XID_BYTES if in_block else 0)
    return begun[:begin] + prefix.encode() + b"\0" + bytes(_LENGTH_BYTES)


def _stream_start(reader: MessageReader) -> Message:
    """'S', Int32 xid, Int8 1 for the transaction's first part."""
    return messages.StreamStart(reader.u32(), reader.flags(1, "stream flag") == 1)


def _stream_stop(_reader: MessageReader) -> Message:
    """'E'."""
    return messages.StreamStop()


def _stream_commit(reader: MessageReader) -> Message:
    """'c', Int32 xid, Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 commit time."""
    xid = reader.u32()
    reader.flags(0, "flags")
    return messages.StreamCommit(xid, reader.lsn(), reader.lsn(), reader.timestamp_us())


def _stream_abort(reader: MessageReader) -> Message:
    """'A', Int32 xid, Int32 subxid."""
    return messages.StreamAbort(reader.u32(), reader.u32())


_DECODERS: Final[dict[int, Callable[[MessageReader], Message]]] = {
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("T"): _truncate,
    ord("M"): _logical_message,
    ord("S"): _stream_start,
    ord("E"): _stream_stop,
    ord("c"): _stream_commit,
    ord("A"): _stream_abort,
}

"""One pgoutput message's bytes → a typed message, or CorruptMessageError: nothing else, ever.

The first byte chooses a decode function from a table; each has the wire layout in its docstring
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html). Row messages
are the hot path: their columns are cut out without a call per column. A length that points past
the end needs no check of its own: whatever is read next then fails, and so does the final
comparison with the message's size.
"""

import struct
from collections.abc import Callable
from typing import Final, cast

from cdc.errors import CorruptMessageError
from cdc.wal import messages
from cdc.wal.message_reader import MessageReader, corrupt
from cdc.wal.messages import ABSENT, Message, ReplicaIdentity, Row, Value

_ABSENT: Final = ord("u")
_NULL: Final = ord("n")
_TEXT: Final = ord("t")
_NEW: Final = ord("N")
_KEY: Final = ord("K")
_OLD: Final = ord("O")

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from


def decode(payload: bytes, *, streaming: bool = False) -> Message:
    """Decode one message; ``streaming``: it stands between Stream Start and Stream Stop."""
    try:
        function = _DECODERS[payload[0]]
    except (IndexError, KeyError) as error:
        raise corrupt("unknown message", payload, 0) from error
    return function(payload, streaming)


def _tuple(payload: bytes, offset: int) -> tuple[Row, int]:
    """Int16 columns, then per column 'n' | 'u' | 't' Int32 length, text; and where it ends."""
    (count,) = _u16(payload, offset)
    offset += 2
    values: list[Value] = []
    append = values.append
    for _ in range(count):
        kind = payload[offset]
        if kind == _TEXT:
            start = offset + 5
            (length,) = _u32(payload, offset + 1)
            offset = start + length
            append(payload[start:offset])
        elif kind == _NULL:
            offset += 1
            append(None)
        elif kind == _ABSENT:
            offset += 1
            append(ABSENT)
        else:
            raise corrupt("a column that is neither text, null nor unchanged", payload, offset)
    return tuple(values), offset


def _insert(payload: bytes, streaming: bool) -> Message:
    """'I', [Int32 xid], Int32 relation, 'N', tuple."""
    try:
        xid, offset = (_u32(payload, 1)[0], 5) if streaming else (None, 1)
        (oid,) = _u32(payload, offset)
        if payload[offset + 4] != _NEW:
            raise corrupt("no new row", payload, offset + 4)
        new, offset = _tuple(payload, offset + 5)
    except (struct.error, IndexError) as error:
        raise _short(payload) from error
    if offset != len(payload):
        raise _wrong_size(payload, offset)
    return messages.Insert(oid, new, xid)


def _update(payload: bytes, streaming: bool) -> Message:
    """'U', [Int32 xid], Int32 relation, ['K' or 'O', tuple], 'N', tuple."""
    try:
        xid, offset = (_u32(payload, 1)[0], 5) if streaming else (None, 1)
        (oid,) = _u32(payload, offset)
        offset += 4
        old = None
        kind = payload[offset]
        if kind in {_KEY, _OLD}:
            old, offset = _tuple(payload, offset + 1)
        if payload[offset] != _NEW:
            raise corrupt("no new row", payload, offset)
        new, offset = _tuple(payload, offset + 1)
    except (struct.error, IndexError) as error:
        raise _short(payload) from error
    if offset != len(payload):
        raise _wrong_size(payload, offset)
    return messages.Update(oid, old, kind == _KEY, new, xid)


def _delete(payload: bytes, streaming: bool) -> Message:
    """'D', [Int32 xid], Int32 relation, 'K' or 'O', tuple."""
    try:
        xid, offset = (_u32(payload, 1)[0], 5) if streaming else (None, 1)
        (oid,) = _u32(payload, offset)
        kind = payload[offset + 4]
        if kind not in {_KEY, _OLD}:
            raise corrupt("no old row", payload, offset + 4)
        old, offset = _tuple(payload, offset + 5)
    except (struct.error, IndexError) as error:
        raise _short(payload) from error
    if offset != len(payload):
        raise _wrong_size(payload, offset)
    return messages.Delete(oid, old, kind == _KEY, xid)


def _short(payload: bytes) -> CorruptMessageError:
    return corrupt("message ends too early", payload, len(payload))


def _wrong_size(payload: bytes, offset: int) -> CorruptMessageError:
    what = "bytes too many" if offset < len(payload) else "message ends too early"
    return corrupt(what, payload, min(offset, len(payload)))


def _begin(reader: MessageReader, _xid: int | None) -> Message:
    """'B', Int64 final LSN, Int64 commit time, Int32 xid."""
    return messages.Begin(reader.lsn(), reader.timestamp_us(), reader.u32())


def _commit(reader: MessageReader, _xid: int | None) -> Message:
    """'C', Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 commit time."""
    _no_flags(reader)
    return messages.Commit(reader.lsn(), reader.lsn(), reader.timestamp_us())


def _origin(reader: MessageReader, _xid: int | None) -> Message:
    """'O', Int64 commit LSN at the origin, String name."""
    return messages.Origin(reader.lsn(), reader.text())


def _relation(reader: MessageReader, xid: int | None) -> Message:
    """'R', [Int32 xid], Int32 oid, String schema, String name, Int8 identity, Int16 columns.

    Per column: Int8 flags (1: of the replica identity), String name, Int32 type, Int32 modifier.
    An empty schema means pg_catalog.
    """
    oid, namespace, name = reader.u32(), reader.text() or "pg_catalog", reader.text()
    identity = chr(reader.byte())
    if identity not in "dnfi":
        raise reader.corrupt("unknown replica identity")
    columns = []
    for _ in range(reader.u16()):
        flags = reader.byte()
        if flags > 1:
            raise reader.corrupt("unknown column flags")
        columns.append(
            messages.RelationColumn(flags == 1, reader.text(), reader.u32(), reader.i32())
        )
    return messages.Relation(
        oid, namespace, name, cast("ReplicaIdentity", identity), tuple(columns), xid
    )


def _type(reader: MessageReader, xid: int | None) -> Message:
    """'Y', [Int32 xid], Int32 oid, String schema, String name."""
    return messages.TypeMessage(reader.u32(), reader.text() or "pg_catalog", reader.text(), xid)


def _truncate(reader: MessageReader, xid: int | None) -> Message:
    """'T', [Int32 xid], Int32 relations, Int8 options (1 cascade, 2 restart), Int32 each oid."""
    count, options = reader.u32(), reader.byte()
    if options > 3:
        raise reader.corrupt("unknown truncate options")
    if count * 4 != reader.remaining:
        raise reader.corrupt("a wrong number of relations")
    oids = tuple(reader.u32() for _ in range(count))
    return messages.Truncate(oids, bool(options & 1), bool(options & 2), xid)


def _logical_message(reader: MessageReader, xid: int | None) -> Message:
    """'M', [Int32 xid], Int8 flags (1: transactional), Int64 LSN, String prefix, Int32 n, Byten."""
    flags = reader.byte()
    if flags > 1:
        raise reader.corrupt("unknown message flags")
    lsn, prefix = reader.lsn(), reader.text()
    return messages.LogicalMessage(flags == 1, lsn, prefix, reader.take(reader.u32()), xid)


def _stream_start(reader: MessageReader, _xid: int | None) -> Message:
    """'S', Int32 xid, Int8 1 for the transaction's first part."""
    xid, first = reader.u32(), reader.byte()
    if first > 1:
        raise reader.corrupt("unknown stream flag")
    return messages.StreamStart(xid, first == 1)


def _stream_stop(_reader: MessageReader, _xid: int | None) -> Message:
    """'E'."""
    return messages.StreamStop()


def _stream_commit(reader: MessageReader, _xid: int | None) -> Message:
    """'c', Int32 xid, Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 commit time."""
    xid = reader.u32()
    _no_flags(reader)
    return messages.StreamCommit(xid, reader.lsn(), reader.lsn(), reader.timestamp_us())


def _stream_abort(reader: MessageReader, _xid: int | None) -> Message:
    """'A', Int32 xid, Int32 subxid, and if streaming is parallel: Int64 abort LSN, Int64 time."""
    xid, subxid = reader.u32(), reader.u32()
    if not reader.remaining:
        return messages.StreamAbort(xid, subxid)
    return messages.StreamAbort(xid, subxid, reader.lsn(), reader.timestamp_us())


def _begin_prepare(reader: MessageReader, _xid: int | None) -> Message:
    """'b', Int64 prepare LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    return messages.BeginPrepare(
        reader.lsn(), reader.lsn(), reader.timestamp_us(), reader.u32(), reader.text()
    )


def _prepare(reader: MessageReader, _xid: int | None) -> Message:
    """'P', Int8 flags (0), Int64 prepare LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    _no_flags(reader)
    return messages.Prepare(
        reader.lsn(), reader.lsn(), reader.timestamp_us(), reader.u32(), reader.text()
    )


def _commit_prepared(reader: MessageReader, _xid: int | None) -> Message:
    """'K', Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    _no_flags(reader)
    return messages.CommitPrepared(
        reader.lsn(), reader.lsn(), reader.timestamp_us(), reader.u32(), reader.text()
    )


def _rollback_prepared(reader: MessageReader, _xid: int | None) -> Message:
    """'r', Int8 flags (0), Int64 end LSN of prepare, Int64 end LSN of rollback, Int64 each time.

    Then Int32 xid, String gid.
    """
    _no_flags(reader)
    return messages.RollbackPrepared(
        reader.lsn(),
        reader.lsn(),
        reader.timestamp_us(),
        reader.timestamp_us(),
        reader.u32(),
        reader.text(),
    )


def _stream_prepare(reader: MessageReader, _xid: int | None) -> Message:
    """'p', Int8 flags (0), Int64 prepare LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    _no_flags(reader)
    return messages.StreamPrepare(
        reader.lsn(), reader.lsn(), reader.timestamp_us(), reader.u32(), reader.text()
    )


def _no_flags(reader: MessageReader) -> None:
    if reader.byte() != 0:
        raise reader.corrupt("unknown flags")


_ReadFields = Callable[[MessageReader, int | None], Message]
_DecodeMessage = Callable[[bytes, bool], Message]


def _whole(read: _ReadFields, *, has_xid: bool = False) -> _DecodeMessage:
    """A decode function from one that reads fields; ``has_xid``: it has one while streaming."""

    def decode_whole(payload: bytes, streaming: bool) -> Message:
        reader = MessageReader(payload, 1)
        message = read(reader, reader.u32() if has_xid and streaming else None)
        reader.end()
        return message

    return decode_whole


_DECODERS: Final[dict[int, _DecodeMessage]] = {
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("B"): _whole(_begin),
    ord("C"): _whole(_commit),
    ord("O"): _whole(_origin),
    ord("R"): _whole(_relation, has_xid=True),
    ord("Y"): _whole(_type, has_xid=True),
    ord("T"): _whole(_truncate, has_xid=True),
    ord("M"): _whole(_logical_message, has_xid=True),
    ord("S"): _whole(_stream_start),
    ord("E"): _whole(_stream_stop),
    ord("c"): _whole(_stream_commit),
    ord("A"): _whole(_stream_abort),
    ord("b"): _whole(_begin_prepare),
    ord("P"): _whole(_prepare),
    ord("K"): _whole(_commit_prepared),
    ord("r"): _whole(_rollback_prepared),
    ord("p"): _whole(_stream_prepare),
}

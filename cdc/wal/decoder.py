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
from cdc.wal.cursor import Cursor, corrupt
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


def _begin(cursor: Cursor, _xid: int | None) -> Message:
    """'B', Int64 final LSN, Int64 commit time, Int32 xid."""
    return messages.Begin(cursor.lsn(), cursor.timestamp_us(), cursor.u32())


def _commit(cursor: Cursor, _xid: int | None) -> Message:
    """'C', Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 commit time."""
    _no_flags(cursor)
    return messages.Commit(cursor.lsn(), cursor.lsn(), cursor.timestamp_us())


def _origin(cursor: Cursor, _xid: int | None) -> Message:
    """'O', Int64 commit LSN at the origin, String name."""
    return messages.Origin(cursor.lsn(), cursor.text())


def _relation(cursor: Cursor, xid: int | None) -> Message:
    """'R', [Int32 xid], Int32 oid, String schema, String name, Int8 identity, Int16 columns.

    Per column: Int8 flags (1: of the replica identity), String name, Int32 type, Int32 modifier.
    An empty schema means pg_catalog.
    """
    oid, namespace, name = cursor.u32(), cursor.text() or "pg_catalog", cursor.text()
    identity = chr(cursor.byte())
    if identity not in "dnfi":
        raise cursor.corrupt("unknown replica identity")
    columns = []
    for _ in range(cursor.u16()):
        flags = cursor.byte()
        if flags > 1:
            raise cursor.corrupt("unknown column flags")
        columns.append(
            messages.RelationColumn(flags == 1, cursor.text(), cursor.u32(), cursor.i32())
        )
    known = cast("ReplicaIdentity", identity)
    return messages.Relation(oid, namespace, name, known, tuple(columns), xid)


def _type(cursor: Cursor, xid: int | None) -> Message:
    """'Y', [Int32 xid], Int32 oid, String schema, String name."""
    return messages.Type(cursor.u32(), cursor.text() or "pg_catalog", cursor.text(), xid)


def _truncate(cursor: Cursor, xid: int | None) -> Message:
    """'T', [Int32 xid], Int32 relations, Int8 options (1 cascade, 2 restart), Int32 each oid."""
    count, options = cursor.u32(), cursor.byte()
    if options > 3:
        raise cursor.corrupt("unknown truncate options")
    if count * 4 != cursor.remaining:
        raise cursor.corrupt("a wrong number of relations")
    oids = tuple(cursor.u32() for _ in range(count))
    return messages.Truncate(oids, bool(options & 1), bool(options & 2), xid)


def _logical_message(cursor: Cursor, xid: int | None) -> Message:
    """'M', [Int32 xid], Int8 flags (1: transactional), Int64 LSN, String prefix, Int32 n, Byten."""
    flags = cursor.byte()
    if flags > 1:
        raise cursor.corrupt("unknown message flags")
    lsn, prefix = cursor.lsn(), cursor.text()
    return messages.LogicalMessage(flags == 1, lsn, prefix, cursor.take(cursor.u32()), xid)


def _stream_start(cursor: Cursor, _xid: int | None) -> Message:
    """'S', Int32 xid, Int8 1 for the transaction's first part."""
    xid, first = cursor.u32(), cursor.byte()
    if first > 1:
        raise cursor.corrupt("unknown stream flag")
    return messages.StreamStart(xid, first == 1)


def _stream_stop(_cursor: Cursor, _xid: int | None) -> Message:
    """'E'."""
    return messages.StreamStop()


def _stream_commit(cursor: Cursor, _xid: int | None) -> Message:
    """'c', Int32 xid, Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 commit time."""
    xid = cursor.u32()
    _no_flags(cursor)
    return messages.StreamCommit(xid, cursor.lsn(), cursor.lsn(), cursor.timestamp_us())


def _stream_abort(cursor: Cursor, _xid: int | None) -> Message:
    """'A', Int32 xid, Int32 subxid, and if streaming is parallel: Int64 abort LSN, Int64 time."""
    xid, subxid = cursor.u32(), cursor.u32()
    if not cursor.remaining:
        return messages.StreamAbort(xid, subxid)
    return messages.StreamAbort(xid, subxid, cursor.lsn(), cursor.timestamp_us())


def _begin_prepare(cursor: Cursor, _xid: int | None) -> Message:
    """'b', Int64 prepare LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    return messages.BeginPrepare(
        cursor.lsn(), cursor.lsn(), cursor.timestamp_us(), cursor.u32(), cursor.text()
    )


def _prepare(cursor: Cursor, _xid: int | None) -> Message:
    """'P', Int8 flags (0), Int64 prepare LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    _no_flags(cursor)
    return messages.Prepare(
        cursor.lsn(), cursor.lsn(), cursor.timestamp_us(), cursor.u32(), cursor.text()
    )


def _commit_prepared(cursor: Cursor, _xid: int | None) -> Message:
    """'K', Int8 flags (0), Int64 commit LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    _no_flags(cursor)
    return messages.CommitPrepared(
        cursor.lsn(), cursor.lsn(), cursor.timestamp_us(), cursor.u32(), cursor.text()
    )


def _rollback_prepared(cursor: Cursor, _xid: int | None) -> Message:
    """'r', Int8 flags (0), Int64 end LSN of prepare, Int64 end LSN of rollback, Int64 each time.

    Then Int32 xid, String gid.
    """
    _no_flags(cursor)
    lsns = cursor.lsn(), cursor.lsn()
    times = cursor.timestamp_us(), cursor.timestamp_us()
    return messages.RollbackPrepared(*lsns, *times, cursor.u32(), cursor.text())


def _stream_prepare(cursor: Cursor, _xid: int | None) -> Message:
    """'p', Int8 flags (0), Int64 prepare LSN, Int64 end LSN, Int64 time, Int32 xid, String gid."""
    _no_flags(cursor)
    return messages.StreamPrepare(
        cursor.lsn(), cursor.lsn(), cursor.timestamp_us(), cursor.u32(), cursor.text()
    )


def _no_flags(cursor: Cursor) -> None:
    if cursor.byte() != 0:
        raise cursor.corrupt("unknown flags")


_Read = Callable[[Cursor, int | None], Message]
_Decode = Callable[[bytes, bool], Message]


def _whole(read: _Read, *, has_xid: bool = False) -> _Decode:
    """A decode function from one that reads fields; ``has_xid``: it has one while streaming."""

    def decode_whole(payload: bytes, streaming: bool) -> Message:
        cursor = Cursor(payload, 1)
        message = read(cursor, cursor.u32() if has_xid and streaming else None)
        cursor.end()
        return message

    return decode_whole


_DECODERS: Final[dict[int, _Decode]] = {
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

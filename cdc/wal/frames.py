"""CopyData of the replication stream ⇄ frames: WAL data, keepalives, and our status updates.

https://www.postgresql.org/docs/current/protocol-replication.html (START_REPLICATION)
"""

import struct
from typing import NamedTuple

from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, PostgreSQL's zero of time, in µs since 1970."""
_XLOG_DATA = struct.Struct(">QQq")
_KEEPALIVE = struct.Struct(">QqB")
_STATUS = struct.Struct(">cQQQqB")
XLOG_HEADER_BYTES = 1 + _XLOG_DATA.size
"""Header of a payload with WAL data, before the message."""
_COPY_DATA = ord("d")
_LENGTH = struct.Struct(">I").unpack_from
COPY_DATA_BYTES = 5
"""Byte1 'd' and Int32 length (its own four bytes included) before each payload."""


class XLogData(NamedTuple):
    """One pgoutput message and its place in the WAL."""

    start: Lsn
    payload: bytes


class PrimaryKeepalive(NamedTuple):
    """The server's keepalive, with its position."""

    wal_end: Lsn
    reply_requested: bool


Frame = XLogData | PrimaryKeepalive


def copy_data_end(data: bytearray, start: int, end: int) -> int:
    """Return where the CopyData message at ``start`` ends, or ``start`` if it is incomplete."""
    if end - start < COPY_DATA_BYTES or data[start] != _COPY_DATA:
        return start
    length: int = _LENGTH(data, start + 1)[0]
    return start if length < 4 or length >= end - start else start + length + 1


def copy_data(lsn: Lsn, message: bytes) -> bytes:
    """Return a CopyData message with a pgoutput message at ``lsn`` in the WAL."""
    return _copy_data(b"w" + _XLOG_DATA.pack(lsn, lsn, 0) + message)


def keepalive(wal_end: Lsn) -> bytes:
    """Return a CopyData message with the stream's position, which requests no reply."""
    return _copy_data(b"k" + _KEEPALIVE.pack(wal_end, 0, 0))


def _copy_data(payload: bytes) -> bytes:
    return b"d" + (COPY_DATA_BYTES - 1 + len(payload)).to_bytes(4, "big") + payload


def parse(data: bytes | memoryview) -> Frame:
    """Parse one CopyData payload. Raise CorruptMessageError for anything else.

    XLogData: 'w', Int64 start LSN, Int64 end LSN, Int64 time (µs since 2000), message. Primary
    keepalive: 'k', Int64 end LSN, Int64 time, Byte1 reply requested (0 or 1).
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    kind = raw[:1]
    if kind == b"w":
        if len(raw) < XLOG_HEADER_BYTES:
            raise corrupt("frame ends too early", raw, len(raw))
        start, _end, _sent_us = _XLOG_DATA.unpack_from(raw, 1)
        return XLogData(Lsn(start), raw[XLOG_HEADER_BYTES:])
    if kind == b"k":
        if len(raw) != 1 + _KEEPALIVE.size:
            raise corrupt("keepalive of a wrong size", raw, len(raw))
        wal_end, _sent_us, reply = _KEEPALIVE.unpack_from(raw, 1)
        if reply > 1:
            raise corrupt("keepalive with a wrong flag", raw, len(raw) - 1)
        return PrimaryKeepalive(Lsn(wal_end), bool(reply))
    raise corrupt("unknown frame", raw, 0)


def standby_status_update(
    flushed: Lsn, received: Lsn, now_us: int, *, reply_requested: bool = False
) -> bytes:
    """Return the update with positions to discard. ``now_us`` is µs since 1970, UTC.

    'r', Int64 written (what we received), Int64 flushed, Int64 applied (both: durable in the log),
    Int64 time (µs since 2000), Byte1 reply requested.
    """
    return _STATUS.pack(
        b"r", received, flushed, flushed, now_us - POSTGRES_EPOCH_US, reply_requested
    )


def corrupt(what: str, data: bytes, offset: int) -> CorruptMessageError:
    """Return the error for bytes that violate the protocol. It never shows the bytes."""
    kind = repr(chr(data[0])) if data else "empty"
    return CorruptMessageError(what, where=f"{kind} message of {len(data)} bytes, byte {offset}")

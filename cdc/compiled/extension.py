"""The compiled part (fast.pyx), or None where there was no compiler when Millrace was installed.

And blocks, the frames between Stream Start and Stream Stop: each message in one says by an xid of
its own which subtransaction it is of. Without that it is what it would be in a transaction that is
sent when it has ended, so whoever reads it then needs to know nothing of blocks.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import struct
from typing import Final, NamedTuple

import structlog

from cdc.wal.frames import COPY_DATA_BYTES, copy_data_end

try:
    from cdc.compiled import fast
except ImportError:
    fast = None  # type: ignore[assignment]

__all__ = ["IMPLEMENTATION", "fast", "warn_if_pure"]

IMPLEMENTATION: Final = "pure Python" if fast is None else "compiled"
"""Which way common messages take, for people."""


def warn_if_pure() -> None:
    """Tell the user that it could be much faster."""
    if fast is None:
        structlog.get_logger().warning(
            "decoding in pure Python, many times slower: there was no C compiler (or Python's"
            " headers, python3-dev) when Millrace was installed",
            remedy="install them, then install Millrace again",
        )


_KIND_AT: Final = COPY_DATA_BYTES + 25
_XID_AT: Final = _KIND_AT + 1
_BEHIND_XID: Final = _XID_AT + 4
_KINDS: Final = frozenset(b"IUDRYTM")
_LENGTH: Final = struct.Struct(">I")


class Plain(NamedTuple):
    """What was taken of a block.

    ``used`` is where the first message stands that isn't one of these; ``messages`` are all before
    it as whole CopyData messages without their xids. ``switches`` has each xid that differs from
    the one before it, the place in ``messages`` from which on it holds, and whether a logical
    message is right in front of it. ``relations`` are places and sizes of Relation messages.
    ``after_message``: whether the last one is a logical message. Of these nobody knows which
    subtransaction they are of: PostgreSQL (18 as well) gives them the xid of the whole transaction.
    """

    used: int
    messages: bytes
    switches: list[tuple[int, int, bool]]
    relations: list[tuple[int, int]]
    after_message: bool


def pure_plain_messages(
    data: bytearray, start: int, end: int, xid: int | None, after_message: bool
) -> Plain:
    """Take the whole row, relation, type, truncate and logical messages from ``start`` on.

    ``xid`` is that of the last message before them that has one, if there was one.
    """
    out = bytearray()
    switches: list[tuple[int, int, bool]] = []
    relations: list[tuple[int, int]] = []
    while (stop := copy_data_end(data, start, end)) - start >= _BEHIND_XID:
        kind = data[start + _KIND_AT]
        if data[start + COPY_DATA_BYTES] != ord("w") or kind not in _KINDS:
            break
        (current,) = _LENGTH.unpack_from(data, start + _XID_AT)
        if kind != ord("M") and current != xid:
            xid = current
            switches.append((current, len(out), after_message))
        after_message = kind == ord("M")
        if kind == ord("R"):
            relations.append((len(out), stop - start - 4))
        out += b"d" + _LENGTH.pack(stop - start - 1 - 4)
        out += data[start + COPY_DATA_BYTES : start + _XID_AT]
        out += data[start + _BEHIND_XID : stop]
        start = stop
    return Plain(start, bytes(out), switches, relations, after_message)


def plain_messages(
    data: bytearray, start: int, end: int, xid: int | None, after_message: bool
) -> Plain:
    """The same, compiled where it could be."""
    if fast is None:
        return pure_plain_messages(data, start, end, xid, after_message)
    return Plain(*fast.plain_messages(data, start, end, xid, after_message))

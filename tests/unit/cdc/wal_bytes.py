"""Fields → a pgoutput message's bytes: the writing side, for tests only."""

import struct
from collections.abc import Sequence

from cdc.wal.messages import ABSENT, Value


def row(values: Sequence[Value]) -> bytes:
    """A TupleData: Int16 columns, then 'n', 'u' or 't' Int32 length, text."""
    columns = [
        b"n" if value is None else b"u" if value is ABSENT else b"t" + sized(value)
        for value in values
    ]
    return struct.pack(">H", len(values)) + b"".join(columns)


def sized(value: bytes) -> bytes:
    """Int32 length, bytes."""
    return struct.pack(">I", len(value)) + value


def u8(*values: int) -> bytes:
    """Int8 each."""
    return bytes(values)


def u32(*values: int) -> bytes:
    """Int32 each, unsigned."""
    return struct.pack(f">{len(values)}I", *values)


def u64(*values: int) -> bytes:
    """Int64 each, unsigned."""
    return struct.pack(f">{len(values)}Q", *values)

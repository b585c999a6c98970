"""A row ⇄ its bytes, as dead letters hold it: the form in which pgoutput sends it."""

import struct
from collections.abc import Container

from cdc.events.changes import ABSENT, Row
from cdc.wal.decoder import decode
from cdc.wal.messages import Insert


def row_bytes(row: Row | None, hidden: Container[int]) -> bytes | None:
    """A row as pgoutput sends it: Int16 columns, then per column n, u, or t, Int32 length, text.

    What is hidden is as if it had not been sent (u).

    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
    """
    if row is None:
        return None
    fields = [struct.pack(">H", len(row))]
    for index, value in enumerate(row):
        if index in hidden:
            fields.append(b"u")
        elif isinstance(value, bytes):
            fields += [b"t", struct.pack(">I", len(value)), value]
        else:
            fields.append(b"u" if value is ABSENT else b"n")
    return b"".join(fields)


def row_of(data: bytes) -> Row:
    """The row of such bytes; raises CorruptMessageError for others."""
    message = decode(b"I" + bytes(4) + b"N" + data)
    assert isinstance(message, Insert)  # noqa: S101 (by its first byte)
    return message.new

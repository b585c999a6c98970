"""A row ⇄ its bytes in dead letters: the form in which pgoutput sends it."""

import struct
from collections.abc import Container

from cdc.events.changes import ABSENT, Row
from cdc.wal.decoder import decode
from cdc.wal.messages import Insert


def row_bytes(row: Row | None, hidden: Container[int]) -> bytes | None:
    """Return a row in pgoutput's form: Int16 columns, then n, u, or t, Int32 length, text each.

    Hidden columns appear as not sent (u).

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
    """Return the row in such bytes. Raise CorruptMessageError for other bytes."""
    message = decode(b"I" + bytes(4) + b"N" + data)
    assert isinstance(message, Insert)  # noqa: S101 (by its first byte)
    return message.new

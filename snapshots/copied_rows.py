"""CopyData messages of a COPY in text format → records of a snapshot's rows.

Common rows stay in the extension (cdc/compiled/copied.pxi). The rest, and every line that is wrong,
it hands back: line → row → encoder. cdc/stream/translation.py is the same for the stream.
"""

import re
import time
from collections.abc import Container
from typing import Final

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.events.changes import Read
from cdc.records.position import Lsn, Position, header
from cdc.records.record import RecordOrBatch
from cdc.stream.translation import Limits

CopiedRow = tuple[bytes | None, ...]

_NULL: Final = rb"\N"
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANINGS: Final = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
"""The escapes that COPY TO writes; any other character stands for itself."""


_PLAIN: Final = Read()


def parse(line: bytes) -> CopiedRow:
    """Read one line, with its line end; for tables of at least one column."""
    fields = line[:-1].split(b"\t")
    escapes = line.count(b"\\")
    if not escapes:
        return tuple(fields)
    if escapes == fields.count(_NULL):
        return tuple([None if field == _NULL else field for field in fields])
    return tuple(
        [
            field if b"\\" not in field else None if field == _NULL else _unescape(field)
            for field in fields
        ]
    )


def _unescape(field: bytes) -> bytes:
    return _ESCAPE.sub(_meaning, field)


def _meaning(match: re.Match[bytes]) -> bytes:
    return _MEANINGS.get(match[1], match[1])


class Copied:
    """The rows of one table that were read at ``lsn``, at ``ts_us`` (µs since 1970, UTC).

    ``key``: indexes of the columns that identify a row. ``extra``: how many columns the COPY has
    behind the table's own. Errors are those of the encoder.
    """

    def __init__(
        self,
        encoder: Encoder,
        position: Position,
        lsn: Lsn,
        ts_us: int,
        read: Read = _PLAIN,
        *,
        key: tuple[int, ...] = (),
        extra: int = 0,
    ) -> None:
        self._encoder = encoder
        self._read_at = position, lsn, ts_us, read
        self._width = len(encoder.schema.columns)
        self._key = key
        self._extra = extra
        self._records: list[RecordOrBatch] = []
        table, source = encoder.compiled_read(lsn, ts_us, read) or (None, b"")
        at = header(position, encoder.schema.version)
        self._fast = fast.Copier(self._records, self._of_line, table, source, at, key, extra)

    @property
    def stale(self) -> Container[bytes]:
        r"""Rows with these keys are left out: the texts of the key's columns, joined by ``\0``.

        A key that lacks a part is none of them.
        """
        return self._fast.stale

    @stale.setter
    def stale(self, keys: Container[bytes]) -> None:
        self._fast.stale = keys

    @property
    def rows(self) -> int:
        """How many rows have come, those left out included."""
        return self._fast.row_count

    @property
    def size(self) -> int:
        """Bytes of keys and values in what ``take`` would give."""
        return self._fast.made_bytes if self._records else 0

    def feed(self, data: bytearray, start: int, end: int, limits: Limits) -> int:
        """Take in whole CopyData messages from ``start`` on; returns where those end.

        It stops behind the message that reaches one of the limits.
        """
        return self._fast.feed(data, start, end, time.time_ns(), *limits)

    def take(self) -> list[RecordOrBatch]:
        """What was made since the last time."""
        made = [*self._records]
        self._records.clear()
        return made

    def _of_line(self, line: bytes) -> bool:
        """Add the records of a line that the extension hands back; it goes on behind it."""
        row: CopiedRow = parse(line) if self._width + self._extra else ()
        row = row[: len(row) - self._extra]
        if not self._is_stale(row):
            self._records += self._encoder.snapshot_row(row, *self._read_at)
        return False

    def _is_stale(self, row: CopiedRow) -> bool:
        if not self.stale or len(row) != self._width:
            return False
        texts = [text for index in self._key if (text := row[index]) is not None]
        return len(texts) == len(self._key) and b"\0".join(texts) in self.stale

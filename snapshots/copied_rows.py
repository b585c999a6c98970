"""CopyData messages of a COPY in text format → records of a snapshot's rows.

Rows take the compiled way (cdc/compiled/copied.pxi) where their table has one, the rest and every
line that is wrong take the one written here: line → row → encoder. cdc/stream/translation.py is the
same for the stream.
"""

import re
import time
from collections.abc import Container
from typing import Final

from cdc.compiled.extension import fast
from cdc.convert.pipeline import Encoder, row_records
from cdc.events.changes import Read
from cdc.records.position import Lsn, Position, header
from cdc.records.record import Record, RecordOrBatch, record_bytes
from cdc.stream.translation import Limits
from cdc.wal.frames import COPY_DATA_BYTES, copy_data_end, pure_last_copy_data

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
last_copy_data = pure_last_copy_data if fast is None else fast.last_copy_data


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
        compiled: bool = fast is not None,
    ) -> None:
        """``compiled`` False keeps to pure Python; what isn't plain does so anyway."""
        self._encoder = encoder
        self._read_at = position, lsn, ts_us, read
        self._width = len(encoder.schema.columns)
        self._key = key
        self._extra = extra
        self._records: list[RecordOrBatch] = []
        self._stale: Container[bytes] = ()
        self._rows = 0
        self._bytes = 0
        self._fast: fast.Copier | None = None
        compiled_table = encoder.compiled_read(lsn, ts_us, read) if compiled else None
        if compiled_table is not None:
            table, source = compiled_table
            at = header(position, encoder.schema.version)
            self._fast = fast.Copier(self._records, self._slowly, table, source, at, key, extra)

    @property
    def stale(self) -> Container[bytes]:
        r"""Rows with these keys are left out: the texts of the key's columns, joined by ``\0``.

        A key that lacks a part is none of them.
        """
        return self._stale

    @stale.setter
    def stale(self, keys: Container[bytes]) -> None:
        self._stale = keys
        if self._fast is not None:
            self._fast.stale = keys

    @property
    def rows(self) -> int:
        """How many rows have come, those left out included."""
        return self._fast.row_count if self._fast is not None else self._rows

    @property
    def size(self) -> int:
        """Bytes of keys and values in what ``take`` would give."""
        if not self._records:
            return 0
        return self._fast.made_bytes if self._fast is not None else self._bytes

    def feed(self, data: bytearray, start: int, end: int, limits: Limits) -> int:
        """Take in whole CopyData messages from ``start`` on; returns where those end.

        It stops behind the message that reaches one of the limits.
        """
        if self._fast is not None:
            return self._fast.feed(data, start, end, time.time_ns(), *limits)
        while len(self._records) < limits.records_max and self._bytes < limits.bytes_max:
            stop = copy_data_end(data, start, end)
            if stop == start:
                break
            self._rows += 1
            made = self._of_line(bytes(data[start + COPY_DATA_BYTES : stop]))
            self._records += made
            self._bytes += sum(map(record_bytes, made))
            start = stop
        return start

    def take(self) -> list[RecordOrBatch]:
        """What was made since the last time."""
        made = [*self._records]
        self._records.clear()
        self._bytes = 0
        return made

    def _slowly(self, line: bytes) -> bool:
        self._records += self._of_line(line)
        return False

    def _of_line(self, line: bytes) -> list[Record]:
        row: CopiedRow = parse(line) if self._width + self._extra else ()
        row = row[: len(row) - self._extra]
        if self._is_stale(row):
            return []
        return row_records(self._encoder, row, *self._read_at)

    def _is_stale(self, row: CopiedRow) -> bool:
        if not self._stale or len(row) != self._width:
            return False
        texts = [text for index in self._key if (text := row[index]) is not None]
        return len(texts) == len(self._key) and b"\0".join(texts) in self._stale

"""CopyData messages of a COPY in text format → records of a snapshot's rows.

Common rows stay in the extension (cdc/compiled/copied.pxi). It hands back all other rows, and every
malformed line: line → row → encoder. cdc/stream/translation.py does the same for the stream.
"""

import re
from collections.abc import Container
from typing import Final

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.events.changes import Read
from cdc.records.position import Position, header
from cdc.records.record import RecordOrBatch

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
"""The escapes that COPY TO writes. Any other character means itself."""
_PLAIN: Final = Read()


def parse(line: bytes) -> CopiedRow:
    """Parse one line, with its line end, of a table with at least one column."""
    fields = line[:-1].split(b"\t")
    return tuple([_text(field) if b"\\" in field else field for field in fields])


def _text(field: bytes) -> bytes | None:
    if field == _NULL:
        return None
    return _ESCAPE.sub(lambda match: _MEANINGS.get(match[1], match[1]), field)


def copier(
    records: list[RecordOrBatch],
    encoder: Encoder,
    position: Position,
    ts_us: int,
    read: Read = _PLAIN,
    *,
    key: tuple[int, ...] = (),
    stale: Container[bytes] = (),
    extra: int = 0,
) -> fast.Copier:
    r"""Return a copier that appends to ``records`` those of a table's rows.

    It leaves out rows with a key in ``stale``: the texts of the columns with the indexes ``key``,
    joined by ``\0``. A key that lacks a part is never in it. ``ts_us`` is the time of the read (µs
    since 1970, UTC). ``extra``: how many columns the COPY has after the table's own. It raises the
    encoder's errors.
    """
    lsn, width = position.commit_lsn, len(encoder.schema.columns)

    def add(line: bytes) -> bool:
        """Add the records of a line that the extension hands back. It continues after the line."""
        row: CopiedRow = parse(line) if width + extra else ()
        row = row[: len(row) - extra]
        keyed = [row[index] for index in key] if len(row) == width else []
        texts = [text for text in keyed if text is not None]
        if len(texts) < len(key) or b"\0".join(texts) not in stale:
            records.extend(encoder.snapshot_row(row, position, lsn, ts_us, read))
        return False

    table, source = encoder.compiled_read(lsn, ts_us, read) or (None, b"")
    at = header(position, encoder.schema.version)
    made = fast.Copier(records, add, table, source, at, key, extra)
    made.stale = stale
    return made

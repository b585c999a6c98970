r"""A line of COPY's text format → a row's values, as the stream would have sent them; pure.

Columns are separated by tabs, NULL is ``\N``, and a backslash escapes what would be ambiguous.
https://www.postgresql.org/docs/current/sql-copy.html (File Formats, Text Format)
"""

import re
from typing import Final

Row = tuple[bytes | None, ...]

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


def parse(line: bytes) -> Row:
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

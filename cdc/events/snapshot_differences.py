"""Where Debezium's snapshot and stream disagree about a value → how each of them decodes it.

Only with ``lossless`` False; natively a row reads the same from both. In the snapshot a date loses
its era, and infinity becomes what JDBC's largest time is; in the stream a ``name`` is null.
"""

import re
from typing import Any, Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.values import Decode

_ERA: Final = b" BC"
_INFINITE: Final[dict[Type, dict[bytes, Any]]] = {
    Type.INT32: {b"infinity": -622_191_234, b"-infinity": -625_821_272},
    Type.STRING: {b"infinity": "+292278994-08-16Z", b"-infinity": "+292269055-12-02Z"},
}
"""Days since 1970 that don't fit into 32 bits, and what is left of them; or the dates in ISO."""
_OFFSET_WITH_SECONDS: Final = re.compile(rb".*[+-]\d\d:\d\d:\d\d", re.DOTALL).fullmatch


def of_stream(column: Column, decode: Decode) -> Decode:
    """Debezium's stream has no values of type name."""
    return decode if column.type != "name" or column.array else _nothing


def of_snapshot(column: Column, schema: Schema, decode: Decode) -> Decode:
    """Debezium's snapshot reads dates and zoned times through JDBC's classes."""
    if column.array:
        return decode
    if column.type == "timetz":
        return lambda text: None if _OFFSET_WITH_SECONDS(text) else decode(text)
    if column.type != "date":
        return decode
    infinite = _INFINITE.get(schema.type, {})

    def of_date(text: bytes) -> Any:
        return infinite[text] if text in infinite else decode(text.removesuffix(_ERA))

    return of_date


def _nothing(_text: bytes) -> None:
    """What comes of any text."""

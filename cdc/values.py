"""A column's text from PostgreSQL → its value in an event, per type: one table for every path.

Stream and snapshot share it, and so do the hot path (a JSON fragment) and the reference (a Python
value): each type has one codec with both, held equal by tests/properties. The texts are those of
the pinned session (TimeZone=UTC, DateStyle=ISO, IntervalStyle=iso_8601, extra_float_digits=1,
bytea_output=hex, lc_monetary=C, client_encoding=UTF8). Nothing is lost: what JSON can't carry as a
number (NaN, numeric) is text, and every type without a line here is PostgreSQL's own text.
docs/debezium.md lists where this differs from Debezium's defaults.
https://www.postgresql.org/docs/current/datatype.html
"""

import re
from binascii import b2a_base64, unhexlify
from collections.abc import Callable
from functools import lru_cache, partial
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

from cdc import temporal
from cdc.arrays import elements, flat
from cdc.errors import CorruptMessageError
from cdc.records.schema import Column, TableName

Decode = Callable[[bytes], Any]
Fragment = Callable[[bytes], str]

MALFORMED: Final = (ValueError, LookupError)
"""What a codec's functions raise for a text that isn't of the type."""


class Codec(NamedTuple):
    """What a type's text means: as a Python value that JSON can carry, and as JSON itself."""

    decode: Decode
    fragment: Fragment


def codec(column: Column) -> Codec:
    """The codec of a column: its type's, or a list of its type's elements."""
    one = _TYPES.get(column.type, _of_text)(column)
    if not column.array:
        return one
    delimiter = b";" if column.type == "box" else b","
    if one is _TEXT and column.type != "box":
        return Codec(partial(_array, _text, delimiter), _text_array_fragment)
    return Codec(
        partial(_array, one.decode, delimiter), partial(_array_fragment, one.fragment, delimiter)
    )


def json_fragment(column: Column) -> Fragment:
    """Text → JSON, the fast way; raises one of MALFORMED, which ``malformed`` explains."""
    return codec(column).fragment


def decode(column: Column, table: TableName) -> Decode:
    """Text → value, the readable way; raises CorruptMessageError naming the column."""
    inner = codec(column).decode

    def decode_value(value: bytes) -> Any:
        try:
            return inner(value)
        except MALFORMED as error:
            raise malformed(column, table) from error

    return decode_value


def malformed(column: Column, table: TableName) -> CorruptMessageError:
    """The error for a text that isn't of its column's type; it never shows the text."""
    return CorruptMessageError(
        f"a value of column {column.name} isn't a {column.declared}", where=f"table {table}"
    )


_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_NUMERIC = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?|NaN|-?Infinity")
_MONEY = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_FLOAT_BYTES = b"0123456789.e+-"
_FLOAT_AS_IS = re.compile(
    rb"-?(?:[1-9][0-9]*\.[0-9]*|0\.[0-9]{0,3}[1-9][0-9]*)(?<=[1-9])"
).fullmatch
"""Up to 15 digits with a fraction and no exponent: Python writes such a float just so, too."""
_FLOAT_WORDS = {word.encode(): word for word in ("NaN", "Infinity", "-Infinity")}
_BARE_TEXTS = re.compile(rb'\{[^{}"\\,]+(?:,[^{}"\\,]+)*\}').fullmatch
_NEXT_TEXT = '","'
_BOOLS = {b"t": True, b"f": False}
_BOOL_FRAGMENTS = {b"t": "true", b"f": "false"}


def _text(value: bytes) -> str:
    return value.decode()


def _text_fragment(value: bytes) -> str:
    return encode_basestring(value.decode())


def _integer_text(value: bytes) -> str:
    if value.isdigit() and value[0] != 0x30 and len(value) < 20:
        return value.decode()
    if _INTEGER.fullmatch(value) is None:
        raise ValueError("not an integer")
    return value.decode()


def _integer(value: bytes) -> int:
    return int(_integer_text(value))


def _float(value: bytes) -> float | str:
    if value.translate(None, _FLOAT_BYTES):
        return _FLOAT_WORDS[value]
    number = float(value)
    if number - number != 0:
        raise ValueError("out of a double's range")
    return number


def _float_fragment(value: bytes) -> str:
    if len(value) <= 16 and _FLOAT_AS_IS(value):
        return value.decode()
    number = _float(value)
    return repr(number) if number.__class__ is float else f'"{number}"'


def _numeric(value: bytes) -> str:
    if not value.replace(b".", b"", 1).isdigit() and _NUMERIC.fullmatch(value) is None:
        raise ValueError("not a numeric")
    return value.decode()


def _numeric_fragment(value: bytes) -> str:
    if value.replace(b".", b"", 1).isdigit():
        return f'"{value.decode()}"'
    return f'"{_numeric(value)}"'


def _money(value: bytes) -> str:
    """``-$1,234.50`` (lc_monetary=C) as ``-1234.50``."""
    plain = value.replace(b"$", b"", 1).replace(b",", b"")
    if _MONEY.fullmatch(plain) is None:
        raise ValueError("not an amount of money")
    return plain.decode()


def _bytea(value: bytes) -> str:
    if value[:2] != b"\\x":
        raise ValueError("not a bytea in hex")
    return b2a_base64(unhexlify(value[2:]), newline=False).decode()


def _array(element: Decode, delimiter: bytes, value: bytes) -> list[Any]:
    return elements(value, element, delimiter)


def _array_fragment(element: Fragment, delimiter: bytes, value: bytes) -> str:
    parts = flat(value, delimiter)
    if parts is None:
        return _joined(elements(value, element, delimiter))
    return f"[{','.join(['null' if part == b'NULL' else element(part) for part in parts])}]"


def _text_array_fragment(value: bytes) -> str:
    """As ``_array_fragment`` of texts: as long as none is quoted, commas only stand between."""
    if _BARE_TEXTS(value) and b"NULL" not in value:
        return f"[{_text_fragment(value[1:-1]).replace(',', _NEXT_TEXT)}]"
    return _array_fragment(_text_fragment, b",", value)


def _joined(fragments: list[Any]) -> str:
    """JSON of nested lists of JSON; at most arrays.DIMENSIONS_MAX deep."""
    texts = [
        "null" if one is None else one if one.__class__ is str else _joined(one)
        for one in fragments
    ]
    return f"[{','.join(texts)}]"


def _number(inner: Callable[[bytes], int]) -> Codec:
    """A codec whose value is an integer."""
    return Codec(inner, lambda value: str(inner(value)))


def _plain(inner: Callable[[bytes], str]) -> Codec:
    """A codec whose value is text that needs no escapes in JSON."""
    return Codec(inner, lambda value: f'"{inner(value)}"')


_TEXT = Codec(_text, _text_fragment)
_BOOL = Codec(_BOOLS.__getitem__, _BOOL_FRAGMENTS.__getitem__)
_INTEGERS = Codec(_integer, _integer_text)
_FLOATS = Codec(_float, _float_fragment)
_NUMERICS = Codec(_numeric, _numeric_fragment)
_DATES = Codec(temporal.epoch_days, lru_cache(8_192)(_number(temporal.epoch_days).fragment))
"""Few dates make up most of a table: 8,192 of them take about 1 MB."""


def _of_text(_column: Column) -> Codec:
    return _TEXT


def _of_time(column: Column) -> Codec:
    return _number(temporal.time_ms if column.time_precision <= 3 else temporal.time_us)


def _of_timestamp(column: Column) -> Codec:
    return _number(temporal.timestamp_ms if column.time_precision <= 3 else temporal.timestamp_us)


def _of_timestamptz(column: Column) -> Codec:
    digits = column.time_precision
    return _plain(partial(temporal.zoned_timestamp, digits))


_TYPES: Final[dict[str, Callable[[Column], Codec]]] = {
    "bool": lambda _column: _BOOL,
    "int2": lambda _column: _INTEGERS,
    "int4": lambda _column: _INTEGERS,
    "int8": lambda _column: _INTEGERS,
    "oid": lambda _column: _INTEGERS,
    "float4": lambda _column: _FLOATS,
    "float8": lambda _column: _FLOATS,
    "numeric": lambda _column: _NUMERICS,
    "money": lambda _column: _plain(_money),
    "bytea": lambda _column: _plain(_bytea),
    "date": lambda _column: _DATES,
    "time": _of_time,
    "timetz": lambda _column: _plain(temporal.zoned_time),
    "timestamp": _of_timestamp,
    "timestamptz": _of_timestamptz,
}
"""Type → codec; whatever isn't listed is text: char, enum, uuid, json, inet, interval, hstore, …"""

"""A column and its codec → the replacements of a missing value in an event.

The placeholder of an unchanged TOASTed value, the zero of a NOT NULL column, a column's DEFAULT.
Each is None if it doesn't exist.
"""

import hashlib
import re
import uuid
from copy import copy
from typing import Any, Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values.blocks import MALFORMED, Codec, base64
from cdc.values.decimals import declared_scale, with_scale
from cdc.values.structures import compact_json, point

_TEXTS_IN_ARRAYS: Final = frozenset({"text", "varchar", "bpchar", "json", "jsonb"})
_EMPTY_GEOMETRY: Final = bytes.fromhex("010700000000000000")
_ZERO_OF_NAME: Final[dict[str, Any]] = {
    "org.apache.kafka.connect.data.Decimal": b"\0",
    "io.debezium.data.VariableScaleDecimal": {"scale": 0, "value": b"\0"},
    "io.debezium.time.IsoDate": "1970-01-01Z",
    "io.debezium.time.IsoTime": "00:00:00Z",
    "io.debezium.time.IsoTimestamp": "1970-01-01T00:00:00Z",
    "io.debezium.time.ZonedTime": "00:00:00Z",
    "io.debezium.time.ZonedTimestamp": "1970-01-01T00:00:00Z",
    "io.debezium.time.Interval": "P0Y0M0DT0H0M0S",
    "io.debezium.data.geometry.Point": point(0.0, 0.0),
    "io.debezium.data.geometry.Geometry": {"wkb": _EMPTY_GEOMETRY, "srid": None},
    "io.debezium.data.geometry.Geography": {"wkb": _EMPTY_GEOMETRY, "srid": None},
    "io.debezium.data.SparseDoubleVector": None,
}
_ZERO_OF_TYPE: Final[dict[Type, Any]] = {
    Type.BOOLEAN: False,
    Type.INT16: 0,
    Type.INT32: 0,
    Type.INT64: 0,
    Type.FLOAT: 0.0,
    Type.DOUBLE: 0.0,
    Type.STRING: "",
    Type.BYTES: b"",
    Type.ARRAY: [],
    Type.MAP: {},
}

_FUNCTION = re.compile(r"\(?[A-Za-z0-9_.]+\(.*\)")
_CLOCKS: Final = frozenset(
    {"current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"}
)
_QUOTED = re.compile(r"'((?:[^']|'')*)'")
_LITERAL = re.compile(r"B?'((?:[^']|'')*)'(?:::[^':()]+(?:\([0-9, ]+\))?[^':()]*)?", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_BOOLS: Final = {"true": "t", "false": "f"}
_OF_FUNCTION: Final[dict[str, str]] = {
    **dict.fromkeys(("bpchar", "varchar", "text", "xml", "varbit"), ""),
    **dict.fromkeys(("int2", "int4", "int8", "bit"), "0"),
    **dict.fromkeys(("float4", "float8", "numeric"), "0.0"),
    **dict.fromkeys(("json", "jsonb"), "{}"),
    "bool": "f",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "date": "1970-01-01",
    "time": "00:00:00",
    "timestamp": "1970-01-01 00:00:00",
    "timestamptz": "1970-01-01 00:00:00+00",
    "interval": "PT0S",
}
"""Types whose DEFAULT Debezium reads, and its value for the result of a function."""


def placeholder(column: Column, codec: Codec, modes: ValueModes) -> Any:
    """Return the placeholder of an unchanged TOASTed value: unavailable.value.placeholder.

    If the type has no form for it, Debezium has null.
    """
    schema, value = codec.schema, modes.placeholder
    if schema.type is Type.ARRAY and schema.items is not None:
        return _array_placeholder(column, schema.items, modes)
    if schema.type is Type.BYTES and schema.name is None:
        return value
    word = value.decode()
    if column.type == "hstore" and modes.hstore != "text":
        return {word: word} if modes.hstore == "map" else compact_json({word: word})
    if column.type == "bytea" and modes.binary.startswith("base64"):
        return base64(value)
    return word if schema.type is Type.STRING else None


def _array_placeholder(column: Column, items: Schema, modes: ValueModes) -> list[Any] | None:
    value = modes.placeholder
    if column.type == "bytea":
        return [value if items.type is Type.BYTES else value.decode()]
    if column.type == "uuid":
        return [str(uuid.UUID(bytes=hashlib.md5(value).digest(), version=3))]  # noqa: S324
    if items.type is Type.STRING and (modes.lossless or column.type in _TEXTS_IN_ARRAYS):
        return [value.decode()]
    if column.type in {"int4", "int8"} and items.type in {Type.INT32, Type.INT64}:
        return list(value)
    if items.name == "io.debezium.time.Date":
        return list(value)
    return None


def zero(column: Column, codec: Codec, modes: ValueModes) -> Any:
    """Return Debezium's value of a NOT NULL column without a value and without DEFAULT."""
    schema = codec.schema
    if column.type == "hstore" and modes.hstore == "json" and not column.array:
        return "{}"
    if schema.type is Type.STRING and column.type in {"numeric", "money"}:
        return _numeric_text(column, modes, "0")
    if schema.name in _ZERO_OF_NAME:
        return copy(_ZERO_OF_NAME[schema.name])
    return copy(_ZERO_OF_TYPE[schema.type])


def default(column: Column, codec: Codec, modes: ValueModes) -> Any:
    """Return the value of a DEFAULT that is a constant.

    Debezium, and so ``lossless=False``, supports only some types, and has a kind of zero for
    functions, such as 1970-01-01 for ``now()``.
    """
    if column.default is None or (not modes.lossless and (column.array or column.domain)):
        return None
    literal = _literal(column.default) if modes.lossless else _in_debezium(column)
    if literal is not None and column.type == "numeric" and not column.array:
        literal = _numeric_text(column, modes, literal)
    try:
        value = None if literal is None else codec.decode(literal.encode())
    except MALFORMED:
        return None
    return None if isinstance(value, dict) else value


def _literal(expression: str) -> str | None:
    """Return the text of a constant, as pg_get_expr() writes it. None: it isn't a constant."""
    if expression in _BOOLS:
        return _BOOLS[expression]
    if _NUMBER.fullmatch(expression):
        return expression
    match = _LITERAL.fullmatch(expression)
    return None if match is None else match[1].replace("''", "'")


def _in_debezium(column: Column) -> str | None:
    expression = column.default or ""
    if column.type == "enum":
        literal = _literal(expression)
        return literal if literal in column.labels else None
    if column.type not in _OF_FUNCTION or expression.startswith("NULL::"):
        return None
    if _FUNCTION.match(expression) or expression.lower() in _CLOCKS:
        return _OF_FUNCTION[column.type]
    if "'" not in expression:
        return _BOOLS.get(expression, "f") if column.type == "bool" else expression
    match = _QUOTED.search(expression)
    return None if match is None else match[1].replace("''", "'")


def _numeric_text(column: Column, modes: ValueModes, number: str) -> str | None:
    """Return the number with the declared number of decimals. None: it has more."""
    if column.type == "money":
        return with_scale(number, 2)
    declared = declared_scale(column, modes)
    if declared is None:
        return number
    scale = max(declared[1], 0)
    whole, _, fraction = number.partition(".")
    if fraction[scale:].strip("0"):
        return None
    return with_scale(f"{whole}.{fraction[:scale]}" if fraction[:scale] else whole, scale)

"""PostgreSQL's text of an array → a list of its elements, each through the element's codec."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values.blocks import (
    Codec,
    Decode,
    UnconvertibleError,
    ValueKind,
)
from cdc.values.scalars import of_bits

DIMENSIONS_MAX = 6
"""PostgreSQL's own limit (MAXDIM)."""

_BOUNDS = re.compile(rb"(?:\[-?\d+:-?\d+\]){1,6}=")
_QUOTED = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_BARE = {delimiter: re.compile(rb'[^{}"\\' + delimiter + rb"]++") for delimiter in (b",", b";")}
_UNESCAPED = {
    delimiter: re.compile(rb'"([^"\\]*+)"|(%b)' % bare.pattern) for delimiter, bare in _BARE.items()
}
"""An element that is written unescaped, in quotes or bare."""
_LIST = {
    delimiter: re.compile(rb"\{(?:%b)(?:%b(?:%b))*+\}" % (item.pattern, delimiter, item.pattern))
    for delimiter, item in _UNESCAPED.items()
}
"""One dimension of such elements, the usual case."""

_WITHOUT_NULL: Final = frozenset({
    "enum", "isbn", "tsvector", "vector", "halfvec", "sparsevec",
})  # fmt: skip
"""Types of elements with a schema that isn't optional, as in all types that Debezium lacks."""


def elements(value: bytes, element: Callable[[bytes], Any], delimiter: bytes = b",") -> list[Any]:
    """Return the array's elements, each through ``element``. NULL is None. Keeps the nesting.

    ``delimiter`` is pg_type.typdelim of the element type: a semicolon for box, else a comma.
    """
    if _LIST[delimiter].fullmatch(value):
        return [
            None if bare == b"NULL" else element(bare or quoted)
            for quoted, bare in _UNESCAPED[delimiter].findall(value)
        ]
    bounds = _BOUNDS.match(value)
    return _nested(value[bounds.end() :] if bounds else value, element, delimiter)


def _nested(value: bytes, element: Callable[[bytes], Any], delimiter: bytes) -> list[Any]:
    if value == b"{}":
        return []
    items, end = _list(value, 0, element, delimiter, 1)
    if end != len(value):
        raise ValueError("more after the array's end")
    return items


def _list(
    value: bytes, start: int, element: Callable[[bytes], Any], delimiter: bytes, dimension: int
) -> tuple[list[Any], int]:
    """Return the list that starts there, and its end."""
    if value[start : start + 1] != b"{" or dimension > DIMENSIONS_MAX:
        raise ValueError("not an array, or one of too many dimensions")
    items: list[Any] = []
    following, offset = delimiter, start
    while following == delimiter:
        offset += 1
        if value[offset : offset + 1] == b"{":
            item, offset = _list(value, offset, element, delimiter, dimension + 1)
        else:
            item, offset = _item(value, offset, element, delimiter)
        items.append(item)
        following = value[offset : offset + 1]
    if following != b"}":
        raise ValueError("neither a delimiter nor an end")
    return items, offset + 1


def _item(
    value: bytes, offset: int, element: Callable[[bytes], Any], delimiter: bytes
) -> tuple[Any, int]:
    quoted = _QUOTED.match(value, offset)
    if quoted is not None:
        return element(_ESCAPE.sub(rb"\1", quoted[1])), quoted.end()
    bare = _BARE[delimiter].match(value, offset)
    if bare is None:
        raise ValueError("an empty element without quotes")
    return None if bare[0] == b"NULL" else element(bare[0]), bare.end()


def of_array(column: Column, element: Codec) -> Codec:
    """Return the codec of an array of any dimensions, which loses nothing."""
    delimiter = _delimiter(column)
    kind = element.kind.of_array if delimiter == b"," else ValueKind.OTHER
    decode = partial(_array, element.decode, delimiter)
    return Codec(decode, _schema(element, optional=True), kind, element.digits)


def of_debezium_array(
    column: Column, element: Codec, modes: ValueModes, *, has_type: bool
) -> Codec:
    """Return the codec of Debezium's arrays. ``has_type``: it has a type for the element.

    Without ``keeps_null``, a NULL in it makes the whole array null. Debezium mistakenly gives
    arrays of bits the schema of bits, so they are always null.
    """
    if has_type and column.type == "bit":
        return Codec(_nothing, of_bits(column, modes).schema)
    optional = has_type and column.type not in _WITHOUT_NULL
    keeps_null = optional and column.type != "ltree"
    delimiter = _delimiter(column)
    decode = partial(_one_dimension, element.decode, delimiter, keeps_null)
    kind = element.kind.of_array if keeps_null and delimiter == b"," else ValueKind.OTHER
    return or_null(Codec(decode, _schema(element, optional=optional), kind, element.digits))


def _delimiter(column: Column) -> bytes:
    return (column.delimiter or (";" if column.type == "box" else ",")).encode()


def _schema(element: Codec, *, optional: bool) -> Schema:
    return Schema(Type.ARRAY, items=replace(element.schema, optional=optional))


def _array(element: Decode, delimiter: bytes, value: bytes) -> list[Any] | str:
    read = elements(value, element, delimiter)
    return value.decode() if value[:1] == b"[" else read


def _one_dimension(
    element: Decode, delimiter: bytes, keeps_null: bool, value: bytes
) -> list[Any] | None:
    items = elements(value, bytes, delimiter)
    read = [element(item) if item.__class__ is bytes else None for item in items]
    return None if None in read and not keeps_null else read


def _nothing(value: bytes) -> None:
    elements(value, bytes)


def or_null(codec: Codec) -> Codec:
    """Return the codec with null for values without a form in its mode."""

    def attempted(value: bytes) -> Any:
        try:
            return codec.decode(value)
        except UnconvertibleError:
            return None

    return codec._replace(decode=attempted)

"""Arrays: PostgreSQL's text of one → lists of what the element's codec makes of each element."""

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
_BARE = {delimiter: re.compile(rb'[^{}"\\' + delimiter + rb"]+") for delimiter in (b",", b";")}
_UNESCAPED = {
    delimiter: re.compile(rb'"[^"\\]*+"|[^{}"\\' + delimiter + rb"]++") for delimiter in _BARE
}
"""An element that is written as it is, in quotes or bare."""
_LIST = {
    delimiter: re.compile(rb"\{(?:%b)(?:%b(?:%b))*+\}" % (item.pattern, delimiter, item.pattern))
    for delimiter, item in _UNESCAPED.items()
}
"""One dimension of such elements: an array of texts with spaces in them, most often."""


_WITHOUT_NULL: Final = frozenset({
    "enum", "isbn", "tsvector", "vector", "halfvec", "sparsevec",
})  # fmt: skip
"""Elements whose schema isn't optional there, as of all that it has no type for."""


def elements(value: bytes, element: Callable[[bytes], Any], delimiter: bytes = b",") -> list[Any]:
    """The array's elements, each through ``element``; NULL is None; nested as the array is.

    ``delimiter`` is pg_type.typdelim of the element type: a semicolon for box, else a comma.
    """
    items = flat(value, delimiter)
    if items is not None:
        return [None if item == b"NULL" else element(item) for item in items]
    if _LIST[delimiter].fullmatch(value):
        return [
            element(item[1:-1]) if item[0] == 0x22 else None if item == b"NULL" else element(item)
            for item in _UNESCAPED[delimiter].findall(value)
        ]
    if value[:1] == b"[":
        bounds = _BOUNDS.match(value)
        if bounds is None:
            raise ValueError("not an array's bounds")
        value = value[bounds.end() :]
    return _nested(value, element, delimiter)


def flat(value: bytes, delimiter: bytes) -> list[bytes] | None:
    """The elements of an array of one dimension without quotes and bounds, the usual case."""
    if b'"' in value or value.rfind(b"{") != 0 or b"\\" in value:
        return None
    if value.find(b"}") != len(value) - 1:
        return None
    if value == b"{}":
        return []
    items = value[1:-1].split(delimiter)
    if b"" in items:
        raise ValueError("an empty element without quotes")
    return items


def _nested(value: bytes, element: Callable[[bytes], Any], delimiter: bytes) -> list[Any]:
    """Read with a stack of open lists: every turn of the loop takes at least one byte."""
    if value[:1] != b"{":
        raise ValueError("not an array")
    if value == b"{}":
        return []
    root: list[Any] = []
    stack = [root]
    offset = 1
    while stack:
        if value[offset : offset + 1] == b"{":
            if len(stack) == DIMENSIONS_MAX:
                raise ValueError("too many dimensions")
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
            offset += 1
            continue
        item, offset = _item(value, offset, element, delimiter)
        stack[-1].append(item)
        while stack and value[offset : offset + 1] == b"}":
            stack.pop()
            offset += 1
        if stack:
            if value[offset : offset + 1] != delimiter:
                raise ValueError("neither a delimiter nor an end")
            offset += 1
    if offset != len(value):
        raise ValueError("more after the array's end")
    return root


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
    """An array of any dimensions, with nothing lost."""
    delimiter = _delimiter(column)
    kind = element.kind.of_array if delimiter == b"," else ValueKind.OTHER
    decode = partial(_array, element.decode, delimiter)
    return Codec(decode, _schema(element, optional=True), kind, element.digits)


def of_debezium_array(
    column: Column, element: Codec, modes: ValueModes, *, has_type: bool
) -> Codec:
    """An array as Debezium has it; ``has_type``: it has one for the element.

    ``keeps_null``: elsewhere a NULL in it makes the whole array null. Arrays of bits have the
    schema of bits by mistake, and so are always null.
    """
    if has_type and column.type == "bit":
        return Codec(_nothing, of_bits(column, modes).schema)
    optional = has_type and column.type not in _WITHOUT_NULL
    keeps_null = optional and column.type != "ltree"
    delimiter = _delimiter(column)
    decode = partial(_one_dimension, element.decode, delimiter, keeps_null)
    kind = element.kind.of_array if keeps_null and delimiter == b"," else ValueKind.OTHER
    return Codec(decode, _schema(element, optional=optional), kind, element.digits)


def _delimiter(column: Column) -> bytes:
    return (column.delimiter or (";" if column.type == "box" else ",")).encode()


def _schema(element: Codec, *, optional: bool) -> Schema:
    items = replace(element.schema, optional=optional)
    return Schema(Type.ARRAY, items=items)


def _array(element: Decode, delimiter: bytes, value: bytes) -> list[Any] | str:
    read = elements(value, element, delimiter)
    return value.decode() if value[:1] == b"[" else read


def _one_dimension(
    element: Decode, delimiter: bytes, keeps_null: bool, value: bytes
) -> list[Any] | None:
    items = elements(value, bytes, delimiter)
    try:
        read = [element(item) if item.__class__ is bytes else None for item in items]
    except UnconvertibleError:
        return None
    return None if None in read and not keeps_null else read


def _nothing(value: bytes) -> None:
    elements(value, bytes)


def or_null(codec: Codec) -> Codec:
    """The codec with null for what its mode has no form for."""

    def attempted(value: bytes) -> Any:
        try:
            return codec.decode(value)
        except UnconvertibleError:
            return None

    return codec._replace(decode=attempted)

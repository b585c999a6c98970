"""Codecs of arrays: lists of what the element's codec makes of each element.

Natively an array of any shape comes through: more dimensions are nested lists, and an array whose
lower bounds aren't 1, which a list can't say, is PostgreSQL's own text: ``"[2:3]={7,8}"``.
Debezium keeps one dimension; inner dimensions are null there, and lower bounds lost.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdc.records.connect import Schema, Type
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values.arrays import elements, flat
from cdc.values.blocks import (
    Codec,
    Decode,
    Fragment,
    Kind,
    UnconvertibleError,
    structured,
    text_fragment,
)
from cdc.values.scalars import of_bits

_BARE_TEXTS = re.compile(rb'\{[^{}"\\,]+(?:,[^{}"\\,]+)*\}').fullmatch
_NEXT_TEXT = '","'

_WITHOUT_NULL: Final = frozenset({
    "enum", "isbn", "tsvector", "vector", "halfvec", "sparsevec",
})  # fmt: skip
"""Elements whose schema isn't optional there, as of all that it has no type for."""


def of_array(column: Column, element: Codec) -> Codec:
    """An array of any dimensions, with nothing lost."""
    delimiter = _delimiter(column)
    fragment: Fragment = partial(_array_fragment, element.fragment, delimiter)
    kind = element.kind.of_array if delimiter == b"," else Kind.OTHER
    fragment = _text_array_fragment if kind is Kind.TEXT_ARRAY else fragment
    schema = _schema(element, optional=True)
    decode = partial(_array, element.decode, delimiter)
    return Codec(decode, fragment, schema, kind, element.digits)


def of_debezium_array(column: Column, element: Codec, modes: ValueModes, *, known: bool) -> Codec:
    """An array as Debezium has it; ``known``: it has a type for the element.

    ``keeps_null``: elsewhere a NULL in it makes the whole array null. Arrays of bits have the
    schema of bits by mistake, and so are always null.
    """
    if known and column.type == "bit":
        return structured(_nothing, of_bits(column, modes).schema)
    optional = known and column.type not in _WITHOUT_NULL
    keeps_null = optional and column.type != "ltree"
    delimiter = _delimiter(column)
    decode = partial(_one_dimension, element.decode, delimiter, keeps_null)
    kind = element.kind.of_array if keeps_null and delimiter == b"," else Kind.OTHER
    made = structured(decode, _schema(element, optional=optional))
    return made._replace(kind=kind, digits=element.digits)


def _delimiter(column: Column) -> bytes:
    return (column.delimiter or (";" if column.type == "box" else ",")).encode()


def _schema(element: Codec, *, optional: bool) -> Schema:
    items = replace(element.schema, optional=optional)
    return Schema(Type.ARRAY, items=items)


def _array(element: Decode, delimiter: bytes, value: bytes) -> list[Any] | str:
    read = elements(value, element, delimiter)
    return value.decode() if value[:1] == b"[" else read


def _array_fragment(element: Fragment, delimiter: bytes, value: bytes) -> str:
    parts = flat(value, delimiter)
    if parts is not None:
        return f"[{','.join(['null' if part == b'NULL' else element(part) for part in parts])}]"
    read = elements(value, element, delimiter)
    return text_fragment(value) if value[:1] == b"[" else _joined(read)


def _text_array_fragment(value: bytes) -> str:
    """As ``_array_fragment`` of texts: as long as none is quoted, commas only stand between."""
    if _BARE_TEXTS(value) and b"NULL" not in value:
        return f"[{text_fragment(value[1:-1]).replace(',', _NEXT_TEXT)}]"
    return _array_fragment(text_fragment, b",", value)


def _joined(fragments: list[Any]) -> str:
    """JSON of nested lists of JSON; at most arrays.DIMENSIONS_MAX deep."""
    texts = [
        "null" if one is None else one if one.__class__ is str else _joined(one)
        for one in fragments
    ]
    return f"[{','.join(texts)}]"


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

    def attempted(inner: Callable[[bytes], Any], otherwise: Any, value: bytes) -> Any:
        try:
            return inner(value)
        except UnconvertibleError:
            return otherwise

    return codec._replace(
        decode=partial(attempted, codec.decode, None),
        fragment=partial(attempted, codec.fragment, "null"),
    )

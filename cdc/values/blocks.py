"""What codecs are built of: a text → a Connect value and the same as JSON, with its schema."""

import json
import math
from binascii import b2a_base64
from collections.abc import Callable
from enum import IntEnum
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

from cdc.records.connect import Schema, Type

Decode = Callable[[bytes], Any]
Fragment = Callable[[bytes], str]

MALFORMED: Final = (ValueError, LookupError)
"""What a codec's functions raise for a text that isn't of the type."""


class UnconvertibleError(ValueError):
    """A value that the chosen mode has no form for, such as NaN as a Decimal."""


class ValueKind(IntEnum):
    r"""Which texts a compiled path may write by itself, and as what.

    A kind is a promise about the usual texts only: one of any other form than named here goes to
    the codec's ``fragment``, which also refuses what isn't of the type.

    - TEXT: any UTF-8 text → a JSON string.
    - INTEGER: ``0|-?[1-9][0-9]{0,18}`` → copied.
    - BOOL: ``t``, ``f`` → true, false.
    - FLOAT: at most 16 bytes of ``-?([1-9][0-9]*|0)\.[0-9]*[1-9]``, where after ``0.`` at most
      three zeros stand → copied; ``-?(0|[1-9][0-9]{0,14})`` → copied, with ``.0`` behind it.
    - NUMERIC_TEXT: ``-?[0-9]+(\.[0-9]+)?`` → in quotes.
    - DATE: ``YYYY-MM-DD``, a date that there is → days since 1970-01-01.
    - TIMESTAMP_US, TIMESTAMP_MS: ``YYYY-MM-DD hh:mm:ss[.f]``, a time that there is, up to six or
      three digits → µs or ms since 1970-01-01.
    - TIMESTAMPTZ: the same with ``+00`` behind it → ``"YYYY-MM-DDThh:mm:ss.fZ"``, f filled up with
      zeros to ``digits``; without a point if ``digits`` is 0 and there is no fraction.
    - BYTEA: ``\x`` and pairs of hex digits → base64 in quotes.
    - DECIMAL: ``-?[0-9]+`` and, if ``digits`` isn't 0, a point and as many digits → without the
      point an integer, two's complement, big-endian, in the fewest bytes, base64 in quotes.
    - …_ARRAY: ``{}`` or one dimension, separated by commas, of texts that the element's kind has a
      form for, bare or in quotes; within quotes there are escapes in TEXT's alone → a list of what
      the element's kind says; a bare NULL is null.
    - OTHER: none.
    """

    OTHER = 0
    TEXT = 1
    INTEGER = 2
    BOOL = 3
    FLOAT = 4
    NUMERIC_TEXT = 5
    DATE = 6
    TIMESTAMP_US = 7
    TIMESTAMP_MS = 8
    TIMESTAMPTZ = 9
    BYTEA = 10
    DECIMAL = 11
    TEXT_ARRAY = 17
    INTEGER_ARRAY = 18
    BOOL_ARRAY = 19
    FLOAT_ARRAY = 20
    NUMERIC_TEXT_ARRAY = 21
    DATE_ARRAY = 22
    TIMESTAMP_US_ARRAY = 23
    TIMESTAMP_MS_ARRAY = 24
    TIMESTAMPTZ_ARRAY = 25
    DECIMAL_ARRAY = 27

    @property
    def of_array(self) -> "ValueKind":
        """The kind of an array whose elements are of this one."""
        return ValueKind.__members__.get(f"{self.name}_ARRAY", ValueKind.OTHER)

    @property
    def of_element(self) -> "ValueKind":
        """The kind of an array's elements, or of the value itself."""
        return ValueKind[self.name.removesuffix("_ARRAY")]


class Codec(NamedTuple):
    """What a type's text means: as a Connect value, and as the JSON that is made of it.

    ``schema`` says neither whether the column is optional nor its default. ``digits`` belongs to
    the kinds TIMESTAMPTZ and DECIMAL, and to arrays of them.
    """

    decode: Decode
    fragment: Fragment
    schema: Schema
    kind: ValueKind = ValueKind.OTHER
    digits: int = 0


STRING: Final = Schema(Type.STRING)
BYTES: Final = Schema(Type.BYTES)


def named(type_: Type, name: str) -> Schema:
    """A schema of one of Debezium's own types, all of which have version 1."""
    return Schema(type_, name=name, version=1)


def text(value: bytes) -> str:
    """PostgreSQL's text itself."""
    return value.decode()


def text_fragment(value: bytes) -> str:
    """PostgreSQL's text as a JSON string."""
    return encode_basestring(value.decode())


def number(
    inner: Callable[[bytes], int], schema: Schema, kind: ValueKind = ValueKind.OTHER
) -> Codec:
    """A codec whose value is an integer."""
    return Codec(inner, lambda value: str(inner(value)), schema, kind)


def plain(
    inner: Callable[[bytes], str],
    schema: Schema = STRING,
    kind: ValueKind = ValueKind.OTHER,
    digits: int = 0,
) -> Codec:
    """A codec whose value is text that needs no escapes in JSON."""
    return Codec(inner, lambda value: f'"{inner(value)}"', schema, kind, digits)


def raw(
    inner: Callable[[bytes], bytes], schema: Schema = BYTES, kind: ValueKind = ValueKind.OTHER
) -> Codec:
    """A codec whose value is bytes, base64 in JSON."""
    return Codec(inner, lambda value: f'"{base64(inner(value))}"', schema, kind)


def structured(inner: Decode, schema: Schema) -> Codec:
    """A codec whose JSON is made of its value: for types that few tables have."""
    return Codec(inner, lambda value: json_text(inner(value), schema), schema)


def base64(value: bytes) -> str:
    """Base64 in one line."""
    return b2a_base64(value, newline=False).decode()


def json_value(value: Any, schema: Schema) -> Any:
    """A Connect value as what Python's json writes, as Connect's JSON converter has it.

    Bytes are base64, NaN and infinity words, a map whose keys aren't texts a list of pairs.
    """
    if isinstance(value, bytes):
        return base64(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else float_word(value)
    if isinstance(value, list):
        inner = schema.items or schema
        return [json_value(item, schema if isinstance(item, list) else inner) for item in value]
    if isinstance(value, dict):
        return _json_object(value, schema)
    return value


def _json_object(value: dict[Any, Any], schema: Schema) -> Any:
    if schema.type is Type.STRUCT:
        return {field.name: json_value(value[field.name], field.schema) for field in schema.fields}
    inner = schema.items or schema
    pairs = [[key, json_value(item, inner)] for key, item in value.items()]
    return pairs if schema.keys is not None and schema.keys.type is not Type.STRING else dict(pairs)


def json_text(value: Any, schema: Schema) -> str:
    """A Connect value as compact JSON."""
    rendered = json_value(value, schema)
    return json.dumps(rendered, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def float_word(value: float) -> str:
    """NaN and infinity in the words that PostgreSQL and Java use."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

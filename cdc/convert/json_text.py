"""A Connect value and its schema → JSON, as Kafka Connect's JsonConverter writes it.

Bytes are base64, maps with text keys are objects, other maps are arrays of pairs, NaN and the
infinities are text. A member that a struct lacks is left out, which Debezium can't express. With
``schemas`` everything is wrapped in ``{"schema":…,"payload":…}``.
https://kafka.apache.org/documentation/#connect_running (key.converter, value.converter)
"""

import re
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final

from cdc.records.connect import DECIMAL, JSON_TEXT, PerSchema, Schema, Type
from cdc.values.blocks import float_word, java_double

Write = Callable[[Any], str]

_LONE_SURROGATES: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """The JsonConverter's options. ``java_floats`` writes 1.0E10, not 10000000000.0."""

    schemas: bool = False
    decimal_numbers: bool = False
    replace_null_with_default: bool = True
    java_floats: bool = False


class JsonConverter:
    """Converts values to JSON bytes. A missing value (a tombstone, no key) stays None."""

    def __init__(self, options: JsonOptions) -> None:
        self.options = options
        self._writers = _Writers(options)
        self._plans = PerSchema(self._plan)

    def __call__(self, _topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write one key or value."""
        if value is None or schema is None:
            return None
        return self.payload(schema, value)

    def payload(self, schema: Schema, value: Any) -> bytes:
        """Write a value, which may be null."""
        before, write, behind = self._plans(schema)
        return encoded(f"{before}{write(value)}{behind}")

    @property
    def shows_columns(self) -> bool:
        """Whether the output shows more of a column than its values."""
        return self.options.schemas or self.options.replace_null_with_default

    def around(self, schema: Schema) -> tuple[str, str]:
        """Return the text before a value, and the text after it."""
        before, _, behind = self._plans(schema)
        return before, behind

    def writer(self, schema: Schema) -> Write:
        """Return the writer of a member's values."""
        return self._writers.value(schema)

    def _plan(self, schema: Schema) -> tuple[str, Write, str]:
        write = self._writers.value(schema)
        if not self.options.schemas:
            return "", write, ""
        return f'{{"schema":{self._writers.schema(schema)},"payload":', write, "}"


def encoded(text: str) -> bytes:
    """Encode JSON text as UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:  # half an emoji, cut by column.truncate.to.N.chars
        return _LONE_SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04X}", text).encode()


class _Writers:
    """Schema → a function that writes its values, and the schema's own JSON."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        self._by_type: dict[Type, Callable[[Schema], Write]] = {
            Type.BOOLEAN: lambda _schema: _boolean,
            Type.INT8: lambda _schema: str,
            Type.INT16: lambda _schema: str,
            Type.INT32: lambda _schema: str,
            Type.INT64: lambda _schema: str,
            Type.FLOAT: self._float,
            Type.DOUBLE: self._float,
            Type.STRING: lambda schema: str if schema.name == JSON_TEXT else encode_basestring,
            Type.BYTES: self._bytes,
            Type.ARRAY: self._array,
            Type.MAP: self._map,
            Type.STRUCT: self._struct,
        }

    def value(self, schema: Schema) -> Write:
        """Return the writer of a schema's values. Null becomes the default if there is one."""
        write = self._by_type[schema.type](schema)
        null = "null"
        if schema.default is not None and self._options.replace_null_with_default:
            null = write(schema.default)
        return lambda value: null if value is None else write(value)

    def schema(self, schema: Schema, field: str | None = None) -> str:
        """Write the schema itself. ``field`` is its name as a struct's member."""
        items = "values" if schema.type is Type.MAP else "items"
        fields = [self.schema(member.schema, member.name) for member in schema.fields]
        parameters = {name: _text(value) for name, value in (schema.parameters or {}).items()}
        return _object(
            {
                "type": _text(schema.type.value),
                "keys": None if schema.keys is None else self.schema(schema.keys),
                items: None if schema.items is None else self.schema(schema.items),
                "fields": f"[{','.join(fields)}]" if schema.type is Type.STRUCT else None,
                "optional": _boolean(schema.optional),
                "name": _text(schema.name),
                "version": None if schema.version is None else str(schema.version),
                "doc": _text(schema.doc),
                "parameters": None if schema.parameters is None else _object(parameters),
                "default": None if schema.default is None else self.value(schema)(schema.default),
                "field": _text(field),
            }
        )

    def _float(self, _schema: Schema) -> Write:
        return _java_float if self._options.java_floats else _float

    def _bytes(self, schema: Schema) -> Write:
        if schema.name == DECIMAL and self._options.decimal_numbers:
            return partial(_decimal, int((schema.parameters or {})["scale"]))
        return _base64

    def _array(self, schema: Schema) -> Write:
        """Return the writer of an array, which may be nested, or be text with its bounds."""
        write = self.value(schema.of_items())
        is_nested = schema.of_items().type is Type.ARRAY  # then the schema has the dimensions

        def write_array(values: Any) -> str:
            if values.__class__ is str:
                return encode_basestring(values)
            items = [
                write_array(value) if value.__class__ is list and not is_nested else write(value)
                for value in values
            ]
            return f"[{','.join(items)}]"

        return write_array

    def _map(self, schema: Schema) -> Write:
        key, value = self.value(schema.of_keys()), self.value(schema.of_items())
        if schema.of_keys().type is Type.STRING:
            return lambda entries: (
                f"{{{','.join([f'{key(name)}:{value(item)}' for name, item in entries.items()])}}}"
            )
        return lambda entries: (
            f"[{','.join([f'[{key(name)},{value(item)}]' for name, item in entries.items()])}]"
        )

    def _struct(self, schema: Schema) -> Write:
        members = [
            (member.name, label(member.name), self.value(member.schema)) for member in schema.fields
        ]

        def write(struct: Any) -> str:
            written = [
                label + value(struct[name]) for name, label, value in members if name in struct
            ]
            return f"{{{','.join(written)}}}"

        return write


def label(name: str) -> str:
    """Return the text before a struct's member."""
    return f"{encode_basestring(name)}:"


def _object(members: Mapping[str, str | None]) -> str:
    """Return an object of members that are JSON already, without missing ones."""
    written = [label(name) + value for name, value in members.items() if value is not None]
    return f"{{{','.join(written)}}}"


def _text(value: str | None) -> str | None:
    return None if value is None else encode_basestring(value)


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _base64(value: bytes) -> str:
    return f'"{b2a_base64(value, newline=False).decode()}"'


def _decimal(scale: int, unscaled: bytes) -> str:
    """Convert a Decimal's two's complement bytes to a number. str() writes as BigDecimal does."""
    number = int.from_bytes(unscaled, signed=True)
    digits = tuple(int(digit) for digit in str(abs(number)))
    return str(Decimal((int(number < 0), digits, -scale)))


def _float(value: float) -> str:
    return repr(value) if isfinite(value) else f'"{float_word(value)}"'


def _java_float(value: float) -> str:
    return java_double(float(value)) if isfinite(value) else _float(value)

"""A member of a record, JSON's text or Avro's typed value → texts, bytes, elements, JSON.

Everything else is the same for both. In JSON a member is text (of a number, of a list), and bytes
are base64. In Avro a member has its type, and a struct's members are found by index.
"""

import hashlib
import json
import uuid
from base64 import b64encode
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.records.connect import Schema, Type
from sinks.debezium.decimals import bound
from sinks.debezium.schemas import avro_member_name, decimal_digits

_INTEGERS = frozenset({Type.INT32, Type.INT64})


class ValueDecoder:
    """Extracts values from a JSON record, whose members are texts from ``from_json``.

    ``decimal_numbers``: Decimals are JSON's numbers, not their bytes.
    """

    def __init__(self, *, decimal_numbers: bool = False) -> None:
        self._decimal_numbers = decimal_numbers

    def text(self, value: SparkColumn) -> SparkColumn:
        """Return a text, or a number's text."""
        return value

    def binary(self, value: SparkColumn) -> SparkColumn:
        """Return bytes, which are base64."""
        return F.try_to_binary(value, F.lit("base64"))

    def elements(self, value: SparkColumn) -> SparkColumn:
        """Return a list's elements, for the same decoder."""
        return F.from_json(value, "array<string>")

    def is_decimal(self, schema: Schema) -> bool:  # noqa: ARG002 (Avro's)
        """Whether a Decimal is a number, as records don't show the ``decimal.format``."""
        return self._decimal_numbers

    def scaled(self, value: SparkColumn, schema: Schema) -> SparkColumn:  # noqa: ARG002 (Avro's)
        """Return a number with its scale: a struct of ``scale`` and ``value`` (bytes)."""
        return bound(
            F.from_json(value, "scale int, value string"),
            lambda number: F.struct(number["scale"], self.binary(number["value"]).alias("value")),
        )

    def is_one_of(self, value: SparkColumn, schema: Schema, forms: list[Any]) -> SparkColumn:  # noqa: ARG002 (Avro's)
        """Whether a value is one of some texts, bytes, lists or maps, by its unparsed text."""
        return value.isin(*(form if isinstance(form, str) else _compact(form) for form in forms))

    def json(self, value: SparkColumn, schema: Schema) -> SparkColumn:  # noqa: ARG002 (Avro's)
        """Return JSON of a struct, a map or a list."""
        return value


class AvroDecoder(ValueDecoder):
    """The same for Avro: members as Spark's Avro decoder returns them."""

    def text(self, value: SparkColumn) -> SparkColumn:
        """Return a number as text."""
        return value.cast("string")

    def binary(self, value: SparkColumn) -> SparkColumn:
        """Return them unchanged."""
        return value

    def elements(self, value: SparkColumn) -> SparkColumn:
        """Return them unchanged."""
        return value

    def is_decimal(self, schema: Schema) -> bool:
        """Whether Spark's own decimals can hold it."""
        return decimal_digits(schema) is not None

    def scaled(self, value: SparkColumn, schema: Schema) -> SparkColumn:
        """Return it by index."""
        names = ("scale", "value")
        return F.struct(*(member_of(value, schema, name)[0].alias(name) for name in names))

    def is_one_of(self, value: SparkColumn, schema: Schema, forms: list[Any]) -> SparkColumn:
        """Compare values. Spark can't compare maps, so compare their JSON."""
        if schema.type is Type.MAP:
            return F.to_json(value).isin(*map(_compact, forms))
        literals = (
            F.array(*map(_literal, form)) if isinstance(form, list) else _literal(form)
            for form in forms
        )
        return reduce(or_, (value == literal for literal in literals))

    def json(self, value: SparkColumn, schema: Schema) -> SparkColumn:
        """Return JSON with all members, by their own names."""
        return F.to_json(_named(value, schema), {"ignoreNullFields": "false"})


def _literal(form: Any) -> SparkColumn:
    return F.lit(bytearray(form) if isinstance(form, bytes) else form)


def _compact(form: Any) -> str:
    """Return JSON without spaces, as Jackson writes it. Bytes are base64."""
    if isinstance(form, bytes):
        return b64encode(form).decode()
    return json.dumps(form, ensure_ascii=False, separators=(",", ":"), default=_compact)


def member_of(value: SparkColumn, schema: Schema, name: str) -> tuple[SparkColumn, Schema]:
    """Return a struct's member in Avro, and its schema. Raise SinkError without one."""
    for index, field in enumerate(schema.fields):
        if field.name == name:
            return value[avro_member_name(index)], field.schema
    raise SinkError(f"a record has no field {name}, so it isn't a Debezium record")


def _named(value: SparkColumn, schema: Schema) -> SparkColumn:
    if schema.type is Type.STRUCT:
        members = (
            _named(value[avro_member_name(index)], field.schema).alias(field.name)
            for index, field in enumerate(schema.fields)
        )
        return F.when(value.isNotNull(), F.struct(*members))
    if schema.type is Type.ARRAY:
        return F.transform(value, lambda element: _named(element, schema.of_items()))
    return value


def is_placeholder(
    schema: Schema, decoder: ValueDecoder, value: SparkColumn, placeholder: bytes
) -> SparkColumn | None:
    """Whether a value is the placeholder. None: its type never has one."""
    forms = _placeholders(schema, placeholder)
    if not forms:
        return None
    return F.coalesce(decoder.is_one_of(value, schema, forms), F.lit(False))


def _placeholders(schema: Schema, placeholder: bytes) -> list[Any]:
    """Return the possible placeholders of a value with the schema: texts, bytes, lists, maps."""
    word = placeholder.decode(errors="replace")
    if schema.type is Type.STRING:
        return [word, b64encode(placeholder).decode(), _compact({word: word})]
    if schema.type is Type.BYTES and schema.name is None:
        return [placeholder]
    if schema.type is Type.MAP:
        return [{word: word}]
    if schema.type is Type.ARRAY and schema.name is None:
        return _lists(schema.of_items(), word, placeholder)
    return []


def _lists(items: Schema, word: str, placeholder: bytes) -> list[Any]:
    if items.type is Type.BYTES and items.name is None:
        return [[placeholder]]
    if items.type is Type.STRING:
        name = uuid.UUID(bytes=hashlib.md5(placeholder).digest(), version=3)  # noqa: S324
        return [[word], [str(name)]]
    return [list(placeholder)] if items.type in _INTEGERS else []

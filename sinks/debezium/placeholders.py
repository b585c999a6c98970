"""A value → whether it only stands for one that an update left unchanged.

PostgreSQL doesn't send an unchanged TOASTed value; Debezium has ``unavailable.value.placeholder``
there, in the form of the column's type. Where the type has no room for it, Debezium has null, which
nobody can tell from a null of the row.
"""

import base64
import hashlib
import json
import uuid
from typing import Any

from pyspark.sql import Column as SparkColumn

from cdc.records.connect import Schema, Type
from sinks.debezium.encodings import Carrier

_INTEGERS = frozenset({Type.INT32, Type.INT64})


def is_placeholder(
    schema: Schema, carrier: Carrier, value: SparkColumn, placeholder: bytes
) -> SparkColumn | None:
    """Whether a value is the placeholder; None where its type never has one."""
    forms = placeholders(schema, placeholder)
    return carrier.is_one_of(value, schema, forms) if forms else None


def placeholders(schema: Schema, placeholder: bytes) -> list[Any]:
    """What may stand in the place of a value with the schema; texts, bytes, lists and maps."""
    word = placeholder.decode(errors="replace")
    if schema.type is Type.STRING:
        of_hstore = json.dumps({word: word}, ensure_ascii=False, separators=(",", ":"))
        return [word, base64.b64encode(placeholder).decode(), of_hstore]
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

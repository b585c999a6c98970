"""A value → whether it only stands for one that an update left unchanged.

PostgreSQL doesn't send an unchanged TOASTed value; Debezium has ``unavailable.value.placeholder``
there, in the form of the column's type. Where the type has no room for it, Debezium has null, which
nobody can tell from a null of the row.
"""

import base64
import hashlib
import json
import uuid

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.connect import Schema, Type
from sinks.debezium.carriers import Carrier

_INTEGERS = frozenset({Type.INT32, Type.INT64})


def is_placeholder(
    schema: Schema, carrier: Carrier, value: SparkColumn, placeholder: bytes
) -> SparkColumn | None:
    """Whether a value is the placeholder; None where its type never has one."""
    word = placeholder.decode(errors="replace")
    if schema.type is Type.STRING:
        of_hstore = json.dumps({word: word}, ensure_ascii=False, separators=(",", ":"))
        return value.isin(word, base64.b64encode(placeholder).decode(), of_hstore)
    if schema.type is Type.BYTES and schema.name is None:
        return carrier.binary(value) == F.lit(bytearray(placeholder))
    if schema.type is Type.MAP:
        of_map = json.dumps({word: word}, ensure_ascii=False, separators=(",", ":"))
        return carrier.json(value, schema) == of_map
    if schema.type is Type.ARRAY and schema.name is None:
        return _is_list(schema.of_items(), carrier, value, placeholder)
    return None


def _is_list(
    items: Schema, carrier: Carrier, value: SparkColumn, placeholder: bytes
) -> SparkColumn | None:
    elements = carrier.elements(value)
    if items.type is Type.BYTES and items.name is None:
        return (F.size(elements) == 1) & (
            carrier.binary(F.get(elements, F.lit(0))) == F.lit(bytearray(placeholder))
        )
    if items.type is Type.STRING:
        name = uuid.UUID(bytes=hashlib.md5(placeholder).digest(), version=3)  # noqa: S324
        words = (placeholder.decode(errors="replace"), str(name))
        return (F.size(elements) == 1) & F.get(elements, F.lit(0)).isin(*words)
    if items.type in _INTEGERS:
        return elements.cast("array<string>") == F.array(*(F.lit(str(one)) for one in placeholder))
    return None

"""A typed value → the derived table's column: of its type, hashed, or as it is.

Records of older and newer schemas stand in one run, so what doesn't fit is found value by value.
"""

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.schema import Column
from sinks.changes.shape import Field
from sinks.changes.types import spark_type
from sinks.changes.widening import holds
from sinks.debezium.values import refused

_DECIMAL = "decimal"


def fitted(value: SparkColumn, own: Column, field: Field, salt: str) -> SparkColumn:
    """A value of its record's ``own`` column as one of the field's; raises where it doesn't fit."""
    kind = spark_type(own)
    if field.hashed:
        return F.sha2(F.concat(F.lit(salt), _text(value, kind)), 256)
    if kind == field.type:
        return value
    if holds(field.type, kind):
        return value.cast(field.type)
    made = _converted(value, kind, field.type)
    return made if field.unfit_is_null else F.coalesce(made, refused(own, value, field.type))


def _text(value: SparkColumn, kind: str) -> SparkColumn:
    if kind == "binary":
        return F.base64(value)
    return F.to_json(value) if kind.startswith("array") else value.cast("string")


def _converted(value: SparkColumn, kind: str, to: str) -> SparkColumn:
    """By way of its text, which has to be one of the other type's: nothing is rounded."""
    text = _text(value, kind)
    if to == "string":
        return text
    if kind.startswith("array") or to.startswith("array"):
        both = kind.startswith("array") and to.startswith("array")
        return value.try_cast(to) if both else F.lit(None).cast(to)
    made = text.try_cast(to)
    if not to.startswith(_DECIMAL):
        return made
    if kind in {"float", "double"}:
        return F.when(made.cast(kind) == value, made)
    digits = F.regexp_extract(text, r"\.(\d*?)0*$", 1)
    return F.when(F.length(digits) <= int(to.rpartition(",")[2].removesuffix(")")), made)

"""A value in Debezium's form → the column's Spark value.

sinks/changes/types.py then reads a value that has Millrace's own form, or gets it by a
multiplication. So one module decides what the lakehouse can store. Numbers need no conversion to
text.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.records.connect import DECIMAL, Schema, Type
from cdc.records.schema import DECIMAL_DIGITS_MAX, Column
from cdc.settings.modes import ValueModes
from sinks.changes.types import from_text, refuse, refused, spark_type
from sinks.debezium.decimals import bound, to_decimal, to_text
from sinks.debezium.decoders import ValueDecoder
from sinks.debezium.forms import BITS, VARIABLE, is_array, is_known

_DAY_US: Final = 86_400_000_000
_SPECIAL: Final = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}
_STRUCTURED: Final = frozenset({Type.STRUCT, Type.MAP, Type.ARRAY})
_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."


def typed(
    column: Column,
    schema: Schema,
    decoder: ValueDecoder,
    value: SparkColumn,
    modes: ValueModes,
    *,
    unfit_is_null: bool = False,
) -> SparkColumn:
    """Return the typed value of a record's member.

    One that doesn't fit raises in Spark, or is null.
    """
    if not is_array(schema):
        return _single(column, schema, decoder, value, modes, unfit_is_null)
    element = column.model_copy(update={"array": False})
    values = F.transform(
        decoder.elements(value),
        lambda item: _single(element, schema.of_items(), decoder, item, modes, unfit_is_null),
    )
    return _or_refused(values, column, value, unfit_is_null)


def typed_masked(
    column: Column, schema: Schema, decoder: ValueDecoder, value: SparkColumn, modes: ValueModes
) -> SparkColumn:
    """Return the typed value of a masked member, which no message may show."""
    made = typed(column, schema, decoder, value, modes, unfit_is_null=True)
    lost = value.isNotNull() & made.isNull()
    if is_array(schema):
        lost |= _nulls(made) > _nulls(decoder.elements(value))
    kind = spark_type(column)
    message = f"masked column {column.name} ({column.declared}) has a value that isn't"
    return F.coalesce(refuse(lost, F.lit(f"{message} {kind} in the lakehouse"), kind), made)


def _nulls(elements: SparkColumn) -> SparkColumn:
    return F.size(F.filter(elements, lambda item: item.isNull()))


def _single(
    column: Column,
    schema: Schema,
    decoder: ValueDecoder,
    value: SparkColumn,
    modes: ValueModes,
    unfit_is_null: bool,
) -> SparkColumn:
    if schema.name in {DECIMAL, VARIABLE}:
        return _or_refused(_number(column, schema, decoder, value), column, value, unfit_is_null)
    convert = _OF_NAME.get(schema.name or "")
    kind = spark_type(column)
    if convert is not None:
        # Microseconds, whatever the column was declared as.
        micro = column.model_copy(update={"modifier": -1})
        made = from_text(micro, convert(value), kind, unfit_is_null=unfit_is_null)
        return _or_refused(made, column, value, unfit_is_null)
    if kind == "binary":
        made = _bytes(schema, decoder, value, modes)
        return _or_refused(made, column, value, unfit_is_null)
    if kind != "string":
        return from_text(column, value, kind, unfit_is_null=unfit_is_null)
    return _text(column, schema, decoder, value, modes, unfit_is_null)


def _number(
    column: Column, schema: Schema, decoder: ValueDecoder, value: SparkColumn
) -> SparkColumn:
    """Return a Decimal, or one with its own scale, as a decimal or as exact text."""
    kind = spark_type(column)
    scale = int((schema.parameters or {}).get("scale", 0))
    if schema.name == VARIABLE:
        made = bound(
            decoder.scaled(value, schema), lambda number: to_text(number["value"], number["scale"])
        )
    elif decoder.is_decimal(schema):
        number = value.try_cast(f"decimal({DECIMAL_DIGITS_MAX},{scale})")
        made = number.cast("string") if kind == "string" else number
    elif kind == "string" or not 0 <= scale <= DECIMAL_DIGITS_MAX:
        made = to_text(decoder.binary(value), F.lit(scale))
    else:
        digits = _precision(schema)
        made = to_decimal(decoder.binary(value), max(digits, scale), scale)
    return made.try_cast(kind)


def _precision(schema: Schema) -> int:
    digits = int((schema.parameters or {}).get("connect.decimal.precision", DECIMAL_DIGITS_MAX))
    return min(digits, DECIMAL_DIGITS_MAX)


def _bytes(
    schema: Schema, decoder: ValueDecoder, value: SparkColumn, modes: ValueModes
) -> SparkColumn:
    """Return bytes. A string has the form of ``binary.handling.mode``."""
    if schema.type is not Type.STRING:
        return decoder.binary(value)
    if modes.binary == "hex":
        return F.try_to_binary(value, F.lit("hex"))
    if modes.binary == "base64-url-safe":
        value = F.translate(value, "-_", "+/")
    return F.try_to_binary(value, F.lit("base64"))


def _text(
    column: Column,
    schema: Schema,
    decoder: ValueDecoder,
    value: SparkColumn,
    modes: ValueModes,
    unfit_is_null: bool,
) -> SparkColumn:
    """Return a value that is text in the lakehouse."""
    if schema.name == BITS:
        made = _bits(column, decoder.binary(value))
        return _or_refused(made, column, value, unfit_is_null)
    if schema.type in _STRUCTURED:
        return decoder.json(value, schema)
    if schema.type is Type.BOOLEAN and column.type == "bit":
        return value.cast("boolean").cast("int").cast("string")
    coded = schema.type is Type.BYTES or (modes.binary != "bytes" and not is_known(column.type))
    if coded and schema.type in {Type.BYTES, Type.STRING}:
        text = F.decode(_bytes(schema, decoder, value, modes), "UTF-8")
        return _or_refused(text, column, value, unfit_is_null)
    if column.type == "numeric":
        words = F.create_map(*(F.lit(word) for pair in _SPECIAL.items() for word in pair))
        return F.coalesce(words[value], decoder.text(value))
    return decoder.text(value)


def _bits(column: Column, value: SparkColumn) -> SparkColumn:
    """Little-endian bytes without leading zeros → the column's number of bits, as text.

    Null if there are more.
    """
    length = max(column.modifier, 1)
    eights = F.transform(
        F.sequence(F.length(value), F.lit(1), F.lit(-1)),
        lambda index: F.lpad(F.conv(F.hex(F.substr(value, index, F.lit(1))), 16, 2), 8, F.lit("0")),
    )
    bits = F.when(F.length(value) > 0, F.concat_ws("", eights)).otherwise(F.lit(""))
    wide = F.concat(F.lit("0" * length), bits)
    fits = ~F.substr(wide, F.lit(1), F.length(wide) - length).contains("1")
    return F.when(value.isNotNull() & fits, F.right(wide, F.lit(length)))


def _whole(value: SparkColumn) -> SparkColumn:
    return value.try_cast("bigint")


def _from_ms(value: SparkColumn) -> SparkColumn:
    return F.try_multiply(_whole(value), F.lit(1_000).cast("bigint"))


def _from_ns(value: SparkColumn) -> SparkColumn:
    """Convert ns. PostgreSQL has no finer unit than µs, so nothing is lost."""
    return F.call_function("div", _whole(value), F.lit(1_000).cast("bigint"))


def _from_iso_date(value: SparkColumn) -> SparkColumn:
    return F.unix_date(F.rtrim(value, F.lit("Z")).try_cast("date"))


def _from_iso_time(value: SparkColumn) -> SparkColumn:
    parsed = F.unix_micros(F.concat(F.lit("1970-01-01T"), value).try_cast("timestamp"))
    return F.when(value.startswith("24:00:00"), F.lit(_DAY_US)).otherwise(parsed)


def _from_iso_timestamp(value: SparkColumn) -> SparkColumn:
    return F.unix_micros(value.try_cast("timestamp"))


_OF_NAME: Final[dict[str, Callable[[SparkColumn], SparkColumn]]] = {
    f"{_TIME}Date": _whole,
    f"{_CONNECT}Date": _whole,
    f"{_TIME}IsoDate": _from_iso_date,
    f"{_TIME}Time": _from_ms,
    f"{_CONNECT}Time": _from_ms,
    f"{_TIME}MicroTime": _whole,
    f"{_TIME}NanoTime": _from_ns,
    f"{_TIME}IsoTime": _from_iso_time,
    f"{_TIME}Timestamp": _from_ms,
    f"{_CONNECT}Timestamp": _from_ms,
    f"{_TIME}MicroTimestamp": _whole,
    f"{_TIME}NanoTimestamp": _from_ns,
    f"{_TIME}IsoTimestamp": _from_iso_timestamp,
}
"""Dates and times → the input of sinks/changes/types.py: days or µs."""


def _or_refused(
    made: SparkColumn, column: Column, value: SparkColumn, unfit_is_null: bool
) -> SparkColumn:
    """Return the typed value. End the job if a value exists without a typed one."""
    kind = spark_type(column)
    return made if unfit_is_null else F.coalesce(made, refused(column, value, kind))

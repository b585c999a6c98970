"""A column's PostgreSQL type → its Spark type, and the record's text of a value → that type.

The record has Debezium's form of a value (docs/decisions/0003-state-topics.md). A value that Spark
can't hold is never changed silently. A whole column becomes text if its declaration requires that
(numeric without a precision or above 38 digits). A single value raises an error with column and
value: NaN or infinity in a decimal, a date or timestamp outside the years 1 to 9999. The user can
choose another type, or null, instead.

- bool, int2, int4, int8, oid → boolean, smallint, int, bigint, bigint
- float4, float8 → float, double (including NaN and infinity)
- numeric(p,s) of at most 38 digits → decimal(p,s); a negative scale is folded into p
- date, timestamp, timestamptz → date, timestamp_ntz, timestamp
- time → bigint: µs since midnight, whatever the declared precision
- bytea → binary; also bits, if a real Debezium doesn't show their number
- an array of these → array; of more than one dimension: refused, or JSON text inside an array of
  strings
- everything else → string
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.records.schema import Column
from sinks.spark.errors import REFUSED
from sinks.spark.jvm import timestamp_of

_INTEGERS: Final = {"smallint": 5, "int": 10, "bigint": 20}
"""Decimal digits that Delta requires. For a bigint, one more than it has."""
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_DAYS: Final = (-719_162, 2_932_896)
_MICROS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_FOLDER_BYTES_MAX: Final = 255
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_MAPPED_NAME_BYTES: Final = len("col-6f1cf55c-2d67-4a7c-9f5c-0f3d8a1d2b3c=")
"""A name of the form that Delta may give a column instead of its own."""
_ESCAPED_IN_FOLDERS: Final = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
"""Characters that Spark writes as %XX."""
FIXED_SIZE: Final = frozenset({
    "bool", "char", "cid", "date", "enum", "float4", "float8", "int2", "int4", "int8", "interval",
    "macaddr", "macaddr8", "money", "name", "oid", "pg_lsn", "point", "time", "timestamp",
    "timestamptz", "timetz", "tid", "uuid", "xid", "xid8",
})  # fmt: skip
"""Types whose values are never TOASTed, and so never absent from a record."""
_PLAIN: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "oid": "bigint",
    "float4": "float",
    "float8": "double",
}
_OTHER: Final = {
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "time": "bigint",
    "bytea": "binary",
    "bits": "binary",
}
_IN_JSON: Final = {
    "bool": "boolean",
    **dict.fromkeys(("int2", "int4", "int8", "oid", "date", "time", "timestamp"), "bigint"),
    **dict.fromkeys(("float4", "float8"), "double"),
}
"""Types whose values aren't strings in JSON (docs/reference/types.md)."""


class _Digits(NamedTuple):
    """The digits of a decimal, and those after its point."""

    precision: int
    scale: int


def holds(kind: str, other: str) -> bool:
    """Whether every value of the ``other`` type is also one of ``kind``."""
    return kind == other or widens(other, kind)


def widens(kind: str, to: str) -> bool:
    """Whether Delta can change a column of ``kind`` to the type ``to`` without rewriting files."""
    if kind in _INTEGERS:
        return _integer_widens(kind, to)
    if (decimal := _decimal_of(kind)) is not None:
        wider = _decimal_of(to)
        if wider is None or kind == to:
            return False
        digits, places = wider.precision - decimal.precision, wider.scale - decimal.scale
        return digits >= places >= 0
    return (kind, to) in {("float", "double"), ("date", "timestamp_ntz")}


def _integer_widens(kind: str, to: str) -> bool:
    if to in _INTEGERS:
        return _INTEGERS[to] > _INTEGERS[kind]
    decimal = _decimal_of(to)
    if decimal is not None:
        return decimal.precision - decimal.scale >= _INTEGERS[kind]
    return to == "double" and kind != "bigint"


def _decimal_of(kind: str) -> _Digits | None:
    match = _DECIMAL.fullmatch(kind)
    return _Digits(int(match[1]), int(match[2])) if match else None


def spark_type(column: Column) -> str:
    """Return the column's type, in Spark's words."""
    element = _element_type(column)
    return f"array<{element}>" if column.array else element


def json_type(column: Column, kind: str) -> str:
    """Return the type with which to read values of ``kind`` from JSON."""
    if column.array:
        return "array<string>"
    return _IN_JSON.get(column.type, "string") if kind == spark_type(column) else "string"


def is_as_in_json(column: Column, kind: str) -> bool:
    """Whether a value read as the column's ``json_type`` is one of ``kind`` without conversion."""
    is_read = json_type(column, kind) == kind == spark_type(column)
    return is_read and column.type not in _CONVERT


def from_text(
    column: Column,
    value: SparkColumn,
    kind: str,
    *,
    read: bool = False,
    unfit_is_null: bool = False,
) -> SparkColumn:
    """Convert a record's value to ``kind``. One that doesn't fit raises in Spark, or is null.

    ``value`` is text, or of the column's ``json_type`` if it was ``read`` as such.
    """
    element = kind.removeprefix("array<").removesuffix(">")
    if not column.array:
        return _checked(column, value, element, unfit_is_null=unfit_is_null)
    elements = value if read else F.from_json(value, "array<string>")
    if element != "string" or _element_type(column) != "string":
        elements = F.transform(
            elements, lambda item: _checked(column, item, element, unfit_is_null=unfit_is_null)
        )
    return elements if read or unfit_is_null else F.coalesce(elements, refused(column, value, kind))


def partition_value(
    column: Column, value: SparkColumn, kind: str, *, unfit_is_null: bool
) -> SparkColumn:
    """Return a value that partitions the table, and so has its own folder.

    Delta reads some texts back as null, and file systems refuse a name of more than 255 bytes.
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization
    """
    if kind != "string":
        return value
    name_bytes = len(re.sub(_ESCAPED_IN_FOLDERS, "%00", f"{column.name}=").encode())
    value_bytes = F.octet_length(F.regexp_replace(value, _ESCAPED_IN_FOLDERS, "%00"))
    too_long = value_bytes > _FOLDER_BYTES_MAX - max(_MAPPED_NAME_BYTES, name_bytes)
    is_null_there = value.isin("", _NULL_FOLDER)
    if unfit_is_null:
        return F.when(~is_null_there & ~too_long, value)
    what = (
        F.when(value == "", "an empty text")
        .when(is_null_there, f"the text {_NULL_FOLDER}")
        .otherwise("a text as long as no folder's name")
    )
    lead = f"column {column.name} ({column.declared}) has "
    message = F.concat(F.lit(lead), what, F.lit(", which can't partition"))
    return F.coalesce(refuse(is_null_there | too_long, message, kind), value)


def can_be_absent(column: Column) -> bool:
    """Whether PostgreSQL may leave an unchanged value of the column out of an update."""
    return column.key is None and (column.array or column.type not in FIXED_SIZE)


def refuse(condition: SparkColumn, message: SparkColumn, kind: str) -> SparkColumn:
    """Return null of the type ``kind``, or end the job with a message if the condition holds."""
    return F.when(condition, F.raise_error(F.concat(F.lit(REFUSED), message)).cast(kind))


def refused(column: Column, value: SparkColumn, kind: str) -> SparkColumn:
    """Return null of the type ``kind``, or end the job for a value that doesn't fit."""
    message = F.concat(
        F.lit(f"column {column.name} ({column.declared}) can't hold "),
        F.substring(value.cast("string"), 1, 80),
        F.lit(f" as {kind}"),
    )
    return refuse(value.isNotNull(), message, kind)


def fraction_fits(text: SparkColumn, kind: str) -> SparkColumn:
    """Whether a decimal needs no rounding, as Spark's cast rounds silently."""
    scale = int(kind.rpartition(",")[2].removesuffix(")"))
    return F.length(F.regexp_extract(text, r"\.(\d*?)0*$", 1)) <= scale


def _element_type(column: Column) -> str:
    if column.type == "numeric":
        decimal = _decimal(column)
        return "string" if decimal is None else f"decimal({decimal.precision},{decimal.scale})"
    return (_PLAIN | _OTHER).get(column.type, "string")


def _decimal(column: Column) -> _Digits | None:
    digits = column.decimal_digits
    return _Digits(*digits) if digits and column.is_decimal else None


def _checked(column: Column, text: SparkColumn, kind: str, *, unfit_is_null: bool) -> SparkColumn:
    own = _element_type(column)
    convert = _CONVERT.get(column.type)
    if kind == own == "string":
        return text
    if convert is None:
        value = text if kind == "string" else text.try_cast(kind)
    else:
        value = convert(column, text)
        value = value if kind == own else value.try_cast(kind)
    if kind.startswith("decimal") and kind != own:
        value = F.when(fraction_fits(text, kind), value)
    return value if unfit_is_null else F.coalesce(value, refused(column, text, kind))


def _within(value: SparkColumn, bounds: tuple[int, int]) -> SparkColumn:
    return F.when(value.between(*bounds), value)


def _date(_column: Column, text: SparkColumn) -> SparkColumn:
    return F.date_from_unix_date(_within(text.try_cast("int"), _DAYS))


def _timestamp(column: Column, text: SparkColumn) -> SparkColumn:
    """Read Debezium's Timestamp (ms) up to three fractional digits, else MicroTimestamp."""
    number = text.try_cast("bigint")
    if column.time_precision <= 3:
        low, high = _MICROS
        number = _within(number, (low // 1000, high // 1000)) * 1000
    return F.timestamp_micros(_within(number, _MICROS)).cast("timestamp_ntz")


def _timestamptz(_column: Column, text: SparkColumn) -> SparkColumn:
    value = timestamp_of(text)
    low, high = (F.timestamp_micros(F.lit(bound)) for bound in _MICROS)
    return F.when(value.between(low, high), value)


def _time(column: Column, text: SparkColumn) -> SparkColumn:
    """Read Debezium's Time (ms) up to three fractional digits, else MicroTime."""
    number = text.try_cast("bigint")
    return number * 1000 if column.time_precision <= 3 else number


def _bytes(_column: Column, text: SparkColumn) -> SparkColumn:
    return F.try_to_binary(text, F.lit("base64"))


_CONVERT: Final[dict[str, Callable[[Column, SparkColumn], SparkColumn]]] = {
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "time": _time,
    "bytea": _bytes,
}

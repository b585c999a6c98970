"""A derived column → how its values are compared, on both sides.

The source's side is PostgreSQL's own text (UTC, ISO, shortest digits of floats), read by
``cdc.compiled.digests``. The derived side is Spark's ``xxhash64`` of the table's values. If a type
holds less than the text, both sides use what it can hold: docs/guides/verify.md.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.compiled.digests import Digests, hash_of
from cdc.records.schema import Column
from compaction.verify.arrays import Element, Nested, elements
from sinks.changes.names import quoted
from sinks.changes.shape import DerivedField, TableShape
from sinks.changes.types import spark_type

TextConvert = Callable[[bytes], bytes | int | None]
"""A value's text at the source → the text or number that is compared, or null."""
Compared = Callable[[SparkColumn], SparkColumn]
"""A value in a derived table → the value that is hashed."""
_NULLS_AT_ONCE: Final = 63
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_SEED: Final = 42
_LONG_DIGITS: Final = 18
"""A decimal of up to this many digits is hashed as a number."""
_INTEGERS: Final = frozenset({"smallint", "int", "bigint"})
_PLAIN_TEXT: Final = frozenset({"text", "varchar", "bpchar", "citext", "name", "uuid", "enum"})
"""Masks hash PostgreSQL's text of these types, and of integers and numerics."""
_OFFSET: Final = re.compile(rb"(.*[+-]\d\d)(:\d\d(?::\d\d)?)?", re.DOTALL)


class Kind(IntEnum):
    """The type as which a text at the source is read."""

    TEXT = 0
    INTEGER = 1
    BOOLEAN = 2
    FLOAT = 3
    DOUBLE = 4
    DECIMAL = 5
    NUMBER = 6
    DATE = 7
    TIMESTAMP = 8
    TIME = 9
    BYTES = 10
    CONVERTED = 11
    NOTHING = 12
    ARRAY = 16
    """Added to the kind of the elements."""


class Rule(NamedTuple):
    """How a column's values are compared. With ``unfit``, values that don't fit are null."""

    kind: int
    compared: Compared
    scale: int = 0
    convert: TextConvert | None = None
    unfit: bool = False
    is_masked: bool = False


class ComparedColumn(NamedTuple):
    """A compared column: its name at the source, its name here, and its rule."""

    source: str
    name: str
    rule: Rule
    is_optional: bool = False


class ComparedTable(NamedTuple):
    """The compared columns of a table, the places of its ``key``, and the columns left out.

    ``left_out`` has the reason why a column can't be compared, by its name here.
    """

    columns: tuple[ComparedColumn, ...]
    key: tuple[int, ...]
    left_out: dict[str, str]

    @property
    def is_keyed(self) -> bool:
        """Whether the derived table's key is enough to read a row at the source."""
        columns = [self.columns[place] for place in self.key]
        return bool(columns) and not any(
            column.is_optional
            or column.rule.is_masked
            or column.rule.kind in {Kind.CONVERTED, Kind.TIME}
            or column.rule.kind >= Kind.ARRAY
            for column in columns
        )

    def digests(self, group_bits: int = 0, *, keeps_columns: bool = False) -> Digests:
        """Return new digests for the source's rows."""
        rules = [column.rule for column in self.columns]
        return Digests(
            [rule.kind for rule in rules],
            [rule.scale for rule in rules],
            [rule.unfit for rule in rules],
            [rule.convert for rule in rules],
            self.key,
            group_bits,
            keeps_columns,
        )

    def row_hash(self) -> SparkColumn:
        """Return the hash of a derived row."""
        return _hash(self.columns)

    def key_hash(self) -> SparkColumn:
        """Return the hash of a derived row's key, or of the row if the table has no key."""
        return _hash([self.columns[place] for place in self.key]) if self.key else self.row_hash()

    def column_hashes(self) -> list[SparkColumn]:
        """Return the hash of each of a derived row's values. A null has null."""
        return [F.when(value.isNotNull(), F.xxhash64(value)) for value in map(_value, self.columns)]


def compared_table(shape: TableShape, not_compared: Mapping[str, str]) -> ComparedTable:
    """Return the columns to compare, in the source's order, and why others aren't compared."""
    columns, left_out = list[ComparedColumn](), dict[str, str]()
    for field in shape.fields:
        rule = not_compared.get(field.name) or rule_of(field, shape.salt)
        if isinstance(rule, str):
            left_out[field.name] = rule
        else:
            columns.append(
                ComparedColumn(field.column.name, field.name, rule, field.column.optional)
            )
    places = {column.name: place for place, column in enumerate(columns)}
    if lost := [name for name in shape.keys if name in left_out]:
        return ComparedTable((), (), {name: left_out[name] for name in lost})
    return ComparedTable(tuple(columns), tuple(places[name] for name in shape.keys), left_out)


def rule_of(field: DerivedField, salt: str) -> Rule | str:
    """Return how a column is compared, or why it can't be."""
    if field.nulled:
        return Rule(Kind.NOTHING, lambda value: value.cast("string"))
    if field.hashed:
        return _hashed(field.column, salt)
    if field.column.array:
        return _of_array(field)
    if field.unfit_is_null and field.partitions and field.type == "string":
        return "texts that can't partition a table are null"
    natural = spark_type(field.column)
    if field.unfit_is_null and field.type not in {natural, "string"}:
        return "values that don't fit its type are null"
    rule = _of_scalar(field.column, natural, field.type)
    return rule._replace(unfit=field.unfit_is_null) if isinstance(rule, Rule) else rule


def _hash(columns: Sequence[ComparedColumn]) -> SparkColumn:
    """Hash as ``Digests`` does: the values, and after every 63 of them, which ones are null."""
    parts = list[SparkColumn]()
    for start in range(0, len(columns), _NULLS_AT_ONCE):
        values = [_value(column) for column in columns[start : start + _NULLS_AT_ONCE]]
        parts += values
        nulls = F.lit(0).cast("bigint")
        for bit, value in enumerate(values):
            nulls += F.when(value.isNull(), F.lit(1 << bit)).otherwise(F.lit(0)).cast("bigint")
        parts.append(nulls)
    return F.xxhash64(*parts)


def _value(column: ComparedColumn) -> SparkColumn:
    return column.rule.compared(F.col(quoted(column.name)))


def _as_it_is(value: SparkColumn) -> SparkColumn:
    return value


def _cast(kind: str) -> Compared:
    return lambda value: value.try_cast(kind)


def _without_zeros(value: SparkColumn) -> SparkColumn:
    """Return a decimal's text without zeros at its end."""
    text = value.cast("string")
    short = F.rtrim(F.rtrim(text, F.lit("0")), F.lit("."))
    return F.when(text.contains("."), short).otherwise(text)


def _days(value: SparkColumn) -> SparkColumn:
    return F.unix_date(value.try_cast("date")).cast("bigint")


def _micros(kind: str) -> Compared:
    """Return µs since 1970 in UTC, which is the session's zone."""
    return lambda value: F.unix_micros(value.try_cast(kind).cast("timestamp"))


def _of_scalar(column: Column, natural: str, kind: str) -> Rule | str:
    """Return a rule for a type at the source and one here."""
    build = _BY_TYPE.get(natural if natural != "bigint" else column.type, _of_text)
    if natural.startswith("decimal"):
        build = _of_numeric
    elif natural in _INTEGERS and column.type != "time":
        build = _of_integer
    rule = build(column, kind)
    if rule is not None and kind == "string" and rule.compared is not _as_it_is:
        rule = rule._replace(compared=partial(_or_its_hash, rule.compared))
    return rule or f"a {column.declared} as {kind} can't be compared"


def _or_its_hash(compared: Compared, value: SparkColumn) -> SparkColumn:
    """Return the compared value, or a hash for an unreadable text, which equals nothing."""
    return F.coalesce(compared(value), F.when(value.isNotNull(), F.xxhash64(value)))


def _of_integer(column: Column, kind: str) -> Rule | None:
    if kind in _INTEGERS or kind == "string":
        return Rule(Kind.INTEGER, _cast("bigint"))
    return _of_numeric(column, kind)


def _of_numeric(_column: Column, kind: str) -> Rule | None:
    if (decimal := _DECIMAL.fullmatch(kind)) is not None:
        if int(decimal[1]) <= _LONG_DIGITS:
            return Rule(Kind.DECIMAL, _as_it_is, scale=int(decimal[2]))
        return Rule(Kind.NUMBER, _without_zeros)
    if kind in _INTEGERS:
        return Rule(Kind.NUMBER, _cast("string"))
    if kind == "double":
        return Rule(Kind.DOUBLE, _as_it_is)
    return Rule(Kind.TEXT, _as_it_is) if kind == "string" else None


def _of_boolean(_column: Column, kind: str) -> Rule | None:
    if kind not in {"boolean", "string"}:
        return None
    return Rule(Kind.BOOLEAN, lambda value: value.try_cast("boolean").cast("bigint"))


def _of_float(_column: Column, kind: str) -> Rule | None:
    if kind == "double":
        return Rule(Kind.DOUBLE, _as_it_is)
    if kind in {"float", "string"}:
        return Rule(Kind.FLOAT, lambda value: value.try_cast("float").cast("double"))
    return None


def _of_double(_column: Column, kind: str) -> Rule | None:
    return Rule(Kind.DOUBLE, _cast("double")) if kind in {"double", "string"} else None


def _days_at_midnight(value: SparkColumn) -> SparkColumn:
    """Return the day of a timestamp without a time of day."""
    day = value.cast("date")
    is_midnight = day.cast("timestamp_ntz") == value
    return F.when(is_midnight, _days(value)).otherwise(_micros("timestamp_ntz")(value))


def _of_date(_column: Column, kind: str) -> Rule | None:
    if kind == "timestamp_ntz":
        return Rule(Kind.DATE, _days_at_midnight)
    return Rule(Kind.DATE, _days) if kind in {"date", "string"} else None


def _of_timestamp(_column: Column, kind: str) -> Rule | None:
    is_fit = kind in {"timestamp_ntz", "string"}
    return Rule(Kind.TIMESTAMP, _micros("timestamp_ntz")) if is_fit else None


def _of_timestamptz(_column: Column, kind: str) -> Rule | None:
    is_fit = kind in {"timestamp", "string"}
    return Rule(Kind.TIMESTAMP, _micros("timestamp")) if is_fit else None


def _of_time(_column: Column, kind: str) -> Rule | None:
    return Rule(Kind.TIME, _cast("bigint")) if kind in {"bigint", "string"} else None


def _of_bytes(_column: Column, kind: str) -> Rule | None:
    return Rule(Kind.BYTES, _as_it_is) if kind == "binary" else None


def _of_text(column: Column, kind: str) -> Rule | None:
    if kind == "string":
        convert = _CONVERTED.get(column.type)
        return Rule(Kind.CONVERTED if convert else Kind.TEXT, _as_it_is, convert=convert)
    if column.type == "numeric":
        return _of_numeric(column, kind)
    return None


_BY_TYPE: Final[dict[str, Callable[[Column, str], Rule | None]]] = {
    "boolean": _of_boolean,
    "float": _of_float,
    "double": _of_double,
    "date": _of_date,
    "timestamp_ntz": _of_timestamp,
    "timestamp": _of_timestamptz,
    "time": _of_time,
    "binary": _of_bytes,
}
"""A column's usual type here → its rule. For a time, it is the type at the source."""


def _timetz(text: bytes) -> bytes:
    """Return ``13:14:15+02`` as ``13:14:15+02:00``, in UTC with a Z."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        return text
    if match[2] is not None:
        return text
    return text[:-3] + b"Z" if text.endswith(b"+00") else text + b":00"


def _money(text: bytes) -> bytes:
    """Return ``-$1,234.50`` as ``-1234.50``."""
    return text.replace(b"$", b"").replace(b",", b"")


_CONVERTED: Final[dict[str, TextConvert]] = {"timetz": _timetz, "money": _money}
"""Types whose text in the log differs from PostgreSQL's."""


def _hashed(column: Column, salt: str) -> Rule | str:
    """Return the rule for a mask's hash of the salt and the text."""
    natural = spark_type(column)
    is_text = column.type in _PLAIN_TEXT or column.type == "numeric"
    if column.array or not (is_text or (natural in _INTEGERS and column.type != "time")):
        return f"the hash of a {column.declared} can't be compared"

    def convert(text: bytes) -> bytes:
        return hashlib.sha256(salt.encode() + text).hexdigest().encode()

    return Rule(Kind.CONVERTED, _as_it_is, convert=convert, is_masked=True)


def _of_array(field: DerivedField) -> Rule | str:
    """Return the rule for an array: it hashes the elements in their order."""
    column, element = field.column, field.type.removeprefix("array<").removesuffix(">")
    natural = spark_type(column).removeprefix("array<").removesuffix(">")
    rule = _of_scalar(column, natural, element)
    if isinstance(rule, str):
        return rule
    if field.unfit_is_null:
        return "elements that don't fit are null"

    def compared(value: SparkColumn) -> SparkColumn:
        items = value if rule.compared is _as_it_is else F.transform(value, rule.compared)
        mark = F.transform(value, lambda item: F.when(item.isNull(), "N").otherwise("."))
        has_null = F.exists(value, lambda item: item.isNull())
        nulls = F.when(has_null, F.array_join(mark, ""))
        hashed = F.xxhash64(items, F.size(value).cast("bigint"), nulls)
        return F.when(value.isNotNull(), hashed)

    convert = partial(_array, rule, column.delimiter or ",")
    if rule.kind == Kind.CONVERTED or (column.delimiter or ",") != ",":
        return Rule(Kind.CONVERTED, compared, convert=convert)
    return Rule(Kind.ARRAY + rule.kind, compared, scale=rule.scale, convert=convert)


def _array(rule: Rule, delimiter: str, text: bytes) -> bytes | int:
    """Hash any array as ``Digests`` does. One with explicit bounds equals nothing."""
    try:
        items = elements(text.decode(), delimiter)
    except ValueError:
        return b"?" + text
    hashed = _SEED
    for item in items:
        if item is not None:
            kind = Kind.TEXT if rule.convert else rule.kind
            hashed = hash_of(kind, rule.scale, _element(rule, item), hashed)
    hashed = hash_of(Kind.INTEGER, 0, str(len(items)).encode(), hashed)
    if None in items:
        nulls = "".join("N" if item is None else "." for item in items)
        hashed = hash_of(Kind.TEXT, 0, nulls.encode(), hashed)
    return hashed


def _element(rule: Rule, item: str | Nested) -> bytes:
    """Return an element's text. For an array, it is JSON."""
    plain = _plain(rule, item)
    if isinstance(plain, str):
        return plain.encode()
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(rule: Rule, item: Element) -> Element:
    """Return the element with each text in the log's form."""
    if isinstance(item, list):
        return [_plain(rule, each) for each in item]
    if item is None or rule.convert is None:
        return item
    converted = rule.convert(item.encode())
    return converted.decode() if isinstance(converted, bytes) else item

r"""A slice → the rows in it, by the same hash of the key at the source, in Spark and in Python.

The hash is the first 16 hexadecimal digits of md5 of the key's texts, as PostgreSQL prints them,
joined by \x1f. A slice is a range of hashes. All slices have the same size.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from psycopg import sql
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import ConfigError
from cdc.records.schema import Column
from sinks.changes.names import quoted
from sinks.changes.shape import DerivedField, TableShape
from sinks.changes.types import spark_type

SLICES_MAX: Final = 100_000
_SLICE: Final = re.compile(r"(\d{1,6})/(\d{1,6})")
_SEPARATOR: Final = "\x1f"
_DIGITS: Final = 16
_PLAIN_SCALE_MAX: Final = 6
"""Spark writes a decimal with more digits after the point as 1E-7."""
_INTEGERS: Final = frozenset({"smallint", "int", "bigint"})
_OTHER_TEXTS: Final = frozenset({"time", "timetz", "money"})
"""The log's text of these types differs from PostgreSQL's."""
TextHere = Callable[[SparkColumn], SparkColumn]
"""A value in a derived table → the text that PostgreSQL prints of it."""


class Slice(NamedTuple):
    """The ``number``-th slice, from 1, of a number of slices."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """Read ``3/7``. Raise ConfigError for anything else."""
        match = _SLICE.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= SLICES_MAX:
            raise ConfigError(
                f"{text} isn't a slice",
                where="--slice",
                remedy=f"write it as 3/7: the third of seven, of {SLICES_MAX} at most",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def bounds(self) -> tuple[str, str | None]:
        """Return the first hash in the slice, and the first one after it. None: there is none."""
        whole = 1 << (4 * _DIGITS)
        first, end = (-(-number * whole // self.of) for number in (self.number - 1, self.number))
        return f"{first:016x}", None if self.number == self.of else f"{end:016x}"

    def holds(self, texts: Sequence[str | None]) -> bool:
        """Whether a key with these texts is in the slice."""
        joined = _SEPARATOR.join(text for text in texts if text is not None)
        digest = hashlib.md5(joined.encode("utf-8", "surrogatepass"), usedforsecurity=False)
        first, end = self.bounds
        hashed = digest.hexdigest()[:_DIGITS]
        return first <= hashed and (end is None or hashed < end)

    def has(self, texts: Sequence[SparkColumn]) -> SparkColumn:
        """Return the same condition in Spark."""
        joined = F.concat_ws(_SEPARATOR, *texts)
        hashed = F.substring(F.md5(joined.cast("binary")), 1, _DIGITS)
        first, end = self.bounds
        is_below = F.lit(True) if end is None else hashed < F.lit(end)
        return (hashed >= F.lit(first)) & is_below

    def at_source(self, columns: Sequence[str]) -> str:
        """Return it in SQL, of columns at the source: ``concat_ws`` prints values as COPY does."""
        names = ", ".join(sql.Identifier(name).as_string(None) for name in columns)
        joined = f"concat_ws(E'\\x1f', {names})"
        hashed = f"left(md5(convert_to({joined}, 'UTF8')), {_DIGITS}) COLLATE \"C\""
        first, end = self.bounds
        is_below = "" if end is None else f" AND {hashed} < '{end}'"
        return f"{hashed} >= '{first}'{is_below}"


class SlicedKeys(NamedTuple):
    """A table's rows in a slice, by the columns of its key: at the source, and the names here."""

    slice: Slice
    sources: tuple[str, ...]
    texts: Mapping[str, TextHere]

    def condition(self, column: Callable[[str], SparkColumn]) -> SparkColumn:
        """Return whether a row is in it. Null: its key has no value."""
        values = {name: column(name) for name in self.texts}
        is_known = F.coalesce(*(value.cast("string") for value in values.values())).isNotNull()
        return F.when(is_known, self.slice.has([self.texts[n](v) for n, v in values.items()]))

    def here(self) -> SparkColumn:
        """Return whether a derived row is in it."""
        texts = [text(F.col(quoted(name))) for name, text in self.texts.items()]
        return self.slice.has(texts)

    def at_source(self) -> str:
        """Return whether a row of the source is in it, in SQL."""
        return self.slice.at_source(self.sources)


def sliced_keys(slice_: Slice, shape: TableShape) -> SlicedKeys | str:
    """Return how a table is sliced, or why it can't be."""
    key = shape.versions[-1].key
    if not key:
        return "it has no key, so it can't be compared by slice"
    fields = {field.column.name: field for field in shape.fields}
    texts = dict[str, TextHere]()
    for column in key:
        field = fields.get(column.name)
        text = None if field is None else _text_of(field)
        if field is None or text is None:
            return f"its key can't be compared by slice: {column.name} has another text here"
        texts[field.name] = text
    return SlicedKeys(slice_, tuple(column.name for column in key), texts)


def _text_of(field: DerivedField) -> TextHere | None:
    """Return the function for PostgreSQL's text of a value.

    None: the table's value isn't enough.
    """
    column, natural = field.column, spark_type(field.column)
    is_hidden = field.hashed or field.nulled or field.unfit_is_null
    if is_hidden or column.array or column.type in _OTHER_TEXTS:
        return None
    if field.type == "string":
        is_text = natural in {"string", *_INTEGERS} or column.type == "numeric"
        return _as_string if is_text else None
    if natural in _INTEGERS and field.type in _INTEGERS:
        return _as_string
    if column.type == "numeric" and field.type.startswith("decimal"):
        return _of_decimal(column)
    return _TEXTS.get(natural) if field.type == natural else None


def _as_string(value: SparkColumn) -> SparkColumn:
    return value.cast("string")


def _of_decimal(column: Column) -> TextHere | None:
    """Return a function that keeps the source's number of digits after the point."""
    _, scale = column.precision_scale or (0, -1)
    if not 0 <= scale <= _PLAIN_SCALE_MAX:
        return None
    return partial(_with_scale, scale)


def _with_scale(scale: int, value: SparkColumn) -> SparkColumn:
    return value.cast(f"decimal(38,{scale})").cast("string")


def _of_boolean(value: SparkColumn) -> SparkColumn:
    return F.when(value, "t").when(~value, "f")


def _of_timestamptz(value: SparkColumn) -> SparkColumn:
    """Return it in UTC, which is also the session's zone."""
    return F.concat(value.cast("string"), F.lit("+00"))


def _of_bytes(value: SparkColumn) -> SparkColumn:
    return F.concat(F.lit("\\x"), F.lower(F.hex(value)))


_TEXTS: Final[Mapping[str, TextHere]] = {
    "boolean": _of_boolean,
    "date": _as_string,
    "timestamp_ntz": _as_string,
    "timestamp": _of_timestamptz,
    "binary": _of_bytes,
}
"""By a column's usual type here."""

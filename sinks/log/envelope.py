"""A derived table's columns → how their values are read from a record's JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.records.schema import Column
from sinks.changes.names import quoted
from sinks.changes.shape import DerivedField, TableShape
from sinks.changes.types import json_type, spark_type
from sinks.spark.jvm import texts

BROKEN: Final = "_millrace_broken"
"""The record's text if it isn't JSON of these types; else null."""
_MISSING: Final = "_millrace_missing"
_SOURCE: Final = "source struct<ts_us bigint, ts_ms bigint>"
_UNNAMED: Final = f"_millrace_unnamed_{'_' * 64}"
"""Longer than any name in PostgreSQL."""


@dataclass(frozen=True, slots=True)
class EnvelopeSchema:
    """How a table's rows are read. ``types`` are those of the struct, by the columns' names."""

    types: Mapping[str, str]
    places: Mapping[str, int]
    """The place of each column among them."""

    @classmethod
    def of(cls, shape: TableShape) -> "EnvelopeSchema":
        """Return the way to read the columns of a derived table."""
        types: dict[str, set[str]] = {}
        sources: set[tuple[int, str]] = set()
        for field in shape.fields:
            for number, column in field.sources.items():
                types.setdefault(column.name, set()).add(_type(field, column))
                sources.add((number, column.name))
        for version in shape.versions:
            for column in version.event_columns:  # another column had the name, or has it now
                if column.name in types and (version.version, column.name) not in sources:
                    types[column.name].add(json_type(column, spark_type(column)))
        return cls(
            {name: kinds.pop() if len(kinds) == 1 else "string" for name, kinds in types.items()},
            {name: place for place, name in enumerate(types)},
        )

    def schema(self, *, timed: bool, before: bool) -> str:
        """Return the type of a record's value, in the words of ``json_rows``."""
        row = f"struct<{', '.join([*self._fields(self.types), f'{_MISSING} array<int>'])}>"
        rows = [f"after {row}", *([f"before {row}"] if before else [])]
        return ", ".join(["op string", *rows, *([_SOURCE] if timed else []), f"{BROKEN} string"])

    def key_schema(self, columns: Iterable[Column]) -> str:
        """Return the type of a record's key. An archive may lack columns of it."""
        names = [column.name for column in columns if column.name in self.types]
        return ", ".join([*self._fields(names), f"{BROKEN} string"])

    def value(self, row: SparkColumn, column: Column) -> SparkColumn:
        """Return the column's value in a row, or in a key."""
        return row[self._field(column.name)]

    def read(self, column: Column) -> bool:
        """Whether a row has the column's values in JSON's own type, not as text."""
        return self.types[column.name] != "string"

    def lacking(self, row: SparkColumn, names: Mapping[str, str]) -> SparkColumn:
        """Return the names, by ``names``, of the columns that a row lacks a value for.

        The row is the record's ``after``.
        """
        called = texts([names.get(name) for name in self.types])
        places = F.array_sort(row[_MISSING])
        return F.array_compact(F.transform(places, lambda place: F.get(called, place)))

    def lacks(self, row: SparkColumn, column: Column) -> SparkColumn:
        """Whether a row has no value for the column. A null is a value."""
        place = self.places[column.name]
        return F.coalesce(F.array_contains(row[_MISSING], place), F.lit(False))

    def named(self, row: SparkColumn, names: Mapping[str, str]) -> SparkColumn:
        """Return the row with its columns renamed. Those without a name get their ordinals.

        It is one expression for any number of columns, as Spark's work grows with expressions.
        """
        fields = [
            f"{quoted(names.get(name, f'{_UNNAMED}{place}'))} {self.types[name]}"
            for name, place in self.places.items()
        ]
        return row.cast(f"struct<{', '.join([*fields, f'{_UNNAMED} array<int>'])}>")

    def unnamed(self, names: Mapping[str, str]) -> list[str]:
        """Return the row's names that are ordinals then, and the one in addition to its columns."""
        others = [f"{_UNNAMED}{place}" for name, place in self.places.items() if name not in names]
        return [*others, _UNNAMED]

    def _fields(self, names: Iterable[str]) -> list[str]:
        return [f"{quoted(self._field(name))} {self.types[name]}" for name in names]

    def _field(self, name: str) -> str:
        """Return the name with its ordinal, as Spark ignores case in names."""
        return f"{self.places[name]}:{name}"


def _type(field: DerivedField, column: Column) -> str:
    """Return the type in JSON; text if another value may replace the column's."""
    as_text = field.hashed or field.unfit_is_null
    return "string" if as_text else json_type(column, field.type)

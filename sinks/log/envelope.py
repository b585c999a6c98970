"""A derived table's columns → how rows of theirs are read from a record's JSON."""

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
"""The record's text where it isn't JSON of these types; else null."""
_MISSING: Final = "_millrace_missing"
_SOURCE: Final = "source struct<ts_us bigint, ts_ms bigint>"
_UNNAMED: Final = f"_millrace_unnamed_{'_' * 64}"
"""Longer than any name of PostgreSQL's."""


@dataclass(frozen=True, slots=True)
class EnvelopeSchema:
    """How a table's rows are read: ``types`` are those of the struct, by the columns' names."""

    types: Mapping[str, str]
    places: Mapping[str, int]
    """Where each column is among them."""

    @classmethod
    def of(cls, shape: TableShape) -> "EnvelopeSchema":
        """The way to read the columns that a derived table has."""
        types: dict[str, set[str]] = {}
        sources: set[tuple[int, str]] = set()
        for field in shape.fields:
            for number, column in field.sources.items():
                types.setdefault(column.name, set()).add(_type(field, column))
                sources.add((number, column.name))
        for version in shape.versions:
            for column in version.event_columns:  # another one had the name before, or has it now
                if column.name in types and (version.version, column.name) not in sources:
                    types[column.name].add(json_type(column, spark_type(column)))
        return cls(
            {name: kinds.pop() if len(kinds) == 1 else "string" for name, kinds in types.items()},
            {name: place for place, name in enumerate(types)},
        )

    def schema(self, *, timed: bool, before: bool) -> str:
        """The type of what is made of a record's value, in the words of ``json_rows``."""
        row = f"struct<{', '.join([*self._fields(self.types), f'{_MISSING} array<int>'])}>"
        rows = [f"after {row}", *([f"before {row}"] if before else [])]
        return ", ".join(["op string", *rows, *([_SOURCE] if timed else []), f"{BROKEN} string"])

    def key_schema(self, columns: Iterable[Column]) -> str:
        """The type of what is made of a record's key; an archive may lack columns of it."""
        names = [column.name for column in columns if column.name in self.types]
        return ", ".join([*self._fields(names), f"{BROKEN} string"])

    def value(self, row: SparkColumn, column: Column) -> SparkColumn:
        """The column's value in a row, or in a key."""
        return row[self._field(column.name)]

    def read(self, column: Column) -> bool:
        """Whether a row has the column's values in JSON's own type, not as text."""
        return self.types[column.name] != "string"

    def lacking(self, row: SparkColumn, names: Mapping[str, str]) -> SparkColumn:
        """What ``names`` calls the columns that a row has no value for; of others nothing.

        The row is the record's ``after``.
        """
        called = texts([names.get(name) for name in self.types])
        places = F.array_sort(row[_MISSING])
        return F.array_compact(F.transform(places, lambda place: F.get(called, place)))

    def lacks(self, row: SparkColumn, column: Column) -> SparkColumn:
        """Whether a row has no value for the column: a null is one."""
        place = self.places[column.name]
        return F.coalesce(F.array_contains(row[_MISSING], place), F.lit(False))

    def named(self, row: SparkColumn, names: Mapping[str, str]) -> SparkColumn:
        """The row with its columns under other names; those that have none under their ordinals.

        One expression, however many columns there are: Spark's work grows with those.
        """
        fields = [
            f"{quoted(names.get(name, f'{_UNNAMED}{place}'))} {self.types[name]}"
            for name, place in self.places.items()
        ]
        return row.cast(f"struct<{', '.join([*fields, f'{_UNNAMED} array<int>'])}>")

    def unnamed(self, names: Mapping[str, str]) -> list[str]:
        """What a row has under ordinals then, and beside its columns."""
        others = [f"{_UNNAMED}{place}" for name, place in self.places.items() if name not in names]
        return [*others, _UNNAMED]

    def _fields(self, names: Iterable[str]) -> list[str]:
        return [f"{quoted(self._field(name))} {self.types[name]}" for name in names]

    def _field(self, name: str) -> str:
        """With its ordinal: Spark takes names that differ by case only for the same."""
        return f"{self.places[name]}:{name}"


def _type(field: DerivedField, column: Column) -> str:
    """The type in JSON; text where a value that it doesn't hold is to become another."""
    as_text = field.hashed or field.unfit_is_null
    return "string" if as_text else json_type(column, field.type)

"""A table's schema versions → how the rows in its records are read from JSON.

As a struct of the columns that any version has, in one pass over the record.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.records.schema import Column
from sinks.changes.names import quoted
from sinks.changes.shape import DerivedField, TableShape
from sinks.changes.types import json_type

BROKEN: Final = "_millrace_broken"
"""The record's text where it isn't JSON of these types; else null."""
_MISSING: Final = "_millrace_missing"
_SOURCE: Final = "source struct<ts_us bigint, ts_ms bigint>"


@dataclass(frozen=True, slots=True)
class EnvelopeSchema:
    """How a table's rows are read: ``types`` are those of the struct, by the columns' names."""

    types: Mapping[str, str]

    @classmethod
    def of(cls, shape: TableShape) -> "EnvelopeSchema":
        """The way to read the columns that a derived table has."""
        types: dict[str, set[str]] = {}
        for field in shape.fields:
            for column in field.sources.values():
                types.setdefault(column.name, set()).add(_type(field, column))
        return cls(
            {name: kinds.pop() if len(kinds) == 1 else "string" for name, kinds in types.items()}
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

    def lacks_any(self, row: SparkColumn) -> SparkColumn:
        """Whether a row, which is the record's ``after``, lacks any column of any version."""
        return row[_MISSING].isNotNull()

    def lacks(self, row: SparkColumn, column: Column) -> SparkColumn:
        """Whether a row has no value for the column: a null is one."""
        ordinal = list(self.types).index(column.name)
        return F.coalesce(F.array_contains(row[_MISSING], ordinal), F.lit(False))

    def _fields(self, names: Iterable[str]) -> list[str]:
        return [f"{quoted(self._field(name))} {self.types[name]}" for name in names]

    def _field(self, name: str) -> str:
        """With its ordinal: Spark takes names that differ by case only for the same."""
        return f"{list(self.types).index(name)}:{name}"


def _type(field: DerivedField, column: Column) -> str:
    """The type in JSON; text where a value that it doesn't hold is to become another."""
    as_text = field.hashed or field.unfit_is_null
    return "string" if as_text else json_type(column, field.type)

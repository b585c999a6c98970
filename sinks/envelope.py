"""A table's schema versions → how the rows in its records are read from JSON.

As a struct of the columns that any version has, in one pass over the record, where their names
allow it. A struct doesn't tell a null from a value that isn't there, so the record's text is asked
about nulls of columns that may be left out. Else as a map from name to text, which tells.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.schema import Column
from sinks.names import quoted
from sinks.shape import Field, Shape
from sinks.types import json_type

BROKEN: Final = "_millrace_broken"
"""The record's text where it isn't JSON of these types; else null."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_ .$-]+\Z")
_MAP: Final = "map<string,string>"
_SOURCE: Final = ", source struct<ts_us: bigint, ts_ms: bigint>"
_NULLS: Final = frozenset({
    "after", "before", "block", "lsn", "op", "origin", "origin_lsn", "sequence", "source",
    "transaction", "txId", "xmin",
})  # fmt: skip
"""Names that an envelope itself has, and that may be null there."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """How a table's rows are read: ``types`` are those of a struct, by name; None: as maps."""

    types: Mapping[str, str] | None

    @classmethod
    def of(cls, shape: Shape) -> "Envelope":
        """The way to read the columns that a derived table has."""
        found: dict[str, set[str]] = {}
        for field in shape.fields:
            for column in field.sources.values():
                found.setdefault(column.name, set()).add(_type(field, column))
        names = found.keys()
        plain = all(_PLAIN.match(name) and name not in _NULLS for name in names)
        if not plain or len({name.lower() for name in names}) < len(names):
            return cls(None)
        return cls(
            {name: kinds.pop() if len(kinds) == 1 else "string" for name, kinds in found.items()}
        )

    def schema(self, *, timed: bool, before: bool) -> str:
        """The type of what ``from_json`` makes of a record's value, in Spark's words."""
        row = _MAP if self.types is None else _struct(self.types, self.types)
        more = (", before " + row if before else "") + (_SOURCE if timed else "")
        return f"op string, after {row}{more}, {BROKEN} string"

    def key_schema(self, columns: Iterable[Column]) -> str:
        """The type of what ``from_json`` makes of a record's key."""
        if self.types is None:
            return _MAP
        return _struct([column.name for column in columns], self.types)

    def read(self, column: Column) -> bool:
        """Whether a row has the column's values in JSON's own type, not as text."""
        return self.types is not None and self.types[column.name] != "string"

    def lacks(self, row: SparkColumn, column: Column) -> SparkColumn:
        """Whether a row, which is the record's ``after``, has no value for the column."""
        if self.types is None:
            return ~F.map_contains_key(row, column.name)
        told = F.substring_index("value", '"after":', -1).contains(f'"{column.name}":null')
        # Asked last, since it reads the record once more: another may have written it with spaces.
        named = F.map_contains_key(F.from_json("value", f"after {_MAP}")["after"], column.name)
        return row[column.name].isNull() & ~told & ~F.coalesce(named, F.lit(False))


def _type(field: Field, column: Column) -> str:
    return "string" if field.hashed else json_type(column, field.type)


def _struct(names: Iterable[str], types: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'{quoted(name)}: {types[name]}' for name in names)}>"


AS_MAPS: Final = Envelope(None)
"""For what works with names: which of them a row has, and which another has."""

"""Ends of rows → which rows are over: those up to a position, all of them or those within bounds.

Bounds are those of partitions, and compare as PostgreSQL does: the values of a range's columns in
their order. They are values of the record's key, read as those are, and a derived table has all
columns of its key. What it has otherwise than in their order can't be told, and raises SinkError.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_, or_
from typing import Final, NamedTuple

from pydantic import JsonValue
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.records.bounds import Bound, RangeEdge
from cdc.records.schema import Column
from sinks.changes.ends import RowsEnd
from sinks.changes.names import POSITION, quoted
from sinks.changes.shape import DerivedField, TableShape
from sinks.changes.types import from_text, holds, spark_type

_ORDERED: Final = ("smallint", "int", "bigint", "decimal", "date", "timestamp")
"""Types whose values are in PostgreSQL's order; text is so only in some collations."""
_PARSED: Final = "millrace_parsed"
ColumnOf = Callable[[str], SparkColumn]
"""A column of a change, or of a stored row, by its name."""


class Older(NamedTuple):
    """The stored rows that go if no change speaks of them: by an end of rows, or in a rebuild.

    Both are functions of a stored row: whether it goes (null: it doesn't), and the position of the
    delete.
    """

    goes: Callable[[ColumnOf], SparkColumn]
    deleted_at: Callable[[ColumnOf], SparkColumn]


class BoundColumn(NamedTuple):
    """A column that bounds speak of: the derived one, and the source's of the bounds' version."""

    field: DerivedField
    column: Column

    def literal(self, value: JsonValue) -> SparkColumn:
        """A bound's value as the derived table has such."""
        text = value if isinstance(value, str) else json.dumps(value)
        return from_text(self.column, F.lit(text), self.field.type)


def older(ends: Sequence[RowsEnd], shape: TableShape) -> Older | None:
    """The rows that are over by any of the ends; each goes at the first one that it comes to."""
    if not ends:
        return None
    for end in ends:
        for bound in end.bounds:
            bound_columns(bound, end, shape)
    return Older(
        lambda row: _any([_is_over(end, shape, row) for end in ends]),
        lambda row: first_end(ends, shape, row)["position"],
    )


def first_end(ends: Sequence[RowsEnd], shape: TableShape, row: ColumnOf) -> SparkColumn:
    """The first end by which a row is over: a struct of position and ts_us; null: it stands."""
    in_order = sorted(ends, key=lambda end: end.position)
    return F.coalesce(*(F.when(_is_over(end, shape, row), as_struct(end)) for end in in_order))


def as_struct(end: RowsEnd) -> SparkColumn:
    """Where an end is, and when."""
    return F.struct(
        F.lit(str(end.position)).alias("position"), F.lit(end.ts_us).cast("bigint").alias("ts_us")
    )


def is_within(end: RowsEnd, shape: TableShape, row: ColumnOf) -> SparkColumn:
    """Whether the end speaks of rows with such a key; null: it doesn't."""
    within = (_is_in(bound, bound_columns(bound, end, shape), row) for bound in end.bounds)
    return reduce(and_, within, F.lit(True))


def without_ended(changes: DataFrame, shape: TableShape, ends: Sequence[RowsEnd]) -> DataFrame:
    """Parsed changes but for those of rows that are over."""
    rows = older(ends, shape)
    if rows is None:
        return changes
    # Below an observation Spark pushes no filter, which would parse each record once more.
    parsed = changes.observe(_PARSED, F.count("*").alias("rows"))
    return parsed.where(~F.coalesce(rows.goes(changed), F.lit(False)))


def changed(name: str) -> SparkColumn:
    """A column of a change."""
    return F.col(quoted(name))


def bound_columns(bound: Bound, end: RowsEnd, shape: TableShape) -> list[BoundColumn]:
    """The columns that a bound speaks of; raises SinkError where their values don't tell."""
    return [_column(name, bound, end, shape) for name in bound.columns]


def _column(name: str, bound: Bound, end: RowsEnd, shape: TableShape) -> BoundColumn:
    for field in shape.fields:
        column = field.sources.get(end.schema_version)
        if column is None or column.name != name or column.key is None:
            continue
        compares = bound.values is not None or field.type.startswith(_ORDERED)
        if field.hashed or not compares or not holds(field.type, spark_type(column)):
            raise SinkError(
                f"rows of a partition are found by {name}, but this table has other values for it"
                " than the source",
                where=f"table {shape.table}",
                remedy=f"remove {name} from mask and types in [[lakehouse.tables]], and rebuild the"
                " table: `millrace rebuild lakehouse` with its name",
            )
        return BoundColumn(field, column)
    raise SinkError(
        f"rows of a partition are found by {name}, which isn't in the key",
        where=f"table {shape.table}",
        remedy=f"millrace snapshot --reset {shlex.quote(str(shape.table))}; then rebuild the"
        " derived table: `millrace rebuild` with its name",
    )


def _is_over(end: RowsEnd, shape: TableShape, row: ColumnOf) -> SparkColumn:
    return (row(POSITION) <= str(end.position)) & is_within(end, shape, row)


def _is_in(bound: Bound, columns: Sequence[BoundColumn], row: ColumnOf) -> SparkColumn:
    """Whether a row is within one bound; compared as files' statistics can tell."""
    values = [row(column.field.name) for column in columns]
    if bound.values is not None:
        (value,), (column,) = values, columns
        is_listed = value.isin([column.literal(one) for one in bound.values if one is not None])
        return is_listed | value.isNull() if None in bound.values else is_listed
    return _reaches(values, bound.lower, columns) & ~_reaches(values, bound.upper, columns)


def _reaches(
    values: Sequence[SparkColumn], edges: Sequence[RangeEdge], columns: Sequence[BoundColumn]
) -> SparkColumn:
    """Whether a row is at a range's edge, or above: by the first column that differs from it."""
    rest: SparkColumn | None = None  # the columns behind are equal
    for value, edge, column in reversed([*zip(values, edges, columns, strict=True)]):
        if edge.kind != "value":
            rest = F.lit(edge.kind == "min")
            continue
        literal = column.literal(edge.value)
        rest = value >= literal if rest is None else (value > literal) | ((value == literal) & rest)
    assert rest is not None, "a range has columns"  # noqa: S101
    return rest


def _any(conditions: Iterable[SparkColumn]) -> SparkColumn:
    """Whether any of the conditions holds; as a tree that isn't deep, however many there are."""
    level = list(conditions)
    while len(level) > 1:
        level = [reduce(or_, level[start : start + 2]) for start in range(0, len(level), 2)]
    return level[0]

"""Ends of rows → the ended rows: those up to a position, all of them or those within bounds.

Bounds belong to partitions, and compare as in PostgreSQL: the values of a range's columns in order.
They are values of the record's key, read in the same way, and a derived table has all columns of
its key. If the table's values have another order, the comparison is impossible, and raises
SinkError.
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
"""Types whose values are in PostgreSQL's order. Text is so only in some collations."""
_PARSED: Final = "millrace_parsed"
ColumnOf = Callable[[str], SparkColumn]
"""A column of a change, or of a stored row, by its name."""


class Older(NamedTuple):
    """The stored rows to remove if no change has them, after an end of rows or in a rebuild.

    Both are functions of a stored row: whether to remove it (null: no), and the position of the
    delete.
    """

    goes: Callable[[ColumnOf], SparkColumn]
    deleted_at: Callable[[ColumnOf], SparkColumn]


class BoundColumn(NamedTuple):
    """A column of bounds: the derived one, and the source's of the bounds' version."""

    field: DerivedField
    column: Column

    def literal(self, value: JsonValue) -> SparkColumn:
        """Convert a bound's value to the derived table's type."""
        text = value if isinstance(value, str) else json.dumps(value)
        return from_text(self.column, F.lit(text), self.field.type)


def older(ends: Sequence[RowsEnd], shape: TableShape) -> Older | None:
    """Return the rows that any of the ends removes, each by the first end that applies."""
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
    """Return the first end that removes a row: a struct of position and ts_us. Null: none does."""
    in_order = sorted(ends, key=lambda end: end.position)
    return F.coalesce(*(F.when(_is_over(end, shape, row), as_struct(end)) for end in in_order))


def as_struct(end: RowsEnd) -> SparkColumn:
    """Return an end's position and time."""
    return F.struct(
        F.lit(str(end.position)).alias("position"), F.lit(end.ts_us).cast("bigint").alias("ts_us")
    )


def is_within(end: RowsEnd, shape: TableShape, row: ColumnOf) -> SparkColumn:
    """Whether the end applies to rows with such a key. Null: it doesn't."""
    within = (_is_in(bound, bound_columns(bound, end, shape), row) for bound in end.bounds)
    return reduce(and_, within, F.lit(True))


def without_ended(changes: DataFrame, shape: TableShape, ends: Sequence[RowsEnd]) -> DataFrame:
    """Return parsed changes without those of ended rows."""
    rows = older(ends, shape)
    if rows is None:
        return changes
    # Spark pushes no filter below an observation. Otherwise it would parse each record twice.
    parsed = changes.observe(_PARSED, F.count("*").alias("rows"))
    return parsed.where(~F.coalesce(rows.goes(changed), F.lit(False)))


def changed(name: str) -> SparkColumn:
    """Return a column of a change."""
    return F.col(quoted(name))


def bound_columns(bound: Bound, end: RowsEnd, shape: TableShape) -> list[BoundColumn]:
    """Return the columns of a bound. Raise SinkError if their values aren't comparable."""
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
    """Whether a row is within one bound. Uses comparisons that files' statistics support."""
    values = [row(column.field.name) for column in columns]
    if bound.values is not None:
        (value,), (column,) = values, columns
        is_listed = value.isin([column.literal(each) for each in bound.values if each is not None])
        return is_listed | value.isNull() if None in bound.values else is_listed
    return _reaches(values, bound.lower, columns) & ~_reaches(values, bound.upper, columns)


def _reaches(
    values: Sequence[SparkColumn], edges: Sequence[RangeEdge], columns: Sequence[BoundColumn]
) -> SparkColumn:
    """Whether a row is at a range's edge, or above: by the first column that differs from it."""
    rest: SparkColumn | None = None  # all columns after this one are equal
    for value, edge, column in reversed([*zip(values, edges, columns, strict=True)]):
        if edge.kind != "value":
            rest = F.lit(edge.kind == "min")
            continue
        literal = column.literal(edge.value)
        rest = value >= literal if rest is None else (value > literal) | ((value == literal) & rest)
    assert rest is not None, "a range has columns"  # noqa: S101
    return rest


def _any(conditions: Iterable[SparkColumn]) -> SparkColumn:
    """Whether any of the conditions holds, as a shallow tree for any number of them."""
    level = list(conditions)
    while len(level) > 1:
        level = [reduce(or_, level[start : start + 2]) for start in range(0, len(level), 2)]
    return level[0]

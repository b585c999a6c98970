"""Spark's analysed plan of a view's query → operators, with the columns that identify rows.

From the tables up, every operator gets its own columns in addition to those of the query: the keys
of all rows that one of its rows, or its group, is made of. They have separate numbers at each
occurrence of a table, so that a join of a table with itself has no column twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructType,
    TimeType,
    YearMonthIntervalType,
)

from cdc.errors import ConfigError
from sinks.views import nodes, several
from sinks.views.catalyst import Catalyst, has_unordered
from sinks.views.node_reader import NodeReader, ReadNode
from sinks.views.operators import Operator, Table, Window
from sinks.views.query import HIDDEN, TAKEN, ViewQuery

_READS: Final[Mapping[str, ReadNode]] = {
    "Project": nodes.project,
    "Filter": nodes.filtered,
    "Aggregate": nodes.aggregate,
    "Window": nodes.window,
    "Join": nodes.join,
    "Union": several.union,
    "Generate": several.generate,
    "Expand": several.expand,
    **dict.fromkeys(
        ("Sort", "ResolvedHint", "Repartition", "RepartitionByExpression", "RebalancePartitions"),
        lambda reader, node: reader.operator(node.child()),
    ),
    "OneRowRelation": nodes.one_row,
    "LocalRelation": nodes.local,
    "Range": nodes.constant,
    "UnionLoop": lambda reader, node: reader.whole(node, "a recursive CTE"),
    "UnionLoopRef": nodes.constant,
    **dict.fromkeys(several.LIMITS, several.limit),
}


_NOT_STORED: Final = (
    CalendarIntervalType,
    DayTimeIntervalType,
    YearMonthIntervalType,
    TimeType,
    StringType,
)
"""Types that Delta tables lack; of texts, those with a collation."""


class QueryReader:
    """Reads the plan of a query. ``keys`` are as in ``NodeReader``."""

    def __init__(self, catalyst: Catalyst, keys: Mapping[str, Mapping[str, Any]]) -> None:
        self.catalyst = catalyst
        self._keys = keys
        self._nodes = NodeReader(catalyst, keys, _READS, nodes.unknown)

    def read(self, plan: Any) -> ViewQuery:
        """Return the operators of an analysed plan."""
        spark = self.catalyst
        for text in spark.views.expressions(plan, ["MaxBy", "MinBy"]):
            kind, sql, *_ = str(text).split("\t")
            which = "greatest" if kind == "MaxBy" else "least"
            self._nodes.definite.append(f"{sql}: of rows equal in its order, the {which} value")
        plan = self._settled(spark.views.definite(plan))
        shown = [(str(each.name()), spark.number(each)) for each in spark.output(plan)]
        _require_different(name for name, _ in shown)
        for each in spark.output(plan):
            _require_stored(str(each.name()), spark.kind(each.dataType()))
        is_timed = bool(spark.views.asksForTime(plan))
        if is_timed:
            self._nodes.reasons.append("it depends on the time")
        self._nodes.wanted.update(number for _, number in shown)
        self._nodes.want(plan)
        top = self._nodes.operator(plan)
        is_bag = top.row_key is None
        if is_bag:
            top = self._copies(top, plan, shown)
        kept = dict.fromkeys((*top.row_key, *top.group)) if top.row_key is not None else {}
        own = {number for _, number in shown}
        hidden = [number for number in kept if number not in own]
        return ViewQuery(
            top,
            tuple(shown),
            tuple((f"{HIDDEN}{place}", number) for place, number in enumerate(hidden, 1)),
            self._shown_types(plan),
            self._nodes.texts,
            tuple(dict.fromkeys(self._nodes.reasons)),
            tuple(dict.fromkeys(self._nodes.definite)),
            is_timed,
            self._inner(plan),
            is_bag,
        )

    def _settled(self, plan: Any) -> Any:
        """Return the plan with definite results of subqueries that stay expressions."""
        inner = [*self.catalyst.views.subqueries(plan)]
        if not inner:
            return plan
        made = [self._subquery(each) for each in inner]
        return self.catalyst.views.withSubqueries(plan, inner, made)

    def _subquery(self, plan: Any) -> Any:
        spark = self.catalyst
        plan = self._settled(plan)
        reader = NodeReader(spark, self._keys, _READS, nodes.unknown, definite=self._nodes.definite)
        shown = spark.numbers(plan)
        reader.wanted.update(shown)
        reader.want(plan)

        def made(operator: Operator) -> Any:
            if isinstance(operator, Table):
                names = operator.names.items()
                columns = [(name, reader.types[number], number) for number, name in names]
                return spark.leaf(operator.make(), columns)
            return operator.make(*map(made, operator.children))

        rows = made(reader.operator(plan))
        there = spark.by_number(rows)
        return spark.project([there[number] for number in shown], rows)

    def _shown_types(self, plan: Any) -> dict[str, str]:
        return {
            str(each.name()): str(each.dataType().catalogString())
            for each in self.catalyst.output(plan)
        }

    def _inner(self, plan: Any) -> dict[str, frozenset[str]]:
        """Return the tables of subqueries that stay expressions, with all of their columns."""
        columns: dict[str, frozenset[str]] = {}
        for text in self.catalyst.views.innerColumns(plan):
            name, _, column = str(text).partition("\t")
            columns[name] = columns.get(name, frozenset()) | {column}
        return columns

    def _copies(self, top: Operator, plan: Any, columns: list[tuple[str, int]]) -> Operator:
        """Number equal rows: without a key, all columns are the key."""
        spark = self.catalyst
        output = spark.by_number(plan)
        for name, number in columns:
            kind = output[number].dataType() if number in output else None
            if kind is not None and has_unordered(spark.kind(kind)):
                raise ConfigError(
                    f"the query has rows without a key, and column {name} can't be compared",
                    remedy="select its tables' keys if they have one, or leave the column out",
                )
        copies = spark.new_number()

        def make(child: Any) -> Any:
            there = spark.by_number(child)
            return spark.numbered([there[each] for _, each in columns], copies, child)

        group = tuple(each for _, each in columns)
        copy = int(copies.id())
        by = {each: each for each in group}
        return Window(make, (*top.columns, copy), (*group, copy), group, child=top, by=by)


def _require_different(names: Iterable[str]) -> None:
    """Refuse columns with the same name, or with a name that begins like ours."""
    listed = [name.lower() for name in names]
    if twice := sorted(name for name, count in Counter(listed).items() if count > 1):
        raise ConfigError(
            f"the query has several columns with one name: {', '.join(twice)}",
            remedy="name them apart: SELECT a.id AS a_id, …",
        )
    if ours := sorted(name for name in listed if name.startswith(HIDDEN) or name in TAKEN):
        raise ConfigError(
            f"columns can't have names that Millrace uses: {', '.join(ours)}",
            remedy="give them other names",
        )


def _require_stored(name: str, kind: DataType) -> None:
    """Refuse a column of a type that Delta tables don't have."""
    if not _is_stored(kind):
        raise ConfigError(
            f"column {name} is of type {kind.simpleString()}, which Delta tables don't support",
            remedy=f"write CAST({name} AS string)",
        )


def _is_stored(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_stored(kind.elementType)
    if isinstance(kind, MapType):
        return _is_stored(kind.keyType) and _is_stored(kind.valueType)
    if isinstance(kind, StructType):
        return all(_is_stored(field.dataType) for field in kind.fields)
    return kind.simpleString() == "string" or not isinstance(kind, _NOT_STORED)

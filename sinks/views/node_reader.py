"""The nodes of a plan → operators: the common part, with numbers, types, and open points."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sinks.views.catalyst import Catalyst
from sinks.views.operators import Operator, Whole

_BY_REFERENCE: Final = frozenset(
    {"Project", "Filter", "Aggregate", "Window", "Join", "Generate", "Expand", "Sort"}
)
"""Nodes that need from below only what their expressions use."""


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName()).removesuffix("$")


@dataclass(slots=True)
class NodeReader:
    """Reads plans with ``reads``, a function for each kind of node.

    ``keys`` are those of the tables by name: columns, and their types. ``reasons`` and ``definite``
    are those of the query. ``types`` and ``texts``, for people, belong to the columns that identify
    rows. Only the ``wanted`` columns of the query are evaluated.
    """

    catalyst: Catalyst
    keys: Mapping[str, Mapping[str, Any]]
    reads: "Mapping[str, ReadNode]"
    unknown: "ReadNode"
    reasons: list[str] = field(default_factory=list)
    definite: list[str] = field(default_factory=list)
    types: dict[int, Any] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)

    def want(self, node: Any) -> None:
        """Record the columns that a node needs from below, down to the tables."""
        spark, kind = self.catalyst, _kind(node)
        for each in self._needing(node, kind):
            self.wanted.update(map(spark.number, spark.each(each.references().toSeq())))
        for child in spark.each(node.children()):
            if kind not in _BY_REFERENCE:
                self.wanted.update(spark.numbers(child))
            self.want(child)

    def _needing(self, node: Any, kind: str) -> list[Any]:
        """Return the parts of a node that are evaluated."""
        spark = self.catalyst
        if kind == "Project":
            return [each for each in spark.each(node.projectList()) if self.wants(each)]
        if kind == "Expand":
            places = [n for n, each in enumerate(spark.output(node)) if self.wants(each)]
            return [row.apply(n) for row in spark.each(node.projections()) for n in places]
        return [node]

    def wants(self, column: Any) -> bool:
        """Whether anything needs a column."""
        return self.catalyst.number(column) in self.wanted

    def operator(self, node: Any) -> Operator:
        """Return a node of Spark's plan, and those below, as an operator."""
        if self.catalyst.views.hasSubquery(node):  # the rules don't follow its tables
            self.reasons.append("a scalar subquery that isn't correlated")
        return self.reads.get(_kind(node), self.unknown)(self, node)

    def kept(self, operator: Operator) -> list[int]:
        """Return the columns that identify an operator's rows, which must be passed up."""
        return [*dict.fromkeys((*(operator.row_key or ()), *operator.group))]

    def named(self, column: Any, text: str = "") -> int:
        """Return the number of our own column, and record its type."""
        number = self.catalyst.number(column)
        self.types[number] = column.dataType()
        self.texts[number] = text or str(column.name())
        return number

    def whole(self, node: Any, reason: str) -> Operator:
        """Return a node as an operator of its children's visible columns."""
        spark = self.catalyst
        self.reasons.append(reason)
        children = spark.each(node.children())
        below = tuple(map(self.operator, children))
        shown = [spark.output(child) for child in children]

        def make(*rows: Any) -> Any:
            own = []
            for columns, each in zip(shown, rows, strict=True):
                there = spark.by_number(each)  # columns that the node doesn't want are missing
                chosen = [column for column in columns if spark.number(column) in there]
                own.append(spark.project(chosen, each))
            return node.withNewChildren(spark.sequence(own))

        return Whole(make, spark.numbers(node), None, (), below=below, reason=reason)


ReadNode = Callable[[NodeReader, Any], Operator]
"""A node of one kind → an operator."""

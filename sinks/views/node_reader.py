"""What reading the nodes of a plan has in common: numbers, types, what stays open, and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sinks.views.catalyst import Catalyst
from sinks.views.operators import Operator, Whole

_BY_REFERENCE: Final = frozenset(
    {"Project", "Filter", "Aggregate", "Window", "Join", "Generate", "Expand", "Sort"}
)
"""Nodes that need no more of what is below than their expressions have."""


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName()).removesuffix("$")


@dataclass(slots=True)
class NodeReader:
    """Reads plans by ``reads``, a function for each kind of node.

    ``keys`` are those of the tables by their names: columns, and their types. ``reasons`` and
    ``definite`` are those of the query; ``types`` and ``texts``, for people, are
    of the columns that rows are kept by. The ``wanted`` ones of the query's are evaluated.
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
        """Note the columns that a node needs of those below, and so on to the tables."""
        spark, kind = self.catalyst, _kind(node)
        for each in self._needing(node, kind):
            self.wanted.update(map(spark.number, spark.each(each.references().toSeq())))
        for child in spark.each(node.children()):
            if kind not in _BY_REFERENCE:
                self.wanted.update(spark.numbers(child))
            self.want(child)

    def _needing(self, node: Any, kind: str) -> list[Any]:
        """What of a node is evaluated."""
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
        """A node of Spark's plan, and those below, as an operator."""
        if self.catalyst.views.hasSubquery(node):  # the rules don't follow its tables
            self.reasons.append("a scalar subquery that isn't correlated")
        return self.reads.get(_kind(node), self.unknown)(self, node)

    def kept(self, operator: Operator) -> list[int]:
        """The columns that rows of an operator are kept by, which have to come up."""
        return [*dict.fromkeys((*(operator.row_key or ()), *operator.group))]

    def named(self, column: Any, text: str = "") -> int:
        """The number of a column of ours, whose type is remembered."""
        number = self.catalyst.number(column)
        self.types[number] = column.dataType()
        self.texts[number] = text or str(column.name())
        return number

    def whole(self, node: Any, reason: str) -> Operator:
        """An operator as it is, on what its children show to the user."""
        spark = self.catalyst
        self.reasons.append(reason)
        children = spark.each(node.children())
        below = tuple(map(self.operator, children))
        shown = [spark.output(child) for child in children]

        def make(*rows: Any) -> Any:
            own = []
            for columns, each in zip(shown, rows, strict=True):
                there = spark.by_number(each)  # what the node doesn't want isn't
                chosen = [column for column in columns if spark.number(column) in there]
                own.append(spark.project(chosen, each))
            return node.withNewChildren(spark.sequence(own))

        return Whole(make, spark.numbers(node), None, (), below=below, reason=reason)


ReadNode = Callable[[NodeReader, Any], Operator]
"""A node of one kind → an operator."""

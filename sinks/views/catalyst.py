"""Nodes and expressions of Spark's plans ⇄ Python.

PySpark's own calls use names of columns, which a query may have twice. Here columns have Spark's
numbers (expression ids), which stay the same in joins of a table with itself. The classes aren't
public, and belong to the pinned Spark.
"""

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType


class Catalyst:
    """Makes plans in a session. A plan, an expression and an attribute are Java objects."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        self.spark = spark
        self.session: Any = spark._jsparkSession  # noqa: SLF001
        self._catalyst = jvm.org.apache.spark.sql.catalyst
        self._expressions = self._catalyst.expressions
        self._logical = self._catalyst.plans.logical
        self._joins = self._catalyst.plans
        self._hints = getattr(
            getattr(self._catalyst.optimizer, "EliminateResolvedHint$"), "MODULE$"
        )
        self._python = jvm.org.apache.spark.api.python.PythonUtils
        self._none = jvm.scala.Option.empty()
        self._some = jvm.scala.Option.apply
        self._dataset = jvm.org.apache.spark.sql.classic.Dataset
        self._unsafe_rows = jvm.org.apache.spark.sql.catalyst.util.UnsafeRowUtils
        self._types = jvm.org.apache.spark.sql.types
        self.views = jvm.millrace.sinks.ViewPlans
        self.integers = self._types.DataTypes.IntegerType
        self._jvm_id = self.new_number().jvmId()

    def frame(self, plan: Any) -> DataFrame:
        """Return a plan's rows."""
        return DataFrame(self._dataset.ofRows(self.session, plan), self.spark)

    @staticmethod
    def plan(rows: DataFrame) -> Any:
        """Return the analysed plan of some rows."""
        return rows._jdf.queryExecution().analyzed()  # noqa: SLF001

    @staticmethod
    def each(sequence: Any) -> list[Any]:
        """Return a Scala sequence as a list."""
        return [sequence.apply(number) for number in range(sequence.size())]

    def output(self, plan: Any) -> list[Any]:
        """Return a plan's output attributes."""
        return self.each(plan.output())

    @staticmethod
    def number(named: Any) -> int:
        """Return the number of an attribute or an alias."""
        return int(named.exprId().id())

    def numbers(self, plan: Any) -> tuple[int, ...]:
        """Return the numbers of a plan's output columns."""
        return tuple(map(self.number, self.output(plan)))

    def by_number(self, plan: Any) -> dict[int, Any]:
        """Return a plan's output attributes, by their numbers."""
        return {self.number(attribute): attribute for attribute in self.output(plan)}

    def sequence(self, of: Sequence[Any]) -> Any:
        """Return a list as a Scala sequence."""
        return self._python.toSeq(list(of))

    def alias(self, expression: Any, name: str, number: Any = None) -> Any:
        """Return an expression as a column, with a number (Java object). None: with a new one."""
        number = self.new_number() if number is None else number
        nothing = self.sequence([])
        return self._expressions.Alias(expression, name, number, nothing, self._none, nothing)

    def shown(self, attribute: Any, name: str) -> Any:
        """Return an attribute under a name, without its metadata about its origin."""
        nothing = self.sequence([])
        empty = self._some(self._types.Metadata.empty())
        return self._expressions.Alias(attribute, name, self.new_number(), nothing, empty, nothing)

    def integer(self, value: int) -> Any:
        """Return a literal."""
        return self._expressions.Literal.create(value, self.integers)

    def null(self, type_: Any) -> Any:
        """Return null of a type."""
        return self._expressions.Literal.create(None, type_)

    def type_of(self, json: str) -> Any:
        """Return a Spark type from its JSON."""
        return self._types.DataType.fromJson(json)

    def is_binary(self, type_: Any) -> bool:
        """Whether equal values of a type have the same bytes. Other collations ignore case."""
        return bool(self._unsafe_rows.isBinaryStable(type_))

    def new_number(self) -> Any:
        """Return the number of a new column, as a Java object."""
        return self._expressions.NamedExpression.newExprId()

    def id_of(self, number: int) -> Any:
        """Return a column's number, as a Java object."""
        return self._expressions.ExprId(number, self._jvm_id)

    def boolean(self, *, value: bool) -> Any:
        """Return a literal."""
        return self._expressions.Literal.create(value, self._types.DataTypes.BooleanType)

    @staticmethod
    def kind(type_: Any) -> DataType:
        """Return a Java type as PySpark's."""
        field = {"name": "x", "type": json.loads(type_.json()), "nullable": True, "metadata": {}}
        return StructType.fromJson({"fields": [field]})["x"].dataType

    def pairs(
        self, condition: Any | None, left: set[int], right: set[int]
    ) -> tuple[tuple[int, int], ...]:
        """Return the columns of two sides that a condition requires to be equal."""
        if condition is None:
            return ()
        if is_kind(condition, "And"):
            both = (condition.left(), condition.right())
            return tuple(pair for each in both for pair in self.pairs(each, left, right))
        if not is_kind(condition, "EqualTo", "EqualNullSafe"):
            return ()
        sides = (condition.left(), condition.right())
        if not all(is_kind(side, "AttributeReference") for side in sides):
            return ()
        one, other = map(self.number, sides)
        if one in left and other in right:
            return ((one, other),)
        return ((other, one),) if other in left and one in right else ()

    def joined(self, left: Any, right: Any, type_: Any, condition: Any | None) -> Any:
        """Return a join of a kind given as Spark's object."""
        if is_kind(type_, "ExistenceJoin"):  # Spark can't copy this side, and gives no error
            left = self._hints.extractHintsFromPlan(left).productElement(0)
        hint = self._logical.JoinHint.NONE()
        return self._logical.Join(left, right, type_, self._some(condition), hint)

    def leaf(self, node: Any, columns: Iterable[tuple[str, Any, int]]) -> Any:
        """Return a table's leaf with other columns: their names, types and numbers."""
        metadata, nothing = node.output().head().metadata(), self.sequence([])
        attributes = [
            self._expressions.AttributeReference(
                name, type_, True, metadata, self.id_of(number), nothing
            )
            for name, type_, number in columns
        ]
        return self._logical.LocalRelation(self.sequence(attributes), nothing, False, self._none)

    def aggregate(self, grouping: Any, aggregates: Sequence[Any], plan: Any) -> Any:
        """GROUP BY."""
        return self._logical.Aggregate(grouping, self.sequence(aggregates), plan, self._none)

    def pos_explode(self, of: Any) -> Any:
        """Return the elements of a list, each with its number."""
        return self._expressions.PosExplode(of)

    def generated(self, generator: Any, node: Any, output: Sequence[Any], plan: Any) -> Any:
        """Return the node's LATERAL VIEW, with another generator."""
        return self._logical.Generate(
            generator,
            self.sequence([]),
            node.outer(),
            node.qualifier(),
            self.sequence(output),
            plan,
        )

    def expanded(self, projections: Sequence[Any], output: Sequence[Any], plan: Any) -> Any:
        """Return several rows for each row."""
        return self._logical.Expand(self.sequence(projections), self.sequence(output), plan)

    def sorted(self, order: Sequence[Any], plan: Any) -> Any:
        """ORDER BY."""
        return self._logical.Sort(self.sequence(order), True, plan, self._none)

    def numbered(self, columns: Sequence[Any], number: Any, plan: Any) -> Any:
        """Add each row's number among those with equal values in some columns."""
        expressions = self._expressions
        of = {
            name: getattr(getattr(expressions, f"{name}$"), "MODULE$")
            for name in ("RowFrame", "UnboundedPreceding", "CurrentRow")
        }
        frame = expressions.SpecifiedWindowFrame(*of.values())
        order = [self.ascending(self.integer(1))]
        lists = self.sequence(columns), self.sequence(order)
        spec = expressions.WindowSpecDefinition(*lists, frame)
        window = expressions.WindowExpression(expressions.RowNumber(), spec)
        return self.windowed([self.alias(window, "copy", number)], columns, order, plan)

    def project(self, columns: Sequence[Any], plan: Any) -> Any:
        """SELECT."""
        return self._logical.Project(self.sequence(columns), plan)

    def distinct(self, columns: Sequence[Any], plan: Any) -> Any:
        """SELECT DISTINCT some attributes."""
        listed = self.sequence(columns)
        return self._logical.Aggregate(listed, listed, plan, self._none)

    def union(self, plans: Sequence[Any]) -> Any:
        """UNION ALL, column by column."""
        return self._logical.Union(self.sequence(plans), False, False)

    def join(self, left: Any, right: Any, kind: str, condition: Any | None) -> Any:
        """Return a join of one of the kinds Inner, LeftSemi …."""
        type_ = getattr(getattr(self._joins, f"{kind}$"), "MODULE$")
        return self.joined(left, right, type_, condition)

    def filter(self, condition: Any, plan: Any) -> Any:
        """WHERE."""
        return self._logical.Filter(condition, plan)

    def same(self, one: Any, other: Any) -> Any:
        """Return whether two values are equal, or both null."""
        return self._expressions.EqualNullSafe(one, other)

    def all(self, conditions: Iterable[Any]) -> Any:
        """Return whether all conditions hold. There is at least one."""
        return reduce(self._expressions.And, conditions)

    def attribute(self, name: str, type_: Any) -> Any:
        """Return a new column that may be null."""
        empty = self._types.Metadata.empty()
        return self._expressions.AttributeReference(
            name, type_, True, empty, self.new_number(), self.sequence([])
        )

    def ascending(self, expression: Any) -> Any:
        """Return an order by an expression."""
        direction = getattr(getattr(self._expressions, "Ascending$"), "MODULE$")
        nulls = direction.defaultNullOrdering()
        return self._expressions.SortOrder(expression, direction, nulls, self.sequence([]))

    def windowed(
        self, windows: Sequence[Any], by: Sequence[Any], order: Sequence[Any], plan: Any
    ) -> Any:
        """Return functions over windows."""
        listed = map(self.sequence, (windows, by, order))
        return self._logical.Window(*listed, plan, self._none)


def is_kind(node: Any, *names: str) -> bool:
    """Whether a node or an expression has one of the classes, by their simple names."""
    return str(node.getClass().getSimpleName()) in names


def has_unordered(kind: DataType) -> bool:
    """Whether values of a type can't be compared: maps and variants can't, even nested."""
    if isinstance(kind, MapType | VariantType):
        return True
    if isinstance(kind, ArrayType):
        return has_unordered(kind.elementType)
    return isinstance(kind, StructType) and any(
        has_unordered(field.dataType) for field in kind.fields
    )

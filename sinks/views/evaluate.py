"""Operators of a query → its rows at a cut, and the groups that may change at the new one.

The rules (``sinks/views/touched.py``) on Spark's plans. Lookup values are kept on the executors,
since their number decides the next step, and each use would compute them again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sinks.run.cuts import TableDifference
from sinks.spark.jvm import kept, kept_bytes
from sinks.spark.session import RECORDS_FEW
from sinks.views.catalyst import Catalyst
from sinks.views.operators import NEW, CutSide, Join, Table, Union
from sinks.views.query import ViewQuery
from sinks.views.touched import Near, Rules

Plan = Any
"""Spark's plan of some rows."""
COPIED_BYTES_MAX: Final = 64 << 20
"""Larger copies, one per task and one in the driver, may exceed their memory."""
_SURELY_FEW: Final = 100
"""Up to this many rows are copied without a check of their size."""


class TableAtCuts(Protocol):
    """A table of a query, at the old cut and at the new one."""

    @property
    def is_small(self) -> bool:
        """Whether reading all rows is faster than a search through them."""

    def count(self) -> int:
        """Return how many rows it has at the new cut."""

    def rows(self, cut: CutSide) -> DataFrame:
        """Return all rows."""

    def rows_with(self, cut: CutSide, values: DataFrame, columns: Mapping[str, str]) -> DataFrame:
        """Return rows that include all with any of the ``values``, by each value's column."""

    def difference(self) -> TableDifference | None:
        """Return the rows that only one of the cuts has, with all columns that are read."""


@dataclass(frozen=True, slots=True)
class SparkAlgebra:
    """Evaluates operators over tables, by name."""

    catalyst: Catalyst
    tables: Mapping[str, TableAtCuts]
    differences: Callable[[str], TableDifference | None]

    def table(self, table: Table, cut: CutSide, near: Near[Plan] | None) -> Plan:
        """Return a table's rows at a cut. For a large one, only those of files that may match."""
        source = self.tables[table.name]
        if near is None or source.is_small:
            return self.as_table(table, source.rows(cut))
        values = self.catalyst.frame(near.values)
        columns = {
            table.names[own]: self._name(near.values, value)
            for own, value in {**near.within, **near.columns}.items()
        }
        return self.as_table(table, source.rows_with(cut, values, columns))

    def _name(self, plan: Plan, number: int) -> str:
        return str(self.catalyst.by_number(plan)[number].name())

    def as_table(self, table: Table, rows: DataFrame) -> Plan:
        """Return rows with the numbers of an occurrence of their table.

        No column keeps its name. Spark considers an alias of the same name unnecessary, and would
        make the same column twice of two of one column (a key, once more), which no union may have.
        """
        spark = self.catalyst
        plan = spark.plan(rows)
        there = {str(each.name()): each for each in spark.output(plan)}
        columns = [
            spark.alias(there[name], f"column_{number}", spark.id_of(number))
            for number, name in table.names.items()
            if name in there
        ]
        return spark.project(columns, plan)

    def changed(self, table: Table) -> tuple[Plan | None, Plan | None]:
        """Return the removed and the added rows of a table."""
        difference = self.differences(table.name)
        if difference is None:
            return None, None
        return self.as_table(table, difference.gone), self.as_table(table, difference.come)

    def is_small(self, table: Table) -> bool:
        """Whether reading all of it is faster than a search through it."""
        return self.tables[table.name].is_small

    def union(self, rows: Sequence[Plan]) -> Plan:
        """Return the union. The first one determines the columns' numbers."""
        spark = self.catalyst
        numbers = spark.numbers(rows[0])
        first, *others = rows
        aligned = [first]
        for plan in others:
            there = spark.by_number(plan)
            aligned.append(spark.project([there[number] for number in numbers], plan))
        return spark.union(aligned)

    def branch(self, union: Union, number: int, rows: Plan) -> Plan:
        """Return rows of one branch of a union, in the union's columns."""
        spark, passed = self.catalyst, union.passed[number]
        there = spark.by_number(rows)
        columns = [
            there[out]
            if passed[out] == out
            else spark.alias(there[passed[out]], "branch", spark.id_of(out))
            for out in union.columns
        ]
        return spark.project(columns, rows)

    def matching(self, join: Join, left: Plan, right: Plan, *, kept: str) -> Plan:
        """Return the rows of the ``kept`` side that match any of the other side."""
        sides = (left, right) if kept == "left" else (right, left)
        return self.catalyst.join(*sides, "LeftSemi", join.condition)

    def joined(self, join: Join, left: Plan, right: Plan) -> Plan:
        """Return the pairs of rows that match, for any kind of join."""
        return self.catalyst.join(left, right, "Inner", join.condition)

    def extended(self, join: Join, rows: Plan, *, kept: str) -> Plan:
        """Return unmatched rows of the ``kept`` side in the join's columns."""
        spark = self.catalyst
        other = join.right if kept == "left" else join.left
        there = spark.by_number(rows)
        nulls = {
            number: spark.alias(spark.null(join.types[number]), "none", spark.id_of(number))
            for number in other.columns
        }
        return spark.project([there.get(number) or nulls[number] for number in join.columns], rows)

    def flagged(self, join: Join, rows: Plan) -> Plan:
        """Return rows of the left side with both values of the column that shows a match."""
        spark = self.catalyst
        there, flag = spark.by_number(rows), join.columns[-1]
        return spark.union(
            [
                spark.project(
                    [
                        *(there[number] for number in join.columns[:-1]),
                        spark.alias(spark.boolean(value=value), "exists", spark.id_of(flag)),
                    ],
                    rows,
                )
                for value in (True, False)
            ]
        )

    def only(self, rows: Plan, near: Near[Plan]) -> Plan:
        """Return the rows that have any of the values."""
        spark = self.catalyst
        own, values = spark.by_number(rows), spark.by_number(near.values)
        same = spark.all(spark.same(own[one], values[other]) for one, other in near.columns.items())
        return spark.join(rows, near.values, "LeftSemi", same)

    def values(self, rows: Plan, columns: Sequence[int]) -> Near[Plan] | None:
        """Return the distinct values of some columns. None: there are no rows."""
        spark = self.catalyst
        there = spark.by_number(rows)
        aliases = {
            column: spark.alias(there[column], f"value_{place}")
            for place, column in enumerate(dict.fromkeys(columns))
        }
        plan = spark.project([*aliases.values()] or [spark.alias(spark.integer(1), "any")], rows)
        kept_rows = self.kept(spark.distinct(spark.output(plan), plan))
        if kept_rows is None:
            return None
        return Near(kept_rows, {column: spark.number(alias) for column, alias in aliases.items()})

    def kept(self, rows: Plan) -> Plan | None:
        """Return the rows, kept on the executors. None: there are none."""
        frame, count = kept(self.catalyst.frame(rows))
        if not count:
            return None
        # The other side of a join needs no shuffle if each task gets a copy of a few rows.
        is_copied = count < _SURELY_FEW or (
            count < RECORDS_FEW and kept_bytes(frame) <= COPIED_BYTES_MAX
        )
        return self.catalyst.plan(F.broadcast(frame) if is_copied else frame)


class TouchedRows(NamedTuple):
    """The touched rows of all tables, and the largest share of one table.

    Small tables don't count.
    """

    rows: int
    share: float


class Evaluation:
    """A query over tables at two cuts, or only at the new one.

    ``at_us`` is the current time for it (µs since 1970), if it uses the time.
    """

    def __init__(
        self,
        catalyst: Catalyst,
        query: ViewQuery,
        tables: Mapping[str, TableAtCuts],
        at_us: int | None = None,
    ) -> None:
        self._catalyst = catalyst
        self._query = query
        self._tables = tables
        self._at_us = at_us
        self._differences = cache(lambda name: tables[name].difference())
        self._algebra = SparkAlgebra(catalyst, tables, self._differences)
        self._rules = Rules(self._algebra)

    def whole(self, cut: CutSide) -> DataFrame:
        """Return all of its rows."""
        return self._shown(self._rules.rows(self._query.top, cut), cut)

    def touched(self) -> "TouchedRows":
        """Return how many rows of the tables are touched."""
        rows, share = 0, 0.0
        for name, table in self._tables.items():
            if table.is_small or (difference := self._differences(name)) is None:
                continue
            touched = difference.versions
            if touched is None:
                touched = max(difference.gone.count(), difference.come.count())
            rows, share = rows + touched, max(share, touched / max(1, table.count()))
        return TouchedRows(rows, share)

    def groups(self) -> Near[Plan] | None:
        """Return the groups that may change. None: there are none."""
        return self._rules.groups(self._query.top)

    def of_groups(self, groups: Near[Plan]) -> DataFrame:
        """Return the rows of some groups at the new cut."""
        return self._shown(self._rules.exactly(self._query.top, NEW, groups), NEW)

    def names(self, groups: Near[Plan]) -> tuple[DataFrame, dict[str, str]]:
        """Return the groups' values, and the view's column of each."""
        spark, columns = self._catalyst, groups.columns
        there = spark.by_number(groups.values)
        stored = self._query.stored(tuple(columns))
        values = {
            name: str(there[value].name())
            for name, value in zip(stored, columns.values(), strict=True)
        }
        return spark.frame(groups.values), values

    def _shown(self, plan: Plan, cut: CutSide) -> DataFrame:
        """Return the user's columns by name, and those that identify rows."""
        spark = self._catalyst
        there = spark.by_number(plan)
        columns = [
            spark.shown(there[number], name)
            for name, number in (*self._query.columns, *self._query.hidden)
        ]
        plan = spark.project(columns, plan)
        tables = [*spark.views.inSubqueries(plan)]
        if tables:
            rows = {name: spark.plan(self._tables[name].rows(cut)) for name in tables}
            plan = spark.views.filled(plan, rows)
        if self._at_us is not None:
            plan = spark.views.at(plan, self._at_us)
        return spark.frame(plan)


@dataclass(frozen=True, slots=True)
class EmptyTable:
    """A table that stays empty."""

    frame: DataFrame
    is_small: bool = False

    def count(self) -> int:
        """Return zero."""
        return 0

    def rows(self, cut: CutSide) -> DataFrame:
        """Return nothing."""
        del cut
        return self.frame

    def rows_with(self, cut: CutSide, values: DataFrame, columns: Mapping[str, str]) -> DataFrame:
        """Return nothing."""
        del cut, values, columns
        return self.frame

    def difference(self) -> TableDifference | None:
        """Return nothing."""
        return None

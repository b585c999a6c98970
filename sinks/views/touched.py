"""A query's operators → the rows that may change at a new cut: the rules, one per operator.

For each operator two bags of rows are computed from those of the operators below. A row that the
old cut has more often than the new one is among the *gone* ones. One that the new cut has more
often is among those that have *come*. Either bag may have more rows, but never too few.

The gone and come rows at the top determine the groups to compute again. If it is exact, the rows
that an operator needs of the others below are read ``near`` some values: rows with other values
can't contribute.

The rules don't depend on Spark: an ``Algebra`` evaluates operators. Tests run them on plain rows.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

from sinks.views.operators import (
    NEW,
    OLD,
    Constant,
    CutSide,
    Group,
    Join,
    Operator,
    Rowwise,
    Table,
    Unary,
    Union,
    Window,
)

R = TypeVar("R")
"""A bag of rows."""


class Near(NamedTuple, Generic[R]):
    """Values, and the operator's column (number) of each of their columns (number).

    Columns of times are ``within`` those that are spans of time, which is only a hint.
    """

    values: R
    columns: Mapping[int, int]
    within: Mapping[int, int] = MappingProxyType({})

    def through(
        self, passed: Mapping[int, int], within: Mapping[int, int] = MappingProxyType({})
    ) -> "Near[R] | None":
        """Return the same for an operator below that has ``passed`` columns up. None: it has none.

        ``within``: output spans → the column below with their times.
        """
        columns = {passed[own]: value for own, value in self.columns.items() if own in passed}
        times = {within[own]: value for own, value in self.columns.items() if own in within}
        times |= {passed[own]: value for own, value in self.within.items() if own in passed}
        return Near(self.values, columns, times) if columns or times else None


class Algebra(Protocol[R]):
    """Evaluates operators. Equality of values is null-safe; -0 is 0, and NaN is one value."""

    def table(self, table: Table, cut: CutSide, near: Near[R] | None) -> R:
        """Return all rows of a table at a cut; at least those near the values."""

    def changed(self, table: Table) -> tuple[R | None, R | None]:
        """Return the removed and the added rows of a table. None: there are none."""

    def is_small(self, table: Table) -> bool:
        """Whether reading all of it is faster than a search through it."""

    def union(self, rows: Sequence[R]) -> R:
        """Return the union of rows with the same columns."""

    def branch(self, union: Union, number: int, rows: R) -> R:
        """Return rows of one branch of a union, in the union's columns."""

    def matching(self, join: Join, left: R, right: R, *, kept: str) -> R:
        """Return the rows of the ``kept`` side ("left" or "right") that match the other side."""

    def joined(self, join: Join, left: R, right: R) -> R:
        """Return the pairs of rows that match, for any kind of join."""

    def extended(self, join: Join, rows: R, *, kept: str) -> R:
        """Return unmatched rows of the ``kept`` side in the join's columns."""

    def flagged(self, join: Join, rows: R) -> R:
        """Return rows of the left side with both values of the column that shows a match."""

    def only(self, rows: R, near: Near[R]) -> R:
        """Return the rows that have any of the values."""

    def values(self, rows: R, columns: Sequence[int]) -> Near[R] | None:
        """Return the distinct values of some columns. None: there are no rows."""

    def kept(self, rows: R) -> R | None:
        """Return the rows, computed once for any number of uses. None: there are none."""


class Touched(NamedTuple, Generic[R]):
    """The rows that may be gone, and those that may have come. None: none."""

    gone: R | None
    come: R | None

    def at(self, cut: CutSide) -> R | None:
        """Return those that are at a cut."""
        return self.gone if cut == OLD else self.come


class Rules(Generic[R]):
    """The rules, for tables that an ``algebra`` knows at two cuts."""

    def __init__(self, algebra: Algebra[R]) -> None:
        self._algebra = algebra

    def groups(self, top: Operator) -> Near[R] | None:
        """Return the groups of the whole query that may change, by its group columns.

        None: none.
        """
        return self._values(top, top.group)

    def _values(self, operator: Operator, columns: Sequence[int]) -> Near[R] | None:
        """Return the values in some columns of an operator's rows that may change.

        The grouping columns are looked up below, so no group needs to be computed.
        """
        below: Sequence[int] | None = None
        if isinstance(operator, Rowwise):
            below = [operator.passed[column] for column in columns if column in operator.passed]
        elif isinstance(operator, Group):
            by = self._by(operator)
            below = [by[column] for column in columns if column in by]
        elif isinstance(operator, Window):
            below = [operator.by[column] for column in columns if column in operator.by]
        if isinstance(operator, Unary) and below is not None and len(below) == len(columns):
            near = self._values(operator.child, below)
            return near and self._as(near, below, columns)
        if isinstance(operator, Join) and (side := self._side_of(operator, columns)) is not None:
            rows = self._of_side(operator, side)
        else:
            rows = self._union(*self.touched(operator))
        return None if rows is None else self._algebra.values(rows, columns)

    @staticmethod
    def _side_of(join: Join, columns: Sequence[int]) -> str | None:
        """Return the side of a join that shows some columns unchanged, if it has all of them."""
        if columns and join.kind in {"inner", "left"} and {*columns} <= {*join.left.columns}:
            return "left"
        if columns and join.kind in {"inner", "right"} and {*columns} <= {*join.right.columns}:
            return "right"
        return None

    def _of_side(self, join: Join, side: str) -> R | None:
        """Return touched rows of a side, and those that match a touched one of the other.

        No joins.
        """
        left, right = self._sides(join)
        own, other = (left, right) if side == "left" else (right, left)
        matching = (self._matching(join, other, cut, kept=side) for cut in (OLD, NEW))
        return self._union(*own, *matching)

    def touched(self, operator: Operator) -> Touched[R]:
        """Return which of an operator's rows may be gone, and which may have come."""
        touched: Touched[R]
        match operator:
            case Table():
                touched = Touched(*self._algebra.changed(operator))
            case Rowwise():
                touched = self._rowwise(operator)
            case Group() | Window():
                touched = self._grouped(operator)
            case Union():
                touched = self._of_union(operator)
            case Join(kind="semi" | "anti"):
                touched = self._semi(operator)
            case Join():
                touched = self._joined(operator)
            case _:  # an operator that is evaluated as a whole has no rules
                assert isinstance(operator, Constant), operator  # noqa: S101
                touched = Touched(None, None)
        return touched

    def _rowwise(self, operator: Rowwise) -> Touched[R]:
        below = self.touched(operator.child)
        return Touched(*(self._apply(operator, rows) for rows in below))

    def _of_union(self, union: Union) -> Touched[R]:
        below = [self.touched(branch) for branch in union.branches]
        return Touched(
            *(
                self._union(
                    *(
                        self._branch(union, number, touched.at(cut))
                        for number, touched in enumerate(below)
                    )
                )
                for cut in (OLD, NEW)
            )
        )

    def _branch(self, union: Union, number: int, rows: R | None) -> R | None:
        """Return a branch's rows in the union's columns."""
        return None if rows is None else self._algebra.branch(union, number, rows)

    def _grouped(self, operator: Group | Window) -> Touched[R]:
        """Return the results of the groups in which a row is touched, at either cut."""
        by = operator.by if isinstance(operator, Group) else {*operator.by.values()}
        near = self._values(operator.child, sorted(by))
        if near is None:
            return Touched(None, None)
        return Touched(
            *(
                self._algebra.kept(operator.make(self.exactly(operator.child, cut, near)))
                for cut in (OLD, NEW)
            )
        )

    def _semi(self, join: Join) -> Touched[R]:
        """Return left rows that are touched, or match a touched one of the right side."""
        left, right = self._sides(join)
        return Touched(
            *(self._union(left.at(cut), self._matching(join, right, cut)) for cut in (OLD, NEW))
        )

    def _joined(self, join: Join) -> Touched[R]:
        left, right = self._sides(join)
        sides: list[R | None] = []
        for cut in (OLD, NEW):
            rows = []
            if join.kind != "exists":
                rows += self._pairs(join, left.at(cut), right.at(cut), cut)
            if join.kind in {"left", "full", "exists"}:
                own = self._union(left.at(cut), self._matching(join, right, cut))
                if own is not None and join.kind == "exists":
                    rows.append(self._algebra.flagged(join, own))
                elif own is not None:
                    rows.append(self._algebra.extended(join, own, kept="left"))
            if join.kind in {"right", "full"}:
                own = self._union(right.at(cut), self._matching(join, left, cut, kept="right"))
                if own is not None:
                    rows.append(self._algebra.extended(join, own, kept="right"))
            sides.append(self._union(*rows))
        return Touched(*sides)

    def _sides(self, join: Join) -> tuple[Touched[R], Touched[R]]:
        """Return the touched rows of both sides, kept for several uses."""
        left, right = (
            Touched(*(None if rows is None else self._algebra.kept(rows) for rows in touched))
            for touched in (self.touched(join.left), self.touched(join.right))
        )
        return left, right

    def _pairs(self, join: Join, left: R | None, right: R | None, cut: CutSide) -> list[R]:
        """Return touched rows of one side with all matches of the other, at one cut."""
        pairs = []
        if left is not None:
            others = self._opposite(join, left, cut, "right")
            pairs.append(self._algebra.joined(join, left, others))
        if right is not None:
            others = self._opposite(join, right, cut, "left")
            pairs.append(self._algebra.joined(join, others, right))
        return pairs

    def _matching(
        self, join: Join, other: Touched[R], cut: CutSide, kept: str = "left"
    ) -> R | None:
        """Return the kept side's rows, at a cut, that match any touched one of the other side."""
        others = self._union(other.gone, other.come)
        if others is None:
            return None
        own = self._opposite(join, others, cut, kept)
        sides = (own, others) if kept == "left" else (others, own)
        return self._algebra.matching(join, *sides, kept=kept)

    def _opposite(self, join: Join, rows: R, cut: CutSide, side: str) -> R:
        """Return the rows of a side, at a cut, that may match these rows of the other side."""
        operator = join.left if side == "left" else join.right
        near = None
        if join.pairs and not self._is_small(operator):
            own, theirs = (0, 1) if side == "left" else (1, 0)
            equal = [pair[theirs] for pair in join.pairs]
            values = self._algebra.values(rows, equal)
            near = values and self._as(values, equal, [pair[own] for pair in join.pairs])
        return self.rows(operator, cut, near)

    @staticmethod
    def _as(near: Near[R], columns: Sequence[int], others: Sequence[int]) -> Near[R]:
        """Return the values of some columns as those of others in the same order."""
        pairs = zip(columns, others, strict=True)
        return Near(near.values, {other: near.columns[column] for column, other in pairs})

    def _is_small(self, operator: Operator) -> bool:
        return all(self._algebra.is_small(table) for table in operator.tables())

    def exactly(self, operator: Operator, cut: CutSide, near: Near[R]) -> R:
        """Return an operator's rows, at a cut, that have any of the values."""
        rows = self.rows(operator, cut, near)
        return self._algebra.only(rows, near) if near.columns else rows

    def rows(self, operator: Operator, cut: CutSide, near: Near[R] | None = None) -> R:
        """Return an operator's rows, at a cut; at least all that have any of the values."""
        if near is not None and not near.columns and not near.within:
            near = None
        if isinstance(operator, Table):
            return self._algebra.table(operator, cut, near)
        made: R = operator.make(*self._below(operator, cut, near))
        return made

    def _below(self, operator: Operator, cut: CutSide, near: Near[R] | None) -> Sequence[R]:
        """Return the rows that it needs from the operators below."""
        match operator:
            case Rowwise():
                below = near and near.through(operator.passed, operator.within)
                return [self.rows(operator.child, cut, below)]
            case Group():
                return [self._in_groups(operator, cut, near and near.through(self._by(operator)))]
            case Window():
                return [self._in_groups(operator, cut, near and near.through(operator.by))]
            case Join(kind=kind) if kind != "full":
                return self._joined_rows(operator, cut, near)
            case Union():
                branches = zip(operator.branches, operator.passed, strict=True)
                return [self.rows(one, cut, near and near.through(of)) for one, of in branches]
        return [self.rows(child, cut) for child in operator.children]

    def _in_groups(self, operator: Unary, cut: CutSide, near: Near[R] | None) -> R:
        """Return the rows below of whole groups."""
        if near is None:
            return self.rows(operator.child, cut)
        return self.exactly(operator.child, cut, near)

    @staticmethod
    def _by(group: Group) -> dict[int, int]:
        """Return the output keys that make a group whole: number → number below."""
        return {out: below for out, below in group.keys.items() if below in group.by}

    def _joined_rows(self, join: Join, cut: CutSide, near: Near[R] | None) -> tuple[R, R]:
        """Return both sides' rows for a join, if only some values are wanted.

        A preserved side is looked up only by its own columns: without the other side's rows, it
        would seem to have no match.
        """
        left = near and near.through({column: column for column in join.left.columns})
        right = near and near.through({column: column for column in join.right.columns})
        right = right if join.kind in {"inner", "right"} else None
        left = left if join.kind != "right" else None
        left, right = self._across(join, left, right), self._across(join, right, left, own=1)
        if left is not None and right is None and join.pairs and not self._is_small(join.right):
            rows = self._looked_up(join.left, cut, left)
            return rows, self._opposite(join, rows, cut, "right")
        if right is not None and left is None and join.pairs and not self._is_small(join.left):
            rows = self._looked_up(join.right, cut, right)
            return self._opposite(join, rows, cut, "left"), rows
        return (
            self.rows(join.left, cut) if left is None else self.exactly(join.left, cut, left),
            self.rows(join.right, cut) if right is None else self.exactly(join.right, cut, right),
        )

    def _looked_up(self, side: Operator, cut: CutSide, near: Near[R]) -> R:
        """Return the rows of a side that have any of the values, computed only once."""
        rows = self.exactly(side, cut, near)
        kept = self._algebra.kept(rows)
        return rows if kept is None else kept

    @staticmethod
    def _across(
        join: Join, side: Near[R] | None, other: Near[R] | None, own: int = 0
    ) -> Near[R] | None:
        """Return the values wanted of a side, or the other one's in the columns that are equal."""
        if side is not None or other is None:
            return side
        equal = {pair[1 - own]: pair[own] for pair in join.pairs}
        return other.through(equal)

    def _apply(self, operator: Operator, rows: R | None) -> R | None:
        return None if rows is None else operator.make(rows)

    def _union(self, *rows: R | None) -> R | None:
        there = [each for each in rows if each is not None]
        if len(there) < 2:
            return there[0] if there else None
        return self._algebra.union(there)

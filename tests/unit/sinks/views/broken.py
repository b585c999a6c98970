"""The rules, each set without one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sinks.views.operators import NEW, OLD, CutSide, Group, Join, Operator, Rowwise, Window
from sinks.views.touched import Near, Rules, Touched
from tests.unit.sinks.views.plain import Rows


def _at(touched: Touched[Rows], cut: CutSide) -> Touched[Rows]:
    """What is touched at one cut only."""
    return Touched(touched.gone, None) if cut == OLD else Touched(None, touched.come)


class NoNullExtendedTwins(Rules[Rows]):
    """An outer join is followed as an inner one."""

    def _joined(self, join: Join) -> Touched[Rows]:
        return super()._joined(join if join.kind == "exists" else replace(join, kind="inner"))


class OuterAtOneCut(Rules[Rows]):
    """Preserved rows are looked for by what is gone at the old cut, what has come at the new."""

    def _matching(
        self, join: Join, other: Touched[Rows], cut: CutSide, kept: str = "left"
    ) -> Rows | None:
        outer = join.kind in {"left", "right", "full"}
        return super()._matching(join, _at(other, cut) if outer else other, cut, kept)


class SemiAtOneCut(Rules[Rows]):
    """Kept rows of semi and anti joins: old ones by what is gone, new ones by what has come."""

    def _matching(
        self, join: Join, other: Touched[Rows], cut: CutSide, kept: str = "left"
    ) -> Rows | None:
        semi = join.kind in {"semi", "anti"}
        return super()._matching(join, _at(other, cut) if semi else other, cut, kept)


class ExistsAtOneCut(Rules[Rows]):
    """The same, of the column that says whether any match."""

    def _matching(
        self, join: Join, other: Touched[Rows], cut: CutSide, kept: str = "left"
    ) -> Rows | None:
        exists = join.kind == "exists"
        return super()._matching(join, _at(other, cut) if exists else other, cut, kept)


class SemiWithoutOthers(Rules[Rows]):
    """Only rows of the left side itself touch a semi or anti join."""

    def _semi(self, join: Join) -> Touched[Rows]:
        return self.touched(join.left)


class NoRightSide(Rules[Rows]):
    """Touched rows of the right side meet none of the left one."""

    def _pairs(self, join: Join, left: Rows | None, right: Rows | None, cut: CutSide) -> list[Rows]:
        return super()._pairs(join, left, None, cut)


class NoLeftSide(Rules[Rows]):
    """Touched rows of the left side meet none of the right one."""

    def _pairs(self, join: Join, left: Rows | None, right: Rows | None, cut: CutSide) -> list[Rows]:
        return super()._pairs(join, None, right, cut)


class SideWithoutOthers(Rules[Rows]):
    """Values of one side of a join, whose rows may be touched by those of the other, too."""

    def _of_side(self, join: Join, side: str) -> Rows | None:
        left, right = self._sides(join)
        return self._union(*(left if side == "left" else right))


class PairsAtTheOtherCut(Rules[Rows]):
    """Gone rows meet the other side as it is now, and those that have come as it was."""

    def _pairs(self, join: Join, left: Rows | None, right: Rows | None, cut: CutSide) -> list[Rows]:
        return super()._pairs(join, left, right, NEW if cut == OLD else OLD)


class KeysOfGoneOnly(Rules[Rows]):
    """Groups in which a row is gone; not those in which one has come."""

    def _values(self, operator: Operator, columns: Sequence[int]) -> Near[Rows] | None:
        gone = self.touched(operator).gone
        return self._algebra.values(gone, columns) if gone else None


class KeysOfComeOnly(Rules[Rows]):
    """Groups in which a row has come; not those in which one is gone."""

    def _values(self, operator: Operator, columns: Sequence[int]) -> Near[Rows] | None:
        come = self.touched(operator).come
        return self._algebra.values(come, columns) if come else None


class GroupsAreNeverGone(Rules[Rows]):
    """The new results of groups, and not their old ones."""

    def _grouped(self, operator: Group | Window) -> Touched[Rows]:
        return super()._grouped(operator)._replace(gone=None)


class WindowOfTouchedRows(Rules[Rows]):
    """A window's function sees the touched rows of a partition, not all of them."""

    def _grouped(self, operator: Group | Window) -> Touched[Rows]:
        if isinstance(operator, Group):
            return super()._grouped(operator)
        return Touched(*(rows and operator.make(rows) for rows in self.touched(operator.child)))


class GroupOfTouchedRows(Rules[Rows]):
    """An aggregate sees the touched rows of a group, not all of them."""

    def _grouped(self, operator: Group | Window) -> Touched[Rows]:
        if isinstance(operator, Window):
            return super()._grouped(operator)
        return Touched(*(rows and operator.make(rows) for rows in self.touched(operator.child)))


class SessionsByTheirStart(Rules[Rows]):
    """An event's session is looked up by its time, though it can merge two."""

    @staticmethod
    def _by(group: Group) -> dict[int, int]:
        return dict(group.keys)


class FirstBranchOnly(Rules[Rows]):
    """What is touched in the other branches of a union is left out."""

    def _branch(self, union: Operator, number: int, rows: Rows | None) -> Rows | None:
        return super()._branch(union, number, rows) if number == 0 else None  # type: ignore[arg-type]


class NearBelowThePreservedSide(Rules[Rows]):
    """Rows of an outer join are looked for on both sides by themselves."""

    def _joined_rows(self, join: Join, cut: CutSide, near: Near[Rows] | None) -> tuple[Rows, Rows]:
        if join.kind in {"semi", "anti", "exists"}:
            return super()._joined_rows(join, cut, near)
        return super()._joined_rows(replace(join, kind="inner"), cut, near)


class NearBelowAFullJoin(Rules[Rows]):
    """Rows of a full join are looked for as those of a left one are."""

    def rows(self, operator: Operator, cut: CutSide, near: Near[Rows] | None = None) -> Rows:
        if isinstance(operator, Join) and operator.kind == "full":
            left = replace(operator, kind="left")
            rows: Rows = operator.make(*self._joined_rows(left, cut, near))
            return rows
        return super().rows(operator, cut, near)


class NearBelowAWindow(Rules[Rows]):
    """Rows of a window are looked for by columns that aren't those of its partitions."""

    def rows(self, operator: Operator, cut: CutSide, near: Near[Rows] | None = None) -> Rows:
        if isinstance(operator, Window):
            passed = {column: column for column in operator.child.columns}
            below = near and near.through(passed)
            rows: Rows = operator.make(self.rows(operator.child, cut, below))
            return rows
        return super().rows(operator, cut, near)


class GroupsOfAllNear(Rules[Rows]):
    """Rows that aren't of the wanted groups come with those that are."""

    def exactly(self, operator: Operator, cut: CutSide, near: Near[Rows]) -> Rows:
        return self.rows(operator, cut, near)


class MadeColumnsAsTheyWere(Rules[Rows]):
    """A projection's columns are looked for below by their place, also where they are computed."""

    def rows(self, operator: Operator, cut: CutSide, near: Near[Rows] | None = None) -> Rows:
        if isinstance(operator, Rowwise):
            first = operator.child.columns[0]
            passed: Mapping[int, int] = {
                column: operator.passed.get(column, first) for column in operator.columns
            }
            return super().rows(replace(operator, passed=passed), cut, near)
        return super().rows(operator, cut, near)


BROKEN: Final = (
    NoNullExtendedTwins,
    OuterAtOneCut,
    SemiAtOneCut,
    ExistsAtOneCut,
    SemiWithoutOthers,
    NoRightSide,
    NoLeftSide,
    SideWithoutOthers,
    PairsAtTheOtherCut,
    KeysOfGoneOnly,
    KeysOfComeOnly,
    GroupsAreNeverGone,
    WindowOfTouchedRows,
    GroupOfTouchedRows,
    SessionsByTheirStart,
    FirstBranchOnly,
    NearBelowThePreservedSide,
    NearBelowAFullJoin,
    NearBelowAWindow,
    GroupsOfAllNear,
    MadeColumnsAsTheyWere,
)

"""Operators over plain rows: a row is a dictionary of column number → value, a bag is a list."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sinks.views.operators import NEW, OLD, CutSide, Join, Table, Union
from sinks.views.touched import Near

Row = dict[int, Any]
Rows = list[Row]
ROWS_MAX: Final = 120
"""Plans with more at any operator are left out."""


class TooManyError(Exception):
    """An operator has too many rows."""


def same(value: Any) -> Any:
    """What is equal where two values are, null-safely: -0 is 0, and NaN is one value.

    True isn't 1, as it is in Python: no column of SQL has both.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return "NaN" if value != value else value  # noqa: PLR0124 (only NaN isn't itself)


def bag(rows: Iterable[Row], columns: Sequence[int]) -> Counter[tuple[Any, ...]]:
    """The rows, and how often there are."""
    return Counter(tuple([same(row[column]) for column in columns]) for row in rows)


@dataclass(frozen=True, slots=True)
class Matching:
    """A join's condition: pairs of columns that are equal, null-safely or not, and ``more``."""

    pairs: tuple[tuple[int, int], ...]
    null_safe: bool
    more: Callable[[Row, Row], bool] | None

    def partners(self, rows: Rows, others: Rows, *, right: bool) -> Iterator[tuple[Row, Rows]]:
        """Each row with those of the others that match; ``right``: the rows are the right side."""
        own = [pair[right] for pair in self.pairs]
        theirs = [pair[not right] for pair in self.pairs]
        index: dict[tuple[Any, ...], Rows] = {}
        for other in others:
            index.setdefault(tuple([same(other[column]) for column in theirs]), []).append(other)
        for row in rows:
            key = tuple([same(row[column]) for column in own])
            found = index.get(key, []) if self.null_safe or None not in key else []
            if self.more is not None:
                more = self.more
                found = [each for each in found if (more(each, row) if right else more(row, each))]
            yield row, found


def joined(join: Join, left: Rows, right: Rows) -> Rows:
    """The pairs of rows that match."""
    pairs = [
        {**row, **other}
        for row, others in join.condition.partners(left, right, right=False)
        for other in others
    ]
    if len(pairs) > ROWS_MAX:
        raise TooManyError
    return pairs


def extended(rows: Rows, columns: Sequence[int]) -> Rows:
    """Rows with null in more columns."""
    nulls = dict.fromkeys(columns)
    return [{**row, **nulls} for row in rows]


def join_of(join: Join, left: Rows, right: Rows) -> Rows:
    """The rows of a join of any kind."""
    sides = list(join.condition.partners(left, right, right=False))
    match join.kind:
        case "semi":
            return [row for row, others in sides if others]
        case "anti":
            return [row for row, others in sides if not others]
        case "exists":
            return [{**row, join.columns[-1]: bool(others)} for row, others in sides]
    rows = joined(join, left, right)
    if join.kind in {"left", "full"}:
        alone = [row for row, others in sides if not others]
        rows += extended(alone, join.right.columns)
    if join.kind in {"right", "full"}:
        alone = [row for row, own in join.condition.partners(right, left, right=True) if not own]
        rows += extended(alone, join.left.columns)
    return rows


@dataclass(frozen=True, slots=True)
class PlainAlgebra:
    """Evaluates operators over tables that have some rows at each of two cuts.

    A table returns no row more than it is asked for; those in ``small`` are read whole.
    """

    data: Mapping[str, Mapping[CutSide, Rows]]
    """Rows by the numbers of columns as all occurrences of the table have them: 0, 1, 2 …"""
    small: frozenset[str] = frozenset()
    _differences: dict[str, tuple[Rows, Rows]] = field(default_factory=dict)

    @staticmethod
    def _as(table: Table, rows: Rows) -> Rows:
        places = [(number, int(name)) for number, name in table.names.items()]
        return [{number: row[place] for number, place in places} for row in rows]

    def table(self, table: Table, cut: CutSide, near: Near[Rows] | None) -> Rows:
        """All rows of a table at a cut; exactly those near the values."""
        rows = self._as(table, self.data[table.name][cut])
        return rows if near is None or table.name in self.small else self.only(rows, near)

    def changed(self, table: Table) -> tuple[Rows | None, Rows | None]:
        """The rows of a table that are gone, and those that have come."""
        if table.name not in self._differences:
            cuts = self.data[table.name]
            self._differences[table.name] = (
                _more(cuts[OLD], cuts[NEW]),
                _more(cuts[NEW], cuts[OLD]),
            )
        gone, come = self._differences[table.name]
        return (self._as(table, gone), self._as(table, come)) if gone or come else (None, None)

    def is_small(self, table: Table) -> bool:
        """Whether reading all of it is faster than a search through it."""
        return table.name in self.small

    def union(self, rows: Sequence[Rows]) -> Rows:
        """All of them."""
        return [row for each in rows for row in each]

    def branch(self, union: Union, number: int, rows: Rows) -> Rows:
        """Rows of one branch of a union, as the union shows them."""
        passed = union.passed[number].items()
        return [{out: row[below] for out, below in passed} for row in rows]

    def matching(self, join: Join, left: Rows, right: Rows, *, kept: str) -> Rows:
        """The rows of the kept side that match any of the other side."""
        is_right = kept == "right"
        own, others = (right, left) if is_right else (left, right)
        return [row for row, of in join.condition.partners(own, others, right=is_right) if of]

    def joined(self, join: Join, left: Rows, right: Rows) -> Rows:
        """The pairs of rows that match, whatever the kind of the join is."""
        return joined(join, left, right)

    def extended(self, join: Join, rows: Rows, *, kept: str) -> Rows:
        """Rows of the kept side as the join shows those that match nothing."""
        return extended(rows, (join.right if kept == "left" else join.left).columns)

    def flagged(self, join: Join, rows: Rows) -> Rows:
        """Rows of the left side with both values of the column that tells whether any match."""
        return [{**row, join.columns[-1]: value} for row in rows for value in (True, False)]

    def only(self, rows: Rows, near: Near[Rows]) -> Rows:
        """The rows that have any of the values."""
        there = set(bag(near.values, [*near.columns.values()]))
        own = [*near.columns]
        return [row for row in rows if tuple([same(row[column]) for column in own]) in there]

    def values(self, rows: Rows, columns: Sequence[int]) -> Near[Rows] | None:
        """The values of some columns, each once; None: there are no rows."""
        columns = [*dict.fromkeys(columns)]
        values = [dict(enumerate(value)) for value in bag(rows, columns)]
        return (
            Near(values, {column: place for place, column in enumerate(columns)})
            if values
            else None
        )

    def kept(self, rows: Rows) -> Rows | None:
        """The rows; None: there are none."""
        return rows or None


def _more(rows: Rows, than: Rows) -> Rows:
    """The rows that one bag has more often than another, where -0 isn't 0."""
    left = Counter(repr(row) for row in than)
    more = []
    for row in rows:
        if left[repr(row)]:
            left[repr(row)] -= 1
        else:
            more.append(row)
    return more


def near_of(rng: random.Random, rows: Rows, columns: Sequence[int]) -> Near[Rows]:
    """The values of some columns in some of the rows, some of them mixed up."""
    own = rng.sample([*columns], rng.randint(1, min(3, len(columns))))
    chosen = rng.sample(rows, min(len(rows), rng.randint(0, 2)))
    values = [{place: row[column] for place, column in enumerate(own)} for row in chosen]
    values += [
        {place: rng.choice(rows)[column] for place, column in enumerate(own)} for _ in rows[:1]
    ]
    return Near(values, {column: place for place, column in enumerate(own)})

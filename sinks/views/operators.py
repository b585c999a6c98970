"""A query as a tree of operators, as far as the rules of what is touched need to know it.

A column goes by its number, which is unique in a query and stays the same on its way up. An
operator is evaluated by its ``make``, of Spark's plans or of plain rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

CutSide = Literal["old", "new"]
OLD: Final = "old"
NEW: Final = "new"
JoinKind = Literal["inner", "left", "right", "full", "semi", "anti", "exists"]


@dataclass(frozen=True, eq=False, slots=True)
class Operator:
    """What all operators have: those below, the columns that come out, and how.

    ``make`` takes the rows of the operators below. ``row_key`` are columns that tell all rows
    apart, at any cut (None: there are none). ``group`` are columns by which it is worth to compute
    rows again together: those of the outermost grouping, by which the rows below can be looked up.
    """

    make: Callable[..., Any]
    columns: tuple[int, ...]
    row_key: tuple[int, ...] | None
    group: tuple[int, ...]

    @property
    def children(self) -> "tuple[Operator, ...]":
        """The operators that its rows come from."""
        return ()

    def tables(self) -> "Iterator[Table]":
        """Every occurrence of a table below."""
        for child in self.children:
            yield from child.tables()


@dataclass(frozen=True, eq=False, slots=True)
class Table(Operator):
    """An occurrence of a table, whose columns have these ``names`` there."""

    name: str = ""
    names: Mapping[int, str] = field(default_factory=dict)

    def tables(self) -> "Iterator[Table]":
        """Itself."""
        yield self


@dataclass(frozen=True, eq=False, slots=True)
class Constant(Operator):
    """Rows that the query itself has; they never change."""


@dataclass(frozen=True, eq=False, slots=True)
class Unary(Operator):
    """An operator on the rows of one other."""

    child: Operator = field(kw_only=True)

    @property
    def children(self) -> tuple[Operator, ...]:
        """The one below."""
        return (self.child,)


@dataclass(frozen=True, eq=False, slots=True)
class Rowwise(Unary):
    """Makes none, one or several rows of each row by itself: filter, projection, explode.

    Columns that come out as they were are ``passed``: number there → number below. Spans of time
    that come out are ``within``: number there → number below of the time that each is around.
    """

    passed: Mapping[int, int] = field(kw_only=True)
    within: Mapping[int, int] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Group(Unary):
    """One row for each group of rows that are equal in some columns: GROUP BY, DISTINCT.

    ``keys``: number of a key that comes out → number of its column below. ``by`` are the columns
    below by which rows can belong to the same group, whatever else comes: those of session windows
    aren't among them, since an event can merge two sessions.
    """

    keys: Mapping[int, int] = field(kw_only=True)
    by: tuple[int, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Window(Unary):
    """Adds columns to each row that depend on the rows of the same partition.

    ``by``: number of a column that is the same in all rows of a partition → its column below.
    """

    by: Mapping[int, int] = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Join(Operator):
    """Rows of two, by a condition; ``pairs`` are columns that it wants to be equal.

    ``exists`` is all rows of the left side, with a column that says whether the right side has any
    that match.
    """

    kind: JoinKind = field(kw_only=True)
    left: Operator = field(kw_only=True)
    right: Operator = field(kw_only=True)
    pairs: tuple[tuple[int, int], ...] = field(kw_only=True)
    condition: Any = field(kw_only=True)
    types: Mapping[int, Any] = field(default_factory=dict)

    @property
    def children(self) -> tuple[Operator, ...]:
        """Both sides."""
        return (self.left, self.right)


@dataclass(frozen=True, eq=False, slots=True)
class Union(Operator):
    """All rows of several; for each the numbers of columns that are ``passed`` from there."""

    branches: tuple[Operator, ...] = field(kw_only=True)
    passed: tuple[Mapping[int, int], ...] = field(kw_only=True)

    @property
    def children(self) -> tuple[Operator, ...]:
        """Them."""
        return self.branches


@dataclass(frozen=True, eq=False, slots=True)
class Whole(Operator):
    """What can't be followed by what changes, for a ``reason``; it is only evaluated as a whole."""

    below: tuple[Operator, ...] = field(kw_only=True)
    reason: str = field(kw_only=True)

    @property
    def children(self) -> tuple[Operator, ...]:
        """Those below."""
        return self.below

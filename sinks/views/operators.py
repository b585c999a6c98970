"""A query → a tree of operators, as far as the rules of touched rows need it.

A column has a number, which is unique in a query and stays the same on its way up. An operator's
``make`` evaluates it, on Spark's plans or on plain rows.
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
    """The common part of all operators: those below, the output columns, and the evaluation.

    ``make`` takes the rows of the operators below. ``row_key`` are columns that distinguish all
    rows, at any cut (None: there are none). ``group`` are columns by which it pays to compute rows
    again together: those of the outermost grouping, which can be used to look up the rows below.
    """

    make: Callable[..., Any]
    columns: tuple[int, ...]
    row_key: tuple[int, ...] | None
    group: tuple[int, ...]

    @property
    def children(self) -> "tuple[Operator, ...]":
        """Return the operators that its rows come from."""
        return ()

    def tables(self) -> "Iterator[Table]":
        """Yield every occurrence of a table below."""
        for child in self.children:
            yield from child.tables()


@dataclass(frozen=True, eq=False, slots=True)
class Table(Operator):
    """An occurrence of a table, with the ``names`` of its columns there."""

    name: str = ""
    names: Mapping[int, str] = field(default_factory=dict)

    def tables(self) -> "Iterator[Table]":
        """Yield itself."""
        yield self


@dataclass(frozen=True, eq=False, slots=True)
class Constant(Operator):
    """Rows in the query itself, which never change."""


@dataclass(frozen=True, eq=False, slots=True)
class Unary(Operator):
    """An operator on the rows of another one."""

    child: Operator = field(kw_only=True)

    @property
    def children(self) -> tuple[Operator, ...]:
        """Return the one below."""
        return (self.child,)


@dataclass(frozen=True, eq=False, slots=True)
class Rowwise(Unary):
    """Makes no, one or several rows of each row separately: filter, projection, explode.

    Unchanged columns are ``passed``: output number → number below. Output spans of time are
    ``within``: output number → number below of each span's time.
    """

    passed: Mapping[int, int] = field(kw_only=True)
    within: Mapping[int, int] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Group(Unary):
    """One row for each group of rows that are equal in some columns: GROUP BY, DISTINCT.

    ``keys``: output number of a key → number of its column below. ``by`` are the columns below by
    which rows can belong to the same group, whatever other rows are added. Those of session windows
    are excluded, since an event can merge two sessions.
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
    """Rows of two operators, by a condition. It requires ``pairs`` of columns to be equal.

    ``exists`` is all rows of the left side, with a column that says whether the right side has a
    match.
    """

    kind: JoinKind = field(kw_only=True)
    left: Operator = field(kw_only=True)
    right: Operator = field(kw_only=True)
    pairs: tuple[tuple[int, int], ...] = field(kw_only=True)
    condition: Any = field(kw_only=True)
    types: Mapping[int, Any] = field(default_factory=dict)

    @property
    def children(self) -> tuple[Operator, ...]:
        """Return both sides."""
        return (self.left, self.right)


@dataclass(frozen=True, eq=False, slots=True)
class Union(Operator):
    """All rows of several operators, with each one's numbers of ``passed`` columns."""

    branches: tuple[Operator, ...] = field(kw_only=True)
    passed: tuple[Mapping[int, int], ...] = field(kw_only=True)

    @property
    def children(self) -> tuple[Operator, ...]:
        """Return them."""
        return self.branches


@dataclass(frozen=True, eq=False, slots=True)
class Whole(Operator):
    """An operator that can't follow changes, for a ``reason``. It is only evaluated as a whole."""

    below: tuple[Operator, ...] = field(kw_only=True)
    reason: str = field(kw_only=True)

    @property
    def children(self) -> tuple[Operator, ...]:
        """Return those below."""
        return self.below

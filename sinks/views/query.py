"""A view's query as operators, and the columns that come out of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sinks.changes.names import DELETED, END, IS_CURRENT, POSITION, VALID_FROM, VALID_TO
from sinks.views.operators import Operator

HIDDEN: Final = "_millrace_key_"
"""How columns begin that a view's rows are kept by, beside the user's."""
TAKEN: Final = frozenset({"_millrace_file", "_millrace_index", "_metadata", DELETED})
"""Names that a view's columns can't have: rows are read by columns of these."""
OF_VERSIONS: Final = frozenset({POSITION, VALID_FROM, VALID_TO, END, IS_CURRENT})
"""Columns that the versions of a view's rows have beside its own."""


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """A query as operators, with the columns that come out of the topmost.

    ``columns`` are the user's by name and number, ``types`` theirs by name. ``hidden`` are those
    that rows are kept by beside them, and ``texts`` say of each where it comes from. Subqueries
    that stay expressions read the ``inner`` tables. ``reasons`` are why it can only be evaluated
    as a whole; none: it follows what changes. ``definite`` are the places where it had more than
    one right answer, and how that was decided. It ``is_timed`` where it asks for the time. It
    ``is_bag`` where nothing tells its rows apart but a number for each copy.
    """

    top: Operator
    columns: tuple[tuple[str, int], ...]
    hidden: tuple[tuple[str, int], ...]
    types: Mapping[str, str]
    texts: Mapping[int, str]
    reasons: tuple[str, ...]
    definite: tuple[str, ...]
    is_timed: bool
    inner: Mapping[str, frozenset[str]]
    is_bag: bool

    def used(self) -> dict[str, set[str]]:
        """The names of what it reads, and of the columns."""
        used: dict[str, set[str]] = {name: {*of} for name, of in self.inner.items()}
        for table in self.top.tables():
            used.setdefault(table.name, set()).update(table.names.values())
        return used

    def described(self, numbers: tuple[int, ...]) -> list[str]:
        """Columns for people: the user's by their names, others by where they come from."""
        names = {number: name for name, number in self.columns}
        return [self.texts.get(number) or names.get(number, "copy") for number in numbers]

    def stored(self, numbers: tuple[int, ...]) -> list[str]:
        """What columns are called in the view's table."""
        names = {number: name for name, number in (*self.columns, *self.hidden)}
        return [names[number] for number in numbers]

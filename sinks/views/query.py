"""A view's query as operators, and its output columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sinks.changes.names import DELETED, END, IS_CURRENT, POSITION, VALID_FROM, VALID_TO
from sinks.views.operators import Operator

HIDDEN: Final = "_millrace_key_"
"""Prefix of the columns that identify a view's rows, in addition to the user's."""
TAKEN: Final = frozenset({"_millrace_file", "_millrace_index", "_metadata", DELETED})
"""Names that a view's columns can't have, as reads of rows use them."""
OF_VERSIONS: Final = frozenset({POSITION, VALID_FROM, VALID_TO, END, IS_CURRENT})
"""Columns of a view's versions of rows, in addition to its own."""


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """A query as operators, with the output columns of the topmost.

    ``columns`` are the user's by name and number, ``types`` theirs by name. ``hidden`` are those
    that identify rows in addition, and ``texts`` describe each one's origin. Subqueries that stay
    expressions read the ``inner`` tables. ``reasons`` are why it can only be evaluated as a whole;
    none: it follows changes. ``definite`` are the places with more than one correct result, and the
    choice made. It ``is_timed`` if it uses the time. It ``is_bag`` if only a number for each copy
    identifies its rows.
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
        """Return the names of its tables, and of the columns."""
        used: dict[str, set[str]] = {name: {*of} for name, of in self.inner.items()}
        for table in self.top.tables():
            used.setdefault(table.name, set()).update(table.names.values())
        return used

    def described(self, numbers: tuple[int, ...]) -> list[str]:
        """Return columns for people: the user's by name, others by origin."""
        names = {number: name for name, number in self.columns}
        return [self.texts.get(number) or names.get(number, "copy") for number in numbers]

    def stored(self, numbers: tuple[int, ...]) -> list[str]:
        """Return the names of columns in the view's table."""
        names = {number: name for name, number in (*self.columns, *self.hidden)}
        return [names[number] for number in numbers]

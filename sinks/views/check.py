"""[[views]] and the tables' columns → how each view is kept, before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cdc.errors import MillraceError
from sinks.run.options import RunContext


@dataclass(frozen=True, slots=True)
class ViewReport:
    """How a view is kept: by its ``changes``, or evaluated ``whole`` for these reasons.

    ``keys`` are the columns, or expressions, that tell its rows apart (none: it is kept as a bag of
    rows), ``groups`` those of what is computed again together. ``read_whole`` are tables that a
    change of others has read as a whole, with the reason. ``casts`` are implicit casts of text to
    numbers, ``made_definite`` what the query leaves open and how it is decided. All of it is text
    for people. ``error``: the view can't be kept at all.
    """

    name: str
    reads: tuple[str, ...] = ()
    way: str = "changes"
    reasons: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    read_whole: tuple[str, ...] = ()
    casts: tuple[str, ...] = ()
    made_definite: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    error: MillraceError | None = None


def check_views(context: RunContext) -> Sequence[ViewReport]:
    """Analyse all views against the tables' columns in the newest schemas; starts Spark."""
    raise NotImplementedError(context)

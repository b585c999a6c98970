"""Which derived tables of which sinks a verify compares, and what it may take of the source."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from cdc.settings import Settings
from compaction.verify.slices import Slice
from sinks.run.summary import SinkName

COMPARED: Final[tuple[SinkName, ...]] = ("lakehouse", "views", "search")
"""The sinks whose tables can be compared."""
WantedNames = Mapping[SinkName, Collection[str] | None]
"""The tables of some sinks, of each all (None) or those with such names."""


class VerifyOptions(NamedTuple):
    """Which derived tables of which sinks (none: all), and what a verify may take of the source.

    It waits ``timeout_s`` for transactions that are open, and for the log. What the source shows is
    kept for ``age_max_s`` at most. Of each table ``keys_shown`` keys are named. With ``repair``
    rows that differ are sent again. Only rows in a slice (``slice_``) are compared, where there is
    one. With ``values`` those of columns that differ are shown.
    """

    tables: frozenset[str] = frozenset()
    sinks: frozenset[SinkName] = frozenset()
    sessions: int = 2
    rows_per_second: int = 0
    timeout_s: float = 30.0
    age_max_s: float = 3600.0
    keys_shown: int = 10
    repair: bool = False
    slice_: Slice | None = None
    values: bool = False


def compared_sinks(settings: Settings, options: VerifyOptions) -> list[SinkName]:
    """The sinks that a verify compares."""
    sinks = [sink for sink in COMPARED if getattr(settings, sink)]
    return [sink for sink in sinks if sink in options.sinks or not options.sinks]


def compared_names(settings: Settings, options: VerifyOptions) -> dict[SinkName, set[str] | None]:
    """The names of what is compared of each sink (None: all).

    Joined documents say what the lakehouse says: the tables that they are made of are compared.
    Those that views are made of are known to their records alone.
    """
    chosen = set(options.tables) or None
    if options.sinks == {"views"}:
        settings.require_views(options.tables)
    names: dict[SinkName, set[str] | None] = dict.fromkeys(
        compared_sinks(settings, options), chosen
    )
    if chosen is not None and "views" in names:
        views = chosen & {view.name for view in settings.views}
        named = {document.name for document in settings.search.documents} if settings.search else ()
        names = {
            sink: views if sink == "views" else chosen - views.difference(named) for sink in names
        }
        names = {sink: some for sink, some in names.items() if some}
    documents = settings.search.documents if settings.search and "search" in names else ()
    made_of = {
        table
        for document in documents
        if chosen is None or document.name in chosen
        for table in document.tables()
    }
    if made_of and "lakehouse" not in names:
        names["lakehouse"] = made_of
    elif made_of and (compared := names["lakehouse"]) is not None:
        names["lakehouse"] = compared | made_of
    return names

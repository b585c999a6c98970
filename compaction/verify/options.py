"""A verify's options → the derived tables of each sink to compare, and the load on the source."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from cdc.settings import Settings
from compaction.verify.slices import Slice
from sinks.run.summary import SinkName

COMPARED: Final[tuple[SinkName, ...]] = ("lakehouse", "views", "search")
"""The sinks whose tables can be compared."""
WantedNames = Mapping[SinkName, Collection[str] | None]
"""The tables of some sinks: all of a sink (None), or those with these names."""


class VerifyOptions(NamedTuple):
    """The derived tables and sinks to compare (none: all), and the load on the source.

    A verify waits ``timeout_s`` for open transactions, and for the log. It keeps the source's
    snapshot for ``age_max_s`` at most. Each table names up to ``keys_shown`` keys. With ``repair``,
    differing rows are sent again. With ``slice_``, only rows of that slice are compared. With
    ``values``, the report has the values of differing columns.
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
    """Return the sinks that a verify compares."""
    sinks = [sink for sink in COMPARED if getattr(settings, sink)]
    return [sink for sink in sinks if sink in options.sinks or not options.sinks]


def compared_names(settings: Settings, options: VerifyOptions) -> dict[SinkName, set[str] | None]:
    """Return the names to compare of each sink (None: all).

    Joined documents are made of lakehouse tables, which are compared, too. The tables of views are
    known only from the views' records.
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

"""Changes of a table that is loaded → the rows of its snapshots first, as they come.

Those rows are most of a load, and their order doesn't matter: each carries its version, and none is
a delete. The changes that came later are written behind them, only the newest of each key, so that
no delete comes too early.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.settings import SearchSettings
from sinks.changes.names import SNAPSHOT
from sinks.changes.newest import PATCHY, contenders, is_patchy, latest
from sinks.changes.shape import TableShape
from sinks.search.bulk import Counts
from sinks.search.executors import Observed, write_documents, write_observed
from sinks.search.rows import documents

_REMAINING: Final = "millrace_remaining"


class RemainingChanges(NamedTuple):
    """How many changes aren't rows of a snapshot, and how many of those lack values of their own.

    ``refused`` counts the rows of the snapshot that the server refused.
    """

    changes: int
    patchy: int
    refused: int = 0


class WrittenRows(NamedTuple):
    """The counts of the rows written, the changes that remain, and Spark's observations."""

    counts: Counts
    remaining: RemainingChanges
    observed: Observed


def mark_snapshot_rows(changes: DataFrame) -> DataFrame:
    """Changes (parsed with ``snapshot``), marked as rows of the snapshot or not; counts the latter.

    Spark pushes no filter below an observation: below it, the filter would parse each record again.
    """
    patchy = is_patchy(changes)
    marked = changes.withColumns({PATCHY: patchy, SNAPSHOT: F.col(SNAPSHOT) & ~patchy})
    return marked.observe(
        _REMAINING,
        F.count_if(~F.col(SNAPSHOT)).alias("changes"),
        F.count_if(~F.col(SNAPSHOT) & F.col(PATCHY)).alias("patchy"),
    )


def write_rows(
    changes: DataFrame, shape: TableShape, settings: SearchSettings, index: str
) -> WrittenRows:
    """Write the rows of snapshots among the changes, marked by ``mark_snapshot_rows``.

    A refused row may have changed since: it remains to be written.
    """
    rows = documents(changes.where(SNAPSHOT), shape)
    counts, observed = write_observed(rows, settings, index, is_load=True, is_final=False)
    summary = observed(_REMAINING)
    changed, patchy = (summary.getAs(kind) if summary else 1 for kind in ("changes", "patchy"))
    remaining = RemainingChanges(changed, patchy, counts.refused)
    return WrittenRows(replace(counts, refused=0), remaining, observed)


def write_remaining(
    changes: DataFrame,
    remaining: RemainingChanges,
    shape: TableShape,
    settings: SearchSettings,
    index: str,
) -> Counts:
    """Write the newest of each key of the ``remaining`` ones of the same changes."""
    if remaining.refused:
        others = changes
    elif remaining.patchy:
        # Of those, a row's values are exact, and count before what was read at another time.
        others = contenders(changes, shape).where(~F.col(SNAPSHOT) | F.col(PATCHY))
    elif remaining.changes:
        others = changes.where(~F.col(SNAPSHOT))
    else:
        return Counts()
    newest = documents(latest(others, shape), shape)
    return write_documents(newest, settings, index, is_load=True)

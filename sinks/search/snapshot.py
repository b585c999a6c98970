"""Changes of a table that is loaded → the rows of its snapshots first, as they come.

Those rows are most of a load, and their order doesn't matter: each carries its version, and none is
a delete. The changes that came later are written behind them, only the newest of each key, so that
no delete comes too early.
"""

from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.settings import SearchSettings
from sinks.changes.latest import PATCHY, contenders, is_patchy, latest
from sinks.changes.names import SNAPSHOT
from sinks.changes.shape import TableShape
from sinks.search.bulk import Counts
from sinks.search.executors import WrittenDocuments, write_documents
from sinks.search.rows import documents

_REMAINING: Final = "millrace_remaining"


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
) -> WrittenDocuments:
    """Write the rows of snapshots among the changes, marked by ``mark_snapshot_rows``.

    A refused row may have changed since: it remains to be written.
    """
    rows = documents(changes.where(SNAPSHOT), shape)
    return write_documents(rows, settings, index, is_load=True, is_final=False)


def write_remaining(
    changes: DataFrame,
    rows: WrittenDocuments,
    shape: TableShape,
    settings: SearchSettings,
    index: str,
) -> Counts:
    """Write the newest of each key of the same changes that ``write_rows`` has left.

    Returns the counts of both.
    """
    summary = rows.observed(_REMAINING)
    written = replace(rows.counts, refused=0)
    if rows.counts.refused:
        others = changes
    elif summary is None or summary.getAs("patchy"):
        # Of those, a row's values are exact, and count before what was read at another time.
        others = contenders(changes, shape).where(~F.col(SNAPSHOT) | F.col(PATCHY))
    elif summary.getAs("changes"):
        others = changes.where(~F.col(SNAPSHOT))
    else:
        return written
    newest = documents(latest(others, shape), shape)
    return written + write_documents(newest, settings, index, is_load=True).counts

"""A table's parsed changes → documents of what they leave, each key's once, in one pass or two.

What comes whole is written as it comes. Whether anything else is left is counted on the way: where
there is, the changes are read once more.
"""

from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.settings import SearchSettings
from sinks.changes.names import LOST, SNAPSHOT
from sinks.changes.newest import PATCHY, contenders, is_patchy, lacking, latest
from sinks.changes.shape import TableShape
from sinks.search.bulk import Counts
from sinks.search.executors import WrittenDocuments, write_documents
from sinks.search.rows import documents
from sinks.spark.jvm import release

_REMAINING: Final = "millrace_remaining"
_SEVERAL: Final = "millrace_several"


def marked(changes: DataFrame) -> DataFrame:
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


def write_snapshot_rows(
    changes: DataFrame, shape: TableShape, settings: SearchSettings, index: str
) -> WrittenDocuments:
    """Write the rows of snapshots among the changes, marked by ``marked``.

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
    """Write the newest of each key of the same changes that ``write_snapshot_rows`` has left.

    Returns the counts of both.
    """
    summary = rows.observed(_REMAINING)
    written = replace(rows.counts, refused=0)
    if rows.counts.refused:
        others = contenders(changes, shape)
    elif summary is None or summary.getAs("patchy"):
        # Of those, a row's values are exact, and count before what was read at another time.
        others = contenders(changes, shape).where(~F.col(SNAPSHOT) | F.col(PATCHY))
    elif summary.getAs("changes"):
        others = contenders(changes.where(~F.col(SNAPSHOT)), shape)
    else:
        return written
    return written + write_newest(others, shape, settings, index, is_load=True)


def write_newest(
    rows: DataFrame,
    shape: TableShape,
    settings: SearchSettings,
    index: str,
    only: frozenset[str] | None = None,
    *,
    is_load: bool = False,
) -> Counts:
    """Write the newest of each key of ``contenders``: first those that are whole as they come.

    Those that have to be made of several are read once more, which is rare, and kept by executors
    meanwhile. A key is one or the other.
    """
    counted = rows.observe(_SEVERAL, F.count_if(PATCHY).alias("rows"))
    whole = counted.where(~F.col(PATCHY)).drop(PATCHY, LOST)
    written = write_documents(documents(whole, shape), settings, index, only, is_load=is_load)
    several = written.observed(_SEVERAL)
    if several is not None and not several.getAs("rows"):
        return written.counts
    others = rows.where(PATCHY).drop(PATCHY).localCheckpoint(eager=False)
    try:
        newest = documents(latest(others, shape, lacking(others, shape)), shape)
        put_together = write_documents(newest, settings, index, only, is_load=is_load)
    finally:
        release(others)
    return written.counts + put_together.counts

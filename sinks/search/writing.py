"""A table's parsed changes → documents, each key's once, in one pass or two.

Whole changes are written as they come. The first pass counts the others, and if there are any, a
second pass reads the changes again.
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
    """Mark changes (parsed with ``snapshot``) as rows of the snapshot or not. Count the latter.

    Spark pushes no filter below an observation. Otherwise the filter would parse each record again.
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

    A refused row may have changed since, so it is written again later.
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
    """Write the newest of each key of the changes that ``write_snapshot_rows`` has left.

    Return the counts of both.
    """
    summary = rows.observed(_REMAINING)
    written = replace(rows.counts, refused=0)
    if rows.counts.refused:
        others = contenders(changes, shape)
    elif summary is None or summary.getAs("patchy"):
        # Those of a row are exact, and take precedence over values read at another time.
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
    """Write the newest of each key of ``contenders``: first those that are whole.

    Those that combine several are read once more, which is rare; executors keep them. A key is one
    or the other.
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

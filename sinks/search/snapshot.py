"""Changes of a table that is loaded → the rows of its snapshots first, as they come.

Those are most of what a load reads, and have no order to be brought into: each carries its version,
and no delete is among them. What is written behind them is what has changed since: as the newest of
each key, so that no delete comes too early, either.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.settings import SearchSettings
from sinks.changes.latest import PATCHY, contenders, is_patchy, latest
from sinks.changes.names import SNAPSHOT
from sinks.changes.shape import TableShape
from sinks.search.bulk import Counts
from sinks.search.executors import Observed, write_documents, write_observed
from sinks.search.rows import documents

_LEFT: Final = "millrace_left"


class Left(NamedTuple):
    """Changes that aren't such rows: how many, and how many of them lack values of their own.

    And how many of the rows the server has refused.
    """

    changes: int
    patchy: int
    refused: int = 0


class Written(NamedTuple):
    """What became of the rows, what is left, and what else was observed."""

    counts: Counts
    left: Left
    observed: Observed


def two_kinds(changes: DataFrame) -> DataFrame:
    """Changes (parsed with ``snapshot``), with what tells the two kinds apart.

    Spark doesn't look beyond what is observed: it would read each record once more to choose it.
    """
    patchy = is_patchy(changes)
    marked = changes.withColumns({PATCHY: patchy, SNAPSHOT: F.col(SNAPSHOT) & ~patchy})
    return marked.observe(
        _LEFT,
        F.count_if(~F.col(SNAPSHOT)).alias("changes"),
        F.count_if(~F.col(SNAPSHOT) & F.col(PATCHY)).alias("patchy"),
    )


def write_rows(
    changes: DataFrame, shape: TableShape, settings: SearchSettings, index: str
) -> Written:
    """Write the rows of snapshots that changes (of ``two_kinds``) have among them.

    Those that are refused may well be others by now: they are left.
    """
    rows = documents(changes.where(SNAPSHOT), shape)
    counts, observed = write_observed(rows, settings, index, is_load=True, is_final=False)
    told = observed(_LEFT)
    changed, patchy = (told.getAs(kind) if told else 1 for kind in ("changes", "patchy"))
    return Written(replace(counts, refused=0), Left(changed, patchy, counts.refused), observed)


def write_left(
    changes: DataFrame, left: Left, shape: TableShape, settings: SearchSettings, index: str
) -> Counts:
    """Write what is newest of each key of what was ``left`` of the same changes."""
    if left.refused:
        others = changes
    elif left.patchy:
        # Of those, a row's values are exact, and count before what was read at another time.
        others = contenders(changes, shape).where(~F.col(SNAPSHOT) | F.col(PATCHY))
    elif left.changes:
        others = changes.where(~F.col(SNAPSHOT))
    else:
        return Counts()
    newest = documents(latest(others, shape), shape)
    return write_documents(newest, settings, index, is_load=True)

"""A backlog → an earlier cut, so that a run reads about so many records at most.

Tables stand at one cut together, so what is left for later runs is what was committed later. One
transaction, and one snapshot's rows, can't be parted: where such a thing is larger, so is the run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.position import Position
from sinks.log.offsets import LogState, Offsets, Report, read_raw
from sinks.run.plan import TablePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Bound(NamedTuple):
    """The cut of a bounded run, and the ends up to which it reads each topic's partitions."""

    cut: Position
    ends: Offsets


def bounded(
    spark: "SparkSession",
    kafka: Mapping[str, str],
    state: LogState,
    tables: Mapping[str, TablePlan],
    records_max: int,
    last: Position | None,
    report: Report,
) -> LogState:
    """The log as if it ended at an earlier commit; as it is, where that wouldn't be less.

    ``last`` is the cut of the run before.
    """
    from sinks.log.counts import last_commit_us

    before_all = min(table.snapshot for table in tables.values()).just_before()
    found = bound(spark, kafka, tables.values(), records_max, last or before_all)
    if found is None:
        return state
    ends = {**state.ends, **found.ends}
    ended = [table.model_copy(update={"end": ends[table.topic]}) for table in tables.values()]
    committed_us = last_commit_us(spark, kafka, ended, found.cut)
    report(f"reading up to {found.cut.commit_lsn} only; later runs go on from there")
    cut = {"cut": found.cut, "cut_ts_us": committed_us or state.progress.cut_ts_us}
    return replace(state, ends=ends, progress=state.progress.model_copy(update=cut))


def bound(
    spark: "SparkSession",
    kafka: Mapping[str, str],
    tables: Iterable[TablePlan],
    records_max: int,
    reached: Position,
) -> Bound | None:
    """Where to stop, so that about so many records are read; None: at the log's own cut.

    ``reached`` is the last run's cut, which a run goes on from, or what is before any snapshot.
    """
    starts, ends = _ranges(tables)
    total = _count(starts, ends)
    records = records_max
    while records < total:
        upto = {
            topic: {
                number: min(end, start + -(-(end - start) * records // total))
                for number, end in partitions.items()
                for start in (starts[topic][number],)
            }
            for topic, partitions in ends.items()
        }
        cut = _complete(spark, kafka, starts, upto, ends, reached)
        if cut is not None:
            return Bound(cut, upto)
        records *= 2
    return None


def _ranges(tables: Iterable[TablePlan]) -> tuple[Offsets, Offsets]:
    """What there is to read of each topic behind what its furthest table has applied."""
    starts: Offsets = {}
    ends: Offsets = {}
    for table in tables:
        if table.waits:
            continue
        start = starts.setdefault(table.topic, dict(table.start))
        ends[table.topic] = table.end
        if table.base:
            starts[table.topic] = {n: max(offset, table.start[n]) for n, offset in start.items()}
    return starts, ends


def _count(starts: Offsets, ends: Offsets) -> int:
    return sum(
        end - starts[topic][number]
        for topic, partitions in ends.items()
        for number, end in partitions.items()
    )


def _complete(
    spark: "SparkSession",
    kafka: Mapping[str, str],
    starts: Offsets,
    upto: Offsets,
    ends: Offsets,
    reached: Position,
) -> Position | None:
    """Up to where everything was committed that isn't behind ``upto``; None: nothing new was."""
    newer = F.when(F.col("position") > str(reached), F.col("position"))
    rows = (
        read_raw(spark, kafka, starts, upto)
        .groupBy("topic", "partition")
        .agg(F.min(newer).alias("first"), F.max("position").alias("last"))
        .collect()
    )
    last = {(row["topic"], row["partition"]): row["last"] for row in rows}
    cut: Position | None = None
    for topic, partitions in upto.items():
        for number, offset in partitions.items():
            if offset >= ends[topic][number]:
                continue
            found = last.get((topic, number))
            if found is None:
                return None
            # Of that transaction there may be more to come.
            before = Position.parse(found).just_before()
            cut = before if cut is None else min(cut, before)
    first = min((row["first"] for row in rows if row["first"] is not None), default=None)
    is_news = cut is not None and first is not None and Position.parse(first) <= cut
    return cut if is_news else None

"""New records of all tables → their number, the plan's part about them, and an earlier cut."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.log.offsets import LogState, Offsets
from cdc.records.position import Lsn, Position
from cdc.records.state import TableState
from sinks.changes.ends import RowsEnd
from sinks.log.ends import end_struct, ending_op, ends_of, ends_rows
from sinks.log.records import Records, read_raw
from sinks.run.options import Report
from sinks.run.plan import TablePlan
from sinks.run.rekeyed import snapshot_position
from sinks.run.topics import PartitionCensus
from sinks.spark.errors import GONE
from sinks.spark.jvm import observed

FACTS: Final = "millrace"
PARTITIONS_MAX: Final = 16
"""Maximum partitions for counting during the read, as each adds columns to the observation."""
ByTable = dict[str, dict[int, PartitionCensus]]
"""The census of tables' new records, by partition."""


def keep_counted(
    spark: SparkSession, records: Records, tables: dict[str, TablePlan], cut: Position
) -> ByTable:
    """Read the tables' records once and keep them. Return their census, as far as that shows it."""
    starts = {(table.topic, *sorted(table.start.items())) for table in tables.values()}
    topics = {table.topic: table for table in tables.values()}
    partitions = sum(len(table.start) for table in topics.values())
    if len(starts) > len(topics) or partitions > PARTITIONS_MAX:
        records.keep(spark, tables.values())
        return {}
    counted = partial(observe_census, tables=topics.values(), cut=cut)
    kept = records.keep(spark, tables.values(), counted)
    counts = None if kept is None else census_of(observed(kept, FACTS), topics.values())
    return {} if counts is None else {name: counts[table.topic] for name, table in tables.items()}


def census(
    spark: SparkSession, records: Records, tables: dict[str, TablePlan], cut: Position
) -> ByTable:
    """Count the tables' new records, by table and partition. The driver gets a row of each."""
    by_table: ByTable = {}
    remaining = tables
    while remaining:
        topics = {table.topic: table for table in remaining.values()}
        try:
            by_topic = _counts(records.of(spark, topics), cut)
        except (PySparkException, Py4JError) as error:
            if GONE not in str(error):
                raise
            records.forget()  # an earlier run kept them on an executor that has ended
            continue
        same_start = {
            name: table
            for name, table in remaining.items()
            if table.start == topics[table.topic].start
        }
        by_table |= {name: by_topic.get(table.topic, {}) for name, table in same_start.items()}
        remaining = {name: table for name, table in remaining.items() if name not in same_start}
    return by_table


def _counts(raw: DataFrame, cut: Position) -> dict[str, dict[int, PartitionCensus]]:
    above = F.col("position") > str(cut)
    rows = (
        raw.groupBy("topic", "partition")
        .agg(
            F.min(F.when(above, F.col("offset"))).alias("above"),
            F.count(F.when(F.coalesce(~above, F.lit(True)), True)).alias("events"),
            F.collect_set(_end(above)).alias("ends"),
            F.min(F.when(F.col("claim").isNotNull(), F.col("ts_ms"))).alias("claims_ms"),
        )
        .collect()
    )
    counts: dict[str, dict[int, PartitionCensus]] = {}
    for row in rows:
        counts.setdefault(row["topic"], {})[row["partition"]] = PartitionCensus(
            row["above"], row["events"], ends_of(row["ends"]), row["claims_ms"]
        )
    return counts


def observe_census(raw: DataFrame, tables: Iterable[TablePlan], cut: Position) -> DataFrame:
    """Add an observation named ``FACTS`` to the records, which ``census_of`` reads.

    The tables are those of different topics.
    """
    above = F.col("position") > str(cut)
    upto = F.coalesce(~above, F.lit(True))
    facts = [
        F.count_if(ends_rows() & upto).alias("ends"),
        F.count_if(F.col("claim").isNotNull()).alias("claims"),
    ]
    for place, (topic, number) in enumerate(_partitions(tables)):
        here = (F.col("topic") == topic) & (F.col("partition") == number)
        facts += [
            F.min(F.when(here & above, F.col("offset"))).alias(f"above_{place}"),
            F.count_if(here & upto).alias(f"events_{place}"),
        ]
    return raw.observe(FACTS, *facts)


def census_of(
    facts: Any, tables: Iterable[TablePlan]
) -> dict[str, dict[int, PartitionCensus]] | None:
    """Return the census by topic and partition. None: records end rows, or have claims.

    ``facts`` is a Java row, or None if Spark saw no rows and removed the observation.
    """
    if facts is None or facts.getAs("ends") or facts.getAs("claims"):
        return None
    by_topic: dict[str, dict[int, PartitionCensus]] = {}
    for place, (topic, number) in enumerate(_partitions(tables)):
        counts = PartitionCensus(facts.getAs(f"above_{place}"), facts.getAs(f"events_{place}"))
        by_topic.setdefault(topic, {})[number] = counts
    return by_topic


def _partitions(tables: Iterable[TablePlan]) -> list[tuple[str, int]]:
    return [(table.topic, number) for table in tables for number in table.start]


def _end(above: Column) -> Column:
    """Return the contents of a record that ends rows, up to the cut; else null."""
    committed_us = F.get_json_object("value", "$.source.ts_us").try_cast("bigint")
    ts_us = F.coalesce(committed_us, F.col("ts_ms") * 1000)
    return F.when(ends_rows() & ~above, end_struct(ending_op(), F.col("value"), ts_us))


def last_commit_us(
    spark: SparkSession, kafka: Mapping[str, str], tables: Iterable[TablePlan], cut: Position
) -> int:
    """Return the commit time of the last transaction up to the cut (µs since 1970; 0: unknown)."""
    topics = {table.topic: table for table in tables}
    start = {topic: table.start for topic, table in topics.items()}
    end = {topic: table.end for topic, table in topics.items()}
    applied = F.col("value").isNotNull() & (F.col("position") <= str(cut))
    (row,) = (
        read_raw(spark, kafka, start, end)
        .agg(F.max_by("value", F.when(applied, F.col("position"))).alias("value"))
        .select(F.get_json_object("value", "$.source.ts_us").cast("bigint").alias("ts_us"))
        .collect()
    )
    return row["ts_us"] or 0


def with_census(
    table: TablePlan,
    partitions: Mapping[int, PartitionCensus],
    cut: Position,
    captured: TableState,
    *,
    keyed: bool,
    archived: tuple[RowsEnd, ...] = (),
) -> TablePlan:
    """Return the table's plan with the census of its new records, by partition.

    ``archived`` are the ends of rows in its archive.
    """
    by_number = {number: partitions.get(number, PartitionCensus(None, 0)) for number in table.start}
    censuses = [*by_number.values(), PartitionCensus(None, 0, archived)]
    ends = _ends(table, censuses, cut, captured, keyed=keyed)
    return table.model_copy(
        update={
            "next": {
                number: table.end[number] if partition.above is None else partition.above
                for number, partition in by_number.items()
            },
            "events": sum(partition.events for partition in by_number.values()),
            "ends": tuple(ends) if table.kind == "history" else _last(ends),
            "claims_ms": min(
                (
                    partition.claims_ms
                    for partition in by_number.values()
                    if partition.claims_ms is not None
                ),
                default=None,
            ),
        }
    )


def _ends(
    table: TablePlan,
    partitions: Iterable[PartitionCensus],
    cut: Position,
    captured: TableState,
    *,
    keyed: bool,
) -> list[RowsEnd]:
    """Return where rows of the table end: by records, and by whole new snapshots."""
    if table.kind == "changes":
        return []
    # If the source was idle, the end of a recreated table is at exactly that cut. Within bounds,
    # rows end before the event about it. A second application changes nothing.
    ends = {
        end
        for partition in partitions
        for end in partition.ends
        if end.position <= cut
        and (table.after is None or end.bounds or end.position >= table.after)
    }
    snapshot = snapshot_position(captured)
    if _replaces_all(table, snapshot, keyed=keyed):
        # Rows with a key may have been read at several positions. The log has a TRUNCATE before the
        # first one, and an epoch's own positions come after those of older ones.
        begins = Position(snapshot.epoch, Lsn(0), 0)
        position = begins if keyed else snapshot.just_before()
        ends.add(RowsEnd(position=position, ts_us=captured.begun_ms * 1000))
    return sorted(ends, key=lambda end: (end.position, end.ts_us))


def _last(ends: list[RowsEnd]) -> tuple[RowsEnd, ...]:
    """Return the last end of all rows, and the newer ones within bounds."""
    last = max((number for number, end in enumerate(ends) if not end.bounds), default=0)
    return tuple(ends[last:])


def _replaces_all(table: TablePlan, snapshot: Position, *, keyed: bool) -> bool:
    """Whether the last snapshot is a whole new one, which replaces everything older.

    It is in a new epoch, and always if rows have no key to match. The table has the rows of any
    snapshot up to its cut: none is planned before it is complete, and an epoch has no cut before
    all tables must be read again. A table that was recreated at exactly that cut has a TRUNCATE
    there.
    """
    if table.after is None:
        return not keyed
    if keyed:
        return table.after.epoch < snapshot.epoch
    return table.after < snapshot


def bounded(
    spark: SparkSession,
    kafka: Mapping[str, str],
    state: LogState,
    tables: Mapping[str, TablePlan],
    records_max: int,
    last: Position | None,
    report: Report,
) -> LogState:
    """Return the log as if it ended at an earlier commit, so that about this many records are read.

    Return it unchanged if that isn't less. ``last`` is the cut of the run before.
    """
    captured = [state.tables[table.source] for table in tables.values()]
    before_all = min(map(snapshot_position, captured)).just_before()
    starts, ends = ranges(tables.values())
    starts = _kept_from(starts, state.starts)
    cut, upto = None, some_of(starts, ends, records_max)
    while upto != ends:
        cut = _complete(spark, kafka, starts, upto, ends, last or before_all)
        if cut is not None:
            break
        records_max *= 2
        upto = some_of(starts, ends, records_max)
    if cut is None:
        return state
    ended = [table.model_copy(update={"end": upto[table.topic]}) for table in tables.values()]
    committed_us = last_commit_us(spark, kafka, ended, cut)
    report(f"reading only up to {cut.commit_lsn}; later runs continue")
    limits = {"cut": cut, "cut_ts_us": committed_us or state.progress.cut_ts_us}
    ends = {**state.ends, **upto}
    return replace(state, ends=ends, progress=state.progress.model_copy(update=limits))


def _kept_from(starts: Offsets, first: Offsets) -> Offsets:
    """Return the offsets, but none before a topic's first record: a table may be too late.

    ``Topics.require_retained`` reports the missing records.
    """
    return {
        topic: {number: max(offset, first[topic][number]) for number, offset in start.items()}
        for topic, start in starts.items()
    }


def ranges(tables: Iterable[TablePlan]) -> tuple[Offsets, Offsets]:
    """Return what to read of each topic, after the position of its furthest table."""
    starts: Offsets = {}
    ends: Offsets = {}
    for table in tables:
        start = starts.setdefault(table.topic, table.start)
        starts[table.topic] = {n: max(offset, table.start[n]) for n, offset in start.items()}
        ends[table.topic] = table.end
    return starts, ends


def some_of(starts: Offsets, ends: Offsets, records: int) -> Offsets:
    """Return ends for about this many records: the same fraction of each partition."""
    total = sum(
        end - starts[topic][number]
        for topic, partitions in ends.items()
        for number, end in partitions.items()
    )
    return {
        topic: {
            number: min(end, start + -(-(end - start) * records // max(total, 1)))
            for number, end in partitions.items()
            for start in (starts[topic][number],)
        }
        for topic, partitions in ends.items()
    }


def _complete(
    spark: SparkSession,
    kafka: Mapping[str, str],
    starts: Offsets,
    upto: Offsets,
    ends: Offsets,
    applied: Position,
) -> Position | None:
    """Return the position up to which ``upto`` has all commits. None: nothing is new."""
    newer = F.when(F.col("position") > str(applied), F.col("position"))
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
            last_read = last.get((topic, number))
            if last_read is None:
                return None
            # More of that transaction may follow.
            before = Position.parse(last_read).just_before()
            cut = before if cut is None else min(cut, before)
    first = min((row["first"] for row in rows if row["first"] is not None), default=None)
    is_news = cut is not None and first is not None and Position.parse(first) <= cut
    return cut if is_news else None

"""TRUNCATE in a topic → which records and rows it takes away.

Its record has no key, so it may be in any partition. In a topic of one partition what came before
has a lower offset. In one of several it has a lower LSN: exact around TRUNCATE, whose lock keeps
out all others that write to the table (docs/decisions/0012-debezium-topics.md).
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.records.position import FIRST_EPOCH, INDEX_MAX, Lsn, Position
from sinks.changes.names import DELETE, OP, POSITION
from sinks.debezium.described import TopicLayout
from sinks.debezium.envelope import (
    LSN,
    committed_at,
    enveloped,
    is_truncate,
    source_lsn,
    source_time_us,
    table_of,
)
from sinks.run.plan import Truncation

_CLOCKS_US: Final = 60_000_000
"""By how much the clocks of a server and of the one that takes over may differ."""


def position_of(last: Truncation) -> Position | None:
    """The position that all older rows are below; None where offsets don't order the rows."""
    if last.partitions > 1:
        return None
    return Position(FIRST_EPOCH, Lsn(last.offset), INDEX_MAX)


def is_older(last: Truncation, position: SparkColumn) -> SparkColumn:
    """Whether the row with a position (text) was there before."""
    below = position_of(last)
    if below is not None:
        return position <= str(below)
    return F.substring(position, -16, 16) < f"{last.lsn:016x}"


def newer(last: Truncation, changes: DataFrame) -> DataFrame:
    """Parsed changes without those that it undoes.

    Deletes stay: a tombstone has no LSN, and to delete what isn't there is no harm.
    """
    return changes.where(~is_older(last, F.col(POSITION)) | (F.col(OP) == DELETE))


def last_of(before: Truncation | None, new: Truncation | None) -> Truncation | None:
    """The later of two TRUNCATEs: of several partitions, an older one may be read after it."""
    if new is None:
        return before
    is_later = before is not None and new.partitions > 1 and before.lsn > new.lsn
    return before if is_later else new


def went_back(raw: DataFrame, topic: TopicLayout, last: Truncation) -> bool:
    """Whether records have lower LSNs than a TRUNCATE, and came to be after it.

    So it is in a source that was restored; its LSNs say nothing about what was there before.
    """
    later = source_time_us(topic) > last.time_us + _CLOCKS_US
    lower = enveloped(raw, topic).where((source_lsn(topic) < last.lsn) & later)
    return not lower.isEmpty()


@dataclass(frozen=True, slots=True)
class Truncations:
    """How many TRUNCATEs there are among new records, and the last of them.

    ``ends`` has them all, as positions that all older rows of the same partition are below, with
    the times at which they were committed (µs since 1970).
    """

    count: int
    last: Truncation | None
    ends: tuple[tuple[Position, int], ...] = ()


def truncations(raw: DataFrame, topic: TopicLayout, partitions: int) -> Truncations:
    """Look for TRUNCATEs in the records of one topic; raises SinkError if it is another table's."""
    source_time = F.coalesce(source_time_us(topic), F.lit(0)).alias("source_us")
    order = (LSN, "offset") if partitions > 1 else ("offset", LSN)
    newest = F.struct(*order, source_time)
    of_table = F.lit(topic.schema.topic).endswith(F.concat(F.lit("."), table_of(topic)))
    time_us = F.unix_micros(committed_at(topic)).alias("ts_us")
    row = (
        enveloped(raw, topic)
        .where(is_truncate())
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.max(newest).alias("last"),
            F.min(of_table.cast("int")).alias("of_table"),
            F.collect_list(F.struct("offset", F.col(LSN).alias("lsn"), time_us)).alias("all"),
        )
        .first()
    )
    if row is None or not row["count"]:
        return Truncations(0, None)
    if not row["of_table"]:
        raise SinkError(
            "one of several tables that share the topic was emptied: its rows can't be told apart",
            where=f"topic {topic.schema.topic}",
            remedy="give each table a topic of its own, or leave TRUNCATE out "
            '(skipped.operations = "t")',
        )
    last = row["last"]
    ends = sorted(
        (Position(FIRST_EPOCH, Lsn(event["offset"]), event["lsn"] or 0), event["ts_us"])
        for event in row["all"]
    )
    truncation = Truncation(last["offset"], last[LSN] or 0, partitions, last["source_us"])
    return Truncations(row["count"], truncation, tuple(ends))

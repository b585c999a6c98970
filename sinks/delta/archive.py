"""Every event of a table → rows that are only ever added: the archive, whatever the log forgets.

And an archive → the raw records that they were, as the log had them.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from cdc.records.position import Position
from cdc.records.topics import TRUNCATE_KEY
from sinks.changes.names import (
    FILLED,
    OP,
    POSITION,
    RAW_KEY,
    RAW_VALUE,
    RECORD_OFFSET,
    RECORD_PARTITION,
    TIME,
    VERSION,
    quoted,
)
from sinks.changes.shape import TableShape
from sinks.delta.commit import Rows, create
from sinks.delta.evolution import columns_with_ids
from sinks.delta.table import DeltaTarget
from sinks.log.counts import Truncates
from sinks.log.parse import parse_events
from sinks.run.plan import Replay, TablePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP: Final = "gap"
_FIRST_PARTITION: Final = 0


_TRUNCATE: Final = "t"


def write_changes(target: DeltaTarget, raw: DataFrame, shape: TableShape, table: TablePlan) -> Rows:
    """Add the events to the table, or make it of them; inside of ``commit``."""
    once = _once(raw) if table.gap is None else _once_behind_a_gap(raw)
    events = parse_events(once, shape, records=keeps_records(target, table))
    return add_events(target, events, shape, table)


def keeps_records(target: DeltaTarget, table: TablePlan) -> bool:
    """Whether the table has the records as they were; one that has begun without goes on so."""
    has_begun_without = table.base and RAW_VALUE not in target.columns().names
    return target.derived.keeps_records and not has_begun_without


def add_events(target: DeltaTarget, events: DataFrame, shape: TableShape, table: TablePlan) -> Rows:
    """Add parsed events to the table, or make it of them; inside of ``commit``."""
    own = [name for name in events.columns if name not in shape.names]
    rows = events.select(*columns_with_ids(shape), *map(quoted, own))
    if table.gap is not None:
        rows = rows.unionByName(_mark(rows, table.gap), allowMissingColumns=True)
    if not table.base:
        return create(target, rows, shape)
    rows.write.format("delta").mode("append").save(target.path)
    return Rows(inserted=target.added())


def _once(raw: DataFrame) -> DataFrame:
    """One record of each event: not the tombstone of a delete, nor a TRUNCATE's other copies."""
    reserved = F.coalesce(F.col("key") == TRUNCATE_KEY.decode(), F.lit(False))
    copied = reserved & (F.col("partition") != _FIRST_PARTITION)
    return raw.where(F.col("value").isNotNull() & ~copied)


def _once_behind_a_gap(raw: DataFrame) -> DataFrame:
    """The same, and tombstones where compaction has left nothing else of a delete."""
    event = Window.partitionBy("partition", "position", "key")
    events = raw.withColumn("has_value", F.count("value").over(event) > 0)
    lonely = events.where(F.col("value").isNull() & ~F.col("has_value")).drop("has_value")
    return raw.transform(_once).unionByName(lonely)


def _mark(rows: DataFrame, gap: Position) -> DataFrame:
    """A row that says that events are missing behind a position."""
    return rows.sparkSession.range(1).select(
        F.lit(str(gap)).alias(POSITION), F.lit(GAP).alias(OP), F.current_timestamp().alias(TIME)
    )


def read_archive(spark: "SparkSession", path: str, replay: Replay, topic: str) -> DataFrame:
    """The archived records, in the columns that sinks.log.records.read_raw has."""
    return _archive(spark, path, replay).select(
        F.lit(topic).alias("topic"),
        F.col(RECORD_PARTITION).alias("partition"),
        F.col(RECORD_OFFSET).alias("offset"),
        F.col(RAW_KEY).alias("key"),
        F.col(RAW_VALUE).alias("value"),
        F.col(POSITION).alias("position"),
        F.conv(F.substring(POSITION, 10, 16), 16, 10).try_cast("bigint").alias("commit_lsn"),
        F.col(VERSION).alias("schema_version"),
        F.col(FILLED).alias("filled"),
        F.lit(None).cast("string").alias("claim"),
        F.unix_millis(TIME).alias("ts_ms"),
    )


def archived_truncates(spark: "SparkSession", path: str, replay: Replay) -> Truncates:
    """The TRUNCATEs that the archive has."""
    truncates = _archive(spark, path, replay).where(F.col(OP) == _TRUNCATE)
    rows = truncates.select(POSITION, F.unix_micros(TIME).alias("ts_us")).collect()
    return tuple((row[POSITION], row["ts_us"]) for row in rows)


def not_archived(raw: DataFrame, table: TablePlan) -> DataFrame:
    """The raw records that no run before this plan of the archive has archived.

    Records that an earlier run has read and left are above its cut.
    """
    if table.after is None:
        return raw
    was_read = F.lit(False)
    for partition, offset in table.read_end.items():
        was_read |= (F.col("partition") == partition) & (F.col("offset") < offset)
    return raw.where(
        ~was_read | F.col("position").isNull() | (F.col("position") > str(table.after))
    )


def _archive(spark: "SparkSession", path: str, replay: Replay) -> DataFrame:
    at_version = spark.read.format("delta").option("versionAsOf", replay.version)
    return at_version.load(path).where(F.col(RECORD_OFFSET).isNotNull())

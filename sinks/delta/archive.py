"""Every event of a table → appended rows: the archive, which outlives the log's retention.

Also the reverse: an archive → the raw records that it was made of.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.records.state import Gap
from sinks.changes.ends import RowsEnd
from sinks.changes.names import (
    END,
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
from sinks.delta.commit import write_whole
from sinks.delta.evolution import columns_with_ids
from sinks.delta.table import DerivedDeltaTable
from sinks.log.ends import ENDING, end_struct, ends_of
from sinks.run.plan import RunPlan
from sinks.run.summary import Rows
from sinks.run.topics import TableChanges

GAP: Final = "gap"


def write_events(
    target: DerivedDeltaTable, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """Append the events to the table, or create it from them. Runs inside ``commit``."""
    table = plan.tables[target.name]
    keeps = target.derived.keeps_records
    if not table.begins:  # a table that began without the records stays so
        keeps = keeps and RAW_VALUE in target.columns().names
    events = changes.events(shape, records=keeps)
    own = [name for name in events.columns if name not in shape.names]
    no_end = F.lit(None).cast("string").alias(END)
    rows = events.select(*columns_with_ids(shape), *map(quoted, own), no_end)
    if marks := plan.marks(target.name):
        rows = rows.unionByName(_marked(target.spark, marks), allowMissingColumns=True)
    if table.begins:
        return write_whole(target, table, rows, shape)
    rows.write.format("delta").mode("append").save(target.path)
    return Rows(inserted=target.added())


def _marked(spark: SparkSession, gaps: Iterable[Gap]) -> DataFrame:
    """Return a row for each gap: events may be missing after its position, up to its end."""
    rows = [(str(gap.start), GAP, str(gap.end), gap.ts_ms) for gap in gaps]
    marks = spark.createDataFrame(rows, f"{POSITION} string, {OP} string, {END} string, ms bigint")
    return marks.select(POSITION, OP, END, F.timestamp_millis("ms").alias(TIME))


def read_archive(spark: SparkSession, path: str, topic: str) -> DataFrame:
    """Return the archived records, in the columns of sinks.log.records.read_raw."""
    return _archive(spark, path).select(
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


def archived_ends(spark: SparkSession, path: str) -> tuple[RowsEnd, ...]:
    """Return the ends of rows in the archive."""
    events = _archive(spark, path).where(F.col(OP).isin(*ENDING))
    end = end_struct(F.col(OP), F.col(RAW_VALUE), F.unix_micros(TIME))
    named = events.withColumnsRenamed({POSITION: "position", VERSION: "schema_version"})
    return ends_of(row["end"] for row in named.select(end.alias("end")).collect())


def _archive(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("delta").load(path).where(F.col(RECORD_OFFSET).isNotNull())

"""New records of all tables → per partition: how many, the first above the cut, TRUNCATEs.

One Spark job for all tables that looks at headers and keys only, before anything is planned.
Derived tables of one captured table share it where they go on from the same place.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.position import Position
from sinks.log.offsets import read_raw
from sinks.log.parse import is_truncate
from sinks.log.records import Records
from sinks.run.plan import Census, Found, TablePlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def census(
    spark: "SparkSession", records: Records, tables: dict[str, TablePlan], cut: Position
) -> Census:
    """Count the tables' new records; one row per partition comes back to the driver."""
    found: Census = {}
    left = tables
    while left:
        topics = {table.topic: table for table in left.values()}
        counts = _counts(records.of(spark, topics), cut)
        together = {
            name: table for name, table in left.items() if table.start == topics[table.topic].start
        }
        found |= {name: counts.get(table.topic, {}) for name, table in together.items()}
        left = {name: table for name, table in left.items() if name not in together}
    return found


def _counts(raw: "DataFrame", cut: Position) -> dict[str, dict[int, Found]]:
    above = F.col("position") > str(cut)
    rows = (
        raw.groupBy("topic", "partition")
        .agg(
            F.min(F.when(above, F.col("offset"))).alias("above"),
            F.count(F.when(F.coalesce(~above, F.lit(True)), True)).alias("events"),
            F.collect_set(_truncate(raw, above)).alias("truncated"),
            F.min(F.when(F.col("claim").isNotNull(), F.col("ts_ms"))).alias("claims_ms"),
        )
        .collect()
    )
    counts: dict[str, dict[int, Found]] = {}
    for row in rows:
        truncated = tuple((one["position"], one["ts_us"]) for one in row["truncated"])
        counts.setdefault(row["topic"], {})[row["partition"]] = Found(
            row["above"], row["events"], truncated, row["claims_ms"]
        )
    return counts


def _truncate(raw: "DataFrame", above: "Column") -> "Column":
    """Position and commit time of a TRUNCATE that isn't above the cut; else null."""
    told = F.get_json_object("value", "$.source.ts_us").try_cast("bigint")
    ts_us = F.coalesce(told, F.col("ts_ms") * 1000)
    return F.when(is_truncate(raw) & ~above, F.struct("position", ts_us.alias("ts_us")))


def last_commit_us(
    spark: "SparkSession", kafka: Mapping[str, str], tables: Iterable[TablePlan], cut: Position
) -> int:
    """When the last transaction up to the cut was committed (µs since 1970; 0: nothing tells)."""
    topics = {table.topic: table for table in tables}
    start = {topic: table.start for topic, table in topics.items()}
    end = {topic: table.end for topic, table in topics.items()}
    told = F.when(F.col("value").isNotNull() & (F.col("position") <= str(cut)), F.col("position"))
    (row,) = (
        read_raw(spark, kafka, start, end)
        .agg(F.max_by("value", told).alias("value"))
        .select(F.get_json_object("value", "$.source.ts_us").cast("bigint").alias("ts_us"))
        .collect()
    )
    return row["ts_us"] or 0

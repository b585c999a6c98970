"""New records of all tables → per partition: how many, the first above the cut, TRUNCATEs.

One Spark job for all tables that looks at headers and keys only, before anything is planned.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.position import Position
from sinks.batch import read_raw
from sinks.parse import is_truncate
from sinks.plan import Census, Found, TablePlan, assigned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def census(
    spark: "SparkSession", kafka: Mapping[str, str], tables: dict[str, TablePlan], cut: Position
) -> Census:
    """Count the tables' new records; one row per partition comes back to the driver."""
    if not tables:
        return {}
    start, end = assigned(tables)
    raw = read_raw(spark, kafka, start, end)
    above = F.col("position") > str(cut)
    counts = (
        raw.groupBy("topic", "partition")
        .agg(
            F.min(F.when(above, F.col("offset"))).alias("above"),
            F.count(F.when(F.coalesce(~above, F.lit(True)), True)).alias("events"),
            F.max(F.when(is_truncate(raw) & ~above, F.col("position"))).alias("truncated"),
            F.min(F.when(F.col("claim").isNotNull(), F.col("ts_ms"))).alias("claims_ms"),
        )
        .collect()
    )
    return {
        (row["topic"], row["partition"]): Found(
            row["above"], row["events"], row["truncated"], row["claims_ms"]
        )
        for row in counts
    }

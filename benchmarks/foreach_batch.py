"""A table's topic -> its Delta table, as guides to Structured Streaming do it: a yardstick.

`from_json` with a schema of the table, the newest record of each key by its offset, one MERGE in
`foreachBatch`. It is what most have, and lacks what Millrace is for: values that an update left
out, TRUNCATE, columns that come later, one cut over all tables, a rerun that changes nothing.
"""

import json
from typing import TYPE_CHECKING, Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cdc.log.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = {
    "id": "bigint",
    "name": "string",
    "email": "string",
    "balance": "decimal(14,2)",
    "active": "boolean",
    "score": "double",
    "visits": "int",
    "seen_at": "timestamp",
    "tags": "array<string>",
    "details": "string",
}
_ROW: Final = ", ".join(f"{name}: {kind}" for name, kind in COLUMNS.items())
_ENVELOPE: Final = f"op string, before struct<{_ROW}>, after struct<{_ROW}>"


def stream_into(
    spark: "SparkSession", servers: str, start: Offsets, path: str, checkpoint: str
) -> None:
    """Merge what a topic has from these offsets on, or from the checkpoint's, and end."""
    (topic,) = start
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps(start))
        .load()
    )
    query = (
        records.transform(parsed)
        .writeStream.foreachBatch(lambda batch, _: _merge(batch, path))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def parsed(records: DataFrame, *more: str) -> DataFrame:
    """Rows of the table with operation and offset; tombstones say nothing that is new."""
    change = F.from_json(F.col("value").cast("string"), _ENVELOPE)
    gone = F.col("change.op") == "d"
    row = F.when(gone, F.col("change.before")).otherwise(F.col("change.after"))
    return (
        records.where("value IS NOT NULL")
        .select(change.alias("change"), "offset", *more)
        .select("change.op", "offset", row.alias("row"), *more)
        .select("op", "offset", "row.*", *more)
    )


def newest(changes: DataFrame) -> DataFrame:
    """The last change of each key, which has all its changes in one partition."""
    newest_first = Window.partitionBy("id").orderBy(F.desc("offset"))
    ranked = changes.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where("rank = 1").drop("rank", "offset")


def _merge(batch: DataFrame, path: str) -> None:
    values: dict[str, str | Column] = {name: f"s.{name}" for name in COLUMNS}
    (
        DeltaTable.forPath(batch.sparkSession, path)
        .alias("t")
        .merge(newest(batch).alias("s"), "t.id = s.id")
        .whenMatchedDelete("s.op = 'd'")
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert("s.op <> 'd'", values=values)
        .execute()
    )

"""A table's topic -> a Delta table and its windows, as guides to Structured Streaming do it.

One job: `from_json` with a schema of the table, the newest record of each key by its offset, a
MERGE in `foreachBatch`, then the windows that the batch's rows are or were in once more, of all
rows between their least and their greatest time, and a MERGE of these.
"""

import json
import shutil
import time
from typing import Any, Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from benchmarks.lakehouse import Content
from benchmarks.views_lake import ViewLake
from sinks.changes.names import POSITION

_COLUMNS: Final = {
    "id": "bigint",
    "bucket": "bigint",
    "account": "bigint",
    "at": "timestamp",
    "amount": "bigint",
    "note": "string",
}
_ROW: Final = ", ".join(f"{name}: {kind}" for name, kind in _COLUMNS.items())
_ENVELOPE: Final = f"op string, before struct<{_ROW}>, after struct<{_ROW}>"


class Textbook:
    """The job, which begins where Millrace's next merge does, with tables of its own."""

    def __init__(self, lake: ViewLake, table: str) -> None:
        self._lake = lake
        self._spark: Any = lake.spark
        folder = lake.base.folder.with_name("textbook")
        self._path, self._windows = str(folder / table), str(folder / "windows")
        self._checkpoint = str(folder / "checkpoint")
        self._start = lake.base.goes_on(table)
        shutil.copytree(lake.base.path(table), self._path)
        rows = self._spark.read.format("delta").load(self._path)
        _windowed(rows).write.format("delta").save(self._windows)

    def run_s(self) -> float:
        """Merge what the topic has by now, and end; in seconds."""
        started = time.monotonic()
        (topic,) = self._start
        records = (
            self._spark.readStream.format("kafka")
            .options(
                **{f"kafka.{name}": value for name, value in self._lake.settings.kafka.items()}
            )
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .option("startingOffsets", json.dumps(self._start))
            .load()
        )
        query = (
            records.transform(_parsed)
            .writeStream.foreachBatch(lambda batch, _: self._merge(batch))
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return time.monotonic() - started

    def _merge(self, batch: DataFrame) -> None:
        spark = batch.sparkSession
        newest = _newest(batch).persist()
        values: dict[str, str | Column] = {name: f"s.{name}" for name in _COLUMNS}
        table = DeltaTable.forPath(spark, self._path)
        (
            table.alias("t")
            .merge(newest.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.op = 'd'")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert("s.op <> 'd'", values=values)
            .execute()
        )
        # No row changes its time here: a job that allowed for it would look the old one up, too.
        limits = newest.agg(F.min("at").alias("low"), F.max("at").alias("high")).collect()[0]
        hour = "INTERVAL '1 hour'"
        near = table.toDF().where(
            F.col("at").between(
                F.date_trunc("hour", F.lit(limits["low"])),
                F.date_trunc("hour", F.lit(limits["high"])) + F.expr(hour),
            )
        )
        spans = newest.select(F.window("at", "1 hour").alias("span")).distinct()
        touched = _windowed(near).join(F.broadcast(spans), "span", "left_semi")
        (
            DeltaTable.forPath(spark, self._windows)
            .alias("t")
            .merge(touched.alias("s"), "t.span = s.span")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )
        newest.unpersist()

    def require_same(self, ours: Content) -> None:
        """Raise where its windows aren't what the view has."""
        if (theirs := _content(self._spark.read.format("delta").load(self._windows))) != ours:
            raise RuntimeError(f"the windows differ: {theirs}, the view has {ours}")


def windows(lake: ViewLake, view: str) -> Content:
    """What a view of windows has."""
    return _content(lake.spark.read.format("delta").load(lake.view_path(view)))


def _content(rows: DataFrame) -> Content:
    found = rows.select(
        F.count("*").alias("rows"),
        F.bit_xor(F.xxhash64("span.start", "rows", "amount")).alias("checksum"),
    ).collect()[0]
    return Content(found["rows"], found["checksum"])


def _windowed(rows: DataFrame) -> DataFrame:
    rows = rows.drop(POSITION)
    spans = rows.groupBy(F.window("at", "1 hour").alias("span"))
    return spans.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))


def _parsed(records: DataFrame) -> DataFrame:
    change = F.from_json(F.col("value").cast("string"), _ENVELOPE)
    row = F.when(F.col("change.op") == "d", F.col("change.before")).otherwise(F.col("change.after"))
    return (
        records.where("value IS NOT NULL")
        .select(change.alias("change"), "offset")
        .select("change.op", "offset", row.alias("row"))
        .select("op", "offset", "row.*")
    )


def _newest(changes: DataFrame) -> DataFrame:
    newest_first = Window.partitionBy("id").orderBy(F.desc("offset"))
    ranked = changes.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where("rank = 1").drop("rank", "offset")

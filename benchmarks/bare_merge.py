"""Changes of a table -> Delta's own MERGE of them, with nothing around it: a yardstick.

They lie ready in Parquet: of each key the last change, its values typed, with its operation.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from benchmarks.foreach_batch import COLUMNS, newest, parsed
from cdc.log.offsets import LogState, Offsets
from sinks.changes.names import POSITION
from sinks.log.records import read_raw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, SparkSession


def lay_ready(
    spark: "SparkSession", kafka: "Mapping[str, str]", start: Offsets, state: LogState, final: Path
) -> None:
    """Write what a topic has from these offsets on as it is going to be merged."""
    end = {topic: state.ends[topic] for topic in start}
    changes = read_raw(spark, kafka, start, end).transform(lambda raw: parsed(raw, "position"))
    newest(changes).write.parquet(str(final))


def bare_merge(spark: "SparkSession", final: Path, path: str) -> None:
    """Merge them into a table that a run of Millrace has made."""
    values: dict[str, str | Column] = {name: f"s.{name}" for name in COLUMNS}
    values[POSITION] = "s.position"
    (
        DeltaTable.forPath(spark, path)
        .alias("t")
        .merge(spark.read.parquet(str(final)).alias("s"), "t.id = s.id")
        .whenMatchedDelete("s.op = 'd'")
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert("s.op <> 'd'", values=values)
        .execute()
    )

"""An archive of a table's events → the raw records that they were, as the log had them.

So another derived table of the same source can be made from its beginning, whatever the log has
forgotten by then.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.changes.names import FILLED, OP, PLACE, POSITION, RAW_KEY, RAW_VALUE, TIME, VERSION
from sinks.run.plan import Replay, TablePlan, Truncates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRUNCATE: Final = "t"


def read_archive(spark: "SparkSession", path: str, replay: Replay, topic: str) -> DataFrame:
    """The archived records, in the columns that sinks.log.offsets.read_raw has."""
    return _archive(spark, path, replay).select(
        F.lit(topic).alias("topic"),
        F.col(PLACE[0]).alias("partition"),
        F.col(PLACE[1]).alias("offset"),
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
    found = _archive(spark, path, replay).where(F.col(OP) == _TRUNCATE)
    rows = found.select(POSITION, F.unix_micros(TIME).alias("ts_us")).collect()
    return tuple((row[POSITION], row["ts_us"]) for row in rows)


def unseen(raw: DataFrame, table: TablePlan | Replay) -> DataFrame:
    """The raw records that no run before has archived.

    What the run before has read and left was above its cut.
    """
    if table.after is None:
        return raw
    seen = F.lit(False)
    for partition, offset in table.seen.items():
        seen |= (F.col("partition") == partition) & (F.col("offset") < offset)
    return raw.where(~seen | F.col("position").isNull() | (F.col("position") > str(table.after)))


def _archive(spark: "SparkSession", path: str, replay: Replay) -> DataFrame:
    at_version = spark.read.format("delta").option("versionAsOf", replay.version)
    return at_version.load(path).where(F.col(PLACE[1]).isNotNull())

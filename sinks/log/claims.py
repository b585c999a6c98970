"""Records whose values are too large for their topics → the same records with their values.

Only where a look at the headers has found such (``TablePlan.claims_ms``) are claims read: from
shortly before the first of those records, up to the end, which all committed records' claims are
before. docs/decisions/0008-dead-letters.md.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.claims import PIECES_PARTITION
from cdc.records.topics import claim_topic
from sinks.changes.names import LOST
from sinks.log.offsets import Log, read_raw
from sinks.run.plan import Plan, TablePlan

_CLOCKS_MS: Final = 600_000
"""How much later than its own claim a record may say that it was sent."""
_HEADER: Final = "id string, pieces int, sha256 string"
_KEY: Final = "claim string, piece int"


def with_values(
    raw: DataFrame, kafka: Mapping[str, str], table: TablePlan, plan: Plan
) -> DataFrame:
    """Raw records with all of their values.

    Where there are claims, they have a column more, which says why a value isn't whole.
    """
    if table.claims_ms is None:
        return raw
    topic = claim_topic(plan.prefix)
    with closing(Log(kafka)) as log:
        start, end = log.since(topic, PIECES_PARTITION, table.claims_ms - _CLOCKS_MS)
    pieces = read_raw(raw.sparkSession, kafka, start, end)
    return joined(raw, pieces, topic)


def joined(raw: DataFrame, pieces: DataFrame, topic: str) -> DataFrame:
    """Raw records with the values that the pieces make."""
    key, claim = F.from_json("key", _KEY), F.from_json("claim", _HEADER)
    values = (
        pieces.where(F.col("value").isNotNull())
        .select(key["claim"].alias("id"), key["piece"].alias("piece"), F.col("value").alias("text"))
        .groupBy("id")
        .agg(_text(F.sort_array(F.collect_list(F.struct("piece", "text")))).alias("whole"))
    )
    here = raw.where(F.col("claim").isNull()).withColumn(LOST, F.lit(None).cast("string"))
    elsewhere = (
        raw.where(F.col("claim").isNotNull())
        .withColumn("header", claim)
        .withColumn("id", F.col("header")["id"])
        .join(values, "id", "left")
    )
    found = F.coalesce(F.sha2("whole", 256) == F.col("header")["sha256"], F.lit(False))
    place = F.concat_ws(":", "topic", "partition", "offset")
    lost = F.concat(
        F.lit("the value of the record at "), place, F.lit(f" isn't in {topic}: claim "), "id"
    )
    whole = elsewhere.withColumns(
        {
            "value": F.when(found, F.col("whole")).otherwise(F.col("value")),
            LOST: F.when(~found, lost),
        }
    )
    return here.unionByName(whole.select(*here.columns))


def _text(pieces: SparkColumn) -> SparkColumn:
    return F.array_join(F.transform(pieces, lambda piece: piece["text"]), "")

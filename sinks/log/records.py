"""Offsets of the log → its records, read once for all tables of a turn if they are few.

A Kafka read costs a plan, consumers and a task for each partition, which is most of the time for a
few records. Each run reads twice: for the census, and to apply.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import and_, or_
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.log.offsets import LogReader, Offsets
from cdc.records.dead_letters import PIECES_PARTITION
from cdc.records.topics import claim_topic
from sinks.changes.names import LOST
from sinks.log.kafka_options import spark_options
from sinks.run.plan import RunPlan, TablePlan
from sinks.spark.jvm import header_fields, in_session, release

_CLOCKS_MS: Final = 600_000
"""How much later than its own claim a record's time may be."""
_HEADER: Final = "id string, pieces int, sha256 string"
_KEY: Final = "claim string, piece int"
RAW: Final = (
    "topic string, partition int, offset bigint, key string, value string, position string, "
    "commit_lsn bigint, schema_version int, filled string, claim string, ts_ms bigint"
)
"""The columns of raw records, in Spark's words."""
TASK_RECORDS_MAX: Final = 50_000
"""Several tasks read a partition with more records, so that all cores have work to the end."""


class Records:
    """The source of tables' records. ``keep`` reads those of all tables of a run.

    They serve each run whose tables end at the same offsets. ``are_missed``: a table has read
    others.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.kafka = kafka
        self.are_missed = False
        self._kept: DataFrame | None = None
        self._starts: Offsets = {}
        self._ends: Offsets = {}

    def keep(
        self,
        spark: SparkSession,
        tables: Iterable[TablePlan],
        observing: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    ) -> DataFrame | None:
        """Read and keep the records of all tables, from the first that any of them needs.

        Return the read, for its observations. None: there was nothing to read.
        """
        starts: Offsets = {}
        ends: Offsets = {}
        for table in tables:
            first = starts.setdefault(table.topic, table.start)
            starts[table.topic] = {n: min(offset, first[n]) for n, offset in table.start.items()}
            ends[table.topic] = table.end
        if not has_records(starts, ends) or self._has(starts, ends):
            return None
        self._release()
        # Few tasks for each table that reads them.
        rows = observing(read_raw(spark, self.kafka, starts, ends))
        read = rows.coalesce(spark.sparkContext.defaultParallelism)
        self._kept = read.localCheckpoint()
        self._starts, self._ends = starts, ends
        return read

    def of(self, spark: SparkSession, tables: Mapping[str, TablePlan]) -> DataFrame:
        """Return the raw records of topics, each from its table's start to its end."""
        starts = {topic: table.start for topic, table in tables.items()}
        ends = {topic: table.end for topic, table in tables.items()}
        kept = self._kept
        if kept is None or not self._has(starts, ends):
            self.are_missed |= has_records(starts, ends)
            return read_raw(spark, self.kafka, starts, ends)
        kept = in_session(spark, kept)
        if starts == self._starts:
            return kept
        return kept.where(reduce(or_, (self._since(topic, starts[topic]) for topic in starts)))

    def forget(self) -> None:
        """Discard everything that was read."""
        self.are_missed = False
        self._release()

    def _release(self) -> None:
        """Free the kept records' storage."""
        kept, self._kept = self._kept, None
        if kept is not None:
            release(kept)

    def _has(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether the kept records end there, and don't begin later."""
        return self._kept is not None and all(
            self._ends.get(topic) == ends[topic]
            and all(offset >= self._starts[topic][n] for n, offset in partitions.items())
            for topic, partitions in starts.items()
        )

    def _since(self, topic: str, start: dict[int, int]) -> SparkColumn:
        here = F.col("topic") == topic
        later = [
            (F.col("partition") != number) | (F.col("offset") >= offset)
            for number, offset in start.items()
            if offset > self._starts[topic][number]
        ]
        return reduce(and_, later, here)


def with_values(
    raw: DataFrame, kafka: Mapping[str, str], table: TablePlan, plan: RunPlan
) -> DataFrame:
    """Return raw records with complete values.

    If there are claims, one more column says why a value isn't complete.
    """
    if table.claims_ms is None:
        return raw
    topic = claim_topic(plan.prefix)
    since_ms = table.claims_ms - _CLOCKS_MS
    start, end = LogReader(kafka).since(topic, PIECES_PARTITION, since_ms)
    pieces = read_raw(raw.sparkSession, kafka, start, end)
    return joined(raw, pieces, topic)


def joined(raw: DataFrame, pieces: DataFrame, topic: str) -> DataFrame:
    """Return raw records with the values assembled from the pieces."""
    key, claim = F.from_json("key", _KEY), F.from_json("claim", _HEADER)
    values = (
        pieces.where(F.col("value").isNotNull())
        .select(key["claim"].alias("id"), key["piece"].alias("piece"), F.col("value").alias("text"))
        .groupBy("id")
        .agg(_text(F.sort_array(F.collect_list(F.struct("piece", "text")))).alias("whole"))
    )
    unclaimed = raw.where(F.col("claim").isNull()).withColumn(LOST, F.lit(None).cast("string"))
    claimed = (
        raw.where(F.col("claim").isNotNull())
        .withColumn("header", claim)
        .withColumn("id", F.col("header")["id"])
        .join(values, "id", "left")
    )
    is_whole = F.coalesce(F.sha2("whole", 256) == F.col("header")["sha256"], F.lit(False))
    record_id = F.concat_ws(":", "topic", "partition", "offset")
    lost = F.concat(
        F.lit("the value of the record at "), record_id, F.lit(f" isn't in {topic}: claim "), "id"
    )
    whole = claimed.withColumns(
        {
            "value": F.when(is_whole, F.col("whole")).otherwise(F.col("value")),
            LOST: F.when(~is_whole, lost),
        }
    )
    return unclaimed.unionByName(whole.select(*unclaimed.columns))


def _text(pieces: SparkColumn) -> SparkColumn:
    return F.array_join(F.transform(pieces, lambda piece: piece["text"]), "")


def has_records(start: Offsets, end: Offsets) -> bool:
    """Whether there is anything between the offsets."""
    return any(
        end[topic][partition] > offset
        for topic, partitions in start.items()
        for partition, offset in partitions.items()
    )


def committed(
    spark: SparkSession,
    kafka: Mapping[str, str],
    start: Offsets,
    end: Offsets,
    *,
    headers: bool,
) -> DataFrame:
    """Return Spark's frame of exactly the committed records between the offsets."""
    filled = {
        topic: [number for number, offset in partitions.items() if end[topic][number] > offset]
        for topic, partitions in start.items()
    }
    chosen = {topic: numbers for topic, numbers in filled.items() if numbers}

    def offsets(bound: Offsets) -> str:
        return json.dumps({t: {p: bound[t][p] for p in numbers} for t, numbers in chosen.items()})

    return (
        spark.read.format("kafka")
        .options(**spark_options(kafka))
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps(chosen))
        .option("startingOffsets", offsets(start))
        .option("endingOffsets", offsets(end))
        .option("includeHeaders", str(headers).lower())
        .option("failOnDataLoss", "true")
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .option("maxRecordsPerPartition", str(TASK_RECORDS_MAX))
        .load()
    )


def read_raw(
    spark: SparkSession, kafka: Mapping[str, str], start: Offsets, end: Offsets
) -> DataFrame:
    """Read exactly the committed records from ``start`` up to, but excluding, ``end``.

    Columns: topic, partition, offset, key, value (text), position (text, null if a record lacks our
    header), commit_lsn (bigint), schema_version (int), filled (text: the ordinals of the columns
    with filled values, null without any), claim (text: the header that locates the whole value,
    null if it is here) and ts_ms (since 1970).
    """
    if not has_records(start, end):
        return spark.createDataFrame([], RAW)

    records = committed(spark, kafka, start, end, headers=True)
    header = F.col("header")
    fields = ("position", "commit_lsn", "schema_version", "filled", "claim")
    return records.withColumn("header", header_fields(F.col("headers"))).select(
        "topic",
        "partition",
        "offset",
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        *(header[name].alias(name) for name in fields),
        F.unix_millis("timestamp").alias("ts_ms"),
    )

"""Kafka → Debezium's topics, how far they can be read, and their binary records.

They have no progress record. A run's cut is the end offsets at its start.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.errors import MillraceError
from cdc.log.offsets import LogReader, Offsets
from cdc.records.schema import TableName
from cdc.records.topics import tables_of
from sinks.log.counts import ranges, some_of
from sinks.log.records import committed, has_records
from sinks.run.debezium_topic import DebeziumTopic
from sinks.run.plan import TablePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW = "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp"
_LONGEST_MS: Final = 100 * 365 * 86_400_000
"""Kafka's longest time exceeds Python's."""


class BrokerTopic(NamedTuple):
    """A topic as the brokers describe it. A new topic of the same name has another ``id``.

    ``compacted_after`` is how long a compacted topic keeps every record. None: it isn't compacted.
    """

    id: str
    partitions: int
    compacted_after: timedelta | None


UNKNOWN_TOPIC: Final = BrokerTopic("", 0, None)
"""A topic that the brokers don't describe."""


class TopicLog(LogReader):
    """A reader of topics that another program writes."""

    def tables(self, prefix: str, captures: Callable[[str], bool]) -> dict[TableName, str]:
        """Return tables and their topics: ``<prefix>.<schema>.<table>``, of captured tables.

        Names have the spelling of topics: ``_`` may replace characters that aren't letters or
        digits.
        """
        return tables_of(self._admin.partitions(), prefix, captures)

    def cluster(self) -> str:
        """Return the cluster's own name, which distinguishes clusters."""
        return self._admin.cluster_id()

    def bounds(
        self, topics: Mapping[str, BrokerTopic], failed: dict[str, MillraceError]
    ) -> tuple[Offsets, Offsets]:
        """Return the first offset of every partition, and its committed end.

        ``failed`` gets the topics without an answer.
        """
        partitions = [
            (name, number) for name, topic in topics.items() for number in range(topic.partitions)
        ]
        return self._committed_bounds(partitions, failed)

    def describe(
        self, topics: list[str], failed: dict[str, MillraceError]
    ) -> dict[str, BrokerTopic]:
        """Return topics as the brokers describe them. ``failed`` gets those without an answer."""
        return {
            name: BrokerTopic(topic.id, topic.partitions, _compacted_after(topic.config))
            for name, topic in self._admin.details(topics, failed).items()
        }


def _compacted_after(config: Mapping[str, str]) -> timedelta | None:
    """Return the age from which compaction may remove a record, tombstone or row."""
    if "compact" not in config["cleanup.policy"]:
        return None
    return timedelta(milliseconds=min(int(config["min.compaction.lag.ms"]), _LONGEST_MS))


def topic_of(table: TablePlan) -> DebeziumTopic:
    """Return the plan's part about a table's topic."""
    assert table.debezium is not None  # noqa: S101 (every plan of this sink's has it)
    return table.debezium


def read_records(
    spark: "SparkSession", kafka: Mapping[str, str], start: Offsets, end: Offsets
) -> "DataFrame":
    """Read exactly the committed records from ``start`` up to, but excluding, ``end``."""
    if not has_records(start, end):
        return spark.createDataFrame([], RAW)
    records = committed(spark, kafka, start, end, headers=False)
    return records.select("topic", "partition", "offset", "key", "value", "timestamp")


def bounded_ends(
    tables: Collection[TablePlan], compacted: Collection[str], records_max: int
) -> Offsets:
    """Return end offsets that limit a run's records. A topic's ends apply to all its tables."""
    begins = {table.topic for table in tables if table.begins or table.rebuilds}
    whole = begins.intersection(compacted)
    return some_of(*ranges(table for table in tables if table.topic not in whole), records_max)

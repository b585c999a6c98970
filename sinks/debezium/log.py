"""Kafka → which topics Debezium wrote, how far they can be read, and their binary records.

There is no progress record: a run's cut is the end offsets that it finds at its start.
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
"""Kafka's longest time is one that Python has no room for."""


class BrokerTopic(NamedTuple):
    """A topic as the brokers describe it; a new one of the same name has another ``id``.

    ``compacted_after`` is how long a compacted topic keeps every record; None: it isn't compacted.
    """

    id: str
    partitions: int
    compacted_after: timedelta | None


UNKNOWN_TOPIC: Final = BrokerTopic("", 0, None)
"""A topic that the brokers don't describe."""


class TopicLog(LogReader):
    """A reader of topics that somebody else writes."""

    def tables(self, prefix: str, captures: Callable[[str], bool]) -> dict[TableName, str]:
        """Tables and their topics: ``<prefix>.<schema>.<table>``, of those that are captured.

        Names are as topics spell them: what isn't a letter or digit may be ``_`` in them.
        """
        return tables_of(self._admin.partitions(), prefix, captures)

    def cluster(self) -> str:
        """The cluster's own name, by which another one is told from it."""
        return self._admin.cluster_id()

    def bounds(
        self, topics: Mapping[str, BrokerTopic], failed: dict[str, MillraceError]
    ) -> tuple[Offsets, Offsets]:
        """The first offset of every partition, and the end of what is committed in it.

        ``failed`` gets the topics that have none.
        """
        partitions = [
            (name, number) for name, topic in topics.items() for number in range(topic.partitions)
        ]
        return self._committed_bounds(partitions, failed)

    def describe(
        self, topics: list[str], failed: dict[str, MillraceError]
    ) -> dict[str, BrokerTopic]:
        """Topics as the brokers describe them; ``failed`` gets those that they don't describe."""
        return {
            name: BrokerTopic(topic.id, topic.partitions, _compacted_after(topic.config))
            for name, topic in self._admin.details(topics, failed).items()
        }


def _compacted_after(config: Mapping[str, str]) -> timedelta | None:
    """How old a record is before compaction may take it away, be it a tombstone or a row."""
    if "compact" not in config["cleanup.policy"]:
        return None
    return timedelta(milliseconds=min(int(config["min.compaction.lag.ms"]), _LONGEST_MS))


def topic_of(table: TablePlan) -> DebeziumTopic:
    """What a plan has of a table's topic."""
    assert table.debezium is not None  # noqa: S101 (every plan of this sink's has it)
    return table.debezium


def read_records(
    spark: "SparkSession", kafka: Mapping[str, str], start: Offsets, end: Offsets
) -> "DataFrame":
    """Read exactly the committed records from ``start`` up to, not including, ``end``."""
    if not has_records(start, end):
        return spark.createDataFrame([], RAW)
    records = committed(spark, kafka, start, end, headers=False)
    return records.select("topic", "partition", "offset", "key", "value", "timestamp")


def bounded_ends(
    tables: Collection[TablePlan], compacted: Collection[str], records_max: int
) -> Offsets:
    """End offsets that bound a run to so many records; those of a topic hold for all its tables."""
    begins = {table.topic for table in tables if table.begins or table.rebuilds}
    whole = begins.intersection(compacted)
    return some_of(*ranges(table for table in tables if table.topic not in whole), records_max)

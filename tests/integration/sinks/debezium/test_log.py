"""Topics that a real Debezium wrote, on a real broker → Delta tables, run after run."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from cdc.errors import MillraceError
from cdc.kafka.admin import LogAdmin
from cdc.log.offsets import Offsets
from cdc.records.schema import TableName, TableSchema
from cdc.settings import LakehouseSettings
from deploy.local.kafka import Kafka
from sinks.changes.derived import derived_tables, table_path
from sinks.changes.latest import latest
from sinks.changes.shape import plain_shape
from sinks.debezium.described import ConnectorOptions
from sinks.debezium.inspection import Inspection, TableTopic, inspect_topics
from sinks.debezium.log import BrokerTopic, TopicLog, read_records, tables_of
from sinks.debezium.parse import parse
from tests.fixtures.debezium_topics import DEBEZIUM, MadeRegistry, Raw, as_avro, recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NAME = TableName("public", "cust")


class Topics:
    """A topic of two partitions, and what runs apply of it: the run loop's part of the stage."""

    def __init__(self, spark: "SparkSession", kafka: Kafka, prefix: str, folder: Path) -> None:
        self.spark = spark
        self.kafka = kafka.client_options()
        self.prefix = prefix
        self.folder = str(folder)
        self.topic = f"{prefix}.{NAME}"
        assert LogAdmin(dict(self.kafka)).create([NewTopic(self.topic, 2, 1)]) == {}
        self.start: Offsets | None = None
        self.before: TableSchema | None = None
        self.run = 0

    def write(self, records: Iterable[Raw]) -> None:
        producer = Producer({**self.kafka, "partitioner": "murmur2_random", "log_level": 0})
        for one in records:
            producer.produce(self.topic, one.value, one.key)
        assert producer.flush(20) == 0

    def merge(self, registry: MadeRegistry | None = None) -> Inspection:
        from sinks.changes.newest import Newest
        from sinks.delta.commit import commit
        from sinks.delta.keyed import merge, write_new
        from sinks.delta.table import DeltaTarget

        log = TopicLog(self.kafka)
        tables = log.tables(self.prefix, lambda _name: True)
        found = log.describe(list(tables.values()), {})
        starts, ends = log.bounds(found, {})
        start = self.start or starts
        topic = TableTopic(NAME, tables[NAME], len(ends[self.topic]), {}, self.before)
        raw = read_records(self.spark, self.kafka, start, ends)
        schema_of = registry.text_of if registry is not None else None
        inspection = inspect_topics(
            raw, [topic], lambda _name: raw, ConnectorOptions(DEBEZIUM), schema_of
        )[NAME]
        self.start = ends
        if inspection.described is None:
            return inspection
        schema = inspection.described.schema
        lakehouse = LakehouseSettings(path=self.folder)
        derived = derived_tables(lakehouse, [str(NAME)])[str(NAME)]
        target = DeltaTarget(self.spark, self.prefix, derived)
        shape = plain_shape([schema], derived.reserved)
        changes = latest(parse(raw, inspection.described), shape)
        base, self.run = self.run, self.run + 1
        write = (
            (lambda: merge(target, Newest(changes, None, None, None), shape, None))
            if base
            else (lambda: write_new(target, changes, shape))
        )
        commit(target, self.run, base, shape, write)
        self.before = schema
        return inspection

    def rows(self) -> dict[int, dict[str, Any]]:
        path = table_path(self.folder, NAME)
        found = self.spark.read.format("delta").load(path).collect()
        return {row["id"]: row.asDict(recursive=True) for row in found}


@pytest.fixture
def topics(spark: "SparkSession", kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Topics:
    return Topics(spark, kafka, topic_prefix, tmp_path / "lake")


@pytest.mark.proof
def test_a_snapshot_then_changes_become_a_table(topics: Topics) -> None:
    first, *later = recorded("schemas_typical", "cust")
    assert topics.merge().described is None, "an empty topic tells nothing"
    topics.write([first])
    assert topics.merge().events == 1
    assert topics.rows().keys() == {1}
    assert topics.rows()[1]["name"] == "n"
    topics.write(later)
    assert topics.merge().events == 3
    assert topics.rows().keys() == {2}
    assert (topics.rows()[2]["age"], topics.rows()[2]["tags"]) == (30, ["a", "b"])
    topics.write([one for one in later if one.value is None])
    assert topics.merge().events == 1
    assert topics.rows().keys() == {2}
    assert topics.merge().events == 0


@pytest.mark.proof
def test_avro_goes_on_where_json_ended(topics: Topics, has_avro: None) -> None:
    registry = MadeRegistry()
    first, second, *_ = recorded("schemas_typical", "cust")
    topics.write([first])
    topics.merge()
    topics.write([as_avro(second, registry)])
    found = topics.merge(registry)
    assert found.described is not None
    assert found.described.schema == topics.before
    assert {key: row["name"] for key, row in topics.rows().items()} == {1: "n", 2: "m"}


def test_a_table_that_cannot_be_read_says_why(topics: Topics) -> None:
    topics.write([Raw(b'{"id":1}', b'{"id":1,"name":"flattened"}')])
    found = topics.merge()
    assert "nothing says what type" in str(found.error)


def test_a_topic_that_is_gone_meanwhile_holds_up_no_other(topics: Topics) -> None:
    # Which waits until the broker leads both partitions of what was just made.
    topics.write(Raw(b'{"id":%d}' % number, b"{}") for number in range(16))
    failed: dict[str, MillraceError] = {}
    log = TopicLog(topics.kafka)
    found = log.describe([topics.topic, f"{topics.topic}_gone"], failed)
    assert ([*found], [*failed]) == ([topics.topic], [f"{topics.topic}_gone"])
    starts, ends = log.bounds(found | {"gone": BrokerTopic("", 1, None)}, failed)
    assert starts == {topics.topic: {0: 0, 1: 0}}
    assert sum(ends[topics.topic].values()) == 16
    assert "gone" in failed


def test_tables_among_topics() -> None:
    topics = ["p.public.t", "p.transaction", "p.message", "px.public.t", "p.s.a_b", "p.s.left.out"]
    assert tables_of(topics, "p", lambda name: name != "s.left.out") == {
        TableName("public", "t"): "p.public.t",
        TableName("s", "a_b"): "p.s.a_b",
    }

"""Topics that a real Debezium wrote, on a real broker → Delta tables, run after run."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from cdc.errors import MillraceError
from cdc.kafka.admin import LogAdmin
from cdc.records.schema import TableName
from cdc.records.topics import tables_of
from cdc.settings import LakehouseSettings
from deploy.local.kafka import Kafka
from sinks.changes.derived import derived_tables, table_path
from sinks.changes.newest import latest
from sinks.changes.shape import plain_shape
from sinks.debezium.changes import DebeziumChanges
from sinks.debezium.described import ConnectorOptions, RecordSource
from sinks.debezium.inspection import PlannedTopics, plan_tables
from sinks.debezium.log import BrokerTopic, TopicLog, topic_of
from sinks.run.plan import TablePlan
from tests.fixtures.debezium_topics import DEBEZIUM, MadeRegistry, Raw, as_avro, recorded
from tests.fixtures.made_plans import table_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NAME = TableName("public", "cust")


class Topics:
    """A topic, and what runs apply of it: the run loop's part of the stage."""

    def __init__(
        self,
        spark: "SparkSession",
        kafka: Kafka,
        prefix: str,
        folder: Path,
        *,
        partitions: int = 2,
    ) -> None:
        self.spark = spark
        self.kafka = kafka.client_options()
        self.prefix = prefix
        self.folder = str(folder)
        self.topic = f"{prefix}.{NAME}"
        assert LogAdmin(dict(self.kafka)).create([NewTopic(self.topic, partitions, 1)]) == {}
        self.plan: TablePlan | None = None
        self.run = 0

    def write(self, records: Iterable[Raw]) -> None:
        producer = Producer({**self.kafka, "partitioner": "murmur2_random", "log_level": 0})
        for one in records:
            producer.produce(self.topic, one.value, one.key)
        assert producer.flush(20) == 0

    def merge(self, registry: MadeRegistry | None = None) -> PlannedTopics:
        from sinks.changes.newest import Newest
        from sinks.delta.commit import commit, write_whole
        from sinks.delta.keyed import merge, new_rows
        from sinks.delta.table import DerivedDeltaTable

        log = TopicLog(self.kafka)
        found = log.describe([*log.tables(self.prefix, lambda _name: True).values()], {})
        starts, ends = log.bounds(found, {})
        start = starts[self.topic] if self.plan is None else self.plan.next
        begun = table_plan(topic=self.topic, source=str(NAME)) if self.plan is None else self.plan
        update = {"start": start, "end": ends[self.topic], "base": self.run}
        table = begun.model_copy(update=update)
        schema_of = registry.text_of if registry is not None else None
        source = RecordSource(self.kafka, ConnectorOptions(DEBEZIUM), schema_of)
        planned = plan_tables(self.spark, source, {}, (), {str(NAME): table})
        if str(NAME) not in planned.tables:
            return planned
        self.plan = planned.tables[str(NAME)]
        changes = DebeziumChanges(self.spark, source, self.plan, planned.groups[str(NAME)])
        lakehouse = LakehouseSettings(path=self.folder)
        derived = derived_tables(lakehouse, [str(NAME)])[str(NAME)]
        target = DerivedDeltaTable(self.spark, self.prefix, derived)
        shape = plain_shape(changes.versions, derived.reserved)
        rows = latest(changes.parsed(shape), shape)
        base, self.run = self.run, self.run + 1
        write = (
            (lambda: merge(target, Newest(rows, None, None, None), shape, None))
            if base
            else (lambda: write_whole(target, table, new_rows(target, rows, shape), shape))
        )
        commit(target, self.run, base, shape, write, print)
        return planned

    def rows(self) -> dict[int, dict[str, Any]]:
        path = table_path(self.folder, NAME)
        found = self.spark.read.format("delta").load(path).collect()
        return {row["id"]: row.asDict(recursive=True) for row in found}


@pytest.fixture
def topics(spark: "SparkSession", kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Topics:
    return Topics(spark, kafka, topic_prefix, tmp_path / "lake")


@pytest.mark.proof
def test_a_snapshot_then_changes_become_a_table(topics: Topics) -> None:
    def events() -> int:
        return topics.merge().tables[str(NAME)].events

    first, *later = recorded("schemas_typical", "cust")
    assert topics.merge().tables == {}, "an empty topic tells nothing"
    topics.write([first])
    assert events() == 1
    assert topics.rows().keys() == {1}
    assert topics.rows()[1]["name"] == "n"
    topics.write(later)
    assert events() == 3
    assert topics.rows().keys() == {2}
    assert (topics.rows()[2]["age"], topics.rows()[2]["tags"]) == (30, ["a", "b"])
    topics.write([one for one in later if one.value is None])
    assert events() == 1
    assert topics.rows().keys() == {2}
    assert events() == 0


@pytest.mark.proof
@pytest.mark.usefixtures("has_avro")
def test_avro_goes_on_where_json_ended(
    spark: "SparkSession", kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    topics = Topics(spark, kafka, topic_prefix, tmp_path / "lake", partitions=1)
    registry = MadeRegistry()
    first, second, *_ = recorded("schemas_typical", "cust")
    topics.write([first])
    before = topics.merge().tables[str(NAME)]
    topics.write([as_avro(second, registry)])
    found = topics.merge(registry).tables[str(NAME)]
    assert topic_of(found).schemas == topic_of(before).schemas
    assert {key: row["name"] for key, row in topics.rows().items()} == {1: "n", 2: "m"}


def test_a_table_that_cannot_be_read_says_why(topics: Topics) -> None:
    topics.write([Raw(b'{"id":1}', b'{"id":1,"name":"flattened"}')])
    found = topics.merge()
    assert "nothing says what type" in str(found.refused[str(NAME)])


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

"""The real daemon in other forms than plain JSON: Avro, transforms, transaction metadata."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.kafka.admin import LogAdmin
from cdc.records.position import HEADER
from deploy.local.kafka import Kafka
from deploy.local.processes import Process
from tests.fixtures.forked import ForkedPipeline
from tests.fixtures.pipeline import SOON_MS
from tests.fixtures.position_headers import parse_header
from tests.fixtures.registry import SchemaRegistry
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
Sections = Mapping[str, Mapping[str, str | int]]
Streamed = Callable[..., "Log"]


class Log:
    """Messages of some topics, by topic, in the order of their offsets."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        consumer = Consumer(
            {
                **kafka.client_options(),
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": SOON_MS,
            }
        )
        known = consumer.list_topics(timeout=60).topics
        places = [
            TopicPartition(topic, partition, 0)
            for topic, found in known.items()
            if prefix in topic and not topic.startswith("__millrace")
            for partition in found.partitions
        ]
        consumer.assign(places)
        self.by_topic: dict[str, list[Message]] = {}
        left = len(places)
        while left:
            message = consumer.poll(60)
            assert message is not None, "Kafka doesn't answer"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left -= 1
            else:
                self.by_topic.setdefault(cast("str", message.topic()), []).append(message)
        consumer.close()

    def values(self, topic: str) -> list[Any]:
        return [json.loads(m.value() or b"null") for m in self.by_topic[topic]]


@pytest.fixture
def streamed(
    tmp_path: Path, database: dict[str, str], kafka: Kafka, topic_prefix: str
) -> Callable[..., Log]:
    """Run the daemon with these sections: some statements before its start, some after."""

    def make(sections: Sections, before: list[str], *after: str, restart: bool = False) -> Log:
        run(database, *before)
        options = kafka.client_options()
        made = ForkedPipeline(tmp_path, database, options, prefix=topic_prefix, sections=sections)
        daemon: Process = made.start()
        try:
            made.wait_until_logged(made.wal_end(), daemon)
            for statement in after:
                run(database, statement)
            if restart:
                made.wait_until_logged(made.wal_end(), daemon)
                daemon.kill()
                daemon = made.start()
            made.wait_until_logged(made.wal_end(), daemon)
            daemon.stop()
        finally:
            daemon.kill()
        return Log(kafka, topic_prefix)

    return make


@pytest.mark.proof
@pytest.mark.registry
def test_avro_goes_on_when_a_column_is_added(
    streamed: Streamed, registry: SchemaRegistry, topic_prefix: str
) -> None:
    section: dict[str, str | int] = {
        "key": "avro",
        "value": "avro",
        "schema.registry.url": registry.url,
    }
    log = streamed(
        {"format": section},
        [
            "CREATE TABLE t (id int PRIMARY KEY, n numeric(10,2), at timestamptz, tags text[])",
            "INSERT INTO t VALUES (1, 1.50, '2024-01-01 00:00:00+00', '{a,NULL}')",
        ],
        "ALTER TABLE t ADD COLUMN more text",
        "INSERT INTO t VALUES (2, NULL, NULL, NULL, 'x')",
        "DELETE FROM t WHERE id = 1",
    )
    topic = f"{topic_prefix}.public.t"
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))

    def read(message: Message, side: str) -> Any:
        data = message.key() if side == "key" else message.value()
        return deserialize(cast("bytes", data), SerializationContext(topic, MessageField(side)))

    found = {
        (read(m, "key")["id"], v["op"]): v
        for m in log.by_topic[topic]
        if (v := read(m, "value")) is not None
    }
    assert sorted(found) == [(1, "d"), (1, "r"), (2, "c")]
    first = found[1, "r"]["after"]
    assert (first["n"], first["tags"]) == ("1.50", ["a", None])
    assert "more" not in first
    assert found[2, "c"]["after"] == {"id": 2, "n": None, "at": None, "tags": None, "more": "x"}


def test_rows_are_unwrapped_and_routed_with_their_positions(
    streamed: Streamed, topic_prefix: str
) -> None:
    log = streamed(
        {
            "transforms": {
                "order": "flat,route",
                "flat.type": "io.debezium.transforms.ExtractNewRecordState",
                "flat.add.fields": "op",
                "route.type": "org.apache.kafka.connect.transforms.RegexRouter",
                "route.regex": r"(.*)\.public\.(.*)",
                "route.replacement": "$1.flat.$2",
            }
        },
        ["CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')"],
        "UPDATE t SET v = 'b'",
    )
    topic = f"{topic_prefix}.flat.t"
    assert list(log.by_topic) == [topic]
    assert log.values(topic) == [
        {"id": 1, "v": "a", "__op": "r"},
        {"id": 1, "v": "b", "__op": "u"},
    ]
    headers = [dict(m.headers() or [])[HEADER] for m in log.by_topic[topic]]
    positions = [parse_header(cast("bytes", header))[0] for header in headers]
    assert positions == sorted(positions)


@pytest.mark.proof
def test_a_message_right_before_a_commit_takes_nothing_of_the_transaction(
    streamed: Streamed, topic_prefix: str
) -> None:
    """Where one ends that isn't transactional, the commit of its writer starts: the same LSN."""
    log = streamed(
        {"capture": {"message.prefix.include.list": "note"}},
        ["CREATE TABLE t (id int PRIMARY KEY)"],
        "BEGIN; INSERT INTO t VALUES (1), (2);"
        " SELECT pg_logical_emit_message(false, 'note', 'first'); COMMIT",
        restart=True,
    )
    assert sorted(v["after"]["id"] for v in log.values(f"{topic_prefix}.public.t")) == [1, 2]
    assert len(log.values(f"{topic_prefix}.message")) == 1


def outbox(topic_prefix: str) -> Sections:
    """A router whose events have the times of a column."""
    return {
        "transforms": {
            "outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "outbox.table.field.event.timestamp": "at",
            "outbox.route.topic.replacement": f"{topic_prefix}.events.${{routedByValue}}",
        }
    }


OUTBOX = (
    "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text,"
    " payload jsonb, at timestamp)"
)
EVENT = "INSERT INTO outbox VALUES (gen_random_uuid(), '{}', 'o-1', 'made', '{{}}', {})"


def test_outbox_events_have_their_own_time_and_key(streamed: Streamed, topic_prefix: str) -> None:
    at_ms = int(time.time() * 1_000) - 3_600_000
    at = f"to_timestamp({at_ms} / 1000.0) AT TIME ZONE 'UTC'"
    log = streamed(outbox(topic_prefix), [OUTBOX], EVENT.format("order", at))
    (event,) = log.by_topic[f"{topic_prefix}.events.order"]
    assert json.loads(event.key() or b"") == "o-1"
    assert event.timestamp()[1] == at_ms


def test_an_outbox_event_is_kept_for_log_keep_whatever_its_time_says(
    streamed: Streamed, kafka: Kafka, topic_prefix: str
) -> None:
    """Each event has a topic: beside a newer one the broker keeps it, for their segment's sake."""
    times = {
        "old": "now() - interval '30 days'",
        "coming": "'2300-01-01'",
        "ancient": "'1960-01-01'",
        "endless": "'infinity'",
        "unknown": "NULL",
    }
    started_ms = int(time.time() * 1_000)
    events = (EVENT.format(name, at) for name, at in times.items())
    streamed(outbox(topic_prefix), [OUTBOX], *events)
    await_retention(kafka, f"{topic_prefix}.control")
    log = Log(kafka, f"{topic_prefix}.events.")
    assert sorted(log.by_topic) == sorted(f"{topic_prefix}.events.{name}" for name in times)
    for (event,) in log.by_topic.values():
        assert started_ms <= event.timestamp()[1] <= int(time.time() * 1_000)


def await_retention(kafka: Kafka, topic: str) -> None:
    """Wait until the broker has removed a record of 30 days ago, as it looks for them."""
    options, week_ms = kafka.client_options(), 7 * 86_400_000
    new = NewTopic(topic, 1, 1, config={"retention.ms": str(week_ms)})
    assert LogAdmin(options).create([new]) == {}
    producer = Producer(options)
    producer.produce(topic, b"", timestamp=int(time.time() * 1_000) - 30 * 86_400_000)
    producer.flush(30)
    consumer = Consumer({**options, "group.id": "tests"})
    deadline = time.monotonic() + 30
    while consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) != (1, 1):
        assert time.monotonic() < deadline, "the broker hasn't removed it"
        time.sleep(0.2)
    consumer.close()


def test_transactions_are_counted_and_messages_are_events(
    streamed: Streamed, topic_prefix: str
) -> None:
    log = streamed(
        {
            "capture": {
                "provide.transaction.metadata": "true",
                "message.prefix.include.list": "note",
            }
        },
        ["CREATE TABLE t (id int PRIMARY KEY)"],
        "BEGIN; INSERT INTO t VALUES (1), (2);"
        " SELECT pg_logical_emit_message(true, 'note', 'inside'); COMMIT",
        "SELECT pg_logical_emit_message(false, 'note', 'outside')",
        "INSERT INTO t VALUES (3)",
        restart=True,
    )
    markers: dict[str, list[tuple[str, int | None]]] = {}
    for value in log.values(f"{topic_prefix}.transaction"):
        markers.setdefault(value["id"], []).append((value["status"], value["event_count"]))
    assert sorted(markers.values(), key=str) == [
        [("BEGIN", None), ("END", 1)],
        [("BEGIN", None), ("END", 3)],
    ]
    contents = [m["message"]["content"] for m in log.values(f"{topic_prefix}.message")]
    assert contents == ["aW5zaWRl", "b3V0c2lkZQ=="]  # once each, over a crash
    blocks = sorted(
        (v["transaction"]["total_order"], v["after"]["id"])
        for v in log.values(f"{topic_prefix}.public.t")
    )
    assert blocks == [(1, 1), (1, 3), (2, 2)]


@pytest.mark.proof
@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, id="plain"),
        pytest.param({"format": {"schemas.enable": "true"}}, id="with schemas"),
    ],
)
def test_what_was_replicated_from_elsewhere_says_so(
    streamed: Streamed, topic_prefix: str, sections: Sections
) -> None:
    name = f'else"where {topic_prefix}'
    setup = f"SELECT pg_replication_origin_session_setup('{name}')"
    log = streamed(
        sections,
        [f"SELECT pg_replication_origin_create('{name}')", "CREATE TABLE t (id int PRIMARY KEY)"],
        "INSERT INTO t VALUES (1)",
        f"{setup}; BEGIN; SELECT pg_replication_origin_xact_setup('0/ABC', now());"
        " INSERT INTO t VALUES (2), (3); COMMIT; SELECT pg_replication_origin_session_reset()",
        "INSERT INTO t VALUES (4)",
        f"SELECT pg_replication_origin_drop('{name}')",
    )
    values = [json.loads(m.value() or b"") for m in log.by_topic[f"{topic_prefix}.public.t"]]
    values = [value.get("payload", value) for value in values]
    found = {v["after"]["id"]: (v["source"]["origin"], v["source"]["origin_lsn"]) for v in values}
    assert found == {1: (None, None), 2: (name, 0xABC), 3: (name, 0xABC), 4: (None, None)}

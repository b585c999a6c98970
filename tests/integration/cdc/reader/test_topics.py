"""Topics that change under a reader: made again, with more partitions, damaged on a disk."""

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from cdc.errors import LogFormatError, TopicMismatchError
from cdc.kafka.admin import LogAdmin
from cdc.records.topics import dead_letter_topic
from cdc.settings import Settings
from deploy.local.kafka import Kafka
from millrace import changes
from tests.fixtures.debezium_topics import recorded
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import run

pytestmark = pytest.mark.kafka
(RECORD, *_) = recorded("schemas_typical", "cust")
RETAINED = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_LENGTH = slice(8, 12)
_HEAD = 61
"""Bytes of a batch before its records."""


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """Set where a test takes too long."""
    event = threading.Event()
    timer = threading.Timer(30, event.set)
    timer.start()
    yield event
    timer.cancel()


@pytest.fixture
def debezium(
    kafka: Kafka, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    monkeypatch.setattr("cdc.reader.stream.REFRESH_S", 0.1)
    return Settings.model_validate(
        {
            "preset": "debezium",
            "source": {},
            "capture": {"topic.prefix": topic_prefix},
            "kafka": kafka.client_options(),
            "lakehouse": {"path": str(tmp_path), "topics_written_by": "debezium"},
        }
    )


def put(settings: Settings, topic: str, count: int) -> None:
    producer = Producer({**settings.kafka, "linger.ms": 100})
    for _ in range(count):
        producer.produce(topic, RECORD.value, RECORD.key)
    producer.flush()


@pytest.fixture
def topic(debezium: Settings) -> str:
    name = f"{debezium.capture.topic_prefix}.public.cust"
    assert LogAdmin(debezium.kafka).create([NewTopic(name, 1, 1, config=RETAINED)]) == {}
    put(debezium, name, 3)
    return name


@pytest.mark.parametrize("group", [None, "g"])
def test_a_reader_does_not_go_on_in_a_topic_that_was_made_again(
    debezium: Settings, topic: str, group: str | None, stop: threading.Event
) -> None:
    with changes(debezium, group=group, stop=stop) as stream:
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]
        admin = LogAdmin(debezium.kafka)
        assert admin.delete([topic]) == {}
        assert admin.create([NewTopic(topic, 1, 1, config=RETAINED)]) == {}
        put(debezium, topic, 9)
        with pytest.raises(TopicMismatchError, match="created again"):
            list(islice(stream, 9))  # it would leave out three


@pytest.mark.postgres
def test_a_group_goes_on_where_the_topic_of_dead_letters_was_made_again(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str], stop: threading.Event
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    run(database, "INSERT INTO t VALUES (1)")
    made = pipeline()
    daemon = made.catch_up()
    admin = LogAdmin(made.settings.kafka)
    name = dead_letter_topic(made.settings.capture.topic_prefix)
    compacted = NewTopic(name, 2, 1, config={"cleanup.policy": "compact"})

    def read_one() -> None:
        with changes(made.settings, group="g", stop=stop) as stream:
            next(stream)
            stop.set()
            assert list(stream) == []  # the first one is processed
        stop.clear()

    assert admin.create([compacted]) == {}
    producer = Producer(made.settings.kafka)
    for number in range(3):
        producer.produce(name, None, f"dealt with {number}", 0)
    producer.flush()
    read_one()
    assert admin.delete([name]) == {}
    assert admin.create([compacted]) == {}
    run(database, "INSERT INTO t VALUES (2)")
    made.wait_until_logged(made.wal_end(), daemon)
    read_one()


@pytest.mark.native("it reaches into the broker's files")
def test_a_damaged_batch_is_an_error(
    debezium: Settings, topic: str, kafka: Kafka, stop: threading.Event
) -> None:
    put(debezium, topic, 3)
    path = kafka.data / f"{topic}-0" / "00000000000000000000.log"
    batches = path.read_bytes()
    second = 12 + int.from_bytes(batches[_LENGTH])
    with path.open("r+b") as file:
        file.seek(second + _HEAD + 40)
        file.write(bytes([batches[second + _HEAD + 40] ^ 1]))
    with changes(debezium, stop=stop) as stream:
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LogFormatError, match="records that can't be read"):
            next(stream)


@pytest.mark.postgres
def test_partitions_that_are_added_to_a_log_end_its_readers(
    pipeline: Callable[..., RunningPipeline],
    database: dict[str, str],
    kafka_admin: AdminClient,
    stop: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cdc.reader.stream.REFRESH_S", 0.1)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    run(database, "INSERT INTO t VALUES (1)")
    made = pipeline()
    made.catch_up()
    with changes(made.settings, stop=stop) as stream:
        name = next(stream).topic
        kafka_admin.create_partitions([NewPartitions(name, 7)])[name].result(30)
        with pytest.raises(TopicMismatchError, match="the topic has 7 partitions"):
            next(stream)

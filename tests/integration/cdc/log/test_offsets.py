"""A log → the offsets that a run reads, even while brokers show a transaction in part."""

import threading
import time
from datetime import timedelta

import pytest
from confluent_kafka import Producer

from cdc.errors import (
    ConfigError,
    LogAccessError,
    LogFormatError,
    LogMissingError,
    LogUnreachableError,
)
from cdc.log.offsets import LogReader, LogState
from cdc.records.state import progress_key
from cdc.records.topics import progress_topic
from deploy.local.kafka import Kafka
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = pytest.mark.kafka


def test_schemas_are_read_when_their_transaction_is_shown(kafka: Kafka, topic_prefix: str) -> None:
    """Brokers show a transaction partition by partition: the progress may come first."""
    schema = table_schema(topic_prefix, "item", column("id", "int4", 1))
    log = HandLog(kafka, topic_prefix, schema)
    log.table(snapshot_lsn=1)
    log.reached(at(10))
    other = f"{topic_prefix}-other"
    late = HandLog(kafka, other, table_schema(other, "item", column("id", "int4", 1)))
    late.commit()
    late.begin()
    late.prefix = topic_prefix
    late.add_schema(schema.model_copy(update={"version": 2}))
    late.flush()
    threading.Timer(1, late.commit).start()
    state = state_of(kafka, topic_prefix)
    assert [version.version for version in state.schemas["public.item"]] == [1, 2]


@pytest.fixture
def log(kafka: Kafka, topic_prefix: str) -> HandLog:
    """A log of one table, whose snapshot is complete."""
    made = HandLog(kafka, topic_prefix, table_schema(topic_prefix, "item", column("id", "int4", 1)))
    made.table(snapshot_lsn=1)
    made.reached(at(10))
    made.commit()
    return made


def state_of(kafka: Kafka, prefix: str) -> LogState:
    return LogReader(kafka.client_options()).state(prefix, "millrace", lambda _line: None)


def write(kafka: Kafka, topic: str, key: bytes, value: bytes | None) -> None:
    """Write a record to a state topic, outside of any transaction."""
    producer = Producer({**kafka.client_options()})
    producer.produce(topic, value, key, partition=0)
    assert producer.flush(60) == 0


def test_a_tombstone_takes_the_slots_progress_away(
    kafka: Kafka, topic_prefix: str, log: HandLog
) -> None:
    """What stands before it isn't the slot's any more."""
    state_of(kafka, log.prefix)
    write(kafka, progress_topic(topic_prefix), progress_key("millrace"), None)
    with pytest.raises(LogMissingError, match=rf"{topic_prefix}[\s\S]*millrace run"):
        state_of(kafka, topic_prefix)


def test_another_slots_progress_is_not_read(kafka: Kafka, topic_prefix: str, log: HandLog) -> None:
    """That slot's newer daemon holds up its own readers only."""
    write(kafka, progress_topic(topic_prefix), progress_key("other"), b'{"format":2}')
    state = state_of(kafka, log.prefix)
    assert state.progress.cut == at(10)


def test_a_newer_daemons_progress_is_refused(kafka: Kafka, topic_prefix: str, log: HandLog) -> None:
    write(kafka, progress_topic(topic_prefix), progress_key("millrace"), b'{"format":2}')
    with pytest.raises(LogFormatError, match="newer"):
        state_of(kafka, log.prefix)


def test_an_option_that_kafka_does_not_know_is_the_configurations_error(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.option"):
        LogReader({**kafka.client_options(), "no.such.option": "1"})


def test_a_password_that_is_refused_is_an_access_error(kafka: Kafka) -> None:
    options = {
        **kafka.client_options(),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "verysecret",
    }
    with pytest.raises(LogAccessError) as raised:
        LogReader(options).state("p", "millrace")
    assert "verysecret" not in str(raised.value)


def test_a_broker_that_is_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.log.partitions.SILENCE_S", 2.0)
    with pytest.raises(LogUnreachableError, match=r"127\.0\.0\.1:1"):
        LogReader({"bootstrap.servers": "127.0.0.1:1"}).state("p", "millrace")


def test_offsets_are_told_by_the_age_of_their_records(
    kafka: Kafka, topic_prefix: str, log: HandLog
) -> None:
    """Of one partition all records are old, the other one has a new one."""
    topic = log.schema.topic
    now_ms = int(time.time() * 1000)
    producer = Producer({**kafka.client_options()})
    for partition, hours in ((0, 3), (0, 2), (1, 3), (1, 0)):
        timestamp = now_ms - hours * 3_600_000
        producer.produce(topic, b"{}", b"{}", partition=partition, timestamp=timestamp)
    assert producer.flush(60) == 0
    reader = LogReader(kafka.client_options())
    since_ms = now_ms - 3_600_000
    assert reader.forgotten({topic: {0: 0, 1: 0}}, timedelta(hours=1)) == {topic: {0: 2, 1: 1}}
    assert reader.forgotten({topic: {0: 2, 1: 1}}, timedelta(hours=1)) == {}
    assert reader.since(topic, 0, since_ms) == ({topic: {0: 2}}, {topic: {0: 2}})
    assert reader.since(topic, 1, since_ms) == ({topic: {1: 1}}, {topic: {1: 2}})
    assert reader.since(f"{topic_prefix}.none", 0, since_ms)[0] == {f"{topic_prefix}.none": {}}

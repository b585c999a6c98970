"""A log → what a run reads of it, also while the brokers still show a transaction in part."""

import threading

import pytest
from confluent_kafka import Producer

from cdc.errors import LogFormatError
from cdc.log.offsets import Log, LogState
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
    reader = Log(kafka.client_options())
    try:
        state = reader.state(topic_prefix, "millrace", lambda _line: None)
    finally:
        reader.close()
    assert state is not None
    assert [version.version for version in state.schemas["public.item"]] == [1, 2]


@pytest.fixture
def log(kafka: Kafka, topic_prefix: str) -> HandLog:
    """A log of one table, whose snapshot is complete."""
    made = HandLog(kafka, topic_prefix, table_schema(topic_prefix, "item", column("id", "int4", 1)))
    made.table(snapshot_lsn=1)
    made.reached(at(10))
    made.commit()
    return made


def state_of(kafka: Kafka, prefix: str) -> LogState | None:
    return Log(kafka.client_options()).state(prefix, "millrace", lambda _line: None)


def write(kafka: Kafka, topic: str, key: bytes, value: bytes | None) -> None:
    """Write a record to a state topic, outside of any transaction."""
    producer = Producer({**kafka.client_options()})
    producer.produce(topic, value, key, partition=0)
    assert producer.flush(10) == 0


def test_a_tombstone_takes_the_slots_progress_away(
    kafka: Kafka, topic_prefix: str, log: HandLog
) -> None:
    """What stands before it isn't the slot's any more."""
    assert state_of(kafka, log.prefix) is not None
    write(kafka, progress_topic(topic_prefix), progress_key("millrace"), None)
    assert state_of(kafka, topic_prefix) is None


def test_another_slots_progress_is_not_read(kafka: Kafka, topic_prefix: str, log: HandLog) -> None:
    """That slot's newer daemon holds up its own readers only."""
    write(kafka, progress_topic(topic_prefix), progress_key("other"), b'{"format":2}')
    state = state_of(kafka, log.prefix)
    assert state is not None
    assert state.progress.cut == at(10)


def test_a_newer_daemons_progress_is_refused(kafka: Kafka, topic_prefix: str, log: HandLog) -> None:
    write(kafka, progress_topic(topic_prefix), progress_key("millrace"), b'{"format":2}')
    with pytest.raises(LogFormatError, match="newer"):
        state_of(kafka, log.prefix)

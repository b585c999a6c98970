"""State topics that are read repeatedly → the newest records, with only new ones read."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from cdc.kafka.admin import do_nothing
from cdc.log.following import LastProgress, NewestRecords
from cdc.log.partitions import PartitionReader, StateConsumer
from cdc.log.state import StateReader
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import TableState, progress_record, table_key, table_record
from cdc.records.topics import progress_topic, table_topic
from deploy.local.kafka import Kafka
from tests.integration.cdc.kafka.test_producer import make_topic
from tests.integration.cdc.log.test_state import opened, progress, state

pytestmark = pytest.mark.kafka


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The offsets between which partitions are read."""
    real, noted = PartitionReader.read, list[tuple[int, int]]()

    def read(reader: PartitionReader, start: int, stop: int) -> Iterator[object]:
        if start < stop:
            noted.append((start, stop))
        return real(reader, start, stop)

    monkeypatch.setattr(PartitionReader, "read", read)
    return noted


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until brokers show what a transaction has written."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_at(last: LastProgress, number: int) -> bool:
    """Whether that is the last progress."""
    return last.read() == progress(number)


def test_only_what_is_new_of_a_state_topic_is_read_again(
    kafka: Kafka, topic_prefix: str, reads: list[tuple[int, int]]
) -> None:
    options, topic = kafka.client_options(), table_topic(topic_prefix)
    tables = NewestRecords(StateConsumer(options, do_nothing), topic, TableState)

    def names() -> list[str]:
        return sorted(each.table for each in tables.read().values())

    assert names() == []
    make_topic(kafka, topic, cleanup_policy="compact")
    writer = opened(kafka, topic_prefix)
    writer.write(table_record(topic_prefix, state(name)) for name in "ab")
    writer.commit()
    wait_for(lambda: names() == ["a", "b"])
    (first,) = reads
    assert names() == ["a", "b"]
    assert reads == [first]
    gone = table_key(TableName("public", "a"))
    writer.write([table_record(topic_prefix, state("c")), Record(topic, gone, None, [], 0)])
    writer.commit()
    wait_for(lambda: names() == ["b", "c"])
    assert [start for start, _ in reads] == [0, 1]  # from the last record on


def test_another_topic_of_that_name_is_read_from_its_beginning(
    kafka: Kafka, kafka_admin: AdminClient, topic_prefix: str
) -> None:
    """Also where it has more records by then than the one before."""
    options, topic = kafka.client_options(), table_topic(topic_prefix)
    progresses = progress_topic(topic_prefix)
    client = StateConsumer(options, do_nothing)
    tables = NewestRecords(client, topic, TableState)
    last = LastProgress(StateReader(options), client, progresses, "s")

    def names() -> str:
        return "".join(sorted(each.table for each in tables.read().values()))

    def made(of: str, slot: str) -> None:
        for name in (topic, progresses):
            make_topic(kafka, name, cleanup_policy="compact")
        writer = opened(kafka, topic_prefix)
        writer.write(table_record(topic_prefix, state(name)) for name in of)
        writer.write(progress_record(topic_prefix, progress(1, slot)) for _ in of)
        writer.commit()

    made("ab", "s")
    wait_for(lambda: names() == "ab")
    wait_for(partial(is_at, last, 1))
    for future in kafka_admin.delete_topics([topic, progresses]).values():
        future.result()
    readers = [PartitionReader(StateConsumer(options, do_nothing), t) for t in (topic, progresses)]
    wait_for(lambda: not any(reader.exists() for reader in readers))
    made("cdefg", "other")
    wait_for(lambda: {reader.bounds() for reader in readers} == {(0, 6)})
    assert names() == "cdefg"
    assert last.read() is None


def test_progress_goes_on_from_where_it_was_read(
    kafka: Kafka, topic_prefix: str, reads: list[tuple[int, int]]
) -> None:
    options, topic = kafka.client_options(), progress_topic(topic_prefix)
    last = LastProgress(StateReader(options), StateConsumer(options, do_nothing), topic, "s")
    assert last.read() is None
    make_topic(kafka, topic, cleanup_policy="compact")
    writer = opened(kafka, topic_prefix)
    for number in (1, 2):
        writer.write([progress_record(topic_prefix, progress(number))])
        writer.commit()
        wait_for(partial(is_at, last, number))
        assert last.read() == progress(number)
    assert len(set(reads)) == 2  # one is repeated where it is shown between two looks
    writer.write([progress_record(topic_prefix, progress(9, "other"))])
    writer.commit()
    assert last.read() == progress(2)

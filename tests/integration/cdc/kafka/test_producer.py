"""Records → a real broker: the readable records after a commit, an abort, a fault and a refusal."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pytest
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.cimpl import NewTopic

from cdc.errors import (
    ConfigError,
    FencedError,
    LogUnreachableError,
    RecordRefusedError,
)
from cdc.kafka.admin import LATEST, LogAdmin
from cdc.kafka.commits import AlternatingWriters
from cdc.kafka.producer import LogWriter
from cdc.records.position import HEADER
from cdc.records.record import Record
from deploy.local.kafka import Kafka

pytestmark = pytest.mark.kafka

POSITION = b"00000001.0000000000000010.0000000000000001/1"


def nothing() -> None:
    """Nobody waits for this writer."""


def make_topic(kafka: Kafka, name: str, partitions: int = 1, **config: str) -> str:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    topic = NewTopic(name, partitions, 1, config=settings)
    assert LogAdmin(kafka.client_options()).create([topic]) == {}
    return name


def visible(
    kafka: Kafka, topic: str, partitions: int = 1, *, at_least: int = 0
) -> list[tuple[int, bytes | None]]:
    """What readers are shown; so many are waited for, as a commit returns before they are."""
    deadline = time.monotonic() + 150
    while len(found := _shown(kafka, topic, partitions)) < at_least:
        assert time.monotonic() < deadline, found
    return found


def _shown(kafka: Kafka, topic: str, partitions: int) -> list[tuple[int, bytes | None]]:
    """Partition and key of every committed record."""
    consumer = Consumer({
        **kafka.client_options(),
        "group.id": "test",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[tuple[int, bytes | None]] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found.append((message.partition() or 0, message.key()))
    consumer.close()
    assert len(ended) == partitions
    return found


def until_ended(kafka: Kafka, topic: str) -> None:
    """Wait until no transaction is open in the topic's partition, and one was."""
    admin, place = LogAdmin(kafka.client_options()), (topic, 0)
    deadline = time.monotonic() + 60
    while True:
        shown, written = (
            admin.list_offsets([place], LATEST, isolation)[place]
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
        if shown == written > 0:
            return
        assert time.monotonic() < deadline, (shown, written)
        time.sleep(0.1)


def send(writer: LogWriter, records: Iterable[Record]) -> None:
    writer.write(records)
    writer.commit()


def record(topic: str, key: bytes | None, value: bytes | None = b"v") -> Record:
    return Record(topic, key, value, [(HEADER, POSITION)])


@pytest.fixture
def writers(kafka: Kafka, topic_prefix: str) -> Iterator[Callable[..., LogWriter]]:
    """Make writers of one transactional id, closed at the end."""
    made: list[LogWriter] = []

    def make(while_waiting: Callable[[], None] = nothing, **options: str) -> LogWriter:
        settings = {key.replace("_", "."): value for key, value in options.items()}
        made.append(LogWriter(kafka.client_options() | settings, topic_prefix, while_waiting))
        return made[-1]

    yield make
    for writer in made:
        writer.close()


def test_only_what_was_committed_is_seen(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    topic = make_topic(kafka, topic_prefix)
    writer = writers()
    writer.open()
    writer.commit()
    writer.write([record(topic, b"1"), record(topic, b"2", None)])
    assert (writer.pending_records, writer.pending_bytes) == (2, 3)
    assert writer.transaction_age_s > 0
    writer.commit()
    assert (writer.pending_records, writer.transaction_age_s) == (0, 0)
    writer.write([record(topic, b"3")])
    writer.close()
    writer = writers()
    writer.open()
    writer.write([record(topic, b"4")])
    writer.commit()
    writer.write([record(topic, b"5")])
    assert visible(kafka, topic, at_least=3) == [(0, b"1"), (0, b"2"), (0, b"4")]


def test_newer_writer_fences_the_older_one(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    topic = make_topic(kafka, topic_prefix)
    older, newer = writers(), writers()
    older.open()
    older.write([record(topic, b"old")])
    newer.open()
    with pytest.raises(FencedError):
        older.commit()
    older.close()
    newer.write([record(topic, b"new")])
    newer.commit()
    assert visible(kafka, topic, at_least=1) == [(0, b"new")]


def test_newer_writer_fences_older_ones_that_take_turns(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    """The client learns of it while records are sent, and reports every one of them by then."""
    topic = make_topic(kafka, topic_prefix)
    for _ in range(3):
        older, newer = writers(), writers()
        older.open()
        with AlternatingWriters(older, writers()) as pair:
            pair.current.write([record(topic, b"%d" % key) for key in range(1_000)])
            newer.open()
            pair.begin_commit()
            with pytest.raises(FencedError):
                pair.end_commit()
    assert visible(kafka, topic) == []


def test_transaction_open_for_too_long_starts_over(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    topic = make_topic(kafka, topic_prefix)
    writer = writers(transaction_timeout_ms="1000")
    writer.open()
    writer.write([record(topic, b"early")])
    assert writer.flush()
    until_ended(kafka, topic)
    with pytest.raises(LogUnreachableError) as raised:
        send(writer, [record(topic, b"late")])
    assert raised.value.retry
    assert visible(kafka, topic) == []


@pytest.mark.stops_kafka
def test_commit_survives_a_hanging_broker_and_postgresql_hears_from_us(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    topic = make_topic(kafka, topic_prefix)
    calls: list[float] = []
    writer = writers(lambda: calls.append(time.monotonic()))
    writer.open()
    writer.write([record(topic, b"1")])
    kafka.pause()
    started = time.monotonic()
    threading.Timer(4, kafka.resume).start()  # before its own controller takes it for lost
    writer.write(record(topic, b"%d" % key) for key in range(2, 1_000))
    writer.commit()
    assert time.monotonic() - started > 3
    waits = [b - a for a, b in zip([started, *calls], calls, strict=False)]
    assert max(waits) < 3
    assert len(visible(kafka, topic, at_least=999)) == 999


@pytest.mark.proof
@pytest.mark.stops_kafka
def test_full_queue_waits_for_a_hanging_broker(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    topic = make_topic(kafka, topic_prefix)
    calls: list[float] = []
    writer = writers(lambda: calls.append(time.monotonic()), queue_buffering_max_messages="1000")
    writer.open()
    kafka.pause()
    started = time.monotonic()
    threading.Timer(3, kafka.resume).start()
    writer.write(record(topic, b"%d" % key) for key in range(5_000))
    writer.commit()
    waits = [b - a for a, b in zip([started, *calls], calls, strict=False)]
    assert max(waits) < 2
    assert len(visible(kafka, topic, at_least=5_000)) == 5_000


def test_what_two_writers_commit_in_turns_has_one_order(kafka: Kafka, topic_prefix: str) -> None:
    """Records are written as soon as they may be; the last ones are left without a commit."""
    topic = make_topic(kafka, topic_prefix)
    options = kafka.client_options()
    pair = [LogWriter(options, f"{topic_prefix}{end}", nothing) for end in ("", ".2")]
    for writer in pair:
        writer.open()
    keys = iter(range(10_000))
    with AlternatingWriters(*pair) as writers:
        for _ in range(200):
            while writers.is_committing:
                writers.wait()
                writers.has_committed()
                if writers.may_write:
                    writers.current.write([record(topic, b"%d" % next(keys))])
            writers.current.write(record(topic, b"%d" % next(keys)) for _ in range(5))
            writers.begin_commit()
    committed = [key for _, key in visible(kafka, topic, at_least=1_000)]
    for writer in pair:
        writer.close()
    assert len(committed) >= 1_000
    assert committed == [b"%d" % number for number in range(len(committed))]


@pytest.mark.stops_kafka
def test_writer_that_is_closed_while_the_broker_hangs_doesnt_hang(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    topic = make_topic(kafka, topic_prefix)
    writer = writers()
    writer.open()
    writer.write([record(topic, b"1")])
    kafka.pause()
    started = time.monotonic()
    try:
        writer.close()
    finally:
        kafka.resume()
    assert time.monotonic() - started < 20
    successor = writers()
    successor.open()
    assert visible(kafka, topic) == []


def test_record_without_key_in_a_compacted_topic_is_named(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    topic = make_topic(kafka, topic_prefix, cleanup_policy="compact")
    writer = writers()
    writer.open()
    keys = [b"%d" % key for key in range(300)]
    refused = Record(topic, None, b"value", [(HEADER, b"where it is")])
    others = [record(topic, key) for key in keys]
    with pytest.raises(RecordRefusedError, match="without a key") as raised:
        send(writer, [*others, refused, *others])
    assert topic in raised.value.where
    assert "position where it is" in raised.value.where
    assert "5 bytes" in raised.value.where
    assert "millrace snapshot" in raised.value.remedy
    writer.close()
    successor = writers()
    successor.open()
    successor.write([record(topic, b"kept")])
    successor.commit()
    assert visible(kafka, topic, at_least=1) == [(0, b"kept")]


def test_a_refusal_is_told_at_once_also_where_other_records_cant_be_sent(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    """The client keeps what was on its way when the transaction failed, and never sends it."""
    topic = make_topic(kafka, topic_prefix, cleanup_policy="compact")
    gone = make_topic(kafka, f"{topic_prefix}-gone", partitions=4)
    others = [Record(gone, b"key", b"value", [], partition) for partition in range(4)]
    writer = writers()
    writer.open()
    writer.write([record(topic, b"key"), *others])
    assert writer.flush()
    assert LogAdmin(kafka.client_options()).delete([gone]) == {}
    time.sleep(0.5)  # the broker still takes records for a moment
    with AlternatingWriters(writer, writers()) as pair:
        pair.current.write([record(topic, None), *(100 * others)])
        started = time.monotonic()
        pair.begin_commit()
        with pytest.raises(RecordRefusedError, match="without a key"):
            pair.end_commit()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("client_limit", ["1000000", "30000000"])
def test_oversized_record_is_named_by_client_and_broker(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter], client_limit: str
) -> None:
    topic = make_topic(kafka, topic_prefix)
    writer = writers(message_max_bytes=client_limit)
    writer.open()
    large = record(topic, b"large", os.urandom(2_000_000))
    others = [record(topic, b"%d" % key) for key in range(1_000)]
    with pytest.raises(RecordRefusedError, match="too large") as raised:
        send(writer, [*others, large, *others])
    assert "key large" in raised.value.where
    assert POSITION.decode() in raised.value.where
    assert "2000005 bytes" in raised.value.where
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 20


def test_murmur2_places_keys_as_the_java_client_does(
    kafka: Kafka, topic_prefix: str, writers: Callable[..., LogWriter]
) -> None:
    # Hashes from Kafka's own UtilsTest.testMurmur2 (Java client).
    hashes = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    topic = make_topic(kafka, topic_prefix, partitions=97)
    writer = writers()
    writer.open()
    writer.write(record(topic, key) for key in hashes)
    writer.write([Record(topic, b"placed", b"v", [], 42)])
    writer.commit()
    expected = [((value & 0x7FFFFFFF) % 97, key) for key, value in hashes.items()]
    expected.append((42, b"placed"))
    assert sorted(visible(kafka, topic, 97, at_least=len(expected))) == sorted(expected)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"no.such.option": "secret"}, "no.such.option"),
        ({"linger.ms": "secret"}, "queue.buffering.max.ms"),
        ({"transactional.id": "mine"}, "transactional.id"),
        ({"acks": "1"}, "acks"),
        ({"partitioner": "random"}, "partitioner"),
        ({"security.protocol": "ssl", "ssl.key.pem": "secret"}, "ssl.key.pem"),
    ],
)
def test_wrong_option_is_named_without_its_value(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        LogWriter({"bootstrap.servers": "127.0.0.1:1", **options}, "id", nothing)
    assert named in str(raised.value)
    assert "secret" not in str(raised.value)

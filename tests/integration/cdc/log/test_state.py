"""State records in a real topic → the last progress and every version, after any event there."""

import threading
import time

import pytest
from confluent_kafka import Producer

from cdc.errors import ConfigError, LogAccessError, LogFormatError, LogUnreachableError
from cdc.kafka.producer import LogWriter
from cdc.log.state import News, StateReader, last_progress, read_all, read_oldest
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import (
    Phase,
    Progress,
    TableState,
    progress_key,
    progress_record,
    schema_key,
    schema_record,
    table_key,
    table_record,
)
from cdc.records.topics import progress_topic, schema_topic, table_topic
from deploy.local.kafka import Kafka
from tests.integration.cdc.kafka.test_producer import make_topic, nothing

pytestmark = pytest.mark.kafka


def progress(number: int, slot: str = "s") -> Progress:
    place = Position(1, Lsn(number), 1)
    return Progress.model_validate({
        "log": "one",
        "slot": slot,
        "system_identifier": "7",
        "timeline": 1,
        "database": "db",
        "phase": Phase.STREAMING,
        "position": place,
        "cut": place,
        "cut_ts_us": 0,
        "flush_lsn": Lsn(number + 8),
        "events": number,
    })  # fmt: skip


def schema(version: int) -> TableSchema:
    column = Column(name="id", type="int4", type_oid=23, declared="integer", key=1)
    return TableSchema(
        namespace="public",
        table="größe",
        version=version,
        since=str(Position(1, Lsn(version), 1)),
        topic="t",
        replica_identity="d",
        columns=(column,),
        signature="x",
    )


def state(name: str) -> TableState:
    return TableState(
        namespace="public",
        table=name,
        topic=f"p.public.{name}",
        partitions=3,
        cleanup="compact",
        epoch=1,
        phase=Phase.SNAPSHOT,
        snapshot_lsn=Lsn(1),
    )


def opened(kafka: Kafka, prefix: str) -> LogWriter:
    writer = LogWriter(kafka.client_options(), prefix, nothing)
    writer.open()
    return writer


def test_keys_are_those_of_the_decision_record() -> None:
    table = TableName("public", "größe")
    assert progress_key("s") == b'{"slot":"s"}'
    assert table_key(table) == '{"table":"public.größe"}'.encode()
    assert schema_key(table, 2) == '{"table":"public.größe","version":2}'.encode()
    assert progress_record("p", progress(1)).topic == "__millrace.p.progress"
    assert table_record("p", state("a")).partition == 0


def test_topic_that_doesnt_exist_has_no_progress(kafka: Kafka, topic_prefix: str) -> None:
    options = kafka.client_options()
    assert last_progress(options, progress_topic(topic_prefix), "s") is None
    assert read_all(options, table_topic(topic_prefix), TableState) == []


@pytest.mark.proof
def test_last_progress_of_twenty_thousand_commits_is_found_within_a_second(
    kafka: Kafka, topic_prefix: str
) -> None:
    topic = make_topic(kafka, progress_topic(topic_prefix), cleanup_policy="compact")
    writer = opened(kafka, topic_prefix)
    writer.write([progress_record(topic_prefix, progress(1, "other"))])
    writer.write(progress_record(topic_prefix, progress(number)) for number in range(20_000))
    writer.commit()
    for number in range(20_000, 20_100):
        writer.write([progress_record(topic_prefix, progress(number))])
        writer.commit()
    writer.write(progress_record(topic_prefix, progress(n)) for n in range(30_000, 31_000))
    writer.close()
    writer = opened(kafka, topic_prefix)
    writer.write([progress_record(topic_prefix, progress(40_000))])  # stays open

    options = kafka.client_options()
    for slot, events in (("s", 20_099), ("other", 1), ("none", None)):
        took_s = []
        for _ in range(3):  # the best one: what the machine does besides isn't the reader's
            started = time.monotonic()
            found = last_progress(options, topic, slot)
            took_s.append(time.monotonic() - started)
            assert (found.events if found else None) == events
        assert min(took_s) < 1 or slot != "s"
    writer.commit()
    found = last_progress(options, topic, "s")
    assert found == progress(40_000)
    writer.close()


def test_progress_is_read_past_ten_thousand_aborted_records(
    kafka: Kafka, topic_prefix: str
) -> None:
    topic = make_topic(kafka, progress_topic(topic_prefix), cleanup_policy="compact")
    writer = opened(kafka, topic_prefix)
    writer.write([progress_record(topic_prefix, progress(7))])
    writer.commit()
    writer.write(progress_record(topic_prefix, progress(n)) for n in range(10_000))
    writer._client().flush(60)
    writer.close()
    took_s = []
    for _ in range(3):  # the best one, as above
        started = time.monotonic()
        assert last_progress(kafka.client_options(), topic, "s") == progress(7)
        took_s.append(time.monotonic() - started)
    assert min(took_s) < 1


def test_newest_record_of_every_key_is_read_and_tombstones_are_honoured(
    kafka: Kafka, topic_prefix: str
) -> None:
    topic = make_topic(kafka, table_topic(topic_prefix), cleanup_policy="compact")
    writer = opened(kafka, topic_prefix)
    newer = state("a").model_copy(update={"rows_sent": 5})
    states = [state("a"), state("b"), state("c"), newer]
    writer.write(table_record(topic_prefix, each) for each in states)
    writer.write([Record(topic, table_key(TableName("public", "b")), None, [], 0)])
    writer.commit()
    writer.close()
    opened(kafka, topic_prefix).close()  # as each start: markers may be on their way until then
    assert read_all(kafka.client_options(), topic, TableState) == [state("c"), newer]


def test_a_reader_sees_each_topic_as_it_is_when_it_comes_to_it(
    kafka: Kafka, topic_prefix: str
) -> None:
    progresses, tables = progress_topic(topic_prefix), table_topic(topic_prefix)
    for topic in (progresses, tables):
        make_topic(kafka, topic, cleanup_policy="compact")
    reader, states = StateReader(kafka.client_options()), list[TableState]()
    for number, name in enumerate("abc"):
        states.append(state(name))
        writer = opened(kafka, topic_prefix)
        writer.write([progress_record(topic_prefix, progress(number))])
        writer.write([table_record(topic_prefix, states[-1])])
        writer.commit()
        writer.close()
        opened(kafka, topic_prefix).close()
        for _ in range(3):
            assert reader.last_progress(progresses, "s") == progress(number)
            assert reader.read_all(tables, TableState) == states


@pytest.mark.parametrize("value", [b'{"format":2}', b"garbage"])
def test_newer_format_or_damage_stops(kafka: Kafka, topic_prefix: str, value: bytes) -> None:
    topic = make_topic(kafka, progress_topic(topic_prefix), cleanup_policy="compact")
    producer = Producer({**kafka.client_options()})
    producer.produce(topic, value, progress_key("s"))
    producer.flush(60)
    with pytest.raises(LogFormatError, match=r"Progress.*(can't be read|newer)"):
        last_progress(kafka.client_options(), topic, "s")


@pytest.mark.proof
def test_compaction_keeps_the_last_progress_and_every_schema_version(
    kafka: Kafka, topic_prefix: str
) -> None:
    for named in (progress_topic, schema_topic):
        make_topic(
            kafka,
            named(topic_prefix),
            cleanup_policy="compact",
            segment_ms="1000",
            min_cleanable_dirty_ratio="0.01",
        )
    writer = opened(kafka, topic_prefix)
    versions = [schema(version) for version in range(1, 6)]
    writer.write(schema_record(topic_prefix, version) for version in versions)
    options = kafka.client_options()
    deadline, number = time.monotonic() + 60, 0
    while True:
        number += 1
        writer.write([progress_record(topic_prefix, progress(number))])
        writer.write([schema_record(topic_prefix, versions[-1])])
        writer.commit()
        if number % 200 == 0:
            time.sleep(1)
            kept = _kept(kafka, progress_topic(topic_prefix))
            if kept < number / 2:
                break
            assert time.monotonic() < deadline, f"{kept} of {number} records are still there"
    writer.close()
    assert last_progress(options, progress_topic(topic_prefix), "s") == progress(number)
    assert read_all(options, schema_topic(topic_prefix), TableSchema) == versions


def _kept(kafka: Kafka, topic: str) -> int:
    return len(read_oldest(kafka.client_options(), topic, 1_000_000))


def test_unreachable_broker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.log.partitions.SILENCE_S", 2.0)
    waits: list[float] = []
    with pytest.raises(LogUnreachableError) as raised:
        last_progress(
            {"bootstrap.servers": "127.0.0.1:1"}, "t", "s", lambda: waits.append(time.monotonic())
        )
    assert "127.0.0.1:1" in str(raised.value)
    assert waits


def test_password_for_a_listener_without_one_is_an_access_error(kafka: Kafka) -> None:
    options = {
        **kafka.client_options(),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "verysecret",
    }
    with pytest.raises(LogAccessError) as raised:
        last_progress(options, "t", "s")
    assert "verysecret" not in str(raised.value)


def test_a_commit_ends_the_wait_for_news_and_what_is_open_does_not(
    kafka: Kafka, topic_prefix: str
) -> None:
    news = News(kafka.client_options(), topic_prefix)  # before there is a log
    stop = threading.Event()
    news.wait(stop, 60.0, 0.1)
    make_topic(kafka, progress_topic(topic_prefix), cleanup_policy="compact")
    news.wait(stop, 60.0, 0.1)
    writer = opened(kafka, topic_prefix)
    writer.write([progress_record(topic_prefix, progress(1))])
    began = time.monotonic()
    news.wait(stop, 1.5, 0.1)
    assert time.monotonic() - began > 1
    commit = threading.Timer(0.5, writer.commit)
    commit.start()
    news.wait(stop, 60.0, 0.1)
    assert time.monotonic() - began < 30
    commit.join()
    writer.close()


def test_news_refuse_an_option_that_kafka_does_not_know(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.option"):
        News({**kafka.client_options(), "no.such.option": "1"}, "p")

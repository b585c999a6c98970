"""The reader on logs in other forms: Avro, a real Debezium's topics, claims, dead letters."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from cdc.kafka.admin import LogAdmin
from cdc.reader.events import ChangeEvent
from cdc.records.dead_letters import DeadLetter
from cdc.settings import Settings
from deploy.local.kafka import Kafka
from millrace import changes
from tests.fixtures.debezium_topics import recorded
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.registry import SchemaRegistry
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
Made = Callable[..., RunningPipeline]


def read(settings: Settings, events: int, **options: Any) -> list[ChangeEvent]:
    """So many events, without a group."""
    stop, read_events = threading.Event(), list[ChangeEvent]()
    timer = threading.Timer(40, stop.set)
    timer.start()
    with changes(settings, stop=stop, **options) as stream:
        for event in stream:
            read_events.append(event)
            if len(read_events) == events:
                stop.set()
    timer.cancel()
    assert len(read_events) == events
    return read_events


@pytest.mark.proof
@pytest.mark.registry
def test_a_log_in_avro_reads_as_one_in_json(
    pipeline: Made, database: dict[str, str], registry: SchemaRegistry
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n numeric(10,2), big text, raw bytea)")
    run(database, "ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    run(database, "INSERT INTO t VALUES (1, 1.50, repeat('x', 9000), '\\x01')")
    avro = {"key": "avro", "value": "avro", "schema.registry.url": registry.url}
    made = pipeline(sections={"format": avro}, **{"toast.unavailable": "absent"})
    daemon = made.catch_up()
    run(database, "UPDATE t SET n = NULL")
    run(database, "DELETE FROM t")
    made.wait_until_logged(made.wal_end(), daemon)
    first, update, delete = read(made.settings, 3)
    assert (first.key, first.operation) == ({"id": 1}, "r")
    assert first.after == {"id": 1, "n": "1.50", "big": "x" * 9000, "raw": b"\1"}
    assert (update.after, update.absent) == ({"id": 1, "n": None, "raw": b"\1"}, ("big",))
    assert update.position is not None
    assert first.position is not None
    assert first.position < update.position
    assert (delete.operation, delete.key, delete.after) == ("d", {"id": 1}, None)


def test_topics_of_a_real_debezium_read_as_our_own(
    kafka: Kafka,
    kafka_admin: AdminClient,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cdc.reader.stream.REFRESH_S", 0.1)
    records = recorded("schemas_typical", "cust")
    topic = f"{topic_prefix}.public.cust"
    settings = Settings.model_validate(
        {
            "preset": "debezium",
            "source": {},
            "capture": {"topic.prefix": topic_prefix},
            "kafka": {**kafka.client_options(), "topic.metadata.refresh.interval.ms": "300"},
            "lakehouse": {"path": str(tmp_path), "topics_written_by": "debezium"},
        }
    )
    retained = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    assert LogAdmin(settings.kafka).create([NewTopic(topic, 1, 1, config=retained)]) == {}
    producer = Producer(kafka.client_options())
    for record in records:
        producer.produce(topic, record.value, record.key)
    producer.flush()
    expected = [record for record in records if record.value is not None]
    events = read(settings, len(expected), group="g")
    assert {event.table for event in events} == {"public.cust"}
    assert all(event.position is None and event.source.lsn for event in events)
    assert isinstance(events[0].row["id"], int)
    producer.produce(topic, records[0].value, records[0].key)
    producer.flush()
    (again,) = read(settings, 1, group="g")
    assert again.offset == len(records)  # the last one was a delete's tombstone
    with changes(settings, group="g", stop=threading.Event()) as stream:
        producer.produce(topic, records[0].value, records[0].key)
        producer.flush()
        assert next(stream).table == "public.cust"
        new = f"{topic_prefix}.public.new"  # while the group reads
        assert LogAdmin(settings.kafka).create([NewTopic(new, 1, 1, config=retained)]) == {}
        producer.produce(new, records[0].value, records[0].key)
        producer.flush()
        assert next(stream).table == "public.new"
        with changes(settings, tables=["public.new"], stop=threading.Event()) as alone:
            assert next(alone).partition == 0
            kafka_admin.create_partitions([NewPartitions(new, 2)])[new].result(30)
            records_of = records[:3]
            producer = Producer(kafka.client_options())  # the other knows one partition
            for record in records_of:
                producer.produce(new, record.value, record.key, 1)
            producer.flush()
            for reader in (stream, alone):
                events = [next(reader) for _ in records_of]
                assert [(event.partition, event.offset) for event in events] == [
                    (1, offset) for offset in range(3)
                ]


@pytest.mark.proof
def test_a_value_that_is_elsewhere_is_in_its_event(
    pipeline: Made, database: dict[str, str]
) -> None:
    run(database, "CREATE TABLE doc (id int PRIMARY KEY, name text, v text)")
    text = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 6000) i"
    run(database, f"INSERT INTO doc VALUES (1, 'first', ({text}))")
    limits = {"kafka": {"message.max.bytes": "100000"}}
    made = pipeline(sections=limits, **{"oversized.record": "claim_check"})
    made.catch_up()
    (event,) = read(made.settings, 1)
    assert (event.row["name"], len(event.row["v"]), event.lost) == ("first", 6000 * 32, ())


def test_a_dead_letter_that_was_passed_is_told(pipeline: Made, database: dict[str, str]) -> None:
    run(database, "CREATE TABLE doc (id int PRIMARY KEY, v text)")
    text = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 6000) i"
    limits = {"kafka": {"message.max.bytes": "100000"}}
    made = pipeline(sections=limits, **{"oversized.record": "dead_letter"})
    daemon = made.catch_up()
    run(database, f"INSERT INTO doc VALUES (1, ({text}))")
    run(database, "INSERT INTO doc VALUES (2, 'small')")
    made.wait_until_logged(made.wal_end(), daemon)
    for transactions in (False, True):
        passed, stop = list[DeadLetter](), threading.Event()

        def note(letter: DeadLetter, passed: Any = passed, stop: Any = stop) -> None:
            passed.append(letter)
            stop.set()

        with changes(
            made.settings, transactions=transactions, stop=stop, on_dead_letter=note
        ) as stream:
            list(stream)
        assert [letter.table for letter in passed] == ["public.doc"]
    lines = made.millrace("tail", "--once", "--json").stdout.splitlines()
    letters = [json.loads(line)["dead_letter"] for line in lines if "dead_letter" in line]
    assert [letter["table"] for letter in letters] == ["public.doc"]
    assert len(lines) == 2, "the other one is the row that fits"

"""Captured tables → topics on a real broker: made as promised, or refused with the remedy."""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.errors import ConfigError, LogAccessError, LogUnreachableError, TopicMismatchError
from cdc.kafka.admin import LogAdmin, TopicDescription
from cdc.kafka.producer import LogWriter
from cdc.kafka.topics import LogTopics
from cdc.log.state import read_all
from cdc.records.made_topics import MadeTopic
from cdc.records.schema import Column, TableName
from cdc.records.state import Phase, table_record
from cdc.records.topics import (
    data_topic,
    made_topic,
    progress_topic,
    request_topic,
    schema_topic,
    status_topic,
    table_topic,
)
from cdc.settings import Settings
from compaction.topics import examine
from deploy.local.kafka import Kafka
from tests.integration.cdc.kafka.test_producer import make_topic, nothing
from tests.integration.cdc.log.test_state import progress, state

pytestmark = pytest.mark.kafka

WEEK_MS = str(7 * 86_400_000)


@dataclass(frozen=True)
class Captured:
    name: TableName
    columns: tuple[Column, ...]


def captured(name: str, *, keyed: bool = True) -> Captured:
    column = Column(
        name="id", type="int4", type_oid=23, declared="integer", key=1 if keyed else None
    )
    return Captured(TableName("public", name), (column,))


def settings(kafka: dict[str, str], prefix: str, **log: str | int) -> Settings:
    return Settings.model_validate({
        "source": {},
        "capture": {"topic.prefix": prefix},
        "kafka": kafka,
        "log": {key.replace("_", "."): value for key, value in log.items()},
    })  # fmt: skip


def test_topics_are_made_as_promised_and_verified_again(kafka: Kafka, topic_prefix: str) -> None:
    chosen = settings(kafka.client_options(), topic_prefix)
    tables = [captured("a"), captured("b", keyed=False)]
    for _ in range(2):
        topics = LogTopics(chosen)
        topics.check_reachable()
        topics.ensure_state_topics()
        topics.ensure_data_topics([], tables)
    names = [data_topic(topic_prefix, table.name) for table in tables]
    own = progress_topic(topic_prefix)
    found = LogAdmin(chosen.kafka).describe([*names, own])
    assert [found[name].partitions for name in (*names, own)] == [3, 3, 1]
    keyed, keyless = (found[name].config for name in names)
    assert keyed["cleanup.policy"] == "compact"
    assert keyed["min.compaction.lag.ms"] == keyed["delete.retention.ms"] == WEEK_MS
    assert (keyless["cleanup.policy"], keyless["retention.ms"]) == ("delete", WEEK_MS)
    assert found[own].config["segment.bytes"] == "1048576"
    assert {topic.replicas for topic in found.values()} == {1}
    assert {topic.config["min.insync.replicas"] for topic in found.values()} == {"1"}
    LogTopics(chosen).delete([*names, own, "never-was"])
    assert LogAdmin(chosen.kafka).describe(names) == {}


def test_the_preset_makes_one_retained_partition_also_for_tables_with_a_key(
    kafka: Kafka, topic_prefix: str
) -> None:
    chosen = Settings.model_validate({
        "preset": "debezium",
        "source": {},
        "capture": {"topic.prefix": topic_prefix},
        "kafka": kafka.client_options(),
    })  # fmt: skip
    topics = LogTopics(chosen)
    topics.ensure_data_topics([], [captured("a"), captured("a b"), captured("a_b")])
    for _ in range(2):
        topics.open_topic(f"{topic_prefix}.transaction")
    name = data_topic(topic_prefix, TableName("public", "a"))
    found = LogAdmin(chosen.kafka).describe([name, f"{topic_prefix}.transaction"])
    assert [topic.partitions for topic in found.values()] == [1, 1]
    assert {topic.config["cleanup.policy"] for topic in found.values()} == {"delete"}


def test_a_compacted_topic_is_not_taken_for_a_retained_one(kafka: Kafka, topic_prefix: str) -> None:
    chosen = settings(kafka.client_options(), topic_prefix, topic_cleanup_policy="delete")
    with pytest.raises(TopicMismatchError, match="has a compacted topic"):
        LogTopics(chosen).ensure_data_topics([state("a")], [captured("a")])


def test_longer_times_are_fine_and_shorter_ones_are_named_with_the_command(
    kafka: Kafka, topic_prefix: str
) -> None:
    topic = make_topic(
        kafka,
        data_topic(topic_prefix, TableName("public", "a")),
        3,
        cleanup_policy="compact",
        min_compaction_lag_ms=WEEK_MS,
        delete_retention_ms=WEEK_MS,
    )
    options = kafka.client_options()
    LogTopics(settings(options, topic_prefix, keep="1d")).ensure_data_topics([], [captured("a")])
    with pytest.raises(TopicMismatchError) as raised:
        LogTopics(settings(options, topic_prefix, keep="8d")).ensure_data_topics(
            [], [captured("a")]
        )
    assert f"kafka-configs --bootstrap-server {kafka.bootstrap_servers}" in str(raised.value)
    assert f"--entity-name {topic} --add-config delete.retention.ms=691200000" in str(raised.value)


def test_topic_of_automatic_creation_is_refused(kafka: Kafka, topic_prefix: str) -> None:
    make_topic(kafka, data_topic(topic_prefix, TableName("public", "a")), 1)
    with pytest.raises(TopicMismatchError) as raised:
        LogTopics(settings(kafka.client_options(), topic_prefix)).ensure_data_topics(
            [], [captured("a")]
        )
    assert "cleanup.policy is delete, not compact" in str(raised.value)
    assert "topic.partitions = 1" in str(raised.value)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_topic_that_exists_when_it_is_asked_for_again_is_verified(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    """The first answer was lost, or was no; then a consumer may have had the topic made."""
    chosen = settings(kafka.client_options(), topic_prefix)
    topics, name = LogTopics(chosen), data_topic(topic_prefix, TableName("public", "a"))
    topics.ensure_state_topics()
    real, asked = AdminClient.create_topics, list[str]()

    def create(client: AdminClient, wanted: list[NewTopic], **more: Any) -> Any:
        if asked:
            return real(client, wanted, **more)
        asked.extend(topic.topic for topic in wanted)
        first = wanted if is_ours else [NewTopic(name, 1, 1)]
        for made in real(client, first, **more).values():
            made.result()
        lost: Future[Any] = Future()
        code = KafkaError._TRANSPORT if is_ours else KafkaError.NOT_CONTROLLER
        lost.set_exception(KafkaException(KafkaError(code)))
        return dict.fromkeys(asked, lost)

    monkeypatch.setattr(AdminClient, "create_topics", create)
    if is_ours:
        topics.ensure_data_topics([], [captured("a")])
    else:
        with pytest.raises(TopicMismatchError, match="has 1 partitions, not 3"):
            topics.ensure_data_topics([], [captured("a")])
    made_topics = read_all(chosen.kafka, made_topic(topic_prefix), MadeTopic)
    assert (name in {topic.topic for topic in made_topics}) is is_ours


def test_a_topic_that_exists_and_that_nobody_shows_is_named_with_the_command(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where ACLs let the user create it, and not describe it."""
    topics = LogTopics(settings(kafka.client_options(), topic_prefix))
    topics.ensure_state_topics()
    name = data_topic(topic_prefix, TableName("public", "a"))
    make_topic(kafka, name)
    real = LogAdmin.describe

    def describe(admin: LogAdmin, names: Iterable[str]) -> dict[str, TopicDescription]:
        return {each: topic for each, topic in real(admin, names).items() if each != name}

    monkeypatch.setattr(LogAdmin, "describe", describe)
    monkeypatch.setattr("cdc.kafka.topics._SIGHT_S", 0.5)
    with pytest.raises(
        LogAccessError, match="exists, but the user lacks the right to see it"
    ) as caught:
        topics.ensure_data_topics([], [captured("a")])
    assert name in caught.value.what
    assert f"--topic {topic_prefix}." in str(caught.value)


def test_recorded_partition_count_is_held_against_the_broker(
    kafka: Kafka, topic_prefix: str
) -> None:
    topics = LogTopics(settings(kafka.client_options(), topic_prefix, topic_partitions=5))
    topics.ensure_data_topics([], [captured("a")])
    name = data_topic(topic_prefix, TableName("public", "a"))
    recorded = state("a").model_copy(update={"topic": name, "partitions": 5})
    LogTopics(settings(kafka.client_options(), topic_prefix)).ensure_data_topics(
        [recorded], [captured("a")]
    )
    with pytest.raises(TopicMismatchError, match="5 partitions, not 4"):
        topics.ensure_data_topics([recorded.model_copy(update={"partitions": 4})], [captured("a")])
    topics.delete([name])
    with pytest.raises(TopicMismatchError, match="was deleted"):
        topics.ensure_data_topics([recorded], [captured("a")])


def test_table_that_lost_its_key_is_refused(kafka: Kafka, topic_prefix: str) -> None:
    topics = LogTopics(settings(kafka.client_options(), topic_prefix))
    with pytest.raises(TopicMismatchError, match="no longer has a primary key"):
        topics.ensure_data_topics([state("a")], [captured("a", keyed=False)])


def test_two_tables_with_one_topic_name_are_refused(kafka: Kafka, topic_prefix: str) -> None:
    topics = LogTopics(settings(kafka.client_options(), topic_prefix))
    with pytest.raises(ConfigError, match="share the topic"):
        topics.ensure_data_topics([], [captured("a b"), captured("a/b")])


def test_impossible_replication_factor_is_a_configuration_error(
    kafka: Kafka, topic_prefix: str
) -> None:
    chosen = settings(kafka.client_options(), topic_prefix, topic_replication_factor=3)
    with pytest.raises(ConfigError, match="creating a topic"):
        LogTopics(chosen).ensure_state_topics()


def test_brokers_that_the_controller_takes_for_lost_are_waited_for(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment after each restart or standstill; the fault is injected, the rest is real."""
    text = "Unable to replicate the partition 1 time(s): All brokers are currently fenced"
    fenced = KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, text))
    faults = [fenced, fenced]
    create = AdminClient.create_topics

    def create_after_faults(
        client: AdminClient, topics: list[NewTopic], **more: Any
    ) -> dict[str, Future[None]]:
        if not faults:
            return create(client, topics, **more)
        answer: Future[None] = Future()
        answer.set_exception(faults.pop())
        return {topic.topic: answer for topic in topics}

    monkeypatch.setattr(AdminClient, "create_topics", create_after_faults)
    topic = make_topic(kafka, f"{topic_prefix}-new")
    assert topic in LogAdmin(kafka.client_options()).partitions()


def test_topics_are_made_when_somebody_is_named_as_the_controller(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the same moment; the client itself would look again after minutes."""
    answers = iter([-1, -1])
    asked: list[int] = []
    ask = AdminClient.list_topics

    def without_controller(client: AdminClient, **more: Any) -> Any:
        found = ask(client, **more)
        found.controller_id = next(answers, found.controller_id)
        asked.append(found.controller_id)
        return found

    monkeypatch.setattr(AdminClient, "list_topics", without_controller)
    make_topic(kafka, f"{topic_prefix}-new")
    assert asked[:2] == [-1, -1]
    assert asked[2] >= 0


@pytest.mark.proof
def test_thousand_tables_are_made_and_verified_fast(kafka: Kafka, topic_prefix: str) -> None:
    topics = LogTopics(settings(kafka.client_options(), topic_prefix, topic_partitions=1))
    tables = [captured(f"t{number}") for number in range(1_000)]
    started = time.monotonic()
    topics.ensure_data_topics([], tables)
    made_s = time.monotonic() - started
    started = time.monotonic()
    topics.ensure_data_topics([], tables)
    verified_s = time.monotonic() - started
    topics.delete(data_topic(topic_prefix, table.name) for table in tables)
    assert made_s < 60
    assert verified_s < 10


def test_unreachable_broker_is_named_in_time(
    topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.kafka.admin.REACH_S", 2.0)
    started = time.monotonic()
    with pytest.raises(LogUnreachableError, match=r"127\.0\.0\.1:1"):
        LogTopics(settings({"bootstrap.servers": "127.0.0.1:1"}, topic_prefix)).check_reachable()
    assert time.monotonic() - started < 9  # without that limit it would be 10


def test_wrong_protocol_is_an_access_error_at_once(kafka: Kafka, topic_prefix: str) -> None:
    options = {
        **kafka.client_options(),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "verysecret",
    }
    started = time.monotonic()
    with pytest.raises(LogAccessError) as raised:
        LogTopics(settings(options, topic_prefix)).check_reachable()
    assert time.monotonic() - started < 9  # a broker that is away is waited for longer
    assert "verysecret" not in str(raised.value)


def test_unknown_option_is_named(topic_prefix: str) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "no.such.option": "secret"}
    with pytest.raises(ConfigError, match=r"no\.such\.option") as raised:
        LogTopics(settings(options, topic_prefix))
    assert "secret" not in str(raised.value)


def test_examination_finds_what_breaks_the_promise(kafka: Kafka, topic_prefix: str) -> None:
    chosen = settings(kafka.client_options(), topic_prefix)
    topics = LogTopics(chosen)
    topics.ensure_state_topics()
    topics.ensure_data_topics([], [captured("a")])
    well = state("a").model_copy(update={"topic": data_topic(topic_prefix, captured("a").name)})
    ill = state("b").model_copy(
        update={"topic": make_topic(kafka, data_topic(topic_prefix, captured("b").name))}
    )
    gone = state("c").model_copy(update={"phase": Phase.STREAMING})
    writer = LogWriter(chosen.kafka, topic_prefix, nothing)
    writer.open()
    writer.write([table_record(topic_prefix, well)])
    writer.commit()
    writer.close()
    settled = LogWriter(chosen.kafka, topic_prefix, nothing)
    settled.open()  # a commit has returned before its marker is written
    settled.close()
    reports = {report.name: report for report in examine(chosen, [well, ill, gone])}
    assert reports[well.topic].findings == ()
    assert reports[table_topic(topic_prefix)].offsets == 2
    assert len(reports[ill.topic].findings) == 4
    assert reports[gone.topic].findings == ("the topic doesn't exist",)


def test_state_topic_that_isnt_compacted_is_found(kafka: Kafka, topic_prefix: str) -> None:
    chosen = settings(kafka.client_options(), topic_prefix)
    LogTopics(chosen).ensure_state_topics()
    topic = progress_topic(topic_prefix)
    produce_old(chosen, topic)
    (report, *_) = reports = examine(chosen, [])
    assert "isn't compacted" in report.findings[0]
    state_topics = progress_topic, schema_topic, table_topic, made_topic, status_topic
    assert {each.name for each in reports} == {named(topic_prefix) for named in state_topics}


def produce_old(chosen: Settings, topic: str) -> None:
    producer = Producer({**chosen.kafka})
    long_ago_ms = int(time.time() - 7_200) * 1_000
    for number in range(2):
        value = progress(number).model_dump_json().encode()
        producer.produce(topic, value, b"same", timestamp=long_ago_ms)
    producer.flush(60)


@pytest.mark.parametrize("call", ["describe", "create"])
def test_a_signal_topic_that_isnt_ours_to_make_or_read_is_only_warned_about(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    topics = LogTopics(settings(kafka.client_options(), topic_prefix))
    allowed = getattr(LogAdmin, call)

    def refuse(admin: LogAdmin, asked: Any, *more: Any) -> Any:
        wanted = list(asked)
        if any(request_topic(topic_prefix) in getattr(one, "topic", one) for one in wanted):
            raise LogAccessError("not authorized")
        return allowed(admin, wanted, *more)

    monkeypatch.setattr(LogAdmin, call, refuse)
    topics.ensure_state_topics()
    names = LogAdmin(kafka.client_options()).partitions()
    assert progress_topic(topic_prefix) in names
    assert request_topic(topic_prefix) not in names

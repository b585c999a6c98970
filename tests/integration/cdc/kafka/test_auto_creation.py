"""A broker that makes topics by name, as Kafka does by default → no client causes that."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.kafka.options import admin_options, follower_options, producer_options, reader_options
from deploy.local.kafka import Kafka
from tests.fixtures.topics import check_topics

pytestmark = pytest.mark.kafka


def names(kafka: Kafka) -> set[str]:
    """The topics that there are, by a question about no topic."""
    return set(AdminClient({**kafka.client_options()}).list_topics(timeout=60).topics)


def list_by_name(kind: Callable[..., Any], options: dict[str, Any], topic: str) -> None:
    kind(options).list_topics(topic, timeout=60)


def read(_: Any, options: dict[str, Any], topic: str) -> None:
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(1) is None


def write(_: Any, options: dict[str, Any], topic: str) -> None:
    errors: list[Any] = []
    producer = Producer({**options, "topic.metadata.propagation.max.ms": "100"})
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert [error.name() for error in errors] == ["UNKNOWN_TOPIC_OR_PART"]


def of_a_writer(options: Mapping[str, str]) -> dict[str, str]:
    return producer_options(options, None)


@pytest.mark.parametrize(
    ("made_by", "kind", "ask"),
    [
        (admin_options, AdminClient, list_by_name),
        (reader_options, Consumer, list_by_name),
        (follower_options, Consumer, read),
        (of_a_writer, Producer, list_by_name),
        (of_a_writer, Producer, write),
    ],
)
def test_no_client_makes_a_topic_by_asking_for_it(
    kafka: Kafka,
    topic_prefix: str,
    made_by: Callable[[Mapping[str, str]], dict[str, str]],
    kind: Callable[..., Any],
    ask: Callable[[Any, dict[str, Any], str], None],
) -> None:
    options: dict[str, Any] = {**made_by(kafka.client_options()), "log_level": 0}
    ask(kind, options, topic_prefix)
    assert topic_prefix not in names(kafka)


@pytest.mark.parametrize("settings", [None, {"cleanup.policy": "compact"}])
def test_a_topic_that_nobody_made_on_purpose_fails_the_run(
    kafka: Kafka, kafka_admin: AdminClient, topic_prefix: str, settings: dict[str, str] | None
) -> None:
    if settings is None:
        # By a client of its own, which asks again and again, and is gone before the topic is.
        AdminClient({**kafka.client_options()}).list_topics(topic_prefix, timeout=60)
    else:
        kafka_admin.create_topics([NewTopic(topic_prefix, 1, 1, config=settings)])
    while topic_prefix not in names(kafka):
        pass
    with pytest.raises(AssertionError, match=topic_prefix):
        check_topics(kafka_admin, set(), topic_prefix)
    (gone,) = kafka_admin.delete_topics([topic_prefix]).values()
    gone.result(60)

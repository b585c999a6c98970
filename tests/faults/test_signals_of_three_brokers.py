"""Three brokers, one of them killed, and the records of a followed topic → all of them arrive."""

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from cdc.kafka.admin import LogAdmin
from cdc.kafka.signal_topic import _CHECK_S, Follower
from tests.fixtures.brokers import Brokers

pytestmark = [pytest.mark.kafka, pytest.mark.proof]


def taken(follower: Follower, producer: Producer, topic: str, value: bytes) -> list[bytes | None]:
    """What the follower has after a record was written to the topic."""
    producer.produce(topic, value)
    assert producer.flush(60) == 0
    records: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while value not in records and time.monotonic() < deadline:
        records += [record.value for record in follower.take()]
        time.sleep(0.1)
    return records


def test_a_topic_is_followed_on_when_the_broker_dies_that_is_asked_about_it(
    brokers: Brokers, topic_prefix: str
) -> None:
    """A client goes on asking the broker that was named as the controller, dead or not."""
    options = brokers.client_options()
    assert LogAdmin(options).create([NewTopic(topic_prefix, 1, 3)]) == {}
    producer = Producer({**options, "log_level": 0})
    follower = Follower(options, topic_prefix)
    try:
        assert taken(follower, producer, topic_prefix, b"before") == [b"before"]
        named = follower._admin.list_topics(timeout=60).controller_id
        brokers.kill(named)
        time.sleep(_CHECK_S)  # behind a silence it asks whether the topic is the same
        assert taken(follower, producer, topic_prefix, b"behind") == [b"behind"]
        time.sleep(_CHECK_S)
        assert taken(follower, producer, topic_prefix, b"later") == [b"later"]
    finally:
        follower.close()

"""Records → a real broker at least once: the record that says so follows the events."""

from contextlib import closing

import pytest

from cdc.kafka.commits import AtLeastOnceWriter
from cdc.records.topics import progress_topic
from deploy.local.kafka import Kafka
from tests.integration.cdc.kafka.test_producer import make_topic, nothing, record, visible

pytestmark = pytest.mark.kafka


def test_progress_is_written_once_the_brokers_have_all_events(
    kafka: Kafka, topic_prefix: str
) -> None:
    events, state = make_topic(kafka, topic_prefix), make_topic(kafka, progress_topic(topic_prefix))
    lazy = kafka.client_options() | {"linger.ms": "60000"}  # it sends when it is told to
    with closing(AtLeastOnceWriter(lazy, topic_prefix, nothing)) as writer:
        writer.open()
        writer.write([record(events, b"1"), record(state, b"slot")])
        assert visible(kafka, state) == []
        writer.commit()
        assert visible(kafka, events) == [(0, b"1")]
        assert visible(kafka, state, at_least=1) == [(0, b"slot")]
        writer.write([record(events, b"2"), record(state, b"slot")])
    assert visible(kafka, state) == [(0, b"slot")], "what wasn't committed isn't told"

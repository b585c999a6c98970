"""New topics → requests that fit a controller's limit. Answers → whether to ask again."""

from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError
from confluent_kafka.cimpl import NewTopic

from cdc.kafka.errors import is_passing

PARTITIONS_PER_REQUEST_MAX: Final = 500
"""A KRaft controller takes 10,000 metadata records a request: partitions, topics and settings.

A broker makes all files of one request before it shows the topics of the next one.
"""


def portions(topics: Iterable[NewTopic]) -> Iterable[list[NewTopic]]:
    """Yield new topics in requests that fit a controller's limit."""
    portion: list[NewTopic] = []
    partitions = 0
    for topic in topics:
        partitions += topic.num_partitions
        if portion and partitions > PARTITIONS_PER_REQUEST_MAX:
            yield portion
            portion, partitions = [], topic.num_partitions
        portion.append(topic)
    if portion:
        yield portion


def is_too_early(error: KafkaError) -> bool:
    """Whether there are brokers, but all are fenced; too few brokers have another message."""
    is_fenced = error.name() == "INVALID_REPLICATION_FACTOR" and "fenced" in error.str()
    return is_fenced or is_passing(error)


def exists(answer: object) -> bool:
    """Whether a topic can't be made as there is one of that name."""
    return isinstance(answer, KafkaError) and answer.name() == "TOPIC_ALREADY_EXISTS"

"""New topics → requests that fit a controller's limit."""

from collections.abc import Iterable
from typing import Final

from confluent_kafka.cimpl import NewTopic

PARTITIONS_PER_REQUEST_MAX: Final = 2_000
"""A KRaft controller takes 10,000 metadata records a request: partitions, topics and settings."""


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

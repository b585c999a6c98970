"""Errors of Kafka's client → the messages for users."""

import pytest
from confluent_kafka import KafkaError

from cdc.kafka.errors import is_passing, log_error


@pytest.mark.parametrize(
    ("code", "connected", "blamed"),
    [
        (KafkaError._TRANSPORT, False, True),
        (KafkaError._ALL_BROKERS_DOWN, True, False),
        (KafkaError._RESOLVE, True, True),
        (KafkaError.OFFSET_NOT_AVAILABLE, True, False),
    ],
)
def test_the_configuration_is_blamed_where_it_can_be_to_blame(
    code: int, connected: bool, blamed: bool
) -> None:
    error = log_error(KafkaError(code), "reading", connected=connected)
    assert ("bootstrap.servers is right" in error.remedy) == blamed


@pytest.mark.parametrize(
    ("code", "passing"),
    [
        (KafkaError.OFFSET_NOT_AVAILABLE, True),
        (KafkaError.NOT_LEADER_FOR_PARTITION, True),
        (KafkaError.NOT_ENOUGH_REPLICAS, True),
        (KafkaError._DESTROY, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),
        (KafkaError.OFFSET_OUT_OF_RANGE, False),
    ],
)
def test_what_ends_by_itself_is_told_from_what_doesnt(code: int, passing: bool) -> None:
    assert is_passing(KafkaError(code)) == passing

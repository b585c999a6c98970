"""One record → its topic, at once: what a command tells a running daemon."""

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.errors import LogUnreachableError
from cdc.kafka import options
from cdc.kafka.errors import log_error, option_error, reason

_WAIT_S: Final = 30.0
_ATTEMPT_S: Final = 0.5


def send(kafka_options: Mapping[str, str], topic: str, key: bytes, value: bytes) -> int:
    """Write it to the topic's first partition; returns its offset, or raises a log's error."""
    answers: list[tuple[KafkaError | None, int]] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        answers.append((error, message.offset() or 0))

    try:
        producer = Producer(options.producer_options(kafka_options, None), logger=options.LOGGER)
        producer.produce(topic, value, key, 0, on_delivery=answered)
    except KafkaException as exception:
        raise option_error(reason(exception), kafka_options) from None
    deadline = time.monotonic() + _WAIT_S
    while not answers and time.monotonic() < deadline:
        producer.flush(_ATTEMPT_S)
    if not answers:
        producer.purge()
        what = f"sending a signal: no answer for {_WAIT_S:.0f} s"
        remedy = "check bootstrap.servers in [kafka], and that the brokers run"
        raise LogUnreachableError(what, where=f"topic {topic}", remedy=remedy)
    ((error, offset),) = answers
    if error is not None:
        raise log_error(error, "sending a signal", f"topic {topic}")
    return offset

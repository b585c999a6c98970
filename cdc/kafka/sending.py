"""Records that no Kafka transaction is for → a topic's first partition, each answered for."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.errors import LogUnreachableError
from cdc.kafka import options
from cdc.kafka.admin import do_nothing
from cdc.kafka.errors import log_error, reason

_WAIT_S: Final = 30.0
_ATTEMPT_S: Final = 0.1


def send(
    kafka_options: Mapping[str, str],
    topic: str,
    records: Iterable[tuple[bytes, bytes | None]],
    while_waiting: Callable[[], None] = do_nothing,
) -> int:
    """Write records (key, value) and wait for the brokers; returns the offset of the last one.

    Raises a log's error where one of them isn't there.
    """
    doing, where = f"writing to topic {topic}", f"topic {topic}"
    answers: list[tuple[KafkaError | None, int]] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        answers.append((error, message.offset() or 0))

    config = options.producer_options(kafka_options, None)
    producer = options.client(Producer, config, kafka_options)
    sent = 0
    try:
        for key, value in records:
            producer.produce(topic, value, key, 0, on_delivery=answered)
            sent += 1
    except KafkaException as exception:
        raise log_error(reason(exception), doing, where) from None
    deadline = time.monotonic() + _WAIT_S
    while len(answers) < sent and time.monotonic() < deadline:
        producer.flush(_ATTEMPT_S)
        while_waiting()
    if len(answers) < sent:
        producer.purge()
        what = f"{doing}: no answer for {_WAIT_S:.0f} s"
        remedy = "check that the brokers are up: their logs say what they lack"
        raise LogUnreachableError(what, where=where, remedy=remedy)
    for error, _ in answers:
        if error is not None:
            raise log_error(error, doing, where)
    return max((offset for _, offset in answers), default=-1)

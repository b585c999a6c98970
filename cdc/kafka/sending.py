"""Records outside of Kafka transactions → a topic's first partition, each acknowledged."""

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


class Sender:
    """Writes such records with one producer, and waits for the brokers' answers each time."""

    def __init__(
        self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None] = do_nothing
    ) -> None:
        config = options.producer_options(kafka_options, None)
        self._producer = options.client(Producer, config, kafka_options)
        self._while_waiting = while_waiting

    def send(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> int:
        """Write records (key, value), and return the offset of the last one.

        Raise a log's error if one of them was not written.
        """
        doing, where = f"writing to topic {topic}", f"topic {topic}"
        answers: list[tuple[KafkaError | None, int]] = []

        def answered(error: KafkaError | None, message: Message) -> None:
            answers.append((error, message.offset() or 0))

        sent = 0
        try:
            for key, value in records:
                self._producer.produce(topic, value, key, 0, on_delivery=answered)
                sent += 1
        except KafkaException as exception:
            raise log_error(reason(exception), doing, where) from None
        deadline = time.monotonic() + _WAIT_S
        while len(answers) < sent and time.monotonic() < deadline:
            self._producer.flush(_ATTEMPT_S)
            if len(answers) < sent:
                self._wait()
        if len(answers) < sent:
            self._producer.purge()
            what = f"{doing}: no answer for {_WAIT_S:.0f} s"
            remedy = "check that the brokers run; read their logs"
            raise LogUnreachableError(what, where=where, remedy=remedy)
        for error, _ in answers:
            if error is not None:
                raise log_error(error, doing, where)
        return max((offset for _, offset in answers), default=-1)

    def _wait(self) -> None:
        try:
            self._while_waiting()
        except BaseException:
            self._producer.purge()  # nothing waits for it any longer
            raise


def send(
    kafka_options: Mapping[str, str],
    topic: str,
    records: Iterable[tuple[bytes, bytes | None]],
    while_waiting: Callable[[], None] = do_nothing,
) -> int:
    """Write records with a producer of their own."""
    return Sender(kafka_options, while_waiting).send(topic, records)

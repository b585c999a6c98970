"""The signal topic → its committed records from an offset on."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from cdc.kafka import options
from cdc.kafka.errors import reason

log = structlog.get_logger()

POLL_S: Final = 0.2
_RETRY_S: Final = 1.0
_ANSWER_S: Final = 5.0
_RECEIVED_MAX: Final = 1_000
"""Maximum of records that wait to be taken ..."""
_RECEIVED_BYTES_MAX: Final = 8 << 20
"""... and of the bytes of their keys and values, as any program can write them."""
_CLOSE_S: Final = 1.0
_CHECK_S: Final = 10.0
"""How often to check whether the topic was created again."""


class Followed(NamedTuple):
    """A record with the ``topic_id`` of its topic. A new topic of the same name has another id."""

    topic_id: str
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        """The bytes of its key and value."""
        return len(self.key or b"") + len(self.value or b"")


class Follower:
    """Follows one topic until closed. Waits for a topic that is missing or not readable."""

    def __init__(
        self, kafka_options: Mapping[str, str], topic: str, topic_id: str = "", offset: int = 0
    ) -> None:
        """Begin at an offset of the topic with that id, or at the beginning of a new topic."""
        self._topic = topic
        self._topic_id = topic_id
        self._offset = offset
        self._received: Queue[Followed] = Queue(_RECEIVED_MAX)
        self._received_bytes = self._taken_bytes = 0  # in total; each thread adds to its own
        self._closing = threading.Event()
        self._last_error = ""
        # A client reconnects to the brokers itself.
        ignored: dict[str, Any] = {"error_cb": lambda _error: None}
        reading: dict[str, Any] = {**options.follower_options(kafka_options), **ignored}
        asking: dict[str, Any] = {**options.admin_options(kafka_options), **ignored}
        # Dropped, not closed: a close would wait for a group coordinator.
        self._consumer = options.client(Consumer, reading, kafka_options)
        self._admin = options.client(AdminClient, asking, kafka_options)
        self._thread = threading.Thread(target=self._follow, name=f"follow {topic}", daemon=True)
        self._thread.start()

    def take(self) -> Iterator[Followed]:
        """Yield the records received so far. Never waits. Later ones belong to the next call."""
        with suppress(Empty):
            for _ in range(self._received.qsize()):
                record = self._received.get_nowait()
                self._taken_bytes += record.size
                yield record

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join(_CLOSE_S)

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                if self._assign():
                    self._read()
            except KafkaException as exception:
                self._report(reason(exception))
                # A request busily waits for the last controller that brokers have named. If it is
                # dead, they must name another.
                with suppress(KafkaException):
                    self._admin.list_topics(timeout=_ANSWER_S)
                self._closing.wait(_RETRY_S)

    def _assign(self) -> bool:
        """Find the offset from which to read, if a broker answers.

        Reports that records may have been missed.
        """
        topic_id = self._current_topic_id()
        partition = TopicPartition(self._topic, 0)
        bounds = self._consumer.get_watermark_offsets(partition, _ANSWER_S, cached=False)
        if bounds is None:
            return False
        low, end = bounds
        previous_id, self._topic_id = self._topic_id, topic_id
        is_other = previous_id not in {"", topic_id}
        if is_other or not low <= self._offset <= end:
            if is_other or self._offset:
                why = (
                    "it was created again"
                    if is_other
                    else "the topic has deleted signals that weren't read yet"
                )
                log.warning("a topic is read from its beginning", topic=self._topic, reason=why)
            self._offset = low
        self._last_error = ""
        self._consumer.assign([TopicPartition(self._topic, 0, self._offset)])
        return True

    def _read(self) -> None:
        """Pass on records until the topic is replaced.

        The client continues at its offset in a new topic of the same name, and would miss earlier
        records there. So this checks the topic before it trusts a record after a silence.
        """
        checked_at, was_silent = time.monotonic(), False
        while not self._closing.is_set():
            message = self._consumer.poll(POLL_S)
            error = message.error() if message is not None else None
            if error is not None and error.name() != "_PARTITION_EOF":
                raise KafkaException(error)
            is_record = message is not None and error is None
            if (was_silent and is_record) or time.monotonic() - checked_at >= _CHECK_S:
                if self._current_topic_id() != self._topic_id:
                    return
                checked_at = time.monotonic()
            was_silent = not is_record
            if message is None or was_silent:
                continue
            offset = message.offset() or 0
            self._offset = offset + 1
            self._hand_over(Followed(self._topic_id, offset, message.key(), message.value()))

    def _current_topic_id(self) -> str:
        """Return the topic's id."""
        topics = TopicCollection([self._topic])
        answers = self._admin.describe_topics(topics, request_timeout=_ANSWER_S)
        return str(answers[self._topic].result().topic_id)

    def _hand_over(self, record: Followed) -> None:
        while not self._closing.is_set():
            if self._received_bytes - self._taken_bytes >= _RECEIVED_BYTES_MAX:
                self._closing.wait(POLL_S)
                continue
            with suppress(Full):
                self._received.put(record, timeout=POLL_S)
                self._received_bytes += record.size
                return

    def _report(self, error: KafkaError) -> None:
        """Report once why the topic can't be read."""
        if error.name() != self._last_error:
            self._last_error = error.name()
            log.warning("a topic can't be read at present", topic=self._topic, reason=error.str())

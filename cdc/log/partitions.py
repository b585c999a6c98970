"""A partition's offsets → the committed records between them, up to the requested end.

The end is the leader's last stable offset: during an open transaction, the offset before it.
Another broker may report an earlier end. A follower (client.rack) may be behind its leader, and a
new leader behind the old one. Offsets aren't a count: transaction markers, aborted records and
compaction leave gaps. So a record, or a partition's end, at or behind the end completes the read.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import LogUnreachableError
from cdc.kafka import options
from cdc.kafka.admin import ATTEMPT_S, METADATA_S, PATIENCE_S
from cdc.kafka.errors import COMPLAINTS_MAX, is_access, log_error, reason, telling

SILENCE_S: Final = 30.0
"""A read without data ends after this time if no broker has ever answered."""
_RETRY_S: Final = 0.05
_END: Final = "_PARTITION_EOF"
_EARLY_REMEDY: Final = (
    "check that all replicas of the partition are in sync; without client.rack in [kafka], only"
    " its leader is read"
)


class StateConsumer:
    """A consumer, its complaints, and the callback for long waits and reads.

    It is dropped, not closed: a close would wait for a group coordinator without limit. Raise
    ConfigError for an option that the client refuses.
    """

    def __init__(self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None]) -> None:
        self.while_waiting = while_waiting
        self.complaints: deque[KafkaError] = deque(maxlen=COMPLAINTS_MAX)
        self.has_connected = False
        reading = {"error_cb": self.complaints.append}
        config: dict[str, Any] = {**options.reader_options(kafka_options), **reading}
        self.consumer = options.client(Consumer, config, kafka_options)


def is_end(message: Message | None) -> bool:
    """Whether a message reports the end of its partition at that broker."""
    error = message.error() if message is not None else None
    return error is not None and error.name() == _END


def reaches(message: Message, stop: int) -> bool:
    """Whether a record, or a partition's end, is at or behind the offset where reading stops."""
    return (message.offset() or 0) >= stop


class PartitionReader:
    """Reads a partition of a topic. A missing topic reads as an empty one.

    ``refuse`` gets the brokers' errors, and raises if waiting doesn't help.
    """

    def __init__(
        self,
        client: StateConsumer,
        topic: str,
        partition: int = 0,
        refuse: Callable[[Message], object] = lambda _message: None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._client = client
        self._consumer = client.consumer
        self._refuse = refuse
        client.complaints.clear()  # they belong to another read

    def bounds(self) -> tuple[int, int]:
        """Return the first offset, and the last stable one."""
        return self._bounds() or (0, 0)

    def exists(self) -> bool:
        """Whether the topic exists and we may see it."""
        return self._bounds() is not None

    def _bounds(self) -> tuple[int, int] | None:
        partition = TopicPartition(self._topic, self._partition)
        began = time.monotonic()
        while True:
            try:
                topics = self._consumer.list_topics(self._topic, timeout=METADATA_S).topics
                self._client.has_connected = True
                error = topics[self._topic].error
                if error is None:
                    bounds = self._consumer.get_watermark_offsets(
                        partition, timeout=METADATA_S, cached=False
                    )
                    if bounds is not None:
                        return bounds
                elif error.name() == "UNKNOWN_TOPIC_OR_PART":
                    return None
            except KafkaException as exception:
                error = reason(exception)
            self._consumer.poll(0)  # serves the complaints; no partition is assigned
            self._pause(error, began)

    def offset_at(self, ts_ms: int) -> int:
        """Return the first offset since a time (ms since 1970), or an earlier one."""
        since = TopicPartition(self._topic, self._partition, max(0, ts_ms))
        try:
            (first,) = self._consumer.offsets_for_times([since], timeout=METADATA_S)
        except KafkaException:
            return 0
        return max(0, first.offset)

    def read(self, start: int, stop: int) -> Generator[Message]:
        """Yield committed records from ``start`` until before ``stop``."""
        if start >= stop:
            return
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])
        try:
            yield from self._until(stop)
        finally:
            self._consumer.unassign()  # otherwise it continues to fetch

    def _until(self, stop: int) -> Iterator[Message]:
        began, early = time.monotonic(), ""
        attended = began
        while True:
            message = self._consumer.poll(ATTEMPT_S)
            if message is None:
                self._pause(None, began, early)
            elif is_end(message):
                if reaches(message, stop):
                    return
                early = f"; a broker has it up to offset {message.offset()} of {stop}"
                self._pause(None, began, early)
            elif (error := message.error()) is not None:
                self._refuse(message)
                self._pause(error, began, early)
            elif reaches(message, stop):
                return
            else:
                began, early = time.monotonic(), ""
                self._client.has_connected = True
                if began - attended >= ATTEMPT_S:  # records may arrive for a long time
                    self._client.while_waiting()
                    attended = began
                yield message

    def _pause(self, error: KafkaError | None, began: float, early: str = "") -> None:
        if error is not None:
            time.sleep(_RETRY_S)
        self._client.while_waiting()
        error = telling(error, self._client.complaints)
        connected = self._client.has_connected
        where = f"topic {self._topic}, partition {self._partition}"
        patience_s = PATIENCE_S if connected else SILENCE_S
        has_timed_out = time.monotonic() - began > patience_s
        if error is not None and (is_access(error) or (has_timed_out and not early)):
            raise log_error(error, "reading the log", where, connected=connected)
        if has_timed_out:
            what = f"reading the log: no record arrived for {patience_s:.0f} s{early}"
            raise LogUnreachableError(what, where=where, remedy=_EARLY_REMEDY if early else "")

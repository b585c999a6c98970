"""Topics -> their committed records with the time at which a reader got to see them.

Times are this machine's clock, in seconds since 1970, which the servers here share.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

from cdc.records.state import StateRecord, parse_state
from cdc.records.state_pieces import is_piece

SILENCE_S: Final = 120.0
_POLL_S: Final = 0.2
_METADATA_S: Final = 5.0
_BATCH: Final = 10_000


class Seen(NamedTuple):
    """A record, when it was handed to the producer, and when it was seen."""

    value: bytes
    made: float
    at: float
    key: bytes | None = None


class Volume(NamedTuple):
    """How much a topic holds."""

    records: int
    record_bytes: int
    largest: int = 0


class Reader:
    """A read_committed reader of one topic; waits for the topic to be made."""

    def __init__(self, kafka: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": "benchmarks",
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
            }
        )
        self._partitions: list[int] = []

    def from_beginning(self) -> None:
        """Read everything that the topic has."""
        self._assign(OFFSET_BEGINNING)

    def from_end(self) -> None:
        """Read what comes from now on."""
        self._assign(OFFSET_END)
        for partition in self._partitions:  # positions are real only once a fetch has begun
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition))
        self._consumer.poll(_POLL_S)

    def poll(self, timeout_s: float = _POLL_S) -> Seen | None:
        """The next record that has a value, or None when none came in time."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return None
        at = time.time()
        if (error := message.error()) is not None:
            raise KafkaException(error)
        value = message.value()
        written = message.timestamp()[1] / 1_000
        return None if value is None else Seen(value, written, at, message.key())

    def states(self, kind: type[StateRecord]) -> Iterator[tuple[StateRecord, Seen]]:
        """State records as they come; silence for two minutes is an error."""
        deadline = time.monotonic() + SILENCE_S
        while time.monotonic() < deadline:
            seen = self.poll()
            if seen is not None and not is_piece(seen.key):
                deadline = time.monotonic() + SILENCE_S
                yield parse_state(kind, seen.value, self._topic), seen
        raise TimeoutError(f"nothing came in topic {self._topic} for {SILENCE_S:.0f} s")

    def volume(self, is_ended: Callable[[], bool] = lambda: True) -> Volume:
        """Count all records, and the bytes of their keys and values, of all and of the largest.

        ``is_ended``: nothing is written any more.
        """
        self.from_beginning()
        records = record_bytes = largest = 0
        is_last = False
        while (messages := self._consumer.consume(_BATCH, 2.0)) or not is_last:
            is_last = is_ended()
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                size = len(message.key() or b"") + len(message.value() or b"")
                record_bytes, largest = record_bytes + size, max(largest, size)
            records += len(messages)
        return Volume(records, record_bytes, largest)

    def close(self) -> None:
        """Let go of the broker."""
        self._consumer.close()

    def _assign(self, offset: int) -> None:
        deadline = time.monotonic() + SILENCE_S
        while not self._partitions:
            found = self._consumer.list_topics(timeout=_METADATA_S).topics.get(self._topic)
            if found is not None and found.error is None:
                self._partitions = sorted(found.partitions)
            elif time.monotonic() > deadline:
                raise TimeoutError(f"there is no topic {self._topic}")
            else:
                time.sleep(0.02)
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p in self._partitions])

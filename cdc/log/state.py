"""State topics → the records in them, or a wait for more: the last progress from the end.

Only committed records are seen. The end is the last stable offset: while a transaction is open,
what stands before it. Offsets aren't a count (transaction markers, aborted records and what
compaction took leave gaps), so the end is reached when the broker says so, not at a number.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from threading import Event
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import LogFormatError, LogUnreachableError
from cdc.kafka import options
from cdc.kafka.admin import ATTEMPT_S, METADATA_S, PATIENCE_S, do_nothing
from cdc.kafka.errors import COMPLAINTS_MAX, is_access, log_error, reason, telling
from cdc.records.dead_letters import PIECES_PARTITION, DeadLetter, piece_key
from cdc.records.state import Progress, StateRecord, parse_state, progress_key
from cdc.records.topics import progress_topic

SILENCE_S: Final = 30.0
"""A read that brings nothing for so long is given up where no broker has ever answered."""
_RETRY_S: Final = 0.05
_CLOCKS_MS: Final = 600_000
"""How much earlier than the time in its dead letter a record may have been sent."""
FIRST_STEP: Final = 128
STEP_GROWTH: Final = 4
_CALL_S: Final = 5.0
_BACK: Final = 16
"""Records that a wait for news begins with: at worst, one run has nothing to do."""


class StateReader:
    """Reads state topics, one after the other, by one consumer: each one more would connect first.

    Raises ConfigError for an option that the client doesn't take.
    """

    def __init__(
        self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None] = do_nothing
    ) -> None:
        self._client = StateConsumer(kafka_options, while_waiting)

    def last_progress(self, topic: str, slot: str) -> Progress | None:
        """The slot's last committed progress, read back from the end in growing steps."""
        reader = PartitionReader(self._client, topic)
        low, stop = reader.bounds()
        key, step = progress_key(slot), FIRST_STEP
        while stop > low:
            start = max(low, stop - step)
            values = [found.value() for found in reader.read(start, stop) if found.key() == key]
            if values:
                return None if values[-1] is None else parse_state(Progress, values[-1], topic)
            stop, step = start, step * STEP_GROWTH
        return None

    def read_all(self, topic: str, kind: type[StateRecord]) -> list[StateRecord]:
        """The newest record of every key, in the log's order; a tombstone removes its key."""
        reader = PartitionReader(self._client, topic)
        newest: dict[bytes | None, bytes] = {}
        for message in reader.read(*reader.bounds()):
            newest.pop(message.key(), None)
            value = message.value()
            if value is not None:
                newest[message.key()] = value
        return [parse_state(kind, value, topic) for value in newest.values()]


def last_progress(
    kafka_options: Mapping[str, str],
    topic: str,
    slot: str,
    while_waiting: Callable[[], None] = do_nothing,
) -> Progress | None:
    """The slot's last committed progress, by a consumer of its own."""
    return StateReader(kafka_options, while_waiting).last_progress(topic, slot)


def read_all(
    kafka_options: Mapping[str, str],
    topic: str,
    kind: type[StateRecord],
    while_waiting: Callable[[], None] = do_nothing,
) -> list[StateRecord]:
    """The newest record of every key, by a consumer of its own."""
    return StateReader(kafka_options, while_waiting).read_all(topic, kind)


def read_oldest(
    kafka_options: Mapping[str, str], topic: str, records: int
) -> list[tuple[bytes | None, int]]:
    """Key and time (ms since 1970) of the first records that compaction has left."""
    reader = PartitionReader(StateConsumer(kafka_options, do_nothing), topic)
    first = islice(reader.read(*reader.bounds()), records)
    return [(message.key(), message.timestamp()[1]) for message in first]


class DeadLetterReader:
    """Reads dead letters, and when asked again what was written since, by one consumer.

    Raises ConfigError for an option that the client doesn't take.
    """

    def __init__(
        self,
        kafka_options: Mapping[str, str],
        topic: str,
        while_waiting: Callable[[], None] = do_nothing,
    ) -> None:
        self._client = StateConsumer(kafka_options, while_waiting)
        self._topic = topic
        self._numbers: dict[str, int] = {}
        self._dead_letters: dict[int, DeadLetter] = {}
        self._end = 0

    def has_read(self, id_: str) -> bool:
        """Whether a dead letter of that id was read."""
        return id_ in self._numbers

    def read(self) -> dict[int, DeadLetter]:
        """The newest state of each, by the offset at which it was first written."""
        reader = PartitionReader(self._client, self._topic)
        low, stop = reader.bounds()
        if stop < self._end:  # another topic of that name
            self._numbers, self._dead_letters, self._end = {}, {}, 0
        for message in reader.read(max(low, self._end), stop):
            if (value := message.value()) is not None:
                dead_letter = parse_state(DeadLetter, value, self._topic)
                number = self._numbers.setdefault(dead_letter.id, message.offset() or 0)
                self._dead_letters[number] = dead_letter
        self._end = stop
        return self._dead_letters


def read_dead_letters(
    kafka_options: Mapping[str, str],
    topic: str,
    while_waiting: Callable[[], None] = do_nothing,
) -> dict[int, DeadLetter]:
    """The newest state of every dead letter, by a consumer of its own."""
    return DeadLetterReader(kafka_options, topic, while_waiting).read()


def read_pieces(
    kafka_options: Mapping[str, str],
    topic: str,
    dead_letter: DeadLetter,
    while_waiting: Callable[[], None] = do_nothing,
) -> bytes:
    """The contents of a dead letter; raises LogFormatError where they are gone."""
    reader = PartitionReader(StateConsumer(kafka_options, while_waiting), topic, PIECES_PARTITION)
    wanted = {
        piece_key("letter", dead_letter.id, number): number for number in range(dead_letter.pieces)
    }
    pieces: dict[int, bytes] = {}
    low, stop = reader.bounds()
    for message in reader.read(max(low, reader.offset_at(dead_letter.ts_ms - _CLOCKS_MS)), stop):
        number = wanted.get(message.key() or b"")
        if number is not None and (value := message.value()) is not None:
            pieces[number] = value
        if len(pieces) == dead_letter.pieces:
            break
    else:
        if wanted:
            what = f"what dead letter {dead_letter.id} holds is gone"
            raise LogFormatError(what, where=f"topic {topic}", remedy="discard it")
    return b"".join(pieces[number] for number in sorted(pieces))


class StateConsumer:
    """A consumer, what it complains of, and what to do while it waits.

    It is dropped, not closed: closing would talk to a group coordinator, without bounds. Raises
    ConfigError for an option that the client doesn't take.
    """

    def __init__(self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None]) -> None:
        self.while_waiting = while_waiting
        self.complaints: deque[KafkaError] = deque(maxlen=COMPLAINTS_MAX)
        self.has_connected = False
        reading = {"error_cb": self.complaints.append}
        config: dict[str, Any] = {**options.reader_options(kafka_options), **reading}
        self.consumer = options.client(Consumer, config, kafka_options)


class PartitionReader:
    """Reads a partition of a topic; a topic that doesn't exist reads as an empty one."""

    def __init__(self, client: StateConsumer, topic: str, partition: int = 0) -> None:
        self._topic = topic
        self._partition = partition
        self._client = client
        self._consumer = client.consumer
        client.complaints.clear()  # they were of another read

    def bounds(self) -> tuple[int, int]:
        """The first offset, and the last stable one."""
        return self._bounds() or (0, 0)

    def exists(self) -> bool:
        """Whether there is such a topic that we may see."""
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
        """The first offset since a time (ms since 1970), or an earlier one."""
        since = TopicPartition(self._topic, self._partition, max(0, ts_ms))
        try:
            (first,) = self._consumer.offsets_for_times([since], timeout=METADATA_S)
        except KafkaException:
            return 0
        return max(0, first.offset)

    def read(self, start: int, stop: int) -> Iterator[Message]:
        """Committed records from ``start`` until before ``stop``, or the end."""
        if start >= stop:
            return
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])
        try:
            yield from self._until(stop)
        finally:
            self._consumer.unassign()  # or it would go on fetching

    def _until(self, stop: int) -> Iterator[Message]:
        began = time.monotonic()
        while True:
            message = self._consumer.poll(ATTEMPT_S)
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.name() != "_PARTITION_EOF"):
                self._pause(error, began)
                continue
            if error is not None or (message.offset() or 0) >= stop:
                return
            began = time.monotonic()
            yield message

    def _pause(self, error: KafkaError | None, began: float) -> None:
        if error is not None:
            time.sleep(_RETRY_S)
        self._client.while_waiting()
        error = telling(error, self._client.complaints)
        connected, where = self._client.has_connected, f"topic {self._topic}"
        patience_s = PATIENCE_S if connected else SILENCE_S
        has_timed_out = time.monotonic() - began > patience_s
        if error is not None and (has_timed_out or is_access(error)):
            raise log_error(error, "reading the log", where, connected=connected)
        if has_timed_out:
            what = f"reading the log: nothing came for {patience_s:.0f} s"
            raise LogUnreachableError(what, where=where)


class News:
    """The progress topic, where the log has one: each transaction writes a record there."""

    def __init__(self, kafka_options: Mapping[str, str], prefix: str) -> None:
        self._topic = progress_topic(prefix)
        self._assigned = False
        # A topic that was made again is read from its beginning. The runs report a silent broker.
        reading = {"auto.offset.reset": "earliest", "error_cb": lambda _error: None}
        config: dict[str, Any] = {**options.follower_options(kafka_options), **reading}
        self._consumer = options.client(Consumer, config, kafka_options)
        self._assign()

    def wait(self, stop: Event, seconds: float, interval_s: float) -> None:
        """Wait for news, or so many seconds; only the interval where there is no progress topic."""
        if not self._assigned:
            stop.wait(min(seconds, interval_s))
            self._assign()
            return
        deadline = time.monotonic() + seconds
        while not stop.is_set() and (left_s := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(min(left_s, ATTEMPT_S))
            if message is not None and message.error() is None:
                while self._consumer.poll(0) is not None:
                    pass
                return

    def _assign(self) -> None:
        """Read on from about the topic's end, if it exists; the runs report a silent broker."""
        try:
            topics = self._consumer.list_topics(self._topic, timeout=_CALL_S).topics
            if topics[self._topic].error is not None:
                return
            partition = TopicPartition(self._topic, 0)
            low, high = self._consumer.get_watermark_offsets(partition, timeout=_CALL_S)
        except KafkaException:
            return
        partition.offset = max(low, high - _BACK)
        self._consumer.assign([partition])
        self._assigned = True

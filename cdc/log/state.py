"""State topics → their records, or a wait for new ones: the last progress from the end.

Reads see only committed records (cdc/log/partitions.py). Offsets aren't a count: transaction
markers, aborted records and compaction leave gaps.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from itertools import islice
from threading import Event
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.errors import LogFormatError
from cdc.kafka import options
from cdc.kafka.admin import ATTEMPT_S, do_nothing
from cdc.log.partitions import PartitionReader, StateConsumer
from cdc.records.dead_letters import PIECES_PARTITION, Claim, DeadLetter, piece_key
from cdc.records.state import Progress, StateRecord, TableState, parse_state, progress_key
from cdc.records.state_pieces import StatePiece, is_piece, whole
from cdc.records.topics import progress_topic

_CLOCKS_MS: Final = 600_000
"""How much earlier than its dead letter's time a record may have been sent."""
FIRST_STEP: Final = 128
STEP_GROWTH: Final = 4
_CALL_S: Final = 5.0
_BACK: Final = 16
"""Records from the end with which a wait for news begins. At worst, one run has nothing to do."""


class StateReader:
    """Reads state topics one after the other with one consumer, as another would connect first.

    Raise ConfigError for an option that the client refuses.
    """

    def __init__(
        self, kafka_options: Mapping[str, str], while_waiting: Callable[[], None] = do_nothing
    ) -> None:
        self._client = StateConsumer(kafka_options, while_waiting)

    def last_progress(self, topic: str, slot: str) -> Progress | None:
        """Return the slot's last committed progress, reading back from the end in growing steps."""
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
        """Return the newest record of every key, in the log's order.

        A tombstone removes its key. Long lists in tables' states are cut short: ``read_tables``
        returns all their entries.
        """
        newest = self._newest(topic)
        return [
            parse_state(kind, value, topic) for key, value in newest.items() if not is_piece(key)
        ]

    def read_tables(self, topic: str) -> list[TableState]:
        """Return the newest state of every table, with all entries of its lists."""
        newest = self._newest(topic)

        def piece(key: bytes) -> StatePiece:
            if key not in newest:
                raise LogFormatError(
                    f"a piece of a table's state is missing: {key.decode()}",
                    where=f"topic {topic}",
                    remedy="let no other program write to this topic; if none does, report this",
                )
            return parse_state(StatePiece, newest[key], topic)

        states = (
            parse_state(TableState, value, topic)
            for key, value in newest.items()
            if not is_piece(key)
        )
        return [whole(state, piece) for state in states]

    def _newest(self, topic: str) -> dict[bytes | None, bytes]:
        reader = PartitionReader(self._client, topic)
        newest: dict[bytes | None, bytes] = {}
        for message in reader.read(*reader.bounds()):
            newest.pop(message.key(), None)
            value = message.value()
            if value is not None:
                newest[message.key()] = value
        return newest


def last_progress(
    kafka_options: Mapping[str, str],
    topic: str,
    slot: str,
    while_waiting: Callable[[], None] = do_nothing,
) -> Progress | None:
    """Return the slot's last committed progress, with a consumer of its own."""
    return StateReader(kafka_options, while_waiting).last_progress(topic, slot)


def read_all(
    kafka_options: Mapping[str, str],
    topic: str,
    kind: type[StateRecord],
    while_waiting: Callable[[], None] = do_nothing,
) -> list[StateRecord]:
    """Return the newest record of every key, with a consumer of its own."""
    return StateReader(kafka_options, while_waiting).read_all(topic, kind)


def read_tables(
    kafka_options: Mapping[str, str],
    topic: str,
    while_waiting: Callable[[], None] = do_nothing,
) -> list[TableState]:
    """The newest state of every table, by a consumer of its own."""
    return StateReader(kafka_options, while_waiting).read_tables(topic)


def read_oldest(
    kafka_options: Mapping[str, str], topic: str, records: int
) -> list[tuple[bytes | None, int]]:
    """Return key and time (ms since 1970) of the first records that compaction has left."""
    reader = PartitionReader(StateConsumer(kafka_options, do_nothing), topic)
    first = islice(reader.read(*reader.bounds()), records)
    return [(message.key(), message.timestamp()[1]) for message in first]


def read_pieces(
    kafka_options: Mapping[str, str],
    topic: str,
    dead_letter: DeadLetter,
    while_waiting: Callable[[], None] = do_nothing,
) -> bytes:
    """Return the contents of a dead letter. Raise LogFormatError if they are gone."""
    wanted = {
        piece_key("letter", dead_letter.id, number): number for number in range(dead_letter.pieces)
    }
    reader = PartitionReader(StateConsumer(kafka_options, while_waiting), topic, PIECES_PARTITION)
    pieces = _read_pieces(reader, wanted, dead_letter.ts_ms)
    if len(pieces) < len(wanted):
        what = f"the log no longer has the record of dead letter {dead_letter.id}"
        raise LogFormatError(what, where=f"topic {topic}", remedy="discard it")
    return b"".join(pieces[number] for number in sorted(pieces))


def read_claim(
    kafka_options: Mapping[str, str],
    claim: Claim,
    ts_ms: int,
    while_waiting: Callable[[], None] = do_nothing,
) -> bytes | None:
    """Return the value that a record of that time refers to. None: a part is missing."""
    wanted = {piece_key("claim", claim.id, number): number for number in range(claim.pieces)}
    client = StateConsumer(kafka_options, while_waiting)
    reader = PartitionReader(client, claim.topic, PIECES_PARTITION)
    pieces = _read_pieces(reader, wanted, ts_ms)
    value = b"".join(pieces[number] for number in sorted(pieces))
    return value if hashlib.sha256(value).hexdigest() == claim.sha256 else None


def _read_pieces(
    reader: PartitionReader, wanted: Mapping[bytes, int], ts_ms: int
) -> dict[int, bytes]:
    """Return pieces by number, written at about a time, without those that are gone."""
    pieces: dict[int, bytes] = {}
    if not wanted:
        return pieces
    low, stop = reader.bounds()
    for message in reader.read(max(low, reader.offset_at(ts_ms - _CLOCKS_MS)), stop):
        number = wanted.get(message.key() or b"")
        if number is not None and (value := message.value()) is not None:
            pieces[number] = value
        if len(pieces) == len(wanted):
            break
    return pieces


class News:
    """The progress topic if the log has one: each transaction writes a record there."""

    def __init__(self, kafka_options: Mapping[str, str], prefix: str) -> None:
        self._topic = progress_topic(prefix)
        self._assigned = False
        # A topic that was created again is read from its beginning. The runs report a silent
        # broker.
        reading = {"auto.offset.reset": "earliest", "error_cb": lambda _error: None}
        config: dict[str, Any] = {**options.follower_options(kafka_options), **reading}
        self._consumer = options.client(Consumer, config, kafka_options)
        self._assign()

    def wait(self, stop: Event, seconds: float, interval_s: float) -> None:
        """Wait for news, or for some seconds. Without a progress topic, wait for the interval."""
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
        """Begin near the topic's end, if it exists. The runs report a silent broker."""
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

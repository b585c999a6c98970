"""Partitions and offsets → committed records, with brokers' complaints as errors.

It waits for an unavailable broker: its partitions continue when it is back.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdc.errors import LogForgottenError, LogFormatError, MillraceError
from cdc.kafka import options
from cdc.kafka.errors import is_access, log_error
from cdc.log.offsets import Offsets
from cdc.log.partitions import PartitionReader, StateConsumer
from cdc.settings import Settings

WAIT_S: Final = 0.2
"""How long a call waits for a record. A signal, or a position to keep, waits no longer."""
_QUEUE: Final = {"queued.max.messages.kbytes": "8192"}
"""Limits memory, as any program can write to the topics."""
_FORGOTTEN: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_UNREADABLE: Final = frozenset({"_BAD_MSG", "_BAD_COMPRESSION", "_UNDERFLOW", "INVALID_MSG"})
_MISSING: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_SESSION_MS: Final = "10000"
"""When other members get the partitions of a member that died silently."""
_BODY_MS: Final = "3600000"
"""How long a loop's body may take. Members that join or leave wait for it; Kafka's default is 5
min.
"""
_METADATA_MS: Final = "30000"
"""How soon a group gets a topic's new partitions."""
_EXCEEDED: Final = "_MAX_POLL_EXCEEDED"
_LEAVE_S: Final = 2.0
_AWAY_S: Final = 0.2
_STAY_S: Final = 1.0
log = logging.getLogger("millrace.reader")
Assigned = Callable[[Consumer, list[TopicPartition]], None]
"""Called with the partitions that a member gets or loses."""


def group_name(settings: Settings, group: str) -> str:
    """Return Kafka's name of a group. A prefix has no colon, so names of prefixes differ."""
    return f"millrace.{settings.capture.topic_prefix}:{group}"


def make_consumer(
    kafka_options: Mapping[str, str], group_id: str = ""
) -> tuple[Consumer, "Complaints"]:
    """Return a consumer of committed records. In a group, it takes part in Kafka's assignment."""
    complaints = Complaints()
    config: dict[str, Any] = {
        "session.timeout.ms": _SESSION_MS,
        "max.poll.interval.ms": _BODY_MS,
        "topic.metadata.refresh.interval.ms": _METADATA_MS,
        **options.follower_options(kafka_options),
        "error_cb": complaints.add,
    }
    if group_id:
        config |= {"group.id": group_id, "partition.assignment.strategy": "range"}
    return options.client(Consumer, config, kafka_options), complaints


class Complaints:
    """A running client's complaints. Only those that waiting doesn't solve end a reader.

    ``is_alone``: as far as is known, no broker is available.
    """

    def __init__(self) -> None:
        self._fatal: KafkaError | None = None
        self.raised: BaseException | None = None
        self.is_alone = False

    def add(self, error: KafkaError) -> None:
        """Add a complaint."""
        if is_access(error):
            self._fatal = error
        if error.name() == "_ALL_BROKERS_DOWN":
            self.is_alone = True

    def raise_fatal(self) -> None:
        """Raise a complaint that another attempt doesn't solve."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
        if self._fatal is not None:
            raise log_error(self._fatal, "reading the log")


def subscribe(
    client: tuple[Consumer, Complaints],
    topics: list[str],
    assigned: Assigned,
    revoked: Assigned,
    lost: Assigned,
) -> None:
    """Join a group, with callbacks that don't keep their object alive.

    Their exceptions become complaints, as the client would replace them by its own error.
    """
    consumer, complaints = client
    begin, end, gone = (_weakly(each, complaints) for each in (assigned, revoked, lost))
    consumer.subscribe(topics, on_assign=begin, on_revoke=end, on_lost=gone)


def _weakly(method: Assigned, complaints: Complaints) -> Assigned:
    reference = weakref.WeakMethod(method)

    def call(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if (living := reference()) is None:
            return
        try:
            living(consumer, partitions)
        except BaseException as error:  # noqa: BLE001 (raised after the poll)
            complaints.raised = error

    return call


def leave(consumer: Consumer, *, is_alone: bool) -> None:
    """Close a consumer. If brokers don't answer, its group notices later."""
    thread = threading.Thread(target=consumer.close, daemon=True)
    thread.start()
    thread.join(_AWAY_S if is_alone else _LEAVE_S)


class Membership:
    """A member's turn in a group: the member with the only partition of a topic.

    ``hand_over`` is called before another member takes the turn. ``turns`` counts this member's
    turns. Others may have read between them.
    """

    def __init__(
        self,
        kafka_options: Mapping[str, str],
        group_id: str,
        topic: str,
        hand_over: Callable[[], None],
    ) -> None:
        self._consumer, self.complaints = make_consumer(kafka_options, group_id)
        self._topic = topic
        self._hand_over = weakref.WeakMethod(hand_over)
        self._is_subscribed = False
        self._has_turn = False
        self._polled_at = 0.0
        self.turns = 0

    def has_turn(self) -> bool:
        """Whether it is this member's turn. If it isn't, wait a short time first."""
        if not self._is_subscribed:
            client = self._consumer, self.complaints
            subscribe(client, [self._topic], self._begin, self._revoked, self._lost)
            self._is_subscribed = True
        return self._poll(0 if self._has_turn else WAIT_S)

    def stay(self) -> bool:
        """Whether the turn continues. A member that is silent for long is excluded."""
        is_due = time.monotonic() - self._polled_at >= _STAY_S
        return self._poll(0) if is_due else self._has_turn

    def close(self) -> None:
        """Leave the group."""
        leave(self._consumer, is_alone=self.complaints.is_alone)

    def _poll(self, seconds: float) -> bool:
        self._polled_at = time.monotonic()
        message = self._consumer.poll(seconds)
        self.complaints.raise_fatal()
        record_of(message)
        return self._has_turn

    def _begin(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_turn = bool(partitions)
        self.turns += self._has_turn
        consumer.assign([])  # its records aren't read here

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._has_turn and (hand_over := self._hand_over()) is not None:
            hand_over()
        self._lost(consumer, partitions)

    def _lost(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._has_turn = False


def record_of(message: Message | None) -> Message | None:
    """Return a message that is a record. None: transient. Raise a log's error for the rest."""
    error = message.error() if message is not None else None
    if message is None or error is None:
        return message
    if is_access(error) or error.name() in _FORGOTTEN | _UNREADABLE | _MISSING or error.fatal():
        raise _ended(message, error)
    if error.name() == _EXCEEDED:
        log.warning(
            "the loop's body took longer than max.poll.interval.ms, and the group continued"
            " without this member: changes may come again. Raise it in [kafka]"
        )
    return None


def _ended(message: Message, error: KafkaError) -> MillraceError:
    where = f"topic {message.topic()}, partition {message.partition()}"
    if error.name() in _FORGOTTEN:
        return LogForgottenError(
            "the log no longer has the next changes for this reader",
            where=where,
            remedy="read with a new group from the beginning, and read more often than log.keep",
        )
    if error.name() in _UNREADABLE:
        return LogFormatError(
            f"the log has records that can't be read: {error.str()}",
            where=f"{where}, offset {message.offset()}",
            remedy="check the disks of the partition's brokers; read from another replica",
        )
    return log_error(error, "reading the log", where)


def read_range(
    kafka_options: Mapping[str, str],
    starts: Offsets,
    ends: Offsets,
    while_waiting: Callable[[], None],
) -> Iterator[Message]:
    """Yield committed records from ``starts`` until before ``ends``, partition by partition.

    Raise LogUnreachableError after a minute without data.
    """
    client = StateConsumer({**_QUEUE, **kafka_options}, while_waiting)
    client.has_connected = True  # another client got an answer about the ends
    for topic, numbers in starts.items():
        for number, start in numbers.items():
            reader = PartitionReader(client, topic, number, record_of)
            yield from reader.read(start, ends[topic][number])

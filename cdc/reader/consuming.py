"""Partitions and offsets → committed records, and what the brokers complain of as errors.

A broker that is away is waited for: its partitions go on when it is back.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdc.errors import LogForgottenError, MillraceError
from cdc.kafka import options
from cdc.kafka.errors import is_access, log_error
from cdc.log.offsets import Offsets
from cdc.log.partitions import PartitionReader, StateConsumer
from cdc.settings import Settings

WAIT_S: Final = 0.2
"""How long a call waits for a record: a signal, or a position to keep, waits no longer."""
_QUEUE: Final = {"queued.max.messages.kbytes": "8192"}
"""Whoever writes to the topics doesn't choose our memory."""
_FORGOTTEN: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_MISSING: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_SESSION_MS: Final = "10000"
"""So long after a member has died without a word, others have its partitions."""


def group_name(settings: Settings, group: str) -> str:
    """Kafka's name of a group: of all prefixes in a cluster, each has its own."""
    return f"millrace.{settings.capture.topic_prefix}.{group}"


def make_consumer(
    kafka_options: Mapping[str, str], group_id: str = ""
) -> tuple[Consumer, "Complaints"]:
    """A consumer of committed records; with a group it takes part in Kafka's assignment."""
    complaints = Complaints()
    config: dict[str, Any] = {
        "session.timeout.ms": _SESSION_MS,
        **options.follower_options(kafka_options),
        "error_cb": complaints.add,
    }
    if group_id:
        config |= {"group.id": group_id, "partition.assignment.strategy": "range"}
    return options.client(Consumer, config, kafka_options), complaints


class Complaints:
    """What a client complains of while it runs: only what nobody can wait out ends a reader."""

    def __init__(self) -> None:
        self._fatal: KafkaError | None = None

    def add(self, error: KafkaError) -> None:
        """Take one in."""
        if is_access(error):
            self._fatal = error

    def raise_fatal(self) -> None:
        """Raise what was complained of, if trying again is no use."""
        if self._fatal is not None:
            raise log_error(self._fatal, "reading the log")


class Membership:
    """One of several members of a group has its turn: who has the one partition of a topic."""

    def __init__(self, kafka_options: Mapping[str, str], group_id: str, topic: str) -> None:
        self._consumer, self._complaints = make_consumer(kafka_options, group_id)
        self._topic = topic
        self._is_subscribed = False
        self._has_turn = False

    def has_turn(self) -> bool:
        """Whether it is this member's turn, after a short wait where it isn't."""
        if not self._is_subscribed:
            self._consumer.subscribe(
                [self._topic], on_assign=self._begin, on_revoke=self._end, on_lost=self._end
            )
            self._is_subscribed = True
        self._consumer.poll(0 if self._has_turn else WAIT_S)
        self._complaints.raise_fatal()
        return self._has_turn

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _begin(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_turn = bool(partitions)
        consumer.assign([])  # its records aren't read here

    def _end(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._has_turn = False


def record_of(message: Message | None) -> Message | None:
    """A message that is a record; None for what passes; raises a log's error for the rest."""
    error = message.error() if message is not None else None
    if message is None or error is None:
        return message
    if is_access(error) or error.name() in _FORGOTTEN | _MISSING or error.fatal():
        raise _ended(message, error)
    return None


def _ended(message: Message, error: KafkaError) -> MillraceError:
    where = f"topic {message.topic()}, partition {message.partition()}"
    if error.name() in _FORGOTTEN:
        return LogForgottenError(
            "the log no longer has what comes next for this reader",
            where=where,
            remedy="read by a new group, from the beginning; and read more often than log.keep",
        )
    return log_error(error, "reading the log", where)


def read_range(
    kafka_options: Mapping[str, str],
    starts: Offsets,
    ends: Offsets,
    while_waiting: Callable[[], None],
) -> Iterator[Message]:
    """Committed records from ``starts`` until before ``ends``, partition by partition.

    Raises LogUnreachableError where nothing comes for a minute.
    """
    client = StateConsumer({**_QUEUE, **kafka_options}, while_waiting)
    client.has_connected = True  # another client was answered where the ends are
    for topic, numbers in starts.items():
        for number, start in numbers.items():
            reader = PartitionReader(client, topic, number, record_of)
            yield from reader.read(start, ends[topic][number])

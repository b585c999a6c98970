"""State topics that are asked again and again → their newest records, of which only news is read.

As elsewhere, only committed records are seen, up to the last stable offset of the moment.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Generic

from confluent_kafka import Message

from cdc.kafka.admin import do_nothing
from cdc.log.partitions import PartitionReader, StateConsumer
from cdc.log.state import FIRST_STEP, StateReader
from cdc.records.dead_letters import DeadLetter
from cdc.records.state import Progress, StateRecord, parse_state, progress_key

_MessageMark = tuple[int, tuple[int, int], bytes | None]
"""A message's offset, time and key."""


class NewMessages:
    """A state topic's messages; when they are asked for again, those that were written since.

    Another topic of that name is noticed unless it ends at the same offset. ``last``: of a topic
    only so many offsets are read, from its end, where nothing of it was read before.
    """

    def __init__(self, client: StateConsumer, topic: str, last: int | None = None) -> None:
        self._client = client
        self._topic = topic
        self._first_read = last
        self._end = 0
        self._last: _MessageMark | None = None
        """The last message that was read: another topic of that name has another one there."""

    def read(self, begin_again: Callable[[], None]) -> Iterator[Message]:
        """The messages; ``begin_again`` is called first where they aren't just the new ones."""
        reader = PartitionReader(self._client, self._topic)
        low, stop = reader.bounds()
        if stop == self._end:
            return
        last = self._last
        if last is not None and stop > self._end:
            with closing(reader.read(max(low, last[0]), stop)) as messages:
                if _mark(next(messages, None)) == last:
                    yield from self._noted(messages, stop)
                    return
        begin_again()
        self._end, self._last = 0, None
        start = low if self._first_read is None else max(low, stop - self._first_read)
        yield from self._noted(reader.read(start, stop), stop)

    def _noted(self, messages: Iterator[Message], stop: int) -> Iterator[Message]:
        """The messages; once all of them were taken, the next ones are those behind them."""
        last = self._last
        for message in messages:
            last = _mark(message)
            yield message
        self._end, self._last = stop, last


def _mark(message: Message | None) -> _MessageMark | None:
    if message is None:
        return None
    return message.offset() or 0, message.timestamp(), message.key()


class NewestRecords(Generic[StateRecord]):
    """The newest record of every key of a state topic."""

    def __init__(self, client: StateConsumer, topic: str, kind: type[StateRecord]) -> None:
        self._topic = topic
        self._kind = kind
        self._messages = NewMessages(client, topic)
        self._records: dict[bytes, StateRecord] = {}

    def read(self) -> Mapping[bytes, StateRecord]:
        """All of them by now; the next call changes what this one returns."""
        new = {
            message.key() or b"": message.value()
            for message in self._messages.read(self._records.clear)
        }
        for key, value in new.items():
            if value is None:
                self._records.pop(key, None)
            else:
                self._records[key] = parse_state(self._kind, value, self._topic)
        return self._records


class LastProgress:
    """A slot's last committed progress, which is looked for from the end of its topic first."""

    def __init__(self, states: StateReader, client: StateConsumer, topic: str, slot: str) -> None:
        self._states = states
        self._messages = NewMessages(client, topic, FIRST_STEP)
        self._topic = topic
        self._slot = slot
        self._progress: Progress | None = None

    def read(self) -> Progress | None:
        """How far it is by now."""
        key = progress_key(self._slot)
        for message in self._messages.read(self._begin_again):
            if message.key() == key:
                value = message.value()
                self._progress = (
                    None if value is None else parse_state(Progress, value, self._topic)
                )
        if self._progress is None:  # there is none, or it is further back
            self._progress = self._states.last_progress(self._topic, self._slot)
        return self._progress

    def _begin_again(self) -> None:
        self._progress = None


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
        self._messages = NewMessages(StateConsumer(kafka_options, while_waiting), topic)
        self._topic = topic
        self._numbers: dict[str, int] = {}
        self._dead_letters: dict[int, DeadLetter] = {}

    def has_read(self, id_: str) -> bool:
        """Whether a dead letter of that id was read."""
        return id_ in self._numbers

    def read(self) -> dict[int, DeadLetter]:
        """The newest state of each, by the offset at which it was first written."""
        for message in self._messages.read(self._begin_again):
            if (value := message.value()) is not None:
                dead_letter = parse_state(DeadLetter, value, self._topic)
                number = self._numbers.setdefault(dead_letter.id, message.offset() or 0)
                self._dead_letters[number] = dead_letter
        return self._dead_letters

    def _begin_again(self) -> None:
        self._numbers, self._dead_letters = {}, {}


def read_dead_letters(
    kafka_options: Mapping[str, str],
    topic: str,
    while_waiting: Callable[[], None] = do_nothing,
) -> dict[int, DeadLetter]:
    """The newest state of every dead letter, by a consumer of its own."""
    return DeadLetterReader(kafka_options, topic, while_waiting).read()

"""State topics read repeatedly → their newest records. Each read fetches only new ones.

As elsewhere, a read sees only committed records, up to the current last stable offset.
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
from cdc.records.state_pieces import is_piece

_MessageMark = tuple[int, tuple[int, int], bytes | None]
"""A message's offset, time and key."""


class NewMessages:
    """A state topic's messages. A repeated read yields those written since the last one.

    A new topic of the same name is noticed unless it ends at the same offset. ``last`` limits the
    first read to this number of offsets before the end.
    """

    def __init__(self, client: StateConsumer, topic: str, last: int | None = None) -> None:
        self._client = client
        self._topic = topic
        self._first_read = last
        self._end = 0
        self._last: _MessageMark | None = None
        """The last message read. A new topic of the same name has another one there."""

    def read(self, begin_again: Callable[[], None]) -> Iterator[Message]:
        """Yield the messages. Call ``begin_again`` first if they aren't only the new ones."""
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
        """Yield the messages. After all of them, the next read continues behind them."""
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
    """The newest record of every key of a state topic; of tables' states without their pieces."""

    def __init__(self, client: StateConsumer, topic: str, kind: type[StateRecord]) -> None:
        self._topic = topic
        self._kind = kind
        self._messages = NewMessages(client, topic)
        self._records: dict[bytes, StateRecord] = {}

    def read(self) -> Mapping[bytes, StateRecord]:
        """Return all current records. The next call changes this value."""
        new = {
            message.key() or b"": message.value()
            for message in self._messages.read(self._records.clear)
            if not is_piece(message.key())
        }
        for key, value in new.items():
            if value is None:
                self._records.pop(key, None)
            else:
                self._records[key] = parse_state(self._kind, value, self._topic)
        return self._records


class LastProgress:
    """A slot's last committed progress. The first read begins near the topic's end."""

    def __init__(self, states: StateReader, client: StateConsumer, topic: str, slot: str) -> None:
        self._states = states
        self._messages = NewMessages(client, topic, FIRST_STEP)
        self._topic = topic
        self._slot = slot
        self._progress: Progress | None = None

    def read(self) -> Progress | None:
        """Return the current progress."""
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
    """Reads dead letters with one consumer. A repeated read yields new ones.

    Raise ConfigError for an option that the client refuses.
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
        """Whether a dead letter with that id was read."""
        return id_ in self._numbers

    def read(self) -> dict[int, DeadLetter]:
        """Return the newest state of each, by the offset of its first record."""
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
    """Return the newest state of every dead letter, with a consumer of its own."""
    return DeadLetterReader(kafka_options, topic, while_waiting).read()

"""State topics that are asked again and again → their newest records, of which only news is read.

As elsewhere, only committed records are seen, up to the last stable offset of the moment.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Generic

from confluent_kafka import Message

from cdc.log.partitions import PartitionReader, StateConsumer
from cdc.log.state import StateReader
from cdc.records.state import Progress, StateRecord, parse_state, progress_key

_MessageMark = tuple[int, tuple[int, int], bytes | None]
"""A message's offset, time and key."""


class NewMessages:
    """A state topic's messages; when they are asked for again, those that were written since."""

    def __init__(self, client: StateConsumer, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._end = 0
        self._last: _MessageMark | None = None
        """The last message that was read: another topic of that name has another one there."""

    def read(self, begin_again: Callable[[], None]) -> Iterator[Message]:
        """The messages; ``begin_again`` is called first where it is another topic of that name."""
        reader = PartitionReader(self._client, self._topic)
        low, stop = reader.bounds()
        if stop == self._end:
            return
        last, start = self._last, max(low, self._end)
        if last is not None:
            start = max(low, last[0])
        with closing(reader.read(start, stop)) as messages:
            if stop > self._end and (last is None or _mark(next(messages, None)) == last):
                yield from self._noted(messages, stop)
                return
        begin_again()
        self._end, self._last = 0, None
        yield from self._noted(reader.read(low, stop), stop)

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
        self._client = client
        self._topic = topic
        self._slot = slot
        self._end: int | None = None
        self._progress: Progress | None = None

    def read(self) -> Progress | None:
        """How far it is by now."""
        reader = PartitionReader(self._client, self._topic)
        _, stop = reader.bounds()
        if self._end is None or stop < self._end:  # another topic of that name
            self._progress = self._states.last_progress(self._topic, self._slot)
        else:
            key = progress_key(self._slot)
            for message in reader.read(self._end, stop):
                if message.key() == key:
                    value = message.value()
                    self._progress = (
                        None if value is None else parse_state(Progress, value, self._topic)
                    )
        self._end = stop
        return self._progress

"""Records of the tables' topics → their changes, one by one, from a group's position.

In: committed records. Out: events in the order of their partition, which is that of their key, at
least once. An event counts as processed once the caller asks for the next one. Then its offset may
be kept: at most every second, at the end, and before another member of the group gets the
partition.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdc.errors import LogUnreachableError
from cdc.kafka.errors import log_error, reason
from cdc.log.offsets import Offsets
from cdc.log.partitions import is_end
from cdc.reader.access import LogAccess, ReaderStoppedError, log
from cdc.reader.consuming import WAIT_S, group_name, leave, make_consumer, record_of, subscribe
from cdc.reader.envelope import place_of
from cdc.reader.events import ChangeEvent
from cdc.reader.lasting import KEEP_S, LastingReader
from cdc.reader.start import Partition, Start, parse_start
from cdc.reader.topics import TableTopic

KEEP_EVENTS: Final = 10_000
"""After this many, positions are kept sooner, as a kill repeats everything since."""
_PASS_S: Final = 1.0
REFRESH_S: Final = 10.0
"""How soon a new table in the log, or a new partition of a real Debezium's topic, is read."""


class ChangeStream(LastingReader[ChangeEvent]):
    """The changes, as an iterator to be closed: a ``with`` block always does that.

    Without a close, it doesn't keep the last second's position, and other members wait for its
    partitions. ``once``: it ends where the log ended when it began.
    """

    def __init__(
        self, access: LogAccess, group: str | None, start: Start, *, once: bool = False
    ) -> None:
        super().__init__(access)
        self._start = start
        parse_start(start)
        self._group = access.group(group)
        self._once = once
        self._topics: Mapping[str, TableTopic] = {}
        self._subscribed: Mapping[str, TableTopic] = {}
        self._left: dict[Partition, int] = {}
        """With ``once``: partitions that have more to read, and their ends."""
        self._done: dict[Partition, int] = {}
        """Offsets behind processed records that aren't kept yet."""
        self._first: dict[Partition, int] = {}
        """Where members continue. Earlier records were processed."""
        self._given: tuple[Partition, ChangeEvent] | None = None
        self._events = 0
        self._at: Partition | None = None
        """The place of the record that is being processed, or couldn't be."""
        self._refreshed_at = time.monotonic()
        group_id = "" if group is None else group_name(access.settings, group)
        self._consumer, self._complaints = make_consumer(access.settings.kafka, group_id)

    @property
    def _is_done(self) -> bool:
        """Whether the log is read to its earlier end, with ``once``."""
        return self._once and not self._left

    @property
    def _is_alone(self) -> bool:
        return self._complaints.is_alone

    def _hurry(self, seconds: float) -> None:
        if self._group is not None:
            self._group.hurry(seconds)

    def _finish(self) -> None:
        if not self._is_alone:
            with suppress(KafkaException, LogUnreachableError):
                self._pass_marks()

    def _leave(self) -> None:
        leave(self._consumer, is_alone=self._is_alone)

    def _open(self) -> None:
        """Find where to begin, and begin."""
        if self._access.topics.has_cut:
            self._access.topics.progress()
        self._topics = self._access.topics.read()
        if self._group is None:
            offsets = self._access.first_offsets(self._start, self._topics)
            if self._once:
                self._bound(offsets)
            self._assign(offsets)
            return
        self._group.ensure_topic()
        start: Start = "beginning"
        if is_new := not self._group.read():
            start = self._start
        else:
            self._group.require_kind(transactions=False)
            self._access.topics.require_same(self._group.ids())
            self._group.require_kept(self._access.finder, self._topics)
        unknown = self._group.unknown(self._topics)
        if unknown or is_new:
            offsets = self._access.first_offsets(start, unknown)
            self._group.begin(unknown, offsets, self._access.finder.kept_from(unknown))
        self._subscribe()

    def _bound(self, offsets: Offsets) -> None:
        _, ends = self._access.finder.bounds(self._topics)
        self._left = {
            (topic, number): ends[topic][number]
            for topic, numbers in offsets.items()
            for number, offset in numbers.items()
            if offset < ends[topic][number]
        }

    def _assign(self, offsets: Offsets) -> None:
        self._subscribed = self._topics
        new = [
            TopicPartition(topic, number, offset)
            for topic, numbers in offsets.items()
            for number, offset in numbers.items()
        ]
        if new:
            self._consumer.incremental_assign(new)

    def _subscribe(self) -> None:
        self._subscribed = self._topics
        if names := list(self._topics):
            client = self._consumer, self._complaints
            subscribe(client, names, self._assigned, self._revoked, self._lost)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Continue at the group's position. Wait for unavailable brokers."""
        while True:
            try:
                return self._go_on(consumer, partitions)
            except LogUnreachableError as error:
                self._access.end_when_stopped()
                log.warning("waiting for the log: %s", error.what)
                self._access.connect()

    def _go_on(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Continue at the position that members of the group have kept."""
        assert self._group is not None  # noqa: S101 (others subscribe to nothing)
        if not self._is_open:
            consumer.assign([])
            return
        self._group.read()
        self._done = {}
        if any(each.partition >= self._partitions(each.topic) for each in partitions):
            self._topics = self._access.topics.read()
        mine = [
            (topic, each.partition)
            for each in partitions
            if (topic := self._topics.get(each.topic)) is not None
            and each.partition < topic.partitions
        ]
        self._first = {(t.name, number): self._group.offset(t, number) for t, number in mine}
        lows = self._access.finder.lows((t.name, n) for t, n in mine if self._group.place(t, n))
        self._group.require_there(lows)
        consumer.assign(
            [
                # The record before shows whether a tombstone belongs to a delete.
                TopicPartition(topic, number, max(lows.get(topic, {}).get(number, 0), first - 1))
                for (topic, number), first in self._first.items()
            ]
        )

    def _revoked(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        """Keep the position: another member continues behind the processed records."""
        if self._is_open:
            self._keep()

    def _lost(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        """Discard the position: another member has the partitions, and may be ahead."""
        self._done = {}

    def _next(self) -> ChangeEvent | None:
        """Return the next event, or None after a while or after a record without one."""
        self._refresh()
        message = self._poll()
        if is_end(message):
            self._reach(message)
        if (record := record_of(message)) is None:
            return None
        topic, partition, offset = place_of(record)
        self._at = place = topic, partition
        event = self._event(record, place, offset)
        self._at = None
        return event

    def _event(self, record: Message, place: Partition, offset: int) -> ChangeEvent | None:
        """Return a record's event, or None. After an error it still has to be processed."""
        topic, _ = place
        if self._once and offset >= self._left.get(place, 0):
            self._left.pop(place, None)
            return None
        table, event = self._topics[topic].table, None
        if table:
            event = self._access.envelopes.event(record, table)
        if offset < self._first.get(place, 0):
            return None
        if not table:
            self._access.tell(self._access.dead_letter(record))
        if self._once and offset + 1 >= self._left[place]:
            del self._left[place]
        if event is None:
            self._done[place] = offset + 1
        else:
            self._given = place, event
        return event

    def _poll(self) -> Message | None:
        self._complaints.raise_fatal()  # not after a record, which would be lost
        try:
            message = self._consumer.poll(WAIT_S)
        except KafkaException as exception:
            raise log_error(reason(exception), "reading the log") from None
        if message is None:
            self._complaints.raise_fatal()
            self._keep_if_due()
        elif message.error() is None:
            self._complaints.is_alone = False
        return message

    def _reach(self, end: Message | None) -> None:
        """Record a partition's end: behind its last record are only transactions' marks."""
        if end is not None and (offset := end.offset()) is not None:
            place = end.topic() or "", end.partition() or 0
            is_given = self._given is not None and self._given[0] == place
            if not is_given and offset >= self._first.get(place, 0):
                self._done[place] = offset
            if offset >= self._left.get(place, 0):
                self._left.pop(place, None)

    def _pass_marks(self) -> None:
        """Check for each partition whether only marks follow the processed records.

        An offset before marks that are older than log.keep would seem to have lost changes.
        """
        open_partitions = set(self._done)
        unprocessed = {self._at}
        deadline = time.monotonic() + _PASS_S
        while open_partitions and time.monotonic() < deadline:
            message = self._consumer.poll(WAIT_S)
            if message is None or not (is_end(message) or message.error() is None):
                continue
            place = message.topic() or "", message.partition() or 0
            open_partitions.discard(place)
            if not is_end(message):
                unprocessed.add(place)
            elif place not in unprocessed:
                self._reach(message)

    def _settle(self) -> None:
        """Count the last item as processed, as the caller asks for more."""
        if self._given is not None:
            place, event = self._given
            self._done[place] = event.offset + 1
            self._process(event.position, event.commit_time)
            self._given = None
            self._events += 1
        self._keep_if_due()

    def _keep_if_due(self) -> None:
        is_due = time.monotonic() - self._kept_at >= KEEP_S or self._events >= KEEP_EVENTS
        if self._done and is_due:
            self._keep()

    def _write(self) -> None:
        if self._group is not None and self._done:
            self._group.keep(self._topics, self._done)
            self._complaints.is_alone = False
        self._done, self._events = {}, 0

    def _refresh(self) -> None:
        """Read tables that are new in the log, from their beginning."""
        if self._once or time.monotonic() - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = time.monotonic()
        try:
            self._topics = self._access.topics.read()
        except LogUnreachableError:
            self._access.connect()  # a client that has abandoned a topic doesn't ask
            return
        except ReaderStoppedError:
            return
        if self._topics.keys() - self._subscribed.keys() and self._group is not None:
            self._subscribe()
        if self._group is None:  # with a group, Kafka reports new partitions
            self._assign(
                {
                    name: dict.fromkeys(range(self._partitions(name), topic.partitions), 0)
                    for name, topic in self._topics.items()
                }
            )

    def _partitions(self, topic: str) -> int:
        """Return how many partitions of a topic this member reads, or may read."""
        return self._subscribed[topic].partitions if topic in self._subscribed else 0

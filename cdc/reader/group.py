"""A group's name → its position in each partition, kept in the log.

In: the offsets behind records that members of the group have processed. Out: where to continue. A
member that was presumed dead may write after a newer member. Its offset is lower, and correct, so
the next start repeats changes and loses none.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from cdc.errors import ConfigError, LogForgottenError, LogUnreachableError
from cdc.kafka.admin import LogAdmin, do_nothing
from cdc.kafka.errors import is_passing, log_error
from cdc.kafka.making import EXISTS, TopicMaker
from cdc.kafka.sending import Sender
from cdc.kafka.topic_settings import STATE_CONFIG, WantedTopic
from cdc.log.offsets import Offsets
from cdc.log.state import StateReader
from cdc.reader.start import Partition, StartFinder
from cdc.reader.topics import TableTopic
from cdc.records.position import Position
from cdc.records.readers import ReaderOffset, ReaderRecord
from cdc.records.topics import dead_letter_topic, reader_topic
from cdc.settings import Settings


class ReaderGroup:
    """One group's position: read at its start and at assignments, and kept in between."""

    def __init__(
        self, settings: Settings, name: str, while_waiting: Callable[[], None] = do_nothing
    ) -> None:
        self.name = name
        self._settings = settings
        self._topic = reader_topic(settings.capture.topic_prefix)
        self._dead_letters = dead_letter_topic(settings.capture.topic_prefix)
        self._states = StateReader(settings.kafka, while_waiting)
        self._while_waiting = while_waiting
        self._give_up_at: float | None = None
        self._sender = Sender(settings.kafka, self._wait)
        self._places: dict[Partition, ReaderOffset] = {}
        self.cut: Position | None = None

    def hurry(self, seconds: float) -> None:
        """Keep a position within this many seconds from now, or not at all."""
        self._give_up_at = time.monotonic() + seconds

    def _wait(self) -> None:
        if self._give_up_at is None:
            self._while_waiting()
        elif time.monotonic() > self._give_up_at:
            raise LogUnreachableError("no broker answers", where=f"topic {self._topic}")

    def read(self) -> bool:
        """Read the group's position. Return whether a record of it exists."""
        records = [
            record
            for record in self._states.read_all(self._topic, ReaderRecord)
            if record.group == self.name
        ]
        places: dict[Partition, ReaderOffset] = {}
        for record in records:
            if record.start:
                for place in record.offsets:
                    at = place.topic, place.partition
                    first = places.setdefault(at, place)
                    places[at] = min(first, place, key=lambda each: each.offset)
        for record in records:
            if not record.start:
                places |= {(place.topic, place.partition): place for place in record.offsets}
        self._places = places
        cuts = sorted(
            (not record.start, record.cut) for record in records if record.cut is not None
        )
        newest = [cut for is_newest, cut in cuts if is_newest]
        self.cut = newest[0] if newest else min((cut for _, cut in cuts), default=None)
        return bool(records)

    def require_kind(self, *, transactions: bool) -> None:
        """Raise ConfigError if the group reads in the other mode."""
        if transactions != (self.cut is not None):
            way = "changes one by one" if transactions else "whole transactions"
            raise ConfigError(
                f"the group {self.name} reads {way}",
                where="group",
                remedy="choose another group: a group has one way of reading",
            )

    def unknown(self, topics: Mapping[str, TableTopic]) -> dict[str, TableTopic]:
        """Return topics that the group has no position in."""
        known = {topic for topic, _ in self._places}
        return {name: topic for name, topic in topics.items() if name not in known}

    def ids(self) -> dict[str, str]:
        """Return the tables' topics in which the group has a position, with Kafka's ids of them.

        A new topic of dead letters means that the old ones are settled: the group continues
        without.
        """
        places = self._places.values()
        return {each.topic: each.topic_id for each in places if each.topic != self._dead_letters}

    def begin(
        self,
        topics: Mapping[str, TableTopic],
        starts: Offsets,
        kept_from: Offsets,
        cut: Position | None = None,
    ) -> None:
        """Write where the group begins in topics that it hasn't read yet."""
        now_ms = time.time_ns() // 1_000_000
        places = tuple(
            ReaderOffset(
                topic=name,
                topic_id=topics[name].id,
                partition=number,
                offset=offset,
                kept_from=kept_from[name][number],
                begun_ms=now_ms,
            )
            for name in topics
            for number, offset in starts[name].items()
        )
        record = ReaderRecord(
            group=self.name, offsets=places, start=uuid.uuid4().hex, cut=cut, ts_ms=now_ms
        )
        self._write([record])
        self.read()

    def require_tables(self, topics: Mapping[str, TableTopic], left_out: Mapping[str, str]) -> None:
        """Raise ConfigError for other tables than the group's.

        The group hasn't read a table that is older than itself. If it has read a table that is now
        left out, its cut would pass that table's changes.
        """
        for name in self.ids().keys() & left_out.keys():
            raise ConfigError(
                f"the group {self.name} has read transactions with {left_out[name]} so far",
                where="tables",
                remedy="choose another group for other tables",
            )
        begun_ms = min((place.begun_ms for place in self._places.values()), default=0)
        for topic in self.unknown(topics).values():
            if topic.table and topic.begun_ms < begun_ms:
                raise ConfigError(
                    f"the group {self.name} has read transactions without {topic.table} so far",
                    where="tables",
                    remedy="choose another group for other tables",
                )

    def place(self, topic: TableTopic, partition: int) -> ReaderOffset | None:
        """Return the group's place in a partition. None: the topic is new, or was created again."""
        place = self._places.get((topic.name, partition))
        return place if place is not None and place.topic_id == topic.id else None

    def offset(self, topic: TableTopic, partition: int) -> int:
        """Return where to continue. In a topic newer than the group: 0."""
        place = self.place(topic, partition)
        return 0 if place is None else place.offset

    def require_kept(self, finder: StartFinder, topics: Mapping[str, TableTopic]) -> None:
        """Raise LogForgottenError if the log may have lost records that the group hasn't read.

        A group that began with records older than log.keep may read those for as long again.
        """
        keep_ms = self._settings.log.keep.total_seconds() * 1_000
        now_ms = time.time_ns() // 1_000_000
        offsets: Offsets = {}
        for name, number in self._places:
            if name not in topics or number >= topics[name].partitions:
                continue
            if (place := self.place(topics[name], number)) is not None:
                is_first_pass = now_ms - place.begun_ms < keep_ms
                offset = max(place.offset, place.kept_from) if is_first_pass else place.offset
                offsets.setdefault(name, {})[number] = offset
        known = {name: topics[name] for name in offsets}
        lows, ends = finder.bounds(known)
        late = finder.forgotten(offsets, self._settings.log.keep)
        for name, numbers in offsets.items():
            for number, offset in numbers.items():
                is_short = ends[name][number] < offset
                if number in late.get(name, {}) or offset < lows[name][number] or is_short:
                    raise self._too_late(name, number, offset)

    def require_there(self, lows: Offsets) -> None:
        """Raise LogForgottenError if these first offsets skip records that the group must read.

        Records that were older than log.keep when the group began may be gone.
        """
        for name, numbers in lows.items():
            for number, low in numbers.items():
                place = self._places.get((name, number))
                if place is not None and max(place.offset, place.kept_from) < low:
                    raise self._too_late(name, number, place.offset)

    def _too_late(self, topic: str, number: int, offset: int) -> LogForgottenError:
        return LogForgottenError(
            f"the group {self.name} is too late: the log may no longer have changes that it"
            " hasn't read",
            where=f"topic {topic}, partition {number}, offset {offset}",
            remedy="read with a new group from the beginning, and read more often than log.keep"
            f" ({self._settings.log.keep})",
        )

    def keep(self, topics: Mapping[str, TableTopic], offsets: Mapping[Partition, int]) -> None:
        """Write the members' progress in these partitions, each separately."""
        places = [self._moved(topics[place[0]], place[1], offsets[place]) for place in offsets]
        now_ms = time.time_ns() // 1_000_000
        self._write(
            ReaderRecord(group=self.name, offsets=(place,), ts_ms=now_ms) for place in places
        )

    def keep_cut(
        self, topics: Mapping[str, TableTopic], offsets: Mapping[Partition, int], cut: Position
    ) -> None:
        """Write the group's progress: all transactions up to the cut are processed."""
        places = tuple(
            self._moved(topics[topic], number, offset)
            for (topic, number), offset in offsets.items()
        )
        now_ms = time.time_ns() // 1_000_000
        self._write([ReaderRecord(group=self.name, offsets=places, cut=cut, ts_ms=now_ms)])
        self.cut = cut

    def _moved(self, topic: TableTopic, number: int, offset: int) -> ReaderOffset:
        before = self.place(topic, number)
        place = ReaderOffset(
            topic=topic.name,
            topic_id=topic.id,
            partition=number,
            offset=offset,
            kept_from=before.kept_from if before else 0,
            begun_ms=before.begun_ms if before else time.time_ns() // 1_000_000,
        )
        self._places[topic.name, number] = place
        return place

    def _write(self, records: Iterable[ReaderRecord]) -> None:
        self._sender.send(
            self._topic, [(record.key, record.model_dump_json().encode()) for record in records]
        )

    def ensure_topic(self) -> None:
        """Create the topic if it doesn't exist."""
        admin = LogAdmin(self._settings.kafka)
        if self._topic in admin.describe([self._topic]):
            return
        maker = TopicMaker(self._settings, admin, self._while_waiting)
        maker.write_down([self._topic])
        topic = WantedTopic(self._topic, 1, "compact", content="state")
        error = maker.make([topic], STATE_CONFIG).get(self._topic)
        if error is not None and error.name() != EXISTS:  # another member was faster
            if not is_passing(error):  # without an answer, it may be ours
                maker.write_down([self._topic], made=False)
            raise log_error(error, "creating a topic", f"topic {self._topic}")

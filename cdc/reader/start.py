"""A reader's start → the offset of each partition.

A time or an LSN is found in two steps: by the times of records, which are a little later than those
of their commits, and then by reading up to the first matching change. For an LSN, the progress
topic has a time before which the log had nothing at or past it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from confluent_kafka import IsolationLevel, Message

from cdc.errors import ConfigError, LogForgottenError
from cdc.kafka.admin import EARLIEST, LATEST
from cdc.log.offsets import LogReader, Offsets
from cdc.reader.consuming import read_range
from cdc.reader.envelope import headers_of, place_of
from cdc.reader.topics import TableTopic
from cdc.records.position import HEADER, Lsn, Position, parse_header
from cdc.records.state import Progress, parse_state
from cdc.records.topics import progress_topic
from cdc.settings import Settings

Start: TypeAlias = str | datetime | Lsn
"""``beginning``, ``now``, a time or an LSN. Both may be text."""
_PLACES: Final = (
    "use beginning, now, an LSN (16/B374D848), or a time with its offset (2026-11-27T10:00:00Z)"
)
CLOCKS_MS: Final = 600_000
"""How much earlier than its commit a record's time may be, as clocks differ."""
NOTHING: Final = Position(0, Lsn(0), 0)
"""Before every position."""
Partition = tuple[str, int]
"""Topic and partition."""
ParsedStart: TypeAlias = Literal["beginning", "now"] | datetime | Lsn
_CommitTimeOf = Callable[[Message], datetime | None]
"""A record → the commit time of its change. None: it has none."""


def parse_start(start: Start) -> ParsedStart:
    """Parse the text of an LSN or of a time. Raise ConfigError for anything else."""
    if isinstance(start, str) and start not in {"beginning", "now"}:
        try:
            start = Lsn.parse(start) if "/" in start else datetime.fromisoformat(start)
        except ValueError:
            raise ConfigError(
                f"{start} isn't a start",
                where="start",
                remedy=_PLACES,
            ) from None
    if isinstance(start, datetime) and start.tzinfo is None:
        raise ConfigError(
            f"the time {start} has no offset",
            where="start",
            remedy=f"add the offset, such as {start.isoformat()}Z",
        )
    if not isinstance(start, str | datetime | Lsn):
        raise ConfigError(f"a {type(start).__name__} isn't a start", where="start", remedy=_PLACES)
    return start  # type: ignore[return-value]  # of texts two are left


class StartFinder(LogReader):
    """Finds offsets by the log's current contents."""

    def __init__(self, settings: Settings, while_waiting: Callable[[], None]) -> None:
        super().__init__(settings.kafka, while_waiting)
        self._kafka = settings.kafka
        self._settings = settings
        self._keep = settings.log.keep

    def kept_from(self, topics: Mapping[str, TableTopic]) -> Offsets:
        """Return the first records that are younger than log.keep."""
        return self._first_since(_partitions(topics), self._since_ms())

    def bounds(self, topics: Mapping[str, TableTopic]) -> tuple[Offsets, Offsets]:
        """Return the first offsets, and the committed ends."""
        partitions = _partitions(topics)
        committed = IsolationLevel.READ_COMMITTED
        return self.lows(partitions), self._offsets(partitions, LATEST, committed)

    def lows(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the first offsets of partitions."""
        return self._offsets(partitions, EARLIEST)

    def offsets(
        self,
        start: ParsedStart,
        topics: Mapping[str, TableTopic],
        commit: _CommitTimeOf,
        epoch: int,
    ) -> Offsets:
        """Return where to begin in each partition.

        Raise LogForgottenError for a time or an LSN older than log.keep, as the log may have lost
        changes of that time.
        """
        if start == "beginning":
            return self._offsets(_partitions(topics), EARLIEST)
        if start == "now":
            return self._offsets(_partitions(topics), LATEST, IsolationLevel.READ_COMMITTED)
        if isinstance(start, Lsn):
            return self._from_lsn(Position(epoch, start, 0), topics)
        if start < datetime.now(UTC) - self._keep:
            raise self._too_old(f"the time {start}")
        since_ms = int(start.timestamp() * 1_000) - CLOCKS_MS

        def counts(message: Message) -> bool:
            committed = commit(message)
            return committed is not None and committed >= start

        return self._first(topics, since_ms, counts)

    def cut(
        self,
        start: ParsedStart,
        topics: Mapping[str, TableTopic],
        commit: _CommitTimeOf,
        progress: Progress,
    ) -> tuple[Position, Offsets]:
        """Return the cut up to which transactions are left out, and the offsets to begin at."""
        if start == "beginning":
            return NOTHING, self.offsets(start, topics, commit, progress.cut.epoch)
        if start == "now":
            # A transaction's records may be much older than its commit, and the cut than now.
            since_ms = min(progress.ts_ms, progress.cut_ts_us // 1_000)
            return progress.cut, self._behind(progress.cut, topics, since_ms)
        offsets = self.offsets(start, topics, commit, progress.cut.epoch)
        if isinstance(start, Lsn):
            return Position(progress.cut.epoch, start, 0).just_before(), offsets
        # Commit times needn't have the order of LSNs, so one commit decides for all others.
        _, ends = self.bounds(topics)
        first = [self._position_at(topic, offsets, ends) for topic in offsets]
        cut = min([*(each.just_before() for each in first if each is not None), progress.cut])
        since_ms = min(int(start.timestamp() * 1_000), progress.cut_ts_us // 1_000)
        return cut, self._behind(cut, topics, since_ms)

    def _behind(self, cut: Position, topics: Mapping[str, TableTopic], since_ms: int) -> Offsets:
        return self._first(
            topics, max(0, since_ms - CLOCKS_MS), lambda message: _is_behind(message, cut)
        )

    def _position_at(self, topic: str, offsets: Offsets, ends: Offsets) -> Position | None:
        """Return the lowest position that the partitions of a topic have at these offsets."""
        positions: list[Position] = []
        for number, offset in offsets[topic].items():
            alone = {topic: {number: offset}}, {topic: {number: ends[topic][number]}}
            for message in read_range(self._kafka, *alone, self._while_waiting):
                if (header := headers_of(message).get(HEADER)) is not None:
                    positions.append(parse_header(header).position)
                break
        return min(positions, default=None)

    def _from_lsn(self, position: Position, topics: Mapping[str, TableTopic]) -> Offsets:
        if not self._settings.captures_itself:
            raise ConfigError(
                "records of a real Debezium don't contain the LSN of their commit",
                where="start",
                remedy="use a time as the start",
            )
        since_ms = self._time_before(position)
        is_proven = since_ms is not None and since_ms >= self._since_ms()

        def counts(message: Message) -> bool:
            nonlocal is_proven
            header = headers_of(message).get(HEADER)
            if header is None:
                return False
            if parse_header(header).position >= position:
                return True
            is_proven = True  # it is older than the LSN, and younger than log.keep
            return False

        offsets = self._first(topics, max(since_ms or 0, self._since_ms()) - CLOCKS_MS, counts)
        starts = self._offsets(_partitions(topics), EARLIEST)
        was_always_there = all(start == 0 for each in starts.values() for start in each.values())
        if not is_proven and not (was_always_there and not self.forgotten(starts, self._keep)):
            raise self._too_old(f"LSN {position.commit_lsn}")
        return offsets

    def _time_before(self, position: Position) -> int | None:
        """Return when (ms since 1970) the log had nothing at that position yet. None: unknown."""
        topic = progress_topic(self._settings.capture.topic_prefix)
        starts = self.lows([(topic, 0)])
        ends = self._offsets([(topic, 0)], LATEST, IsolationLevel.READ_COMMITTED)
        before: int | None = None
        for message in read_range(self._kafka, starts, ends, self._while_waiting):
            if (value := message.value()) is None:
                continue
            progress = parse_state(Progress, value, topic)
            is_own = progress.slot == self._settings.capture.slot_name
            if is_own and progress.position < position:
                before = progress.ts_ms or message.timestamp()[1]
        return before

    def _first(
        self, topics: Mapping[str, TableTopic], since_ms: int, counts: Callable[[Message], bool]
    ) -> Offsets:
        """Return the first matching record of each partition since a time, or the end."""
        starts = self._first_since(_partitions(topics), max(0, since_ms))
        _, ends = self.bounds(topics)
        offsets: Offsets = {topic: dict(numbers) for topic, numbers in ends.items()}
        for topic, numbers in starts.items():
            for number, start in numbers.items():
                alone = {topic: {number: start}}, {topic: {number: ends[topic][number]}}
                for message in read_range(self._kafka, *alone, self._while_waiting):
                    if not topics[topic].table or counts(message):
                        offsets[topic][number] = place_of(message)[2]
                        break
        return offsets

    def _since_ms(self) -> int:
        return int((time.time() - self._keep.total_seconds()) * 1_000)

    def _too_old(self, what: str) -> LogForgottenError:
        return LogForgottenError(
            f"{what} may be older than log.keep ({self._keep}): changes since then can be missing",
            where="start",
            remedy="start at the beginning, which has the newest change of each row; or at a later"
            " time",
        )


def _is_behind(message: Message, cut: Position) -> bool:
    header = headers_of(message).get(HEADER)
    return header is not None and parse_header(header).position > cut


def _partitions(topics: Mapping[str, TableTopic]) -> list[tuple[str, int]]:
    return [(topic.name, number) for topic in topics.values() for number in range(topic.partitions)]

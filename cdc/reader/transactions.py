"""Records of the tables' topics → whole transactions of the source, in the order of commits.

In: rounds of records, each up to the newest cut of the log (docs/decisions/0004). Out: one iterator
of changes for each transaction that is complete in the log, at least once. A transaction counts as
processed once the caller asks for the next one. Then the cut may be kept: at most every second, and
at the end of each round.
"""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import Final, NamedTuple

from confluent_kafka import Message

from cdc.errors import ConfigError, LogFormatError, LogUnreachableError
from cdc.log.offsets import Offsets
from cdc.log.state import News
from cdc.reader.access import LogAccess, log
from cdc.reader.consuming import WAIT_S, Membership, group_name, read_range
from cdc.reader.envelope import headers_of
from cdc.reader.events import ChangeEvent
from cdc.reader.lasting import KEEP_S, LastingReader
from cdc.reader.sorting import SortedRecords
from cdc.reader.start import Partition, Start, parse_start
from cdc.reader.topics import TableTopic
from cdc.records.position import HEADER, INDEX_MAX, Lsn, Position, parse_header
from cdc.records.state import Phase
from cdc.records.topics import reader_topic

_IDLE_S: Final = 1.0
_RANK: Final = {"d": 0}
"""The delete of a frame comes first, as its row has another key now."""


class _TurnOverError(Exception):
    """Another member has the turn."""


class _TransactionKey(NamedTuple):
    """The key of changes in one transaction, or of rows that a snapshot has read at once.

    ``last`` is the highest index that it may have.
    """

    epoch: int
    commit_lsn: Lsn
    last: int

    @property
    def end(self) -> Position:
        """Return the position up to which everything is processed after it."""
        return Position(self.epoch, self.commit_lsn, self.last)

    @property
    def is_snapshot(self) -> bool:
        """Whether a snapshot has made the changes: its rows, or a TRUNCATE before them."""
        return self.last in {0, INDEX_MAX}


class SourceTransaction(Iterator[ChangeEvent]):
    """The changes of one transaction, in order. Read them before the next transaction.

    ``is_snapshot``: it has rows that a snapshot has read, up to that LSN. ``xid`` is None then.
    """

    def __init__(
        self, group: _TransactionKey, first: ChangeEvent, rest: Iterator[ChangeEvent]
    ) -> None:
        self.epoch = group.epoch
        self.commit_lsn = group.commit_lsn
        self.is_snapshot = group.is_snapshot
        self.commit_time: datetime = first.commit_time
        self.xid = None if group.is_snapshot else first.source.xid
        self._first: ChangeEvent | None = first
        self._rest = rest
        self._failure: BaseException | None = None

    def __next__(self) -> ChangeEvent:
        first, self._first = self._first, None
        try:
            return next(self._rest) if first is None else first
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def raise_failure(self) -> None:
        """Raise the error that ended the changes early again, as the caller may have caught it."""
        if self._failure is not None:
            raise self._failure


class TransactionStream(LastingReader[SourceTransaction]):
    """The transactions, as an iterator to be closed: a ``with`` block does that.

    One member of a group reads. The others wait until it has left.
    """

    def __init__(self, access: LogAccess, group: str | None, start: Start) -> None:
        settings = access.settings
        if not (access.topics.has_cut and settings.capture.position_header):
            raise ConfigError(
                "transactions=True needs topics that Millrace writes, with position.header:"
                " other topics don't show where a transaction is complete",
                where="transactions",
                remedy="read changes one by one",
            )
        parse_start(start)
        super().__init__(access)
        self._start = start
        self._group = access.group(group)
        topic = reader_topic(settings.capture.topic_prefix)
        self._member = (
            None
            if group is None
            else Membership(settings.kafka, group_name(settings, group), topic, self._hand_over)
        )
        self._log = access.log_reader()
        self._news = News(settings.kafka, settings.capture.topic_prefix)
        self._topics: Mapping[str, TableTopic] = {}
        self._offsets: dict[Partition, int] = {}
        self._next_offsets: dict[Partition, int] = {}
        self._cut = Position(0, Lsn(0), 0)
        self._round_cut = self._cut
        self._turn = 0
        self._has_begun = False
        self._given: tuple[_TransactionKey, SourceTransaction] | None = None
        self._is_kept = True
        self._records: SortedRecords | None = None
        self._groups: Iterator[tuple[_TransactionKey, Iterator[ChangeEvent]]] = iter(())

    def _open(self) -> None:
        if self._group is not None:
            self._group.ensure_topic()

    @property
    def _is_alone(self) -> bool:
        return self._member is not None and self._member.complaints.is_alone

    def _hurry(self, seconds: float) -> None:
        if self._group is not None:
            self._group.hurry(seconds)

    def _hand_over(self) -> None:
        """Keep the cut: another member continues behind the processed transactions."""
        if self._is_open:
            self._keep()

    def _leave(self) -> None:
        self._end_round()
        if self._member is not None:
            self._member.close()

    def _next(self) -> SourceTransaction | None:
        """Return the next transaction, or None after a while."""
        if self._member is not None and not self._has_turn(self._member):
            return None
        try:
            if not self._topics:
                self._begin()
                self._has_begun = True
            for group, events in self._groups:
                if (first := next(events, None)) is not None:
                    self._given = group, SourceTransaction(group, first, events)
                    return self._given[1]
            if self._records is not None:
                self._finish_round()
            has_news = self._read_round()
        except _TurnOverError:
            return None
        except LogUnreachableError as error:  # the round is read again once brokers are back
            if not self._has_begun:
                raise
            log.warning("waiting for the log: %s", error.what)
            has_news = False
            self._end_round()
            self._access.connect()
            self._log = self._access.log_reader()
        if not has_news:
            self._news.wait(self._access.stopping.event, _IDLE_S, WAIT_S)
        return None

    def _has_turn(self, member: Membership) -> bool:
        """Whether this member reads on. Another one may have read since its last turn."""
        has_turn = member.has_turn()
        if not has_turn or member.turns != self._turn:
            self._end_round()
            self._topics, self._offsets, self._is_kept = {}, {}, True
            self._turn = member.turns
        return has_turn

    def _attend(self) -> None:
        """Raise if the round needn't be read any further."""
        self._access.end_when_stopped()
        if self._member is not None and not self._member.stay():
            raise _TurnOverError

    def _begin(self) -> None:
        """Find where to begin, or the group's position."""
        access = self._access
        access.topics.progress()
        topics = access.topics.read()
        if self._group is None or not self._group.read():
            self._cut, offsets = access.first_cut(self._start, topics)
            if self._group is not None:
                kept_from = access.finder.kept_from(topics)
                self._group.begin(topics, offsets, kept_from, self._cut)
        else:
            self._group.require_kind(transactions=True)
            access.topics.require_same(self._group.ids())
            self._group.require_kept(access.finder, topics)
            self._group.require_tables(topics, access.topics.left_out)
            assert self._group.cut is not None  # noqa: S101 (its kind is that)
            self._cut = self._group.cut
            offsets = {
                name: {n: self._group.offset(topic, n) for n in range(topic.partitions)}
                for name, topic in topics.items()
            }
        self._topics = topics
        self._offsets = {(name, n): offsets[name][n] for name in offsets for n in offsets[name]}

    def _read_round(self) -> bool:
        """Read everything new up to the log's cut, sorted. False: nothing is new."""
        capture = self._access.settings.capture
        state = self._log.state(capture.topic_prefix, capture.slot_name, lambda _line: None)
        topics = self._topics = self._access.topics.read()
        cut = state.progress.cut
        # Rows of a snapshot share one position, and more may come until it is complete.
        if state.progress.phase is not Phase.STREAMING or cut <= self._cut:
            return False
        letters = {name: topic for name, topic in topics.items() if not topic.table}
        _, ends = self._access.finder.bounds(letters)
        ends |= {name: state.ends[name] for name in topics if name in state.ends}
        starts: Offsets = {}
        for name in ends:
            starts[name] = {
                n: self._offsets.get((name, n), 0) for n in range(topics[name].partitions)
            }
        self._records = SortedRecords(capture.spill_memory_bytes, capture.spill_directory)
        self._next_offsets = {(name, n): ends[name][n] for name in starts for n in starts[name]}
        for message in read_range(self._access.settings.kafka, starts, ends, self._attend):
            self._take(message, cut)
            self._attend()
        self._round_cut = cut
        events = _events(self._records, self._access, topics, self._member)
        self._groups = groupby(events, _group_of)
        return True

    def _take(self, message: Message, cut: Position) -> None:
        """Add a record to the round, if it is within the cut and wasn't processed before."""
        place = message.topic() or "", message.partition() or 0
        if not self._topics[place[0]].table:
            self._access.tell(self._access.dead_letter(message))
            return
        header = headers_of(message).get(HEADER)
        if header is None:
            raise LogFormatError(
                f"a record has no header {HEADER}, so its transaction is unknown",
                where=f"topic {place[0]}, partition {place[1]}, offset {message.offset()}",
                remedy="read changes one by one",
            )
        position = parse_header(header).position
        if position > cut:
            self._next_offsets[place] = min(self._next_offsets[place], message.offset() or 0)
        elif self._records is not None and (
            position > self._cut or (position == self._cut and self._ends_rows(message))
        ):
            self._records.add(str(position), message)

    def _ends_rows(self, message: Message) -> bool:
        """Whether a record ends rows.

        In a table that joins, it may be behind that table's cut, and isn't older.
        """
        return self._access.envelopes.operation(message) in {"t", "p"}

    def _settle(self) -> None:
        """Count the last item as processed, as the caller asks for more."""
        if self._given is not None:
            group, transaction = self._given
            transaction.raise_failure()
            self._cut = group.end
            self._process(self._cut, transaction.commit_time)
            self._given, self._is_kept = None, False
            if time.monotonic() - self._kept_at >= KEEP_S:
                self._keep()

    def _finish_round(self) -> None:
        self._end_round()
        self._offsets |= self._next_offsets
        self._cut = self._round_cut
        self._is_kept = False
        self._keep()

    def _end_round(self) -> None:
        self._groups = iter(())
        if self._records is not None:
            self._records.close()
            self._records = None

    def _write(self) -> None:
        if self._group is not None and not self._is_kept:
            self._group.keep_cut(self._topics, self._offsets, self._cut)
            if self._member is not None:
                self._member.complaints.is_alone = False
        self._is_kept = True


def _events(
    records: SortedRecords,
    access: LogAccess,
    topics: Mapping[str, TableTopic],
    member: Membership | None,
) -> Iterator[ChangeEvent]:
    """Yield a round's events in order. An event in each partition comes once."""

    def read() -> Iterator[ChangeEvent]:
        for message in records:
            if member is not None:
                member.stay()  # the next member begins behind the processed ones
            event = access.envelopes.event(message, topics[message.topic() or ""].table)
            if event is not None:
                yield event

    for position, of_frame in groupby(read(), lambda event: event.position):
        if position is None or position.index == 0:
            yield from _once(of_frame)
            continue
        yield from sorted(_once(of_frame), key=lambda event: _RANK.get(event.operation, 1))


def _group_of(event: ChangeEvent) -> _TransactionKey:
    epoch, commit_lsn, index = event.position or Position(0, Lsn(0), 0)
    return _TransactionKey(epoch, commit_lsn, index if index in {0, INDEX_MAX} else INDEX_MAX - 1)


def _once(events: Iterator[ChangeEvent]) -> Iterator[ChangeEvent]:
    """Yield an event that ends rows once per table and bounds, as each partition has it."""
    ended = set[tuple[str, str, str]]()
    for event in events:
        if event.operation in {"t", "p"}:
            name = event.table, event.operation, repr(event.ended)
            if name in ended:
                continue
            ended.add(name)
        yield event

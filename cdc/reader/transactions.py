"""Records of the tables' topics → whole transactions of the source, in the order of their commits.

What goes in: rounds of records, each up to the newest cut of the log (docs/decisions/0004). What
comes out: one iterator of changes for each transaction that is whole in the log, at least once. A
transaction is processed once the caller asks for the next one. Then the cut may be kept: at most
every second, and at the end of each round.
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
from cdc.reader.group import Partition
from cdc.reader.lasting import KEEP_S, LastingReader
from cdc.reader.sorting import SortedRecords
from cdc.reader.start import Start, parse_start
from cdc.reader.topics import TableTopic
from cdc.records.bounds import ENDED_KEY
from cdc.records.position import HEADER, INDEX_MAX, Lsn, Position, parse_header
from cdc.records.state import Phase
from cdc.records.topics import TRUNCATE_KEY, reader_topic

_IDLE_S: Final = 1.0
_RANK: Final = {"d": 0}
"""Of the changes of one frame the delete comes first: its row has another key now."""


class _TransactionKey(NamedTuple):
    """What makes changes one transaction; rows that a snapshot has read at once are one, too.

    ``last`` is the highest index that it may have.
    """

    epoch: int
    commit_lsn: Lsn
    last: int

    @property
    def end(self) -> Position:
        """The position up to where all is processed once it is."""
        return Position(self.epoch, self.commit_lsn, self.last)

    @property
    def is_snapshot(self) -> bool:
        """Whether a snapshot has made the changes: its rows, or a TRUNCATE before them."""
        return self.last in {0, INDEX_MAX}


class SourceTransaction(Iterator[ChangeEvent]):
    """The changes of one transaction, in their order: to be read before the next one is asked for.

    ``is_snapshot``: it has rows that a snapshot has read, up to that LSN; ``xid`` is None then.
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

    def __next__(self) -> ChangeEvent:
        first, self._first = self._first, None
        return next(self._rest) if first is None else first


class TransactionStream(LastingReader[SourceTransaction]):
    """The transactions, as an iterator to be closed: a ``with`` block does that.

    A group has one member at work; others wait until it has gone.
    """

    def __init__(self, access: LogAccess, group: str | None, start: Start) -> None:
        settings = access.settings
        if not (access.topics.has_cut and settings.capture.position_header):
            raise ConfigError(
                "transactions=True needs topics that Millrace writes, with position.header: others"
                " don't say up to where transactions are whole",
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
            else Membership(settings.kafka, group_name(settings, group), topic)
        )
        self._log = access.log_reader()
        self._news = News(settings.kafka, settings.capture.topic_prefix)
        self._topics: Mapping[str, TableTopic] = {}
        self._offsets: dict[Partition, int] = {}
        self._next_offsets: dict[Partition, int] = {}
        self._cut = Position(0, Lsn(0), 0)
        self._round_cut = self._cut
        self._given: Position | None = None
        self._is_kept = True
        self._records: SortedRecords | None = None
        self._groups: Iterator[tuple[_TransactionKey, Iterator[ChangeEvent]]] = iter(())

    def _open(self) -> None:
        if self._group is not None:
            self._group.ensure_topic()

    def _leave(self) -> None:
        self._end_round()
        if self._member is not None:
            self._member.close()

    def _next(self) -> SourceTransaction | None:
        """The next transaction, or None after a while."""
        if self._member is not None and not self._member.has_turn():
            self._end_round()  # another member goes on where this one has kept that it is
            self._topics, self._offsets, self._is_kept = {}, {}, True
            return None
        if not self._topics:
            self._begin()
        for group, events in self._groups:
            if (first := next(events, None)) is not None:
                self._given = group.end
                return SourceTransaction(group, first, events)
        if self._records is not None:
            self._finish_round()
        try:
            has_news = self._read_round()
        except LogUnreachableError as error:  # the round is read again once brokers are back
            log.warning("waiting for the log: %s", error.what)
            has_news = False
            self._end_round()
            self._access.connect()
            self._log = self._access.log_reader()
        if not has_news:
            self._news.wait(self._access.stopping.event, _IDLE_S, WAIT_S)
        return None

    def _begin(self) -> None:
        """Find where to begin, or where the group is."""
        access = self._access
        access.topics.progress()
        topics = dict(access.topics.read())
        if self._group is None or not self._group.read():
            self._cut, offsets = access.first_cut(self._start, topics)
            if self._group is not None:
                kept_from = access.finder.kept_from(topics)
                self._group.begin(topics, offsets, kept_from, self._cut)
        else:
            self._group.require_kind(transactions=True)
            access.topics.require_same(self._group.ids())
            self._group.require_kept(access.finder, topics)
            self._group.require_tables(topics)
            assert self._group.cut is not None  # noqa: S101 (its kind is that)
            self._cut = self._group.cut
            offsets = {
                name: {n: self._group.offset(topic, n) for n in range(topic.partitions)}
                for name, topic in topics.items()
            }
        self._topics = topics
        self._offsets = {(name, n): offsets[name][n] for name in offsets for n in offsets[name]}

    def _read_round(self) -> bool:
        """Read all that is new up to the log's cut, sorted; False: nothing is new."""
        capture = self._access.settings.capture
        state = self._log.state(capture.topic_prefix, capture.slot_name, lambda _line: None)
        topics = self._topics = dict(self._access.topics.read())
        cut = state.progress.cut
        # Rows of a snapshot have one position, and more of them may come until it is complete.
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
        end_when_stopped = self._access.end_when_stopped
        for message in read_range(self._access.settings.kafka, starts, ends, end_when_stopped):
            self._take(message, cut)
            end_when_stopped()
        self._round_cut = cut
        self._groups = groupby(self._events(self._records), _group_of)
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
                f"a record has no header {HEADER}, so that its transaction isn't known",
                where=f"topic {place[0]}, partition {place[1]}, offset {message.offset()}",
                remedy="read changes one by one",
            )
        position = parse_header(header).position
        if position > cut:
            self._next_offsets[place] = min(self._next_offsets[place], message.offset() or 0)
        elif self._records is not None and (
            position > self._cut or _ends_rows(message, position, self._cut)
        ):
            self._records.add(str(position), message)

    def _events(self, records: SortedRecords) -> Iterator[ChangeEvent]:
        """The round's events in order; what is in each partition comes once."""
        events = (
            event
            for message in records
            if (event := self._access.envelopes.event(message, self._table(message))) is not None
        )
        for position, of_frame in groupby(events, lambda event: event.position):
            if position is None or position.index == 0:
                yield from _once(of_frame)
                continue
            yield from sorted(_once(of_frame), key=lambda event: _RANK.get(event.operation, 1))

    def _table(self, message: Message) -> str:
        return self._topics[message.topic() or ""].table

    def _settle(self) -> None:
        """Take what was given last for processed: the caller asks for more."""
        if self._given is not None:
            self._cut, self._given = self._given, None
            self._is_kept = False
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
        self._is_kept = True


def _group_of(event: ChangeEvent) -> _TransactionKey:
    epoch, commit_lsn, index = event.position or Position(0, Lsn(0), 0)
    return _TransactionKey(epoch, commit_lsn, index if index in {0, INDEX_MAX} else INDEX_MAX - 1)


def _ends_rows(message: Message, position: Position, kept: Position) -> bool:
    """Whether a record ends rows just at the position that is kept.

    Of a table that joins it may come behind that cut, and is no older than it.
    """
    key = message.key() or b""
    return position == kept and (
        key == TRUNCATE_KEY or key.startswith(f'{{"{ENDED_KEY}":'.encode())
    )


def _once(events: Iterator[ChangeEvent]) -> Iterator[ChangeEvent]:
    """What ends rows is in each partition of a topic: it comes once for each table and bounds."""
    ended = set[tuple[str, str, str]]()
    for event in events:
        if event.operation in {"t", "p"}:
            name = event.table, event.operation, repr(event.ended)
            if name in ended:
                continue
            ended.add(name)
        yield event

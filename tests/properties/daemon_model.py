"""The real code that reads a table in chunks, on a heap in miniature (heap_model.py), and a log.

Threads, stream and Kafka stand still until they are told to go on: in between the stream lags,
chunks wait, fail, or their watermarks come late, and the daemon may be gone.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.errors import SourceUnreachableError
from cdc.events.changes import Row
from cdc.events.rules import EventRules
from cdc.kafka.follow import Followed, Follower
from cdc.postgres.described import CapturedTable
from cdc.records.position import HEADER, Lsn, Position, parse_header
from cdc.records.record import Part, Record, each
from cdc.records.schema import TableSchema
from cdc.records.state import TableState
from cdc.records.topics import data_topic, schema_topic, table_topic
from cdc.settings import Settings
from cdc.stream.completion import Asked, Key
from cdc.stream.in_progress import InProgress
from cdc.stream.signals import Place as StreamPlace
from cdc.stream.signals import SignalPlace
from cdc.stream.translation import Limits, Translation
from cdc.tables.lookups import Lookups
from cdc.tables.tables import Tables
from cdc.wal.frames import copy_data
from snapshots.arrivals import Arrivals
from snapshots.channel import Channels
from snapshots.chunk import AlteredError, Chunk, Known, Place
from snapshots.incremental import IncrementalSnapshots
from snapshots.pace import Pace
from snapshots.pages import parse_tid
from snapshots.windows import Job, WindowReader
from tests.properties.heap_model import (
    BLOCK,
    NAME,
    XID_MASK,
    Committed,
    Heap,
    columns_of,
    copy_text,
    relation_message,
)
from tests.unit.cdc import wal_bytes as wal

ROWS_MAX: Final = 3
"""Rows of a chunk."""
PAGES_MAX: Final = 2
LIMITS: Final = Limits(1_000, 1 << 20)

Event = tuple[str | None, dict[str, Any] | None, Position, int]
"""Key, value, position, and the version of the schema."""


class Threads:
    """Stands for WindowReader: its jobs go on when the program says so."""

    threads = 1
    rows_max = ROWS_MAX
    pace = Pace()

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.waiting: list[tuple[Job[Any], Callable[[], Any] | None, bool]] = []
        self._is_connected = False

    def tell_end(self) -> None:
        """Watermarks aren't rows."""

    def measure(self, *, is_busy: bool) -> None:
        """Nothing is slow."""

    def look(self, _table: CapturedTable, _streamed: Lsn) -> Job[Known]:
        return self._add(self._look, marked=False)

    def read(self, known: Known, place: Place, _streamed: Lsn) -> Job[Chunk]:
        return self._add(lambda: self._read(known, place), marked=True)

    def mark(self) -> Job[bool]:
        return self._add(lambda: True, marked=True)

    def close(self) -> None:
        """Nothing goes on."""

    def step(self, number: int) -> None:
        """One job acts, or writes its watermark."""
        self._drop_cancelled()
        if not self.waiting:
            return
        job, act, marked = self.waiting.pop(number % len(self.waiting))
        if act is None:
            self._heap.mark(job.id)
        elif self._heap.is_locked:
            self.waiting.append((job, act, marked))
            return
        else:
            self._connect()
            job.future.set_running_or_notify_cancel()
            try:
                job.found = act()
            except AlteredError as error:
                job.future.set_exception(error)
                return
            if marked:
                self.waiting.append((job, None, marked))
                return
        job.future.set_result(None)

    def fail(self, number: int, *, written: bool) -> None:
        """A connection is lost; maybe the watermark was written by then."""
        self._drop_cancelled()
        if self.waiting:
            job, act, _ = self.waiting.pop(number % len(self.waiting))
            if act is None and written:
                self._heap.mark(job.id)
            job.future.set_exception(SourceUnreachableError("lost"))

    def _drop_cancelled(self) -> None:
        self.waiting[:] = [one for one in self.waiting if not one[0].future.cancelled()]

    def _add(self, act: Callable[[], Any], *, marked: bool) -> Job[Any]:
        job: Job[Any] = Job()
        job.future = Future()
        self.waiting.append((job, act, marked))
        return job

    def _connect(self) -> None:
        """What was committed before is visible: WindowReader waits for that."""
        if not self._is_connected:
            self._is_connected = True
            for one in [o for o in self._heap.open if o.state == "committed"]:
                self._heap.show(one)

    def _look(self) -> Known:
        table = self._heap.table
        return Known(table, {leaf.oid: str(self._heap.altered) for leaf in table.leaves})

    def _read(self, known: Known, place: Place) -> Chunk:
        heap = self._heap
        if known.marks[place.leaf.oid] != str(heap.altered):
            raise AlteredError
        leaf = place.leaf.oid - known.table.leaves[0].oid
        visibility = heap.visibility
        found = heap.read(leaf, place.range, visibility)
        first, end = place.range
        names = tuple(column.name for column in known.table.columns)
        texts = [copy_text(names, *one) for one in found[:ROWS_MAX]]
        if len(texts) >= ROWS_MAX:
            last = texts[-1].rstrip(b"\n").rpartition(b"\t")[2]
            end = parse_tid(last) + 1
        rows = bytearray(b"".join(texts))
        file, number = heap.files[leaf], min(len(found), ROWS_MAX)
        return Chunk(known, place.leaf.oid, file, (first, end), rows, number, visibility, 0)


class Topic:
    """Stands for the signal topic and its follower."""

    def __init__(self, sent: list[bytes], place: SignalPlace) -> None:
        self._sent = sent
        self._next = place.offset

    def take(self) -> Iterator[Followed]:
        for offset in range(self._next, len(self._sent)):
            yield Followed("topic", offset, b"pre", self._sent[offset])
        self._next = len(self._sent)

    def close(self) -> None:
        """Nothing goes on."""


class NoArrivals:
    """Stands for Arrivals: there is no other table."""

    def turn(self, _position: Position) -> list[Record]:
        return []


class Log:
    """What Kafka has: committed records, and how far they reach."""

    def __init__(self, start: Lsn) -> None:
        place = Position(1, start, 0)
        self.progress: Any = SimpleNamespace(
            position=place, cut=place, flush_lsn=start, cut_ts_us=0, signals=SignalPlace()
        )
        self.records: list[Record] = []

    def states(self) -> tuple[list[TableState], list[TableSchema]]:
        tables: dict[bytes | None, TableState] = {}
        schemas: dict[bytes | None, TableSchema] = {}
        for one in self.records:
            if one.topic == table_topic("pre"):
                tables[one.key] = TableState.model_validate_json(one.value or b"")
            elif one.topic == schema_topic("pre"):
                schemas[one.key] = TableSchema.model_validate_json(one.value or b"")
        return list(tables.values()), list(schemas.values())

    def events(self) -> list[Event]:
        """The table's records."""
        found: list[Event] = []
        for one in self.records:
            if one.topic == data_topic("pre", NAME):
                place = parse_header(dict(one.headers)[HEADER])
                key = one.key.decode() if one.key is not None else None
                found.append((key, json.loads(one.value) if one.value else None, *place))
        return found


class Stay:
    """One life of the daemon."""

    def __init__(self, heap: Heap, log: Log, sent: list[bytes], options: Mapping[str, Any]) -> None:
        self._heap = heap
        self._log = log
        self.threads = Threads(heap)
        self.threads.threads = options["threads"]
        self.pending: list[Part] = []
        self._now = 0.0
        self.refuses = False
        """Whether the next look at rows of a table that is being read comes to nothing."""
        made = Settings(
            source={},
            capture={
                "topic.prefix": "pre",
                "table.include.list": "public.*",
                "toast.unavailable": options["toast"],
            },
            kafka={"bootstrap.servers": "nowhere"},
        )
        rules = EventRules(events=made.capture.event_modes)
        lookups = Lookups(
            lambda relation: columns_of(tuple(c.name for c in relation.columns)),
            lambda _: 9,
            self._reread,
            lambda _oid, _name: heap.table,
            lambda: (Lsn(0), 0),
            lambda _: None,
            lambda _: None,
            lambda _oid, _names: (),
        )
        self.tables = Tables(made, "db", *log.states(), lookups, rules, PLAIN)
        progress = log.progress
        reader = cast("WindowReader", self.threads)
        incremental = IncrementalSnapshots(reader, self.tables, PAGES_MAX * BLOCK, self._clock)
        topic = cast("Follower", Topic(sent, progress.signals))
        others = cast("Arrivals", NoArrivals())
        place = progress.signals
        self.channels = Channels(made.capture, None, self.tables, incremental, others, topic, place)
        self.translation = Translation(
            self.tables,
            progress,
            lambda _: None,
            in_progress=InProgress(Path("/nowhere"), 1 << 20),
            signals=self.channels,
            compiled=options["compiled"],
        )
        self._stream = Stream(heap.wal, progress.flush_lsn)

    def stream(self, number: int) -> int:
        """Take in so many messages; returns how many there were."""
        data = bytearray()
        count = 0
        while count < number and (message := self._stream.next()) is not None:
            data += message
            count += 1
        start = 0
        while start < len(data):
            start = self.translation.feed(data, start, len(data), LIMITS)
            self.pending += self.translation.take().records
        return count

    def turn(self) -> None:
        """Let chunks begin."""
        told = self.channels.turn(cast("StreamPlace", self.translation.cursor))
        self.pending += [*told.states, *told.events]

    def commit(self) -> None:
        """What was made is in the log."""
        cursor = self.translation.cursor
        self._log.records += each(self.pending)
        self.pending = []
        self._log.progress = SimpleNamespace(
            position=cursor.reached,
            cut=cursor.cut,
            flush_lsn=cursor.flush_lsn,
            cut_ts_us=cursor.cut_ts_us,
            signals=self.channels.place,
        )

    def wait(self) -> None:
        """Time goes by."""
        self._now += 60

    def _clock(self) -> float:
        self._now += 0.02
        return self._now

    def _reread(self, asked: Asked) -> dict[Key, Row] | None:
        """As reselect.py: those who asked are visible by then."""
        if self.refuses and self.translation._being_read:
            self.refuses = False
            return None
        for one in list(self._heap.open):
            if one.state == "committed" and one.xid & XID_MASK in asked.xids:
                self._heap.show(one)
        found: dict[Key, Row] = {}
        busy = {one.xid for one in self._heap.open}
        for version in self._heap.versions():
            hidden = version.made_by in busy
            ended = version.ended_by is not None and version.ended_by not in busy
            if not hidden and not ended and (version.key.encode(),) in asked.keys:
                names = [asked.relation.columns[index].name for index in asked.columns]
                texts = [version.values.get(name) for name in names]
                found[(version.key.encode(),)] = tuple(
                    None if text is None else text.encode() for text in texts
                )
        return found


class Stream:
    """The WAL from a place on, message by message."""

    def __init__(self, wal_of: list[Committed], since: Lsn) -> None:
        self._wal = wal_of
        self._number = sum(one.end_lsn <= since for one in wal_of)
        self._ready: list[bytes] = []
        self._announced: tuple[str, ...] = ()

    def next(self) -> bytes | None:
        """The next message, if there is one by now."""
        if not self._ready and self._number < len(self._wal):
            self._ready = [*self._messages(self._wal[self._number])]
            self._number += 1
        return self._ready.pop(0) if self._ready else None

    def _messages(self, one: Committed) -> Iterator[bytes]:
        lsn = one.commit_lsn - 10 * len(one.frames) - 5
        begin = b"B" + wal.u64(one.commit_lsn, 0) + wal.u32(one.xid & XID_MASK)
        yield copy_data(Lsn(lsn), begin)
        for frame in one.frames:
            if frame[:1] != b"M" and self._announced != one.columns:
                self._announced = one.columns
                yield copy_data(Lsn(0), relation_message(one.columns))
            lsn += 10
            yield copy_data(Lsn(lsn), frame)
        yield copy_data(one.commit_lsn, b"C\0" + wal.u64(one.commit_lsn, one.end_lsn, 0))

"""The end of a dropped partition's rows: each of its conditions, one after another."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import psycopg
import pytest
from structlog.testing import capture_logs

import snapshots.dropped_partitions
from cdc.compiled import fast
from cdc.errors import RecordRefusedError, SourceError, SourceUnreachableError
from cdc.postgres.described import TableDescription
from cdc.records.fingerprint import (
    EndedPartition,
    LeafFingerprint,
    PartitionLevel,
    TableFingerprint,
)
from cdc.records.position import INDEX_MAX, Lsn, Position
from cdc.records.record import Record, each
from cdc.records.state import Doubt, Phase, SnapshotRequest
from cdc.settings import CaptureSettings
from snapshots.dropped_partitions import DroppedPartitions
from snapshots.windows import Job, WindowReader
from tests.fixtures.made_changes import table
from tests.fixtures.made_tables import STATE, tables

LEVEL = PartitionLevel(10, (1,), "FOR VALUES FROM (1) TO (9)")
VALUES = "FOR VALUES IN ("
GONE = EndedPartition((LEVEL,), ("b1",))
FINGERPRINT = TableFingerprint(columns="c", identity="d 1 ", gone_bounds=("b0", "b1"), seen="1:1:")
CAPTURE: Any = {"topic.prefix": "pre", "table.include.list": "public.t"}
DESCRIBED = TableDescription(
    oid=STATE.oid,
    name=STATE.name,
    columns=table("id int4!, v text").columns,
    primary_key=("id",),
    replica_identity="d",
    identity=frozenset({"id"}),
    partitioned=True,
    leaves=(),
    rows_estimated=0,
    block_bytes=8192,
    row_filter=None,
    signature="",
    entry=STATE.entry,
)
READ = SnapshotRequest(kind="incremental")
DOUBT = Doubt(reason="unlogged", since_ms=1)


class Source:
    """A source whose WAL grows by each transaction, and what the daemon makes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: str = "delete") -> None:
        for name in ("query", "new_xid", "has_rows"):
            monkeypatch.setattr(snapshots.dropped_partitions, name, getattr(self, name))
        self.now, self.xid, self.open, self.wal = 0.0, 700, set[int](), 3_000
        self.rows: bool | None = False
        self.failures = 0
        self.is_away = False
        schema = table("id int4!, v text")
        (first, *others) = schema.columns
        numbered = (first.model_copy(update={"number": 1}), *others)
        settings = CaptureSettings(**CAPTURE, partition_drop_policy=policy)
        self.tables = tables(
            schemas=[schema.model_copy(update={"columns": numbered})],
            capture=CAPTURE | {"partition.drop.policy": policy},
        )
        self.update(fingerprint=FINGERPRINT, ended=(GONE,))
        self.dropped = DroppedPartitions(
            cast("WindowReader", self), self.tables, settings, lambda: self.now
        )
        start = Position(1, Lsn(self.wal), 0)
        self.cursor = fast.Cursor(start, start, Lsn(self.wal))

    def update(self, **state: object) -> None:
        now = self.tables.states.get(STATE.name, STATE)
        self.tables.states.put(now.model_copy(update=state))

    def ask(self, question: Callable[[psycopg.Connection], Any]) -> Job[Any]:
        job = Job[Any]()
        job.future = Future()
        try:
            job.result = question(cast("psycopg.Connection", self))
            job.future.set_result(None)
        except SourceUnreachableError as error:
            job.future.set_exception(error)
        return job

    def new_xid(self, _connection: object) -> int:
        self.xid += 1
        self.wal += 100
        return self.xid

    broken = False
    """As psycopg's connection has it."""

    def query(self, _connection: object, statement: str) -> list[tuple[Any, ...]]:
        if self.is_away:
            raise SourceUnreachableError("gone", where="here")
        if "xmin" in statement:
            return [(min(self.open, default=self.xid + 1),)]
        return [(str(Lsn(self.wal)), 5_000_000)]

    def has_rows(self, _connection: object, oid: int, levels: object) -> bool | None:
        assert (oid, levels) == (STATE.oid, (LEVEL,))
        if self.failures:
            self.failures -= 1
            raise SourceError("statement timeout", where="here")
        return self.rows

    def turns(self, number: int = 20, *, is_streamed: bool = True) -> list[Record]:
        """Let time go by, in which the stream follows; returns the events."""
        events = list[Record]()
        for _ in range(number):
            self.now += 0.5
            if is_streamed:
                self.cursor.idle_at(Lsn(self.wal))
            events += each(self.dropped.turn(self.cursor).events)
        return events

    @property
    def state(self) -> Any:
        return self.tables.states[STATE.name]


def test_an_event_ends_the_rows_and_nothing_of_the_partition_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch)
    events = source.turns()
    assert [event.partition for event in events] == [0, 1, 2]
    upto = str(Position(1, Lsn(3_099), INDEX_MAX)).encode()
    assert all(upto in (event.value or b"") for event in events), "the WAL's end, asked for second"
    assert (source.state.ended, source.state.gone_partitions) == ((), 1)
    assert source.state.fingerprint.gone_bounds == ("b0",)
    assert source.turns() == []


def test_it_waits_for_writers_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    source.open = {690}
    assert source.turns() == []
    source.xid += 1
    source.open, end = {source.xid}, source.wal
    assert source.turns() == []
    source.wal += 1_000
    source.open = set()
    (event, *_) = source.turns()
    assert str(Position(1, Lsn(end - 1), INDEX_MAX)).encode() in (event.value or b"")


def test_it_waits_for_the_stream_which_has_to_move_on(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    assert source.turns(is_streamed=False) == []
    assert source.dropped.awaits_stream
    commit = Lsn(source.wal)
    source.cursor.begin(9, commit, 1)
    source.wal += 50
    assert source.turns() == []
    source.cursor.commit(commit, Lsn(source.wal))
    assert len(source.turns()) == 3
    assert not source.dropped.awaits_stream


@pytest.mark.parametrize("what", [{"requests": (READ,)}, {"doubt": DOUBT}, {"gone_ms": 5}])
def test_it_waits_while_the_table_is_read_or_has_to_be(
    monkeypatch: pytest.MonkeyPatch, what: dict[str, Any]
) -> None:
    source = Source(monkeypatch)
    source.turns(2)
    source.update(**what)
    assert source.turns() == []
    source.update(requests=(), doubt=None, gone_ms=0)
    assert len(source.turns()) == 3


def test_a_read_that_replaces_settles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    assert source.turns(is_streamed=False) == []
    assert source.dropped.awaits_stream
    at = Position(1, Lsn(source.wal), 0)
    states, reads = source.tables.states, source.tables.reads
    states.begin_snapshot(DESCRIBED, at)
    assert source.state.initial
    assert source.turns() == []
    reads.finish(STATE.name, source.state.initial, at, pages=1)
    assert source.turns() == []
    assert (source.state.phase, source.state.gone_partitions) == (Phase.STREAMING, 0)


@pytest.mark.parametrize(("rows", "policy"), [(True, "delete"), (False, "keep")])
def test_rows_stay_where_there_are_others_or_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, *, rows: bool, policy: str
) -> None:
    source = Source(monkeypatch, policy)
    source.rows = rows
    assert source.turns() == []
    assert (source.state.ended, source.state.gone_partitions) == ((), 2)
    assert source.state.fingerprint.gone_bounds == ("b0", "b1")


def test_what_is_locked_and_who_doesnt_answer_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch)
    source.rows = None
    assert source.turns(40) == []
    assert source.state.ended == (GONE,)
    source.rows, source.is_away = False, True
    assert source.turns(40) == []
    source.is_away = False
    assert len(source.turns(40)) == 3


@pytest.mark.parametrize(("failures", "ends"), [(3, True), (7, True), (8, False)])
def test_what_fails_is_asked_again_after_growing_pauses_and_then_stays(
    monkeypatch: pytest.MonkeyPatch, *, failures: int, ends: bool
) -> None:
    source = Source(monkeypatch)
    source.failures = failures
    pauses_s = 5 * (2 ** min(failures, 7) - 1)
    assert source.turns(2 * pauses_s) == []
    assert source.state.ended == (GONE,)
    assert len(source.turns(80)) == (3 if ends else 0)
    assert (source.state.ended, source.state.gone_partitions) == ((), 1 if ends else 2)


def test_others_dont_wait_for_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    source.failures = 4
    source.turns(100)
    other = GONE._replace(leaves=("b0",))
    source.update(ended=(GONE, other))
    assert len(source.turns(10)) == 3
    assert source.state.ended == (GONE,)


def test_whom_it_waits_for_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    with capture_logs() as logs:
        source.turns()
    assert [line for line in logs if line["log_level"] == "warning"] == []
    source.update(ended=(GONE,))
    source.open = {690}
    with capture_logs() as logs:
        source.turns(100)
    (line,) = logs
    assert line["tables"] == "public.t"
    assert "pg_prepared_xacts" in line["remedy"]
    source.open, source.rows = set(), None
    with capture_logs() as logs:
        source.turns(100)
    (line,) = logs
    assert "locked" in line["event"]
    source.rows = False
    assert len(source.turns()) == 3


def test_a_state_has_so_many_and_the_rows_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    listed = ", ".join(f"'{number}'" for number in range(1_500))
    leaves = [
        LeafFingerprint(
            oid,
            "r",
            oid,
            0,
            "p",
            "7",
            f"b{oid}",
            (PartitionLevel(oid, (1,), f"{VALUES}{listed})"),),
        )
        for oid in range(30)
    ]
    before = FINGERPRINT.model_copy(update={"leaves": tuple(leaves)})
    now = FINGERPRINT.carrying(before)
    source.update(fingerprint=now, **source.tables.ended.note_gone(source.state, before, now))
    assert len(source.state.model_dump_json()) < 250_000
    assert len(source.state.ended) + source.state.gone_partitions == 31
    assert GONE in source.state.ended
    assert len(source.state.ended) > 10


def test_why_rows_stay_is_said_for_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    cut = LeafFingerprint(1, "r", 1, 0, "p", "7", "b1", (), 30_000)
    hashed = cut._replace(oid=2, bound="b2", levels=(PartitionLevel(2, (), ""),), cut=0)
    before = FINGERPRINT.model_copy(update={"leaves": (cut, hashed)})
    with capture_logs() as logs:
        update = source.tables.ended.note_gone(source.state, before, FINGERPRINT)
    assert update == {"ended": (GONE,)}
    assert [line["partitions"] for line in logs] == [1, 1]
    assert sum("too long" in line["reason"] for line in logs) == 1


def test_nothing_ends_of_a_table_that_is_set_aside_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read that brings it back replaces all rows."""
    source = Source(monkeypatch)
    while not source.dropped.awaits_stream:
        source.turns(1)
    source.tables.obstacles.set_aside(STATE.name, RecordRefusedError("no"))
    assert source.turns() == []
    assert source.state.ended == (GONE,)
    source.tables.begin_anew(DESCRIBED, Position(1, Lsn(source.wal), 0), (READ,))
    assert source.state.ended == ()


def test_a_table_that_its_event_cannot_be_made_of_is_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RecordRefusedError("no")

    source = Source(monkeypatch)
    monkeypatch.setattr(source.tables.encoders, "encoder", refuse)
    assert source.turns() == []
    assert source.tables.obstacles.is_given_up(STATE.name)

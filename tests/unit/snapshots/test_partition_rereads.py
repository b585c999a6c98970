"""Partitions of a table are read again: which ones, with which events between, in which order."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from cdc.compiled.fast import Cursor
from cdc.postgres.described import Leaf
from cdc.records.fingerprint import (
    LEAF_CHARS_MAX,
    DoubtfulLeaf,
    LeafFingerprint,
    PartitionLevel,
    TableFingerprint,
)
from cdc.records.position import Lsn
from cdc.records.record import each as each_record
from cdc.records.state import Doubt, LeafRead, SnapshotRequest, TableState
from snapshots.chunk import DescribedTable
from snapshots.incremental import IncrementalSnapshots
from snapshots.reader import ALL
from snapshots.windows import WindowReader
from tests.unit.snapshots.test_changes import TABLE
from tests.unit.snapshots.test_incremental import Reader
from tests.unit.snapshots.test_requests import HERE, A, SignalledTables


def fingerprint(*oids: int, gone: tuple[str, ...] = ()) -> TableFingerprint:
    leaves = tuple(LeafFingerprint(oid, "r", oid, 0, "p", f"{oid}", f"b{oid}") for oid in oids)
    return TableFingerprint(columns="", identity="", leaves=leaves, gone_bounds=gone, seen="1:1:")


def doubtful(oid: int) -> DoubtfulLeaf:
    bound = f"FOR VALUES FROM ({oid}0) TO ({oid + 1}0)"
    return DoubtfulLeaf(oid, f"{oid}", (PartitionLevel(oid, (1,), bound),))


def doubt(*oids: int, replaces: bool = True) -> Doubt:
    return Doubt(reason="why", since_ms=1, replaces=replaces, leaves=tuple(map(doubtful, oids)))


def described(*oids: int) -> DescribedTable:
    """A table with these partitions, and no others, by now."""
    leaves = tuple(Leaf(oid, A, oid, "d", frozenset({"id"})) for oid in oids)
    (first, *others) = TABLE.columns
    columns = (first.model_copy(update={"number": 1}), *others)
    table = replace(TABLE, name=A, columns=columns, leaves=leaves, fingerprint=fingerprint(*oids))
    return DescribedTable(table, {})


class Rereads:
    """A table of three partitions, of which a doubt concerns some; a read of these is asked for."""

    def __init__(self, why: Doubt, left_out: Sequence[int], gone: tuple[str, ...] = ()) -> None:
        self.signalled, self.reader = SignalledTables(), Reader()
        self.tables = self.signalled.tables
        self.tables.schemas.described(described(1, 2, 3).table, HERE)
        update = {"fingerprint": fingerprint(1, 2, 3, gone=gone), "doubt": why}
        self.tables.states.put(self.state.model_copy(update=update))
        self.reads = IncrementalSnapshots(cast("WindowReader", self.reader), self.tables, 1 << 20)
        self.cursor, self.lsn = Cursor(HERE, HERE, Lsn(500)), 500
        self.left_out = tuple(LeafRead(leaf=oid, file=oid, ranges=(ALL,)) for oid in left_out)
        self.tables.reads.ask({A: None}, "", reset=why.replaces, read=self.left_out)
        self.turn()

    @property
    def state(self) -> TableState:
        return self.tables.states[A]

    @property
    def request(self) -> SnapshotRequest:
        (request,) = self.state.requests
        return request

    def turn(self) -> list[str]:
        """Let the stream move; returns what the events are, once for all partitions of the log."""
        self.lsn += 100
        self.cursor.idle_at(Lsn(self.lsn))
        events = each_record(self.reads.turn(self.cursor).events)
        return [event.value.decode() for event in events if event.partition == 0 and event.value]

    def describe(self, *oids: int) -> list[str]:
        self.reader.descriptions[A].result = described(*oids)
        return self.turn()

    def reset(self) -> list[str]:
        """The mark has come; returns the events."""
        mark = self.reader.marks[-1]
        mark.result, mark.behind = True, Lsn(self.lsn + 50)
        events = self.turn()
        self.turn()
        return events


def ops(events: list[str]) -> list[str]:
    return ["p" if '"op":"p"' in event else "t" if '"op":"t"' in event else "" for event in events]


def test_what_an_event_can_say_is_emptied_and_read_alone() -> None:
    rereads = Rereads(doubt(1, 2), left_out=[3], gone=("b9",))
    rereads.describe(1, 2, 3)
    assert ops(rereads.reset()) == ["p", "p"]
    assert rereads.request.kind == "initial"
    assert rereads.request.read == rereads.left_out
    assert rereads.state.gone_partitions == 1
    rereads.describe(1, 2, 3)
    assert rereads.request.read == rereads.left_out


def test_bounds_of_one_that_has_gone_since_are_not_emptied() -> None:
    """Others may have rows there; the table's last partition may be the one that went."""
    for there in ((2, 3), ()):
        rereads = Rereads(doubt(1), left_out=there)
        update = {"fingerprint": fingerprint(*there, gone=("b1",))}
        rereads.tables.states.put(rereads.state.model_copy(update=update))
        rereads.describe(*there)
        assert rereads.reset() == []
        assert rereads.state.gone_partitions == 1
        rereads.describe(*there)
        assert (rereads.state.requests, rereads.state.doubt) == ((), None)


def test_all_is_read_where_one_went_before_its_bounds_were_emptied() -> None:
    """What was inserted then went into the default partition, and was emptied with them."""
    rereads = Rereads(doubt(1), left_out=[2, 3])
    rereads.describe(1, 2, 3)
    assert ops(rereads.reset()) == ["p"]
    rereads.describe(2, 3)
    assert (rereads.request.kind, rereads.request.read) == ("initial", ())


@pytest.mark.parametrize(
    "why",
    {
        "all": Doubt(reason="why", since_ms=1, replaces=True),
        "no bounds": doubt(1).model_copy(update={"leaves": (DoubtfulLeaf(1, "1"),)}),
        "too long": doubt(*range(1, LEAF_CHARS_MAX // 30)).and_also(doubt(1)),
    }.values(),
    ids=["all", "no bounds", "too long"],
)
def test_else_all_rows_are_replaced(why: Doubt) -> None:
    rereads = Rereads(why, left_out=[2, 3] if len(why.leaves) == 1 else [], gone=("b9",))
    rereads.describe(1, 2, 3)
    assert ops(rereads.reset()) == ["t"]
    assert rereads.request.read == ()
    assert rereads.state.gone_partitions == 0


def test_a_key_that_is_renamed_before_lets_all_rows_be_replaced() -> None:
    """The event has the new version's number, and bounds speak of the old name."""
    rereads = Rereads(doubt(1), left_out=[2, 3])
    renamed = described(1, 2, 3)
    other = replace(renamed.table, signature="another")
    rereads.reader.descriptions[A].result = renamed._replace(table=other)
    rereads.turn()
    assert ops(rereads.reset()) == ["t"]


def test_a_second_doubt_adds_its_partition_to_the_read_under_way() -> None:
    rereads = Rereads(doubt(1), left_out=[2, 3])
    rereads.describe(1, 2, 3)
    rereads.reset()
    rereads.tables.reads.doubt(A, doubt(2))
    assert (rereads.request.reset, [each.leaf for each in rereads.request.read]) == (True, [3])
    rereads.turn()
    rereads.describe(1, 2, 3)
    assert ops(rereads.reset()) == ["p", "p"]
    assert [each.leaf for each in rereads.request.read] == [3]
    rereads.tables.reads.doubt(A, Doubt(reason="all of it", since_ms=2, replaces=True))
    assert rereads.request.read == ()


def test_a_reset_that_somebody_asks_for_is_of_all_rows_and_settles_the_doubt() -> None:
    rereads = Rereads(doubt(1), left_out=[2, 3])
    own: Any = rereads.request
    rereads.signalled.signal("execute", {"data-collections": ["public.a"], "reset": True})
    asked = next(request for request in rereads.state.requests if request.signal)
    first = [asked.model_copy(update={"order": 0}), own]
    rereads.tables.states.set_requests(A, first)
    rereads.turn()
    rereads.describe(1, 2, 3)
    assert ops(rereads.reset()) == ["t"]
    assert rereads.request.signal, "the daemon's own isn't read behind it"


def test_many_partitions_keep_which_they_are_and_not_their_bounds() -> None:
    many = doubt(*range(1, 1_000))
    both = many.and_also(doubt(1_001))
    assert len(both.leaves) == 1_000
    assert not any(leaf.levels for leaf in both.leaves)
    assert len(both.model_dump_json()) < 40_000


def test_a_read_that_has_become_one_of_all_rows_stays_so_and_is_not_begun_again() -> None:
    for why, there in ((doubt(1), (2, 3)), (Doubt(reason="all", since_ms=1, replaces=True), (2,))):
        rereads = Rereads(why, left_out=[2, 3] if why.leaves else [])
        rereads.describe(1, 2, 3)
        rereads.reset()
        rereads.describe(*there)
        begun = rereads.request.begun_ms
        read = (LeafRead(leaf=2, file=2, ranges=(ALL,)),)
        rereads.tables.states.set_requests(A, [rereads.request.model_copy(update={"read": read})])
        rereads.turn()
        rereads.describe(*there)
        assert [each.begun_ms for each in rereads.state.requests] in ([], [begun])


def test_bounds_that_were_emptied_for_one_that_has_gone_since_let_all_rows_be_replaced() -> None:
    """What went into the default partition before was emptied with them."""
    rereads = Rereads(doubt(1, 2), left_out=[3])
    rereads.describe(1, 2, 3)
    assert ops(rereads.reset()) == ["p", "p"]
    update = {"fingerprint": fingerprint(1, 3, 6, gone=("b2",))}
    rereads.tables.states.put(rereads.state.model_copy(update=update))
    rereads.tables.reads.doubt(A, doubt(6, replaces=False))
    rereads.turn()
    rereads.describe(1, 3, 6)
    assert ops(rereads.reset()) == ["t"]


def test_a_doubt_that_isnt_noted_lets_no_later_one_be_of_a_part() -> None:
    rereads = Rereads(doubt(1), left_out=[2, 3])
    first = SnapshotRequest(kind="initial", order=1, begun_ms=1)
    rereads.tables.states.set_requests(A, [first], doubt=None)
    rereads.tables.reads.doubt(A, Doubt(reason="all of it", since_ms=1, replaces=True))
    rereads.tables.reads.doubt(A, doubt(1))
    rereads.turn()
    rereads.describe(1, 2, 3)
    assert ops(rereads.reset()) == ["t"]

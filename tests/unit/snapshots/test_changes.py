"""Changes in the stream, and a chunk's snapshot → the chunk's rows still to send."""

from dataclasses import replace

import pytest

from cdc.compiled.fast import COMMITS_MAX, Cursor
from cdc.events.changes import ABSENT, Row
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position, Transaction
from cdc.records.schema import Column, TableName
from cdc.stream.signals import StreamedRow
from cdc.wal.messages import Relation, RelationColumn
from snapshots import table_read as module
from snapshots.chunk import Visibility
from snapshots.table_read import Changes

RELATION = Relation(
    1, "public", "t", "d", (RelationColumn(True, "id", 23, -1), RelationColumn(False, "v", 25, -1))
)
TABLE = TableDescription(
    oid=1,
    name=TableName("public", "t"),
    columns=(
        Column(name="id", type="int4", type_oid=23, declared="integer", key=1),
        Column(name="v", type="text", type_oid=25, declared="text"),
    ),
    primary_key=("id",),
    replica_identity="d",
    identity=frozenset({"id"}),
    partitioned=False,
    leaves=(),
    rows_estimated=0,
    block_bytes=8192,
    row_filter=None,
    signature=relation_signature(RELATION),
    entry=1,
)
SNAPSHOT = Visibility(xmin=100, xmax=110, running=frozenset({100, 105}))
LATER = Visibility(120, 120, frozenset())


def seen(new: Row | None, old: Row | None = None, xid: int = 110) -> StreamedRow:
    """A change of the table, by a transaction that the snapshot doesn't show."""
    transaction = Transaction(xid, Lsn(9), 0, None)
    return StreamedRow(RELATION, old, new, transaction, Position(1, Lsn(9), 1))


@pytest.fixture
def changes() -> Changes:
    made = Changes()
    made.tell_apart_by(("id",))
    return made


def test_without_a_change_nothing_is_left_out(changes: Changes) -> None:
    assert changes.stale(SNAPSHOT) == frozenset()


def test_what_the_snapshot_shows_is_kept_and_what_it_doesnt_is_left_out(changes: Changes) -> None:
    for key, xid in ((b"1", 99), (b"2", 105), (b"3", 104), (b"4", 110)):
        changes.note(seen((key, b"new"), xid=xid))
    changes.note(seen(None, (b"5", None), xid=111))
    assert changes.stale(SNAPSHOT) == frozenset({b"2", b"4", b"5"})
    assert changes.stale(LATER) == frozenset()


def test_a_row_that_moved_is_left_out_under_both_keys(changes: Changes) -> None:
    changes.note(seen((b"2", b"one"), (b"1", None)))
    assert changes.stale(SNAPSHOT) == frozenset({b"1", b"2"})


def test_keys_of_several_columns_dont_run_into_each_other() -> None:
    made = Changes()
    made.tell_apart_by(("id", "v"))
    made.note(seen((b"1", b"12")))
    made.note(seen((b"11", b"2")))
    assert made.stale(SNAPSHOT) == frozenset({b"1\x0012", b"11\x002"})


@pytest.mark.parametrize(
    "row", [seen(None), seen((ABSENT, b"v")), seen((b"1", b"v"), (ABSENT, None))]
)
def test_what_may_be_any_row_makes_chunks_useless_until_it_is_shown(
    changes: Changes, row: StreamedRow
) -> None:
    changes.note(row)
    expected = frozenset({b"1"}) if row.new == (b"1", b"v") else None
    assert changes.stale(SNAPSHOT) == expected
    assert changes.stale(LATER) == frozenset()


def test_as_long_as_nobody_knows_the_key_any_row_may_have_changed() -> None:
    made = Changes()
    made.note(seen((b"1", b"v")))
    assert made.stale(SNAPSHOT) is None


def test_what_every_chunk_shows_is_forgotten(changes: Changes) -> None:
    changes.note(seen((b"1", b"v"), xid=104))
    changes.note(seen((b"2", b"v"), xid=105))
    changes.settle(SNAPSHOT, ["b", "c"])
    older = Visibility(90, 90, frozenset())
    changes.ended("a")
    changes.ended("b")
    assert changes.stale(older) == frozenset({b"1", b"2"}), "c may be as old as that"
    changes.ended("c")
    assert changes.stale(older) == frozenset({b"2"})


def test_more_changes_than_are_remembered_make_chunks_useless(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 3)
    before = changes.forgotten
    for number in range(3):
        changes.note(seen((b"%d" % number, b"v"), xid=110 + number))
    assert changes.forgotten == before
    for number in range(3):
        changes.note(seen((b"%d" % number, b"v"), xid=120 + number))
    assert changes.forgotten > before


def test_a_table_that_was_altered_meanwhile_doesnt_fit(changes: Changes) -> None:
    assert changes.fits(TABLE, 0)
    changes.announce(RELATION)
    assert changes.fits(TABLE, 0)
    fewer = replace(TABLE, columns=TABLE.columns[:1], signature="another")
    assert not changes.fits(fewer, 0)
    assert changes.fits(fewer, 1), "that was said before the chunk was begun"
    more = (*TABLE.columns, Column(name="g", type="int4", type_oid=23, declared="integer"))
    generated = replace(TABLE, columns=more, signature="another", unpublished=frozenset({"g"}))
    assert changes.fits(generated, 0)
    assert not changes.fits(replace(generated, unpublished=frozenset()), 0), "g was dropped"


def test_a_commit_newer_than_all_that_have_ended_is_waited_for_too() -> None:
    nowhere = Position(1, Lsn(0), 0)
    cursor = Cursor(nowhere, nowhere, Lsn(0))
    cursor.begin(SNAPSHOT.xmax + 1, Lsn(1_000), 0)
    assert not SNAPSHOT.shows_all_before(Lsn(1_000), cursor.committed_at)
    assert SNAPSHOT.shows_all_before(Lsn(999), cursor.committed_at)


def test_transaction_ids_wrap_around() -> None:
    visibility = Visibility((1 << 32) + 5, (1 << 32) + 9, frozenset({(1 << 32) + 7}))
    before = (1 << 32) - 3
    shown = [xid for xid in (before, 3, 5, 6, 7, 8, 9, 10) if visibility.shows(xid)]
    assert shown == [before, 3, 5, 6, 8]


def test_a_commit_that_the_stream_had_before_its_transaction_is_visible_is_waited_for() -> None:
    nowhere = Position(1, Lsn(0), 0)
    cursor = Cursor(nowhere, nowhere, Lsn(0))
    for xid, lsn in ((105, 1_000), (105 + COMMITS_MAX, 2_000)):
        assert SNAPSHOT.shows_all_before(Lsn(5_000), cursor.committed_at)
        cursor.begin(xid, Lsn(lsn), 0)
        cursor.commit(Lsn(lsn), Lsn(lsn + 8))
        if xid == 105:
            assert not SNAPSHOT.shows_all_before(Lsn(1_000), cursor.committed_at)
            assert SNAPSHOT.shows_all_before(Lsn(999), cursor.committed_at)
            cursor = Cursor(nowhere, nowhere, Lsn(0))
    assert Visibility.parse("100:110:100,105") == SNAPSHOT


def test_of_what_a_standby_doesnt_list_as_running_nothing_counts_as_shown() -> None:
    visibility = Visibility.parse("100:110:", of_standby=True)
    assert [visibility.shows(xid) for xid in (99, 100, 109, 110)] == [True, False, False, False]

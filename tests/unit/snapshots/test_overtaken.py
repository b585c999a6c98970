"""Changes around a chunk → which of its rows are still worth sending."""

from dataclasses import replace

import pytest

from cdc.changes import ABSENT, Row
from cdc.postgres.catalog import TableDescription, relation_signature
from cdc.records.position import Lsn, Position
from cdc.records.schema import Column, TableName
from cdc.signals import SeenRow
from cdc.transactions import Transaction
from cdc.wal.messages import Relation, RelationColumn
from snapshots import copytext, overtaken
from snapshots.keyset import Chunk, Visibility
from snapshots.overtaken import Changes

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
ROWS: tuple[copytext.Row, ...] = ((b"1", b"one"), (b"2", b"two"), (b"3", b"three"))
CHUNK = Chunk(
    TABLE,
    ROWS,
    ((b"1",), (b"2",), (b"3",)),
    ("3",),
    Visibility(xmin=100, xmax=110, running=frozenset({100, 105})),
    0,
)


def seen(new: Row | None, old: Row | None = None, xid: int = 50) -> SeenRow:
    """A change of the table."""
    transaction = Transaction(xid, Lsn(9), 0, None)
    return SeenRow(RELATION, old, new, transaction, Position(1, Lsn(9), 1))


@pytest.fixture
def changes() -> Changes:
    return Changes(lambda _: ("id",))


def test_without_a_change_all_rows_are_kept(changes: Changes) -> None:
    assert changes.kept(CHUNK) == list(ROWS)


def test_what_changed_between_the_watermarks_is_left_out(changes: Changes) -> None:
    changes.note(seen((b"1", b"changed")), inside=True)
    changes.note(seen(None, (b"3", None)), inside=True)
    changes.note(seen((b"4", b"new")), inside=True)
    assert changes.kept(CHUNK) == [ROWS[1]]
    assert changes.kept(CHUNK) == list(ROWS)


def test_a_row_that_moved_is_left_out_under_both_keys(changes: Changes) -> None:
    changes.note(seen((b"2", b"one"), (b"1", None)), inside=True)
    assert changes.kept(CHUNK) == [ROWS[2]]


def test_what_the_chunk_shows_is_kept_and_what_it_doesnt_is_left_out(changes: Changes) -> None:
    changes.note(seen((b"1", b"one"), xid=99), inside=False)
    changes.note(seen((b"2", b"new"), xid=105), inside=False)
    changes.note(seen((b"3", b"new"), xid=110), inside=False)
    assert changes.kept(CHUNK) == [ROWS[0]]
    assert changes.kept(CHUNK) == [ROWS[0]], "the next chunk may not show them either"
    later = CHUNK._replace(visibility=Visibility(120, 120, frozenset()))
    assert changes.kept(later) == list(ROWS)


def test_transaction_ids_wrap_around() -> None:
    visibility = Visibility((1 << 32) + 5, (1 << 32) + 9, frozenset({(1 << 32) + 7}))
    before = (1 << 32) - 3
    shown = [xid for xid in (before, 3, 5, 6, 7, 8, 9, 10) if visibility.shows(xid)]
    assert shown == [before, 3, 5, 6, 8]


def test_a_truncated_table_is_read_again(changes: Changes) -> None:
    changes.note(seen(None), inside=True)
    assert changes.kept(CHUNK) is None
    assert changes.kept(CHUNK) == list(ROWS)


def test_a_row_of_which_the_stream_lacks_a_large_value_is_completed(changes: Changes) -> None:
    changes.note(seen((b"1", ABSENT)), inside=True)
    changes.note(seen((b"2", b"whole")), inside=True)
    changes.note(seen((b"2", ABSENT)), inside=True)
    assert changes.kept(CHUNK) == [ROWS[0], ROWS[2]]


def test_a_chunk_of_other_columns_than_the_streams_is_read_again(changes: Changes) -> None:
    changes.note(seen((b"9", b"new")), inside=True)
    fewer = replace(TABLE, columns=TABLE.columns[:1], signature="another")
    assert changes.kept(CHUNK._replace(table=fewer)) is None
    changes.note(seen((b"9", b"new")), inside=True)
    more = (*TABLE.columns, Column(name="g", type="int4", type_oid=23, declared="integer"))
    generated = replace(TABLE, columns=more, signature="another")
    assert changes.kept(CHUNK._replace(table=generated)) == list(ROWS)


def test_more_changes_than_are_remembered_mean_that_it_is_read_again(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overtaken, "CHANGES_MAX", 3)
    for number in range(4):
        changes.note(seen((f"{number}".encode(), b"new")), inside=True)
    assert changes.kept(CHUNK) is None
    assert changes.kept(CHUNK) == list(ROWS)

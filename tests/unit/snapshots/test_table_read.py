"""The next chunk of a table that is being read: its size."""

from dataclasses import replace

from cdc.postgres.described import Leaf
from cdc.records.position import Lsn
from cdc.records.state import SnapshotRequest
from snapshots.chunk import Chunk, DescribedTable
from snapshots.table_read import TableRead
from tests.fixtures.made_states import table_state
from tests.unit.snapshots.test_changes import LATER, TABLE

PAGES = 1 << 20
LEAF = Leaf(1, TABLE.name, PAGES, "d", TABLE.identity)


def taken(table_read: TableRead, *, cut: bool) -> int:
    """Read the next chunk, or half of it; returns how many pages were to be read."""
    chunk_range = table_read.next_chunk(1000)
    assert chunk_range is not None
    first, end = chunk_range.tids
    read = (first, (first + end) // 2 if cut else end)
    chunk = Chunk(table_read.described or described(), LEAF.oid, 1, read, bytearray(), 1, LATER, 0)
    table_read.has_read(chunk, chunk_range, 1, 0.0)
    return (end - 1 >> 16) - (first >> 16) + 1


def described() -> DescribedTable:
    return DescribedTable(replace(TABLE, leaves=(LEAF,)), {LEAF.oid: ""})


def test_chunks_grow_again_however_often_they_were_too_large() -> None:
    state = table_state(TABLE.name, oid=TABLE.oid)
    table_read = TableRead(state, SnapshotRequest(kind="initial"), Lsn(1), 8 << 20)
    table_read.learn(described())
    sizes = [taken(table_read, cut=True) for _ in range(40)]
    assert sizes[0] > sizes[-1] == 1
    grown = [taken(table_read, cut=False) for _ in range(20)]
    assert max(grown) == (8 << 20) // TABLE.block_bytes

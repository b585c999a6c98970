"""Chunks of a table's leaves → what is missing; what a chunk costs doesn't grow with the leaves."""

from dataclasses import replace
from typing import Any

import pytest

import snapshots.bulk_tables
import snapshots.leaf_reads
from cdc.postgres.described import Leaf, TableDescription
from cdc.records.position import Lsn
from cdc.records.schema import TableName
from cdc.records.state import LeafRead, SnapshotRequest
from snapshots.bulk_tables import BulkTable
from snapshots.chunk import Chunk, DescribedTable
from snapshots.leaf_reads import LeafReads
from snapshots.reader import ALL, END
from snapshots.table_read import TableRead
from tests.fixtures.made_states import table_state
from tests.unit.snapshots.test_changes import LATER, TABLE

PAGE = 1 << 16


def leaves(count: int) -> tuple[Leaf, ...]:
    names = (TableName("public", f"p{number}") for number in range(count))
    return tuple(Leaf(oid, name, 4, "d", TABLE.identity) for oid, name in enumerate(names, 1))


def partitioned(count: int) -> TableDescription:
    return replace(TABLE, leaves=leaves(count))


def read_all(table: BulkTable) -> int:
    chunks = 0
    while (chunk := table.next_chunk(1e9)) is not None:
        table.has_read(chunk, 7)
        assert len(table.progress.read or ()) == len({chunk.leaf} | {None}) - 1 + chunks
        chunks += 1
    assert table.is_done
    return chunks


def read_while_streaming(described: DescribedTable) -> int:
    state = table_state(TABLE.name, oid=TABLE.oid)
    read, chunks = TableRead(state, SnapshotRequest(kind="initial"), Lsn(1), 8 << 20), 0
    read.learn(described)
    while (wanted := read.next_chunk(1_000)) is not None:
        tids = wanted.tids
        chunk = Chunk(described, wanted.leaf.oid, 1, tids, bytearray(), 1, LATER, 0)
        read.has_read(chunk, wanted, 1, 0.0)
        chunks += 1
        assert read.is_read == (chunks == len(described.table.leaves))
        assert read.pages == (4 * len(described.table.leaves), 4 * chunks)
    return chunks


@pytest.mark.parametrize("way", ["bulk", "while streaming"])
def test_a_chunk_of_fifty_partitions_costs_what_one_of_five_costs(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    calls = 0

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*arguments)

        return call

    for module in (snapshots.leaf_reads, snapshots.bulk_tables):
        for name in ("merged", "pages_of"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, counted(getattr(module, name)))
    monkeypatch.setattr(LeafReads, "ranges", counted(LeafReads.ranges))
    cost = dict[int, float]()
    for count in (5, 50):
        calls, table = 0, partitioned(count)
        if way == "bulk":
            chunks = read_all(BulkTable(table, None, 8 << 20))
        else:
            chunks = read_while_streaming(DescribedTable(table, dict.fromkeys(range(99), "")))
        assert chunks == count
        cost[count] = calls / count
    assert cost[50] <= 1.2 * cost[5]


def test_what_was_read_of_another_file_is_missing_again() -> None:
    of = leaves(3)
    read = tuple(LeafRead(leaf=leaf.oid, file=7, ranges=(ALL,)) for leaf in of[:2])
    reads = LeafReads(of, read)
    assert reads.is_of(of, read)
    assert [leaf.oid for leaf in reads.missing()] == [3]
    reads.add(3, 7, (0, END))
    assert (reads.is_done, reads.pages_done, reads.pages) == (True, 12, 12)
    reads.add(1, 8, (0, PAGE))
    assert [leaf.oid for leaf in reads.missing()] == [1]
    assert (reads.is_done, reads.pages_done) == (False, 9)
    assert not reads.is_of(of, read)
    reads.add(1, 8, (PAGE, END))
    assert reads.is_done


def test_a_locked_partition_is_tried_before_those_behind_it() -> None:
    table = BulkTable(partitioned(3), None, 8 << 20)
    first, second = table.next_chunk(1e9), table.next_chunk(1e9)
    assert first is not None
    assert second is not None
    table.put_off(first)
    assert table.next_chunk(1e9) == first
    last = table.next_chunk(1e9)
    assert last is not None
    assert table.next_chunk(1e9) is None
    table.put_off(last)
    table.put_off(first)
    assert [table.next_chunk(1e9), table.next_chunk(1e9), table.next_chunk(1e9)] == [
        first,
        last,
        None,
    ]

"""Chunks: every page is in exactly one of them, and the last is open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.postgres.catalog import Leaf, TableDescription
from cdc.records.schema import TableName
from snapshots.chunks import PageRange, plan, ranges


@pytest.mark.parametrize(
    ("pages", "per_chunk", "expected"),
    [
        (0, 4, [(0, None)]),
        (1, 4, [(0, None)]),
        (4, 4, [(0, None)]),
        (5, 4, [(0, 4), (4, None)]),
        (12, 4, [(0, 4), (4, 8), (8, None)]),
    ],
)
def test_ranges(pages: int, per_chunk: int, expected: list[tuple[int, int | None]]) -> None:
    assert ranges(pages, per_chunk) == [PageRange(*entry) for entry in expected]


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_ranges_leave_no_gap_and_no_overlap(pages: int, per_chunk: int) -> None:
    cut = ranges(pages, per_chunk)
    assert cut[0].first == 0
    assert cut[-1].end is None
    assert [each.end for each in cut[:-1]] == [each.first for each in cut[1:]]
    assert all(each.end is not None and each.end > each.first for each in cut[:-1])


def test_each_leaf_has_at_least_one_chunk() -> None:
    leaves = tuple(
        Leaf(oid, TableName("s", f"p{oid}"), pages, "d", frozenset({"id"}))
        for oid, pages in ((1, 0), (2, 300))
    )
    table = TableDescription(
        oid=9,
        name=TableName("s", "p"),
        columns=(),
        primary_key=("id",),
        replica_identity="d",
        identity=frozenset({"id"}),
        partitioned=True,
        leaves=leaves,
        rows_estimated=0,
        block_bytes=8192,
        row_filter=None,
        signature="",
        entry=0,
    )
    chunks = plan(table, chunk_bytes=200 * 8192)
    assert [(chunk.leaf.oid, *chunk.pages) for chunk in chunks] == [
        (1, 0, None),
        (2, 0, 200),
        (2, 200, None),
    ]
    assert table.pages == 300

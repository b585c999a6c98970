"""A table's size in pages → ranges of pages that are read one after the other; pure.

The last range of every leaf has no end: rows that were added after the size was asked for are
read, too, as far as the snapshot sees them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cdc.postgres.catalog import Leaf, TableDescription


class PageRange(NamedTuple):
    """Heap pages from ``first`` up to, without, ``end``; to the heap's end where that is None."""

    first: int
    end: int | None


class Chunk(NamedTuple):
    """What one COPY reads: some pages of one leaf."""

    leaf: Leaf
    pages: PageRange


def plan(table: TableDescription, chunk_bytes: int) -> list[Chunk]:
    """Cut a table into chunks of about that many bytes, leaf by leaf; at least one each."""
    pages_per_chunk = max(1, chunk_bytes // table.block_bytes)
    return [
        Chunk(leaf, pages) for leaf in table.leaves for pages in ranges(leaf.pages, pages_per_chunk)
    ]


def ranges(pages: int, pages_per_chunk: int) -> Sequence[PageRange]:
    """Cut pages into ranges without a gap or an overlap, the last one open."""
    firsts = list(range(0, pages, pages_per_chunk)) or [0]
    ends: list[int | None] = [*firsts[1:], None]
    return [PageRange(first, end) for first, end in zip(firsts, ends, strict=True)]

"""Chunks that were read → the rows of a table's leaves that were read, and the missing ones.

A table may have thousands of leaves. The cost of a chunk doesn't depend on their number.
"""

from collections.abc import Iterator

from cdc.postgres.described import Leaf
from cdc.records.state import LeafRead
from snapshots.reader import ALL, Range, Ranges, merged, pages_of


class LeafReads:
    """The ranges of each leaf that were read. Ranges of dropped leaves stay."""

    def __init__(self, leaves: tuple[Leaf, ...], read: tuple[LeafRead, ...] = ()) -> None:
        self._leaves = leaves
        self._read: tuple[LeafRead, ...] | None = read
        self._pages = {leaf.oid: leaf.pages for leaf in leaves}
        self._reads = {each.leaf: each for each in read}
        self._first = 0
        """All leaves before this one were read."""
        self.pages = sum(self._pages.values())
        self.pages_done = sum(map(self._pages_of, self._reads))

    def is_of(self, leaves: tuple[Leaf, ...], read: tuple[LeafRead, ...]) -> bool:
        """Whether these are its leaves and its ranges."""
        return leaves is self._leaves and read is self._read

    @property
    def read(self) -> tuple[LeafRead, ...]:
        """The ranges, in the form of a state."""
        if self._read is None:
            self._read = tuple(self._reads.values())
        return self._read

    @property
    def is_done(self) -> bool:
        """Whether all rows of all leaves were read."""
        while self._first < len(self._leaves):
            if self.ranges(self._leaves[self._first].oid) != (ALL,):
                return False
            self._first += 1
        return True

    def missing(self) -> Iterator[Leaf]:
        """Yield the leaves that aren't read whole, in their order."""
        if not self.is_done:
            leaves = (self._leaves[number] for number in range(self._first, len(self._leaves)))
            yield from (leaf for leaf in leaves if self.ranges(leaf.oid) != (ALL,))

    def ranges(self, leaf: int) -> Ranges:
        """Return the ranges of a leaf that were read."""
        read = self._reads.get(leaf)
        return () if read is None else read.ranges

    def add(self, leaf: int, file: int, tids: Range) -> None:
        """Record that a range was read. Ranges of another file no longer count."""
        self._read = None
        before = self._reads.get(leaf)
        kept = before.ranges if before is not None and before.file == file else ()
        self.pages_done -= self._pages_of(leaf)
        self._reads[leaf] = now = LeafRead(leaf=leaf, file=file, ranges=merged([*kept, tids]))
        self.pages_done += self._pages_of(leaf)
        if before is not None and before.ranges == (ALL,) != now.ranges:
            self._first = 0

    def _pages_of(self, leaf: int) -> int:
        return pages_of(self.ranges(leaf), self._pages.get(leaf, 0))

"""A table that several connections read in chunks → what of it was read, and what is missing.

It gives out chunks, pages of a leaf, and takes them back where the table is locked. What makes its
records is made once, with the first chunk.
"""

import math
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from cdc.convert.pipeline import Encoder
from cdc.postgres.described import Leaf, TableDescription
from cdc.tables.reads import ReadProgress
from snapshots.leaf_reads import LeafReads
from snapshots.reader import ALL, Range, merged, missing, next_range

CHUNK_S: Final = 5.0
"""A chunk takes about so long at most, however low the rate is."""
_LOCKED_S: Final = 10.0
_AGAIN_S: Final = 1.0
"""A table that was locked so long while others were read isn't waited for; how often it's tried."""


class Statement(NamedTuple):
    """A SELECT of the user's own, and the key of [capture] that has it; None: a signal does."""

    text: str
    key: str | None = None


class LeafRange(NamedTuple):
    """What a chunk reads; without a leaf: all that the user's own SELECT gives."""

    leaf: Leaf | None
    tids: Range


class BulkTable:
    """What of a table was read, is being read, and is missing."""

    def __init__(self, table: TableDescription, own: Statement | None, chunk_bytes: int) -> None:
        self.table = table
        self.own = own
        self.rows = 0
        self.is_left = False
        """Whether the rest is read another time."""
        self.not_before = 0.0
        """When (monotonic) its lock is tried again, after somebody held it."""
        self._locked_since = math.inf
        self.encoder: Encoder | None = None
        self._chunk_pages = max(1, chunk_bytes // table.block_bytes)
        self._rows_per_page = max(1.0, table.rows_estimated / max(1, table.pages))
        leaves: Sequence[Leaf | None] = table.leaves if own is None else [None]
        self._taken: dict[Leaf | None, list[Range]] = {leaf: [] for leaf in leaves}
        """What somebody reads, or has read, of each leaf that isn't wholly taken."""
        self._done = LeafReads(table.leaves if own is None else ())
        self._is_own_done = own is None

    @property
    def may_be_left(self) -> bool:
        """Whether it can also be read while streaming."""
        return self.table.is_chunked and self.own is None

    def next_chunk(self, rows_max: float) -> LeafRange | None:
        """What nobody reads yet, of about so many rows at most."""
        pages = max(1, int(min(self._chunk_pages, rows_max / self._rows_per_page)))
        while self._taken and not self.is_left:
            leaf, taken = next(iter(self._taken.items()))
            size = 0 if leaf is None else leaf.pages  # a chunk to the last page has no end
            if (tids := next_range(taken, size, pages)) is not None:
                taken.append(tids)
                return LeafRange(leaf, tids)
            del self._taken[leaf]
        return None

    def put_off(self, chunk: LeafRange) -> None:
        """Nobody reads a chunk now, after all: the table is locked."""
        self._locked_since = min(self._locked_since, time.monotonic())
        self.not_before = time.monotonic() + _AGAIN_S
        others = self._taken.pop(chunk.leaf, None)
        if others is None:  # all of it was taken
            others = list(missing([chunk.tids]))
        else:
            others.remove(chunk.tids)
        self._taken = {chunk.leaf: others, **self._taken}  # it comes first, as before

    @property
    def is_waited_for(self) -> bool:
        """Whether its lock may still come soon."""
        return not self.table.is_chunked or time.monotonic() - self._locked_since < _LOCKED_S

    def has_read(self, chunk: LeafRange, file: int) -> None:
        """A chunk is done."""
        self._locked_since = math.inf
        if chunk.leaf is None:
            self._is_own_done = True
        else:
            self._done.add(chunk.leaf.oid, file, chunk.tids)

    @property
    def is_taken(self) -> bool:
        """Whether somebody reads, or has read, each of its chunks."""
        return all(merged(taken) == (ALL,) for taken in self._taken.values())

    @property
    def is_done(self) -> bool:
        """Whether all of it was read."""
        return self._is_own_done and self._done.is_done

    @property
    def progress(self) -> ReadProgress:
        """How far it is, behind the last row of a chunk."""
        done = self._done
        return ReadProgress(self.table.name, self.rows, done.read, done.pages_done, self.is_done)

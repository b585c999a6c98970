"""A table that several connections read in chunks → its parts: read, being read, and missing.

It hands out chunks (pages of a leaf), and takes them back if the table is locked. Its encoder is
made once, with the first chunk.
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
"""About how long a chunk takes at most, however low the rate is."""
_LOCKED_S: Final = 10.0
_AGAIN_S: Final = 1.0
"""How long a table's lock is waited for while others are read, and the pause between tries."""


class Statement(NamedTuple):
    """A user's own SELECT, and its key in [capture]. None: a signal has it."""

    text: str
    key: str | None = None


class LeafRange(NamedTuple):
    """The rows that a chunk reads. Without a leaf: all rows of the user's own SELECT."""

    leaf: Leaf | None
    tids: Range


class BulkTable:
    """A table's parts: read, being read, and missing."""

    def __init__(self, table: TableDescription, own: Statement | None, chunk_bytes: int) -> None:
        self.table = table
        self.own = own
        self.rows = 0
        self.is_left = False
        """Whether the rest is left for another read."""
        self.not_before = 0.0
        """When (monotonic) its lock is tried again, after another session held it."""
        self._locked_since = math.inf
        self.encoder: Encoder | None = None
        self._chunk_pages = max(1, chunk_bytes // table.block_bytes)
        self._rows_per_page = max(1.0, table.rows_estimated / max(1, table.pages))
        leaves: Sequence[Leaf | None] = table.leaves if own is None else [None]
        self._taken: dict[Leaf | None, list[Range]] = {leaf: [] for leaf in leaves}
        """The ranges of each leaf that are read or being read, without leaves taken as a whole."""
        self._done = LeafReads(table.leaves if own is None else ())
        self._is_own_done = own is None

    @property
    def may_be_left(self) -> bool:
        """Whether it can also be read while streaming."""
        return self.table.is_chunked and self.own is None

    def next_chunk(self, rows_max: float) -> LeafRange | None:
        """Return the next free range, of about ``rows_max`` rows at most. None: all are taken."""
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
        """Put back a chunk that can't be read now, as the table is locked."""
        self._locked_since = min(self._locked_since, time.monotonic())
        self.not_before = time.monotonic() + _AGAIN_S
        others = self._taken.pop(chunk.leaf, None)
        if others is None:  # all of it was taken
            others = list(missing([chunk.tids]))
        else:
            others.remove(chunk.tids)
        self._taken = {chunk.leaf: others, **self._taken}  # it comes first again

    @property
    def is_waited_for(self) -> bool:
        """Whether its lock may still be free soon."""
        return not self.table.is_chunked or time.monotonic() - self._locked_since < _LOCKED_S

    def has_read(self, chunk: LeafRange, file: int) -> None:
        """Record that a chunk was read."""
        self._locked_since = math.inf
        if chunk.leaf is None:
            self._is_own_done = True
        else:
            self._done.add(chunk.leaf.oid, file, chunk.tids)

    @property
    def is_taken(self) -> bool:
        """Whether each of its chunks is read or being read."""
        return all(merged(taken) == (ALL,) for taken in self._taken.values())

    @property
    def is_done(self) -> bool:
        """Whether all of it was read."""
        return self._is_own_done and self._done.is_done

    @property
    def progress(self) -> ReadProgress:
        """The progress, after the last row of a chunk."""
        done = self._done
        return ReadProgress(self.table.name, self.rows, done.read, done.pages_done, self.is_done)

"""`millrace run`, broken on purpose: rows of a chunk overwrite what was streamed meanwhile.

A test of snapshots under fire that doesn't see them is no test.
"""

import time

import psycopg

from cdc.settings import CaptureSettings
from millrace import main
from snapshots import chunk
from snapshots.chunk import Chunk, ChunkRange, DescribedTable
from snapshots.incremental import IncrementalSnapshots
from snapshots.table_read import PendingChunk, TableRead

_LATE_S = 0.2  # rows may change between what is read and its watermark: so that some do
_read = chunk.read
_stale = IncrementalSnapshots._stale


def _late(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    described: DescribedTable,
    chunk_range: ChunkRange,
) -> Chunk:
    found = _read(connection, settings, described, chunk_range)
    time.sleep(_LATE_S)
    return found


def _none(
    self: IncrementalSnapshots, read: TableRead, chunk: Chunk, pending: PendingChunk
) -> frozenset[bytes] | None:
    return None if _stale(self, read, chunk, pending) is None else frozenset()


chunk.read = _late
IncrementalSnapshots._stale = _none  # type: ignore[method-assign]

if __name__ == "__main__":
    main()

"""`millrace run`, broken on purpose: a chunk's rows overwrite rows streamed during its read.

A test of snapshots under fire that doesn't detect this daemon is no test.
"""

import time

import psycopg

from cdc.compiled import fast
from cdc.settings import CaptureSettings
from millrace import main
from snapshots import chunk
from snapshots.chunk import Chunk, ChunkRange, DescribedTable
from snapshots.table_read import PendingChunk, TableRead

_LATE_S = 0.2  # rows may change between what is read and its watermark: so that some do
_read = chunk.read
_stale = TableRead.stale


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
    self: TableRead, chunk: Chunk, pending: PendingChunk, cursor: fast.Cursor
) -> frozenset[bytes] | None:
    return None if _stale(self, chunk, pending, cursor) is None else frozenset()


chunk.read = _late
TableRead.stale = _none  # type: ignore[method-assign]

if __name__ == "__main__":
    main()

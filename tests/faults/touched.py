"""`millrace run` with slow chunks: after each one, its rows are updated without a change.

It is as correct as `millrace run`, but makes a rare case frequent.
"""

import psycopg
from psycopg import sql

from cdc.settings import CaptureSettings
from millrace import main
from snapshots import chunk
from snapshots.chunk import Chunk, ChunkRange, DescribedTable

_read = chunk.read
_TOUCH = sql.SQL("UPDATE {} SET v = v WHERE id % 10 = 0")


def _touched(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    described: DescribedTable,
    chunk_range: ChunkRange,
) -> Chunk:
    found = _read(connection, settings, described, chunk_range)
    info = connection.info
    with psycopg.connect(info.dsn, password=info.password) as other:
        other.execute(_TOUCH.format(sql.Identifier(*described.table.name)))
    return found


chunk.read = _touched

if __name__ == "__main__":
    main()

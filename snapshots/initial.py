"""An exported snapshot and tables → batches of encoded rows, consistent with the stream.

Each table is read in a transaction of its own that imports the snapshot, so that its lock (the
one of a plain SELECT) goes when the table is done. The connection that exported the snapshot must
stay open and idle until the end.

A table that was rewritten between the snapshot and our lock looks empty to the snapshot
(https://www.postgresql.org/docs/current/mvcc-caveats.html), which would lose its rows without a
word. So its file is compared first: pg_class is read as of the snapshot, pg_relation_filenode()
as of now.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg
from psycopg import sql

from cdc.backfill import SnapshotBatch
from cdc.errors import SourceError, SourceUnreachableError, TableRefusedError
from cdc.events import TableEncoder
from cdc.postgres.catalog import Leaf, TableDescription
from cdc.postgres.connection import connect, query
from cdc.postgres.failures import place
from cdc.postgres.slot import ExportedSnapshot
from cdc.records.position import Position
from cdc.settings import LibraryOptions
from snapshots.chunks import plan
from snapshots.reader import Limits, read

_LOCK_TIMEOUT: Final = "10s"
_NOW_US: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_UNCHANGED: Final = """
SELECT c.relfilenode = pg_relation_filenode(c.oid) FROM pg_class c WHERE c.oid = %s
"""
_CURRENT_OID: Final = "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))::oid"


class InitialSnapshot:
    """Reads existing rows; implements cdc.backfill.Backfill."""

    def __init__(
        self,
        source: LibraryOptions,
        *,
        epoch: int,
        chunk_bytes: int,
        limits: Limits = Limits(),  # noqa: B008 (immutable)
    ) -> None:
        self._source = source
        self._epoch = epoch
        self._chunk_bytes = chunk_bytes
        self._limits = limits

    def read(
        self,
        exported: ExportedSnapshot,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], TableEncoder],
    ) -> Iterator[SnapshotBatch]:
        """Every row that the snapshot sees, table by table; the last batch of each may be empty."""
        connection = connect(self._source, purpose="snapshot")
        try:
            for table in tables:
                _begin(connection, exported)
                yield from self._table(connection, exported, table, encoder(table))
                query(connection, "COMMIT")
        finally:
            connection.close()

    def _table(
        self,
        connection: psycopg.Connection,
        exported: ExportedSnapshot,
        table: TableDescription,
        encoder: TableEncoder,
    ) -> Iterator[SnapshotBatch]:
        position = Position(self._epoch, exported.consistent_point, 0)
        columns = [column.name for column in table.columns]
        for leaf in table.leaves:
            _lock(connection, leaf)
        ((now_us,),) = query(connection, _NOW_US)
        chunks = plan(table, self._chunk_bytes)
        rows = 0
        for done, chunk in enumerate(chunks):
            for batch in read(connection, chunk, columns, table.row_filter, self._limits):
                rows += len(batch)
                encode = encoder.snapshot_row
                point = exported.consistent_point
                records = [encode(row, position, point, now_us) for row in batch]
                yield SnapshotBatch(table.name, records, rows, done, len(chunks))
            yield SnapshotBatch(table.name, [], rows, done + 1, len(chunks))
        if not chunks:  # a partitioned table without partitions
            yield SnapshotBatch(table.name, [], 0, 1, 1)


def _begin(connection: psycopg.Connection, exported: ExportedSnapshot) -> None:
    query(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    query(connection, sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
    try:
        statement = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported.name))
        query(connection, statement)
    except SourceUnreachableError:
        raise
    except SourceError as error:
        raise SourceUnreachableError(
            f"the exported snapshot is gone: {error.what}",
            where=error.where,
            remedy="start again: the snapshot is taken anew, and no row is missed",
        ) from error


def _lock(connection: psycopg.Connection, leaf: Leaf) -> None:
    """Take the lock of a plain SELECT, and make sure that the snapshot's rows are still there."""
    where = place(connection.pgconn)
    try:
        name = sql.Identifier(*leaf.name)
        query(connection, sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(name))
    except SourceUnreachableError as error:
        raise SourceUnreachableError(
            f"table {leaf.name} can't be read: {error.what}", where=where, remedy=error.remedy
        ) from error
    except TableRefusedError as error:
        raise _gone(leaf, where) from error
    if query(connection, _CURRENT_OID, [*leaf.name]) != [(leaf.oid,)]:
        raise _gone(leaf, where)
    # No row: the table is younger than the snapshot, so all of its rows are in the stream.
    if query(connection, _UNCHANGED, [leaf.oid]) == [(False,)]:
        raise SourceUnreachableError(
            f"table {leaf.name} was rewritten (ALTER TABLE, TRUNCATE, VACUUM FULL, CLUSTER) after"
            " the snapshot was taken, which hides its rows from the snapshot",
            where=where,
            remedy="start again: the snapshot is taken anew, and no row is missed",
        )


def _gone(leaf: Leaf, where: str) -> TableRefusedError:
    return TableRefusedError(
        f"table {leaf.name} was dropped or renamed before its rows were read",
        where=where,
        remedy="start again: the tables are looked up anew",
    )

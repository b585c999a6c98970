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

from cdc.backfill import FIRST, Again, SnapshotBatch
from cdc.changes import Read
from cdc.errors import (
    SourceError,
    SourceUnreachableError,
    TableChangedError,
    TableRefusedError,
)
from cdc.postgres.catalog import Leaf, TableDescription
from cdc.postgres.connection import connect, query
from cdc.postgres.failures import blaming, place
from cdc.postgres.slot import ExportedSnapshot
from cdc.readable import Encoder, ReadableEncoder, snapshot_records
from cdc.records.position import Position
from cdc.settings import CaptureSettings, LibraryOptions
from snapshots.chunks import plan
from snapshots.markers import marked
from snapshots.reader import Limits, Rows, any_row, of_chunk, of_statement, of_tree, read

_LOCK_TIMEOUT: Final = "10s"
_NOW_US: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_UNCHANGED: Final = """
SELECT c.relfilenode = pg_relation_filenode(c.oid) FROM pg_class c WHERE c.oid = %s
"""
_HAS_CHILDREN: Final = "SELECT relhassubclass FROM pg_class WHERE oid = %s"
_NEWEST_XID: Final = """
SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::int8 - 1) & 4294967295
"""
_CURRENT_OID: Final = "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))::oid"


class InitialSnapshot:
    """Reads existing rows; implements cdc.backfill.Backfill."""

    def __init__(
        self,
        source: LibraryOptions,
        settings: CaptureSettings,
        *,
        limits: Limits = Limits(),  # noqa: B008 (immutable)
    ) -> None:
        self._source = source
        self._settings = settings
        self._limits = limits
        self._again = FIRST

    def read(
        self,
        exported: ExportedSnapshot,
        position: Position,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], Encoder],
        again: Again = FIRST,
    ) -> Iterator[SnapshotBatch]:
        """Every row that the snapshot sees, table by table; the last batch of each may be empty."""
        connection = connect(self._source, purpose="snapshot")
        self._again = again
        try:
            for index, table in enumerate(tables):
                _begin(connection, exported)
                for leaf in table.leaves:
                    _lock(connection, leaf)
                encode = encoder(table)
                with blaming(self._statement_key(table)):
                    if isinstance(encode, ReadableEncoder) and not self._settings.lossless:
                        later, first = tables[index + 1 :], index == 0
                        yield from self._marked(connection, table, encode, position, first, later)
                    else:
                        yield from self._table(connection, table, encode, position)
                query(connection, "COMMIT")
        finally:
            connection.close()

    def _table(
        self,
        connection: psycopg.Connection,
        table: TableDescription,
        encoder: Encoder,
        position: Position,
    ) -> Iterator[SnapshotBatch]:
        ((now_us,),) = query(connection, _NOW_US)
        parts = self._parts(connection, table)
        point = position.commit_lsn
        rows = 0
        for done, part in enumerate(parts):
            for batch in read(connection, part, self._limits):
                rows += len(batch)
                records = snapshot_records(encoder, batch, position, point, now_us)
                yield SnapshotBatch(table.name, records, rows, done, len(parts))
            yield SnapshotBatch(table.name, [], rows, done + 1, len(parts))
        if not parts:  # a partitioned table without partitions
            yield SnapshotBatch(table.name, [], 0, 1, 1)

    def _marked(
        self,
        connection: psycopg.Connection,
        table: TableDescription,
        encoder: ReadableEncoder,
        position: Position,
        first: bool,
        later: Sequence[TableDescription],
    ) -> Iterator[SnapshotBatch]:
        """As ``_table``, each row with its marker: one chunk, since the last row is held back."""
        ((now_us,),) = query(connection, _NOW_US)
        xid = self._again.xid
        if xid is None:
            ((xid,),) = query(connection, _NEWEST_XID)
        parts = self._parts(connection, table)
        batches = (batch for part in parts for batch in read(connection, part, self._limits))

        def is_last() -> bool:
            parts = (part for table in later for part in self._parts(connection, table))
            return not any(any_row(connection, part) for part in parts)

        encode = encoder.marked_row
        point = position.commit_lsn
        rows = 0
        for batch in marked(batches, first=first, is_last=is_last):
            rows += len(batch)
            records = [
                record
                for row, marker in batch
                for record in encode(row, position, point, now_us, Read(marker, xid))
            ]
            yield SnapshotBatch(table.name, records, rows, 0, 1)
        yield SnapshotBatch(table.name, [], rows, 1, 1)

    def _statement_key(self, table: TableDescription) -> str | None:
        """The key of [capture] whose SELECT reads the table, if there is one."""
        if str(table.name) not in self._settings.snapshot_select_statements:
            return None
        given = table.name in self._again.statements  # by a signal, whose errors are its own
        return None if given else f"snapshot.select.statement.overrides.{table.name}"

    def _parts(self, connection: psycopg.Connection, table: TableDescription) -> list[Rows]:
        """All of a table's rows, part after part."""
        columns = [column.name for column in table.columns]
        own = self._again.statements.get(table.name)
        if own or (own := self._settings.snapshot_select_statements.get(str(table.name))):
            return [of_statement(own, columns)]
        if not self._settings.lossless and query(connection, _HAS_CHILDREN, [table.oid]) == [
            (True,)
        ]:
            return [of_tree(table.name, columns, table.row_filter)]
        return [
            of_chunk(chunk, columns, table.row_filter)
            for chunk in plan(table, self._settings.snapshot_chunk_bytes)
        ]


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


def _gone(leaf: Leaf, where: str) -> TableChangedError:
    return TableChangedError(
        f"table {leaf.name} was dropped or renamed before its rows were read",
        where=where,
        remedy="start again: the tables are looked up anew",
    )

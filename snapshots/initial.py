"""An exported snapshot and tables → batches of records, consistent with the stream.

The connection that exported the snapshot must stay open and idle until the end. bulk.py reads from
several connections at once; Debezium's events, whose order and markers say where in the snapshot a
row stands, are read by one connection, table by table.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import psycopg
from psycopg import sql

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.events.changes import Read
from cdc.postgres.connection import connect, query
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import blaming
from cdc.postgres.slot import ExportedSnapshot
from cdc.records.position import Position
from cdc.records.record import RecordOrBatch
from cdc.settings import CaptureSettings, LibraryOptions
from cdc.stream.translation import Limits
from cdc.tables.reads import FIRST, Again, SnapshotBatch
from cdc.wal.frames import copy_data_end
from snapshots.bulk import Bulk
from snapshots.copied_rows import Copied
from snapshots.pace import Pace, Probe
from snapshots.reader import (
    ALL,
    NOW_US,
    PAUSE_S,
    any_row,
    begin,
    lock,
    of_range,
    of_statement,
    of_tree,
    read,
)

_ONE_ROW: Final = Limits(1, 1)


_HAS_CHILDREN: Final = "SELECT relhassubclass FROM pg_class WHERE oid = %s"
_NEWEST_XID: Final = """
SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::int8 - 1) & 4294967295
"""


class Marker(StrEnum):
    """Where in a snapshot a row stands: Debezium's ``source.snapshot``."""

    FIRST = "first"
    FIRST_IN_DATA_COLLECTION = "first_in_data_collection"
    TRUE = "true"
    LAST_IN_DATA_COLLECTION = "last_in_data_collection"
    LAST = "last"


class MarkedRows:
    """A table's rows → records, as copied_rows.Copied does it; the last row waits for ``end``.

    ``copied`` makes what takes rows with a marker; ``first``: it is the first table that is read.
    """

    def __init__(self, copied: Callable[[Marker], Copied], *, first: bool) -> None:
        self._copied = copied
        self._first = Marker.FIRST if first else Marker.FIRST_IN_DATA_COLLECTION
        self._others: Copied | None = None
        self._made: list[RecordOrBatch] = []
        self._last_row: bytearray | None = None
        self.rows = 0
        """How many rows have their marker."""

    def feed(self, data: bytearray, start: int, end: int, limits: Limits) -> int:
        """As Copied.feed."""
        last, stop = fast.last_copy_data(data, start, end)
        if stop == start:
            return start
        if self._last_row is None and self._others is None:
            return self._keep_last(data, start, copy_data_end(data, start, end))
        if self._last_row is not None:
            self._mark_last_row(self._first if self._others is None else Marker.TRUE)
        if self._others is None:
            self._others = self._copied(Marker.TRUE)
        before = self._others.rows
        start = self._others.feed(data, start, last, limits)
        self._made += self._others.take()
        self.rows += self._others.rows - before
        return self._keep_last(data, last, stop) if start == last else start

    def end(self, is_last: Callable[[], bool]) -> None:
        """The table has no more rows; ``is_last`` tells whether no later table has one."""
        if self._last_row is None:
            return
        marker = Marker.LAST_IN_DATA_COLLECTION
        if is_last():
            marker = Marker.LAST
        elif self._others is None and self._first is Marker.FIRST:
            marker = Marker.FIRST
        self._mark_last_row(marker)

    def take(self) -> list[RecordOrBatch]:
        """What was made since the last time."""
        made, self._made = self._made, []
        return made

    def _keep_last(self, data: bytearray, start: int, stop: int) -> int:
        self._last_row = data[start:stop]
        return stop

    def _mark_last_row(self, marker: Marker) -> None:
        """Give the row that was kept its marker."""
        assert self._last_row is not None  # noqa: S101 (its callers check)
        copied = self._copied(marker)
        copied.feed(self._last_row, 0, len(self._last_row), _ONE_ROW)
        self._made += copied.take()
        self.rows += 1
        self._last_row = None


class InitialSnapshot:
    """Reads existing rows; implements the Backfill of cdc.capture."""

    def __init__(self, source: LibraryOptions, settings: CaptureSettings, pace: Pace) -> None:
        self._source = source
        self._pace = pace
        self._settings = settings
        self._again = FIRST
        self._statements: dict[str, str] = {}

    def read(
        self,
        exported: ExportedSnapshot,
        position: Position,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], Encoder],
        again: Again = FIRST,
        limit_s: float | None = None,
    ) -> Iterator[SnapshotBatch]:
        """Every row that the snapshot sees; a table's last batch says so, and may be empty.

        ``limit_s``: how long the snapshot may be used for what can be read while streaming; None:
        nothing is read then.
        """
        self._again = again
        self._statements = dict(self._settings.snapshot_select_statements)
        self._statements |= {str(name): text for name, text in again.statements.items()}
        if not self._settings.lossless:
            yield from self._in_order(exported, position, tables, encoder)
            return
        until_s = None if limit_s is None else time.monotonic() + limit_s
        bulk = Bulk(self._settings, self._source, exported, position, encoder, until_s, self._pace)
        yield from bulk.batches(tables, self._statements, self._statement_key)

    def _in_order(
        self,
        exported: ExportedSnapshot,
        position: Position,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], Encoder],
    ) -> Iterator[SnapshotBatch]:
        connection = connect(self._source, purpose="snapshot")
        try:
            with Probe(self._source, self._pace).measuring():
                for index, table in enumerate(tables):
                    begin(connection, exported)
                    for leaf in table.leaves:
                        lock(connection, leaf)
                    with blaming(self._statement_key(table)):
                        encode = encoder(table)
                        yield from self._marked(connection, tables[index:], encode, position, index)
                    query(connection, "COMMIT")
        finally:
            connection.close()

    def _marked(
        self,
        connection: psycopg.Connection,
        tables: Sequence[TableDescription],
        encoder: Encoder,
        position: Position,
        index: int,
    ) -> Iterator[SnapshotBatch]:
        """Rows of the first of the tables, each with its marker; its last row is held back."""
        table, *later = tables
        ((now_us,),) = query(connection, NOW_US)
        xid = self._again.xid
        if xid is None:
            ((xid,),) = query(connection, _NEWEST_XID)

        def copied(marker: Marker) -> Copied:
            return Copied(encoder, position, position.commit_lsn, now_us, Read(marker, xid))

        def is_last() -> bool:
            selects = (select for table in later for select in self._selects(connection, table))
            return not any(any_row(connection, select) for select in selects)

        marked, taken = MarkedRows(copied, first=index == 0), 0
        for select in self._selects(connection, table):
            for records in read(connection, select, marked):
                yield SnapshotBatch(table.name, records, marked.rows)
                self._pace.took(marked.rows - taken)
                taken = marked.rows
                while wait_s := self._pace.wait_s():
                    time.sleep(min(wait_s, PAUSE_S))
                    yield SnapshotBatch(table.name, (), marked.rows)
        marked.end(is_last)
        yield SnapshotBatch(table.name, marked.take(), marked.rows)
        yield SnapshotBatch(table.name, (), marked.rows, (), table.pages, is_done=True)

    def _statement_key(self, table: TableDescription) -> str | None:
        """The key of [capture] whose SELECT reads the table, if there is one."""
        if str(table.name) not in self._settings.snapshot_select_statements:
            return None
        given = table.name in self._again.statements  # by a signal, whose errors are its own
        return None if given else f"snapshot.select.statement.overrides.{table.name}"

    def _selects(
        self, connection: psycopg.Connection, table: TableDescription
    ) -> list[sql.Composed]:
        """All of a table's rows, leaf by leaf."""
        columns = [column.name for column in table.columns]
        if own := self._statements.get(str(table.name)):
            return [of_statement(own, columns)]
        if query(connection, _HAS_CHILDREN, [table.oid]) == [(True,)]:
            return [of_tree(table.name, columns, table.row_filter)]
        return [of_range(leaf, columns, ALL, [table.row_filter]) for leaf in table.leaves]

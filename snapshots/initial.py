"""An exported snapshot and tables → batches of records, consistent with the stream.

The connection that exported the snapshot must stay open and idle until the end. bulk.py reads over
several connections at once. Debezium's events have an order, and markers for a row's place in the
snapshot. One connection reads them, table by table.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from typing import Any, Final

from psycopg import sql

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.events.changes import Read
from cdc.postgres.connection import connect, query
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import blaming
from cdc.postgres.slot import ExportedSnapshot
from cdc.records.position import Position
from cdc.records.record import RecordOrBatch, count, size
from cdc.settings import CaptureSettings, LibraryOptions
from cdc.stream.translation import Limits
from cdc.tables.reads import FIRST, Again, ReadProgress, SnapshotBatch
from cdc.wal.frames import copy_data_end
from snapshots.bulk import Bulk
from snapshots.bulk_tables import Statement
from snapshots.copied_rows import copier
from snapshots.pace import Pace, Probe
from snapshots.reader import (
    ALL,
    LIMITS,
    NOW_US,
    PAUSE_S,
    begin,
    lock,
    of_range,
    of_statement,
    of_tree,
    read,
)

_ANY_ROW: Final = sql.SQL("SELECT EXISTS ({})")
_HAS_CHILDREN: Final = "SELECT relhassubclass FROM pg_class WHERE oid = %s"
_NEWEST_XID: Final = """
SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::int8 - 1) & 4294967295
"""


class Marker(StrEnum):
    """A row's place in a snapshot: Debezium's ``source.snapshot``."""

    FIRST = "first"
    FIRST_IN_DATA_COLLECTION = "first_in_data_collection"
    TRUE = "true"
    LAST_IN_DATA_COLLECTION = "last_in_data_collection"
    LAST = "last"


class MarkedRows:
    """A table's rows → records with their place in the snapshot.

    ``make`` returns a copier that appends the records of rows with a marker to a list. The last row
    waits for ``end``. ``first``: this is the first table of the snapshot.
    """

    def __init__(
        self, make: Callable[[list[RecordOrBatch], Marker], fast.Copier], *, first: bool
    ) -> None:
        self._make = make
        self._first = Marker.FIRST if first else Marker.FIRST_IN_DATA_COLLECTION
        self._made: list[RecordOrBatch] = []
        self._others = make(self._made, Marker.TRUE)
        self._last_row = bytearray()
        self.rows = 0
        """How many rows have their marker."""

    def feed(self, data: bytearray, start: int, end: int, limits: Limits = LIMITS) -> int:
        """Process whole CopyData messages up to one of the limits. Return where they end."""
        last, stop = fast.last_copy_data(data, start, end)
        if stop == start:
            return start
        marked: list[RecordOrBatch] = []
        if self._last_row:
            marked = self._mark_last_row(Marker.TRUE if self.rows else self._first)
        elif not self.rows:  # the first row may be the last one, too
            last, stop = start, copy_data_end(data, start, end)
        before = self._others.row_count
        start = self._others.feed(data, start, last, time.time_ns(), *limits)
        self.rows += self._others.row_count - before
        self._made[:0] = marked
        if start < last:
            return start
        self._last_row = data[last:stop]
        return stop

    def end(self, is_last: Callable[[], bool]) -> None:
        """Mark the table's last row. ``is_last`` returns whether no later table has a row."""
        if not self._last_row:
            return
        marker = Marker.LAST_IN_DATA_COLLECTION
        if is_last():
            marker = Marker.LAST
        elif not self.rows and self._first is Marker.FIRST:
            marker = Marker.FIRST
        self._made += self._mark_last_row(marker)

    def take(self) -> list[RecordOrBatch]:
        """Return the records made since the last call."""
        made = [*self._made]
        self._made.clear()
        return made

    def _mark_last_row(self, marker: Marker) -> list[RecordOrBatch]:
        """Return the records of the row that was held back, with its marker."""
        row, self._last_row = self._last_row, bytearray()
        made: list[RecordOrBatch] = []
        self._make(made, marker).feed(row, 0, len(row), time.time_ns(), *LIMITS)
        self.rows += 1
        return made


class _InOrder:
    """One read of tables over one connection, by ``batches``."""

    def __init__(
        self,
        source: LibraryOptions,
        position: Position,
        xid: int | None,
        statements: Mapping[str, Statement],
        pace: Pace,
    ) -> None:
        self._source = source
        self._position = position
        self._xid = xid
        self._statements = statements
        self._pace = pace

    def batches(
        self,
        exported: ExportedSnapshot,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], Encoder],
    ) -> Iterator[SnapshotBatch]:
        """Yield every row that the snapshot sees, table by table. A table's last batch says so."""
        with (
            closing(connect(self._source, purpose="snapshot")) as self._connection,
            Probe(self._source, self._pace).measuring(),
        ):
            for index, table in enumerate(tables):
                begin(self._connection, exported)
                for leaf in table.leaves:
                    lock(self._connection, leaf)
                own = self._statements.get(str(table.name))
                with blaming(own.key if own else None):
                    yield from self._marked(tables[index:], encoder(table), is_first=index == 0)
                query(self._connection, "ROLLBACK")  # undoes settings by its owner's code

    def _marked(
        self, tables: Sequence[TableDescription], encoder: Encoder, *, is_first: bool
    ) -> Iterator[SnapshotBatch]:
        """Yield the first table's rows, each with its marker. Its last row is held back."""
        table, *later = tables
        ((now_us,),) = query(self._connection, NOW_US)
        xid = self._xid
        if xid is None:
            ((xid,),) = query(self._connection, _NEWEST_XID)

        def make(records: list[RecordOrBatch], marker: Marker) -> fast.Copier:
            return copier(records, encoder, self._position, now_us, Read(marker, xid))

        def is_last() -> bool:
            selects = (select for other in later for select in self._selects(other))
            answers = (query(self._connection, _ANY_ROW.format(select)) for select in selects)
            return all(answer == [(False,)] for answer in answers)

        def batch(*end: Any) -> SnapshotBatch:
            records, progress = marked.take(), ReadProgress(table.name, marked.rows, *end)
            return SnapshotBatch(progress, records, count(records), size(records))

        marked, paid = MarkedRows(make, first=is_first), 0
        for select in self._selects(table):
            for _ in read(self._connection, select, marked.feed):
                yield batch()
                self._pace.took(marked.rows - paid)
                paid = marked.rows
                while wait_s := self._pace.wait_s():
                    time.sleep(min(wait_s, PAUSE_S))
                    yield batch()
        marked.end(is_last)
        yield batch((), table.pages, True)

    def _selects(self, table: TableDescription) -> list[sql.Composed]:
        """Return the SELECTs of all of a table's rows, leaf by leaf."""
        columns = [column.name for column in table.columns]
        if (own := self._statements.get(str(table.name))) is not None:
            return [of_statement(own.text, columns)]
        if query(self._connection, _HAS_CHILDREN, [table.oid]) == [(True,)]:
            return [of_tree(table.name, columns, table.row_filter)]
        return [of_range(leaf, columns, ALL, [table.row_filter]) for leaf in table.leaves]


class InitialSnapshot:
    """Reads existing rows. Implements the Backfill of cdc.capture."""

    def __init__(self, source: LibraryOptions, settings: CaptureSettings, pace: Pace) -> None:
        self._source = source
        self._settings = settings
        self._pace = pace

    def read(
        self,
        exported: ExportedSnapshot,
        position: Position,
        tables: Sequence[TableDescription],
        encoder: Callable[[TableDescription], Encoder],
        again: Again = FIRST,
        limit_s: float | None = None,
    ) -> Iterator[SnapshotBatch]:
        """Yield every row that the snapshot sees. A table's last batch says so, and may be empty.

        ``limit_s``: how long the snapshot may be used for tables that can also be read while
        streaming. None: nothing is read while streaming.
        """
        statements = {
            name: Statement(text, f"snapshot.select.statement.overrides.{name}")
            for name, text in self._settings.snapshot_select_statements.items()
        }
        for table, text in again.statements.items():
            statements[str(table)] = Statement(text)
        if not self._settings.lossless:
            in_order = _InOrder(self._source, position, again.xid, statements, self._pace)
            return in_order.batches(exported, tables, encoder)
        until_s = None if limit_s is None else time.monotonic() + limit_s
        bulk = Bulk(self._settings, self._source, exported, position, encoder, until_s, self._pace)
        return bulk.batches(tables, statements)

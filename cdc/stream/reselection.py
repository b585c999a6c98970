"""Rows that lack unchanged (TOASTed) values → the same rows, with the source's current values.

An update doesn't have a large value that it left unchanged, and compaction removes the record that
had it. So such a row waits until its batch ends. Then it is read again by its replica identity,
together with the others, and takes its place among the records: docs/decisions/0007.

If a row no longer exists, its delete follows. If a value is newer than the event, the change that
made it follows: both are in the WAL after the event that asks. Values that can't be read stay
absent.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.errors import ROW_ERRORS, MillraceError
from cdc.events.changes import ABSENT, IdentityKey, Reread, RereadRequest, Row, filled
from cdc.records.position import Lsn, Position, Transaction, filled_field
from cdc.records.record import Record, RecordOrBatch, count
from cdc.records.record import size as record_size
from cdc.records.schema import TableName
from cdc.wal.messages import Relation, Update

_FIRST_ROWS: Final = 16
_ROWS_MAX: Final = 500
_BYTES: Final = 4 << 20
"""Rows read at once have about this many bytes, judged by the largest ones before."""
_GROWTH: Final = 4


class _Waiting(NamedTuple):
    """An update that lacks values of ``columns``.

    ``record_index`` is its place among the records.
    """

    record_index: int
    encoder: Encoder
    relation: Relation
    columns: tuple[int, ...]
    key: IdentityKey
    update: Update
    lsn: Lsn
    position: Position
    transaction: Transaction


class Reselection:
    """The rows of a batch that lack values, in order. ``complete`` empties it."""

    def __init__(self, reread: Reread, *, one_by_one: bool = False) -> None:
        """``one_by_one``: no event may be made before the one in front of it."""
        self._reread = reread
        self._waiting: list[_Waiting] = []
        self._rows_max = 1 if one_by_one else _ROWS_MAX
        self._limit = min(_FIRST_ROWS, self._rows_max)
        self._made: list[RecordOrBatch] = []
        self._translator: fast.Translator | None = None
        self._tables: WeakKeyDictionary[Encoder, fast.Table | None] = WeakKeyDictionary()
        """The encoders' tables, if the extension takes their rows."""
        self.failed_tables: set[TableName] = set()
        """Tables whose rows couldn't be read."""
        self.refused: dict[int, MillraceError] = {}
        """Relations, by OID, with a row that has no record → the reason."""

    @property
    def is_waiting(self) -> bool:
        """Whether a row waits."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether the batch should end here."""
        return len(self._waiting) >= self._limit

    def defer(
        self,
        update: Update,
        relation: Relation,
        encoder: Encoder,
        records: list[RecordOrBatch],
        lsn: Lsn,
        position: Position,
        transaction: Transaction,
    ) -> bool:
        """Keep an update that lacks values to be read. Return whether it does."""
        new = _completed(update)
        columns = tuple(
            index
            for index, value in enumerate(new)
            if value is ABSENT and index in encoder.reselects
        )
        key = _key(new, relation) if columns else None
        if key is None:
            return False
        waiting = _Waiting(
            len(records), encoder, relation, columns, key, update, lsn, position, transaction
        )
        self._waiting.append(waiting)
        records.append(Record("", None, None, []))
        return True

    def complete(self, records: list[RecordOrBatch]) -> tuple[int, int]:
        """Insert the waiting rows among the records. Return the events and bytes added."""
        waiting, self._waiting = self._waiting, []
        made: list[RecordOrBatch] = []
        start = size = 0
        added = -len(waiting)
        try:
            values_by_group = self._read(waiting)
            for row in waiting:
                made += records[start : row.record_index]
                start = row.record_index + 1
                values = values_by_group[row.encoder, row.columns].get(row.key)
                try:
                    more = self._encoded(row, values)
                except ROW_ERRORS as error:
                    more = []
                    self.refused[row.relation.oid] = error
                size += record_size(more)
                added += count(more)
                made += more
            made += records[start:]
        finally:
            records[:] = made
        return added, size

    def _read(
        self, waiting: Sequence[_Waiting]
    ) -> dict[tuple[Encoder, tuple[int, ...]], Mapping[IdentityKey, Row]]:
        """Run one query per table, version of its schema, and set of columns."""
        groups: dict[tuple[Encoder, tuple[int, ...]], list[_Waiting]] = {}
        for row in waiting:
            groups.setdefault((row.encoder, row.columns), []).append(row)
        values_by_group: dict[tuple[Encoder, tuple[int, ...]], Mapping[IdentityKey, Row]] = {}
        largest = 1
        for group, rows in groups.items():
            first = rows[0]
            relation = first.relation
            request = RereadRequest(
                relation,
                _identity(relation),
                first.columns,
                tuple(dict.fromkeys(row.key for row in rows)),
                frozenset(row.transaction.xid for row in rows),
            )
            read = self._reread(request)
            if read is None or any(ABSENT in values for values in read.values()):
                self.failed_tables.add(TableName(relation.namespace, relation.name))
            values_by_group[group] = read or {}
            for values in values_by_group[group].values():
                largest = max(largest, sum(len(v) for v in values if isinstance(v, bytes)))
        fitting = min(_BYTES // largest, len(waiting) * _GROWTH, self._rows_max)
        self._limit = max(1, fitting)
        return values_by_group

    def _encoded(self, row: _Waiting, values: Row | None) -> list[RecordOrBatch]:
        """Return the waiting row's records with the values read, by the extension if possible."""
        update = row.update
        got = {
            index: value
            for index, value in zip(row.columns, values or (), strict=False)
            if value is not ABSENT
        }
        new = tuple(got.get(index, value) for index, value in enumerate(update.new))
        place = row.lsn, row.position
        if not self._is_compiled(row, new, tuple(got)):
            row.encoder.begin(row.transaction)
            return [*row.encoder.update(update.old, update.old_is_key, new, *place, tuple(got))]
        made = [*self._made]
        self._made.clear()
        return made

    def _is_compiled(self, row: _Waiting, new: Row, filled: tuple[int, ...]) -> bool:
        table = self._table(row.encoder)
        if table is None:
            return False
        if self._translator is None:
            start = Position(row.position.epoch, Lsn(0), 0)
            cursor = fast.Cursor(start, start, Lsn(0))
            self._translator = fast.Translator(cursor, self._made, None, lambda _: False)
        old, is_key = row.update.old, row.update.old_is_key
        field, clock_ns = filled_field(filled).encode(), time.time_ns()
        return self._translator.update(
            table, row.transaction, row.position, row.lsn, old, is_key, new, field, clock_ns
        )

    def _table(self, encoder: Encoder) -> fast.Table | None:
        if encoder not in self._tables:
            table = self._tables[encoder] = encoder.compiled()
            if table is not None:
                table.reselects = False  # values that are still absent stay so
        return self._tables[encoder]


def _completed(update: Update) -> Row:
    """Return the new row, completed from the old one."""
    if update.old is None or len(update.old) != len(update.new):
        return update.new
    return filled(update.new, update.old, old_is_key=update.old_is_key)


def _identity(relation: Relation) -> tuple[int, ...]:
    return tuple(index for index, column in enumerate(relation.columns) if column.key)


def _key(row: Row, relation: Relation) -> IdentityKey | None:
    """Return the row's replica identity. None: it has none, or doesn't match the relation."""
    if len(row) != len(relation.columns):
        return None
    key = tuple(value for index in _identity(relation) if isinstance(value := row[index], bytes))
    return key if key and len(key) == len(_identity(relation)) else None

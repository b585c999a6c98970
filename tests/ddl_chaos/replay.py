"""Events of an archive, or of the log → the rows that they add up to.

A value that an update left unchanged (absent) is the row's earlier value. A value that was read for
it later (filled) counts only if no better one is known (docs/decisions/0007-unchanged-values.md).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdc.records.bounds import EndedRows
from cdc.records.schema import TableSchema
from sinks.changes.names import ABSENT, FILLED, OP, POSITION, RAW_VALUE, RECORD_OFFSET, VERSION
from sinks.changes.shape import column_lines, plain_shape
from sinks.delta.archive import GAP
from tests.fixtures.ended_rows import is_within
from tests.fixtures.pipeline import LogRecord

OWN: Final = (POSITION, OP, ABSENT, FILLED, VERSION, RECORD_OFFSET, RAW_VALUE)
"""Millrace's own columns that it takes."""
_TRUNCATE: Final = "t"
_ENDED: Final = "p"
Event = Mapping[str, Any]
Row = dict[str, Any]


class _Kept(NamedTuple):
    """A row as the events up to a position have it, and which of its values are only filled."""

    row: Row
    filled: frozenset[str]
    position: str


class Versions:
    """The schema versions of a table: what columns were called, whose newest names rows have."""

    def __init__(self, schemas: Iterable[TableSchema]) -> None:
        self._schemas = {schema.version: schema for schema in schemas}
        shape = plain_shape(self._in_order, ())
        self._names = {
            number: {
                source.name: field.name
                for field in shape.fields
                if (source := field.sources.get(number)) is not None
            }
            for number in self._schemas
        }

    @property
    def _in_order(self) -> list[TableSchema]:
        return [self._schemas[number] for number in sorted(self._schemas)]

    def staying(self, *, in_history: bool) -> set[str]:
        """Names of columns that the source has dropped, and ``column.drop.policy`` doesn't remove.

        Those that may only have been renamed, as far as the versions tell, and in a history those
        that rows were told apart by (docs/reference/lakehouse.md#dropped-columns).
        """
        newest = max(self._schemas)
        return {
            column.name
            for line in column_lines(self._in_order)
            if newest not in line.sources
            if not line.is_ended
            or (in_history and any(of.key is not None for of in line.sources.values()))
            for column in line.sources.values()
        }

    def archived(self, record: LogRecord) -> Row:
        """A record of the log, with the columns that an archive has it in."""
        op = "d" if record.value is None else record.op
        row = {} if op in {_TRUNCATE, _ENDED} else json.loads(record.key or "{}")
        if record.value is not None:
            row |= record.value["after"] or {}
        names = self._names[record.schema_version]
        return {
            **{new: row.get(old) for old, new in names.items()},
            POSITION: str(record.position),
            OP: op,
            ABSENT: [new for old, new in names.items() if old not in row],
            FILLED: ",".join(str(index + 1) for index in record.filled),
            VERSION: record.schema_version,
            RECORD_OFFSET: record.offset,
            RAW_VALUE: json.dumps(record.value) if op == _ENDED else None,
        }

    def filled(self, event: Event) -> set[str]:
        """The columns that an event has filled values of."""
        version = event[VERSION]
        ordinals = [int(number) for number in (event[FILLED] or "").split(",") if number]
        columns = self._schemas[version].columns if ordinals else ()
        called = [columns[ordinal - 1].name for ordinal in ordinals]
        return {self._names[version][name] for name in called if name in self._names[version]}


def replayed(
    events: Iterable[Event], key: Sequence[str], columns: Sequence[str], versions: Versions
) -> list[Row]:
    """The rows, with these columns, behind all events."""
    rows: dict[tuple[Any, ...], _Kept] = {}
    for event in sorted(events, key=_order):
        if event[OP] == _TRUNCATE:
            rows.clear()
        elif event[OP] == _ENDED:
            _end(rows, EndedRows.model_validate(json.loads(event[RAW_VALUE])["ended"]))
        elif event[OP] != GAP:
            # Under a key of other columns it is null: rows of that end before those of this one.
            identity = tuple(event.get(name) for name in key)
            before = rows.pop(identity, None)
            if event[OP] != "d":
                rows[identity] = _after(event, before, columns, versions.filled(event))
    return [kept.row for kept in rows.values()]


def _end(rows: dict[tuple[Any, ...], _Kept], ended: EndedRows) -> None:
    """Take away the rows within the bounds; no run gives another name to a column of those."""
    for identity, kept in list(rows.items()):
        if kept.position <= str(ended.upto) and is_within(ended.bounds, kept.row):
            del rows[identity]


def _order(event: Event) -> tuple[str, bool, int]:
    """By position; of events at one position those that come later in the log, then what ends rows.

    A key's events are in one partition, and a TRUNCATE takes all that isn't newer.
    """
    return event[POSITION], event[OP] in {_TRUNCATE, _ENDED}, event[RECORD_OFFSET] or 0


def _after(event: Event, before: _Kept | None, columns: Sequence[str], filled: set[str]) -> _Kept:
    row, still_filled = dict[str, Any](), set[str]()
    for name in columns:
        was = before.row.get(name) if before else None
        is_exact = was is not None and before is not None and name not in before.filled
        if name in (event[ABSENT] or ()) or (name in filled and is_exact):
            row[name] = was
            is_filled = before is not None and name in before.filled
        else:
            row[name] = event.get(name)
            is_filled = name in filled
        if is_filled:
            still_filled.add(name)
    return _Kept(row, frozenset(still_filled), event[POSITION])

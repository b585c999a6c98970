"""An archive's events, or the log's → the rows that they add up to.

What an update has left as it was (absent) is what the row had before. What was read for it later
(filled) counts only where nothing better is known (docs/decisions/0007-unchanged-values.md).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sinks.changes.names import ABSENT, FILLED, OP, POSITION, RECORD_OFFSET, VERSION
from sinks.delta.archive import GAP
from tests.fixtures.pipeline import LogRecord

OWN: Final = (POSITION, OP, ABSENT, FILLED, VERSION, RECORD_OFFSET)
"""Millrace's own columns that it takes."""
_TRUNCATE: Final = "t"
Event = Mapping[str, Any]
Row = dict[str, Any]


class _Kept(NamedTuple):
    """A row as the events so far have it, and which of its values are only filled ones."""

    row: Row
    filled: frozenset[str]


def replayed(
    events: Iterable[Event],
    key: Sequence[str],
    columns: Sequence[str],
    names: Mapping[int, Sequence[str]],
) -> list[Row]:
    """The rows, with these columns, behind all events; ``names``: each schema version's columns."""
    rows: dict[tuple[Any, ...], _Kept] = {}
    for event in sorted(events, key=_order):
        if event[OP] == _TRUNCATE:
            rows.clear()
        elif event[OP] != GAP:
            identity = tuple(event[name] for name in key)
            before = rows.pop(identity, None)
            if event[OP] != "d":
                rows[identity] = _after(event, before, columns, names[event[VERSION]])
    return [kept.row for kept in rows.values()]


def _order(event: Event) -> tuple[str, bool, int]:
    """By position; of events at one position those that come later in the log, then a TRUNCATE.

    A key's events are in one partition, and a TRUNCATE takes all that isn't newer.
    """
    return event[POSITION], event[OP] == _TRUNCATE, event[RECORD_OFFSET] or 0


def as_archived(record: LogRecord) -> Row:
    """A record of the log, with the columns that an archive has it in."""
    op = "d" if record.value is None else record.op
    row = {} if op == _TRUNCATE else json.loads(record.key or "{}")
    if record.value is not None:
        row |= record.value["after"] or {}
    return {
        **row,
        POSITION: str(record.position),
        OP: op,
        ABSENT: None,  # what it hasn't
        FILLED: ",".join(str(index + 1) for index in record.filled),
        VERSION: record.schema_version,
        RECORD_OFFSET: record.offset,
    }


def _after(
    event: Event, before: _Kept | None, columns: Sequence[str], names: Sequence[str]
) -> _Kept:
    """The row behind an event that has values for the ``names`` of its schema version."""
    row, still_filled = dict[str, Any](), set[str]()
    ordinals = [int(number) for number in (event[FILLED] or "").split(",") if number]
    filled = {names[ordinal - 1] for ordinal in ordinals}
    absent = event[ABSENT]
    if absent is None:
        absent = [name for name in names if name not in event]
    for name in columns:
        was = before.row.get(name) if before else None
        is_exact = was is not None and before is not None and name not in before.filled
        if name in absent or (name in filled and is_exact):
            row[name] = was
            is_filled = before is not None and name in before.filled
        else:
            row[name] = event.get(name)
            is_filled = name in filled
        if is_filled:
            still_filled.add(name)
    return _Kept(row, frozenset(still_filled))

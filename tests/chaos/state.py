"""A table's records and its rows → is what the records add up to what SELECT says."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.chaos.values import same_value
from tests.chaos.verdict import KEYS, Verdict, named
from tests.chaos.witness import Row, Value
from tests.fixtures.pipeline import LogRecord

_BAG: Final = ("v", "t", "f")
"""Columns that a table without a key always has."""
_LARGE: Final = frozenset({"big"})
"""Columns that an update may leave out, because they are stored out of line."""


def check_state(
    table: str, records: Sequence[LogRecord], rows: Sequence[Row], verdict: Verdict
) -> None:
    """Compare; ``rows`` as SELECT prints them."""
    ordered = sorted(records, key=lambda record: (record.position, record.offset))
    if KEYS[table]:
        _check_rows(table, _state(table, ordered, verdict), rows, verdict)
        return
    bag = _bag(ordered)
    bag.subtract(json.dumps([_plain(row[name]) for name in _BAG]) for row in rows)
    for text, count in bag.items():
        if count:
            verdict.different += 1
            verdict.tell(f"the log has {count:+} rows of {table} {text}")


def _state(
    table: str, ordered: Sequence[LogRecord], verdict: Verdict
) -> dict[tuple[Any, ...], dict[str, Any]]:
    state: dict[tuple[Any, ...], dict[str, Any]] = {}
    exact: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in ordered:
        if record.op == "t":
            state.clear()
            exact.clear()
            continue
        members = json.loads(record.key or "{}")
        place = tuple(members[name] for name in KEYS[table])
        if record.op == "r" and record.position > ordered[0].position:
            _check_read(record, exact.get(place), verdict)
        if record.value is None or record.op == "d":
            state.pop(place, None)
            exact.pop(place, None)
        else:
            after = record.value["after"]
            state[place] = state.get(place, {}) | after
            told = {name: value for name, value in after.items() if name not in _filled(record)}
            exact[place] = exact.get(place, {}) | told
    return state


def _filled(record: LogRecord) -> frozenset[str]:
    """The columns whose value may be of a later change, which follows: docs/decisions/0007."""
    return _LARGE if record.filled else frozenset()


def _check_read(record: LogRecord, known: Mapping[str, Any] | None, verdict: Verdict) -> None:
    """A row that is read again is the one that the log has at that place, or completes it."""
    verdict.read_again += 1
    read = record.value["after"] if record.value else {}
    names = ["its key"] if known is None else []
    names += [name for name, value in (known or {}).items() if read.get(name, value) != value]
    if names:
        verdict.different += 1
        verdict.tell(f"not what the log had by then in {names}: {named(record)}")


def _check_rows(
    table: str,
    state: dict[tuple[Any, ...], dict[str, Any]],
    rows: Sequence[Row],
    verdict: Verdict,
) -> None:
    for row in rows:
        place = tuple(_plain(row[name]) for name in KEYS[table])
        has = state.pop(place, None)
        if has is None:
            verdict.different += 1
            verdict.tell(f"the log lacks a row of {table}: {place}")
            continue
        names = [name for name, value in row.items() if not same_value(value, has.get(name))]
        if names == ["big"] and "big" not in has:
            verdict.absent += 1
        elif names:
            verdict.different += 1
            verdict.tell(f"the log's row of {table} {place} has other {names}")
    for place in state:
        verdict.different += 1
        verdict.tell(f"the log has a row of {table} that isn't there: {place}")


def _bag(ordered: Sequence[LogRecord]) -> Counter[str]:
    bag: Counter[str] = Counter()
    for record in ordered:
        value = record.value or {}
        if record.op == "t":
            bag.clear()
        if record.op in {"d", "u"}:
            bag[_text(value["before"])] -= 1
        if record.op in {"c", "u", "r"}:
            bag[_text(value["after"])] += 1
    return bag


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps([row.get(name) for name in _BAG])


def _plain(value: Value) -> Any:
    if value.text is None:
        return None
    if value.type in {"integer", "bigint"}:
        return int(value.text)
    return float(value.text) if value.type == "double precision" else value.text

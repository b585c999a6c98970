"""A table's records and its rows → whether the records add up to the result of SELECT."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.chaos.values import same_value
from tests.chaos.verdict import KEYS, Verdict, begins_read, named
from tests.chaos.witness import Row, Value
from tests.fixtures.pipeline import LogRecord

_KEYLESS_COLUMNS: Final = ("v", "t", "f")
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
    counts = _row_counts(ordered)
    counts.subtract(json.dumps([_plain(row[name]) for name in _KEYLESS_COLUMNS]) for row in rows)
    for text, count in counts.items():
        if count:
            verdict.different += 1
            verdict.tell(f"the log has {count:+} rows of {table} {text}")


def _state(
    table: str, ordered: Sequence[LogRecord], verdict: Verdict
) -> dict[tuple[Any, ...], dict[str, Any]]:
    is_anew = False
    state: dict[tuple[Any, ...], dict[str, Any]] = {}
    exact: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in ordered:
        if record.op == "t":
            state.clear()
            exact.clear()
            # Without a frame of the stream: all rows are read anew behind it.
            is_anew = begins_read(record)
            continue
        members = json.loads(record.key or "{}")
        key = tuple(members[name] for name in KEYS[table])
        is_again = record.op == "r" and record.position > ordered[0].position
        if is_again and not (is_anew and key not in exact):
            _check_read(record, exact.get(key), verdict)
        if record.value is None or record.op == "d":
            state.pop(key, None)
            exact.pop(key, None)
        else:
            after = record.value["after"]
            state[key] = state.get(key, {}) | after
            exact_values = {
                name: value for name, value in after.items() if name not in _filled(record)
            }
            exact[key] = exact.get(key, {}) | exact_values
    return state


def _filled(record: LogRecord) -> frozenset[str]:
    """The columns whose value may be of a later change, which follows: docs/decisions/0007."""
    return _LARGE if record.filled else frozenset()


def _check_read(record: LogRecord, logged: Mapping[str, Any] | None, verdict: Verdict) -> None:
    """A row that is read again is the one that the log has at that key, or completes it."""
    verdict.read_again += 1
    read = record.value["after"] if record.value else {}
    names = ["its key"] if logged is None else []
    names += [name for name, value in (logged or {}).items() if read.get(name, value) != value]
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
        key = tuple(_plain(row[name]) for name in KEYS[table])
        has = state.pop(key, None)
        if has is None:
            verdict.different += 1
            verdict.tell(f"the log lacks a row of {table}: {key}")
            continue
        names = [name for name, value in row.items() if not same_value(value, has.get(name))]
        if names == ["big"] and "big" not in has:
            verdict.absent += 1
        elif names:
            verdict.different += 1
            verdict.tell(f"the log's row of {table} {key} has other {names}")
    for key in state:
        verdict.different += 1
        verdict.tell(f"the log has a row of {table} that isn't there: {key}")


def _row_counts(ordered: Sequence[LogRecord]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for record in ordered:
        value = record.value or {}
        if record.op == "t":
            counts.clear()
        if record.op in {"d", "u"}:
            counts[_text(value["before"])] -= 1
        if record.op in {"c", "u", "r"}:
            counts[_text(value["after"])] += 1
    return counts


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps([row.get(name) for name in _KEYLESS_COLUMNS])


def _plain(value: Value) -> Any:
    if value.text is None:
        return None
    if value.type in {"integer", "bigint"}:
        return int(value.text)
    return float(value.text) if value.type == "double precision" else value.text

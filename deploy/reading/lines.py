"""Events → lines for people: when, what, which row, and only what changed.

Names and values are foreign text: control characters never reach the terminal.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final, Literal

from cdc.reader.events import ChangeEvent, RowImage
from deploy.commands.printing import printable_line

Hiding = Literal["", "masked", "cut"]
FindHiding = Callable[[str, str], Hiding]
"""``schema.table`` and a column → how the configuration hides its values."""
WORDS: Final = {
    "c": "create",
    "r": "read",
    "u": "update",
    "d": "delete",
    "t": "truncate",
    "p": "partition",
}
_WIDTH: Final = max(map(len, WORDS.values()))
_ROWS_MAX: Final = 10_000
_BYTES_MAX: Final = 64 << 20
"""Memory for rows, to show what an update without its old row has changed."""
_VALUE_MAX: Final = 100
_WORDS_OF_JSON: Final = {"", "null", "true", "false"}


class RememberedRows:
    """The most recently changed rows, up to a number and a size in memory."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str], tuple[RowImage, int]] = OrderedDict()
        self._bytes = 0

    def pop(self, key: tuple[str, str]) -> RowImage | None:
        """Remove a row, and return it."""
        row, size = self._rows.pop(key, (None, 0))
        self._bytes -= size
        return row

    def put(self, key: tuple[str, str], row: RowImage) -> None:
        """Add a new row, and remove those that changed longest ago."""
        size = _bytes_of(key) + _bytes_of(row)
        self._rows[key] = row, size
        self._bytes += size
        while len(self._rows) > _ROWS_MAX or self._bytes > _BYTES_MAX:
            _, (_, oldest) = self._rows.popitem(last=False)
            self._bytes -= oldest

    def clear(self) -> None:
        """Remove all rows."""
        self._rows.clear()
        self._bytes = 0


def _bytes_of(value: Any) -> int:
    """Return the memory that a value takes."""
    size = sys.getsizeof(value)
    match value:
        case dict():
            return size + sum(_bytes_of(name) + _bytes_of(each) for name, each in value.items())
        case list() | tuple():
            return size + sum(map(_bytes_of, value))
    return size


class EventLines:
    """Makes the lines. Keeps rows, as most updates come without their old row."""

    def __init__(self, mask_of: FindHiding) -> None:
        self._mask_of = mask_of
        self._rows = RememberedRows()

    def line(self, event: ChangeEvent) -> str:
        """Return the line of an event."""
        before = self._remembered(event)
        time = event.commit_time.strftime("%Y-%m-%d %H:%M:%S.%fZ")
        key = " ".join(f"{_text(name)}={_shown(each)}" for name, each in (event.key or {}).items())
        start = [time, WORDS[event.operation].ljust(_WIDTH), _text(event.table), key]
        return "  ".join([*filter(None, start), ", ".join(self._details(event, before))]).rstrip()

    def _remembered(self, event: ChangeEvent) -> RowImage | None:
        """Return the row before the event, as far as it is known."""
        if event.operation in {"t", "p"}:
            self._rows.clear()
        if event.key is None:
            return event.before
        row_key = event.table, json.dumps(event.key, default=str)
        before = self._rows.pop(row_key)
        if event.after is not None:
            self._rows.put(row_key, {**(before or {}), **event.after})
        return event.before or before

    def _details(self, event: ChangeEvent, before: RowImage | None) -> Iterator[str]:
        if event.ended is not None:
            yield "the rows of a dropped partition are deleted"
        if event.operation == "d":
            before, after = None, event.before or {}
        else:
            after = event.after or {}
        keys, has_changed = event.key or {}, False
        for name, value in after.items():
            if name in keys or (before is not None and before.get(name, ...) == value):
                continue
            has_changed = True
            shown = self._value(event, name, value)
            if before is not None and name in before:
                shown = f"{self._value(event, name, before[name])} → {shown}"
            yield f"{_text(name)}: {shown}"
        if before is not None and event.operation == "u" and not has_changed:
            yield "(no value changed)"
        yield from (f"{_text(name)}: (absent)" for name in event.absent)
        yield from (f"{_text(name)}: (lost: too large)" for name in event.lost)

    def _value(self, event: ChangeEvent, name: str, value: Any) -> str:
        mask = self._mask_of(event.table, name)
        if mask == "masked" and value is not None:
            return "(masked)"
        return f"{_shown(value)}{' (cut)' if mask else ''}"


def _shown(value: Any) -> str:
    """Return a value as text. Other types are as in JSON."""
    if isinstance(value, str) and value not in _WORDS_OF_JSON:
        text = value
    elif isinstance(value, bytes):
        text = f"\\x{value.hex()}"
    elif isinstance(value, Decimal):
        text = str(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return _text(text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…")


def _text(text: str) -> str:
    return printable_line(text)

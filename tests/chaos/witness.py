"""A `test_decoding` slot's text → the committed changes, in commit order: the truth of a run.

It is PostgreSQL's own plugin, so none of our code is involved. A change's line:
`table public.item: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 name[text]:'it''s'`.
https://www.postgresql.org/docs/current/test-decoding.html
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import psycopg

Kind = Literal["INSERT", "UPDATE", "DELETE", "TRUNCATE", "message"]
UNCHANGED: Final = "unchanged-toast-datum"
_COLUMN: Final = re.compile(
    r"(?P<name>\w+)\[(?P<type>.+?)\]:(?:'(?P<quoted>(?:[^']|'')*)'|(?P<bare>\S+))(?: |\Z)"
)
_CHANGE: Final = re.compile(r"table public\.(\w+): (INSERT|UPDATE|DELETE): (.*)\Z", re.DOTALL)
_TRUNCATE: Final = re.compile(r"table (.*): TRUNCATE: \(no-flags\)\Z")


@dataclass(frozen=True, slots=True)
class Value:
    """A column's value as PostgreSQL prints it; None is NULL."""

    type: str
    text: str | None
    unchanged: bool = False


Row = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Change:
    """One frame of a transaction; ``old`` is what identifies the row where that was logged."""

    kind: Kind
    tables: tuple[str, ...]
    old: Row | None = None
    new: Row | None = None


@dataclass(slots=True)
class Transaction:
    """One that was committed; ``lsn`` is the end of its commit record."""

    xid: int
    lsn: str = ""
    changes: list[Change] = field(default_factory=list)


def read(conninfo: str, slot: str) -> list[Transaction]:
    """Everything that the slot has, without taking it away."""
    with psycopg.connect(conninfo) as connection, connection.cursor("witness") as cursor:
        # PostgreSQL 18 tells plugins of aborts that are none of theirs when a transaction that was
        # rolled back is more than this, and test_decoding dies of it.
        connection.execute("SET logical_decoding_work_mem = '1GB'")
        cursor.itersize = 5_000
        cursor.execute(
            "SELECT lsn::text, data FROM pg_logical_slot_peek_changes(%s, NULL, NULL,"
            " 'include-xids', 'on', 'skip-empty-xacts', 'on')",
            [slot],
        )
        return list(transactions(cursor))


def transactions(lines: Iterable[tuple[str, str]]) -> Iterator[Transaction]:
    """Group lines, each with its LSN, from BEGIN to COMMIT."""
    current = Transaction(0)
    for lsn, line in lines:
        if line.startswith("BEGIN "):
            current = Transaction(int(line[6:]))
        elif line.startswith("COMMIT "):
            current.lsn = lsn
            yield current
        else:
            current.changes.append(change(line))


def change(line: str) -> Change:
    """Read one line; raises ValueError for what the workload doesn't do."""
    if line.startswith("message:"):
        return Change("message", ())
    if truncate := _TRUNCATE.match(line):
        names = truncate[1].removeprefix("table ").split(", ")
        return Change("TRUNCATE", tuple(name.removeprefix("public.") for name in names))
    match = _CHANGE.match(line)
    if match is None:
        raise ValueError(f"not a line of test_decoding that a run has: {line[:200]}")
    table, kind, rest = match.groups()
    if kind == "INSERT":
        return Change("INSERT", (table,), None, row(rest))
    if kind == "DELETE":
        return Change("DELETE", (table,), row(rest), None)
    old, new = None, rest
    if rest.startswith("old-key: "):
        old, new = _columns_until(rest.removeprefix("old-key: "), "new-tuple: ")
        return Change("UPDATE", (table,), old, row(new))
    return Change("UPDATE", (table,), old, row(new))


def row(text: str) -> Row:
    """Columns, all of them."""
    columns, rest = _columns_until(text, None)
    if rest:
        raise ValueError(f"not columns: {rest[:200]}")
    return columns


def _columns_until(text: str, stop: str | None) -> tuple[Row, str]:
    columns: Row = {}
    at = 0
    while at < len(text):
        if stop is not None and text.startswith(stop, at):
            return columns, text[at + len(stop) :]
        column = _COLUMN.match(text, at)
        if column is None:
            break
        columns[column["name"]] = _value(column)
        at = column.end()
    return columns, text[at:]


def _value(column: re.Match[str]) -> Value:
    if column["quoted"] is not None:
        return Value(column["type"], column["quoted"].replace("''", "'"))
    bare = column["bare"]
    if bare == UNCHANGED:
        return Value(column["type"], None, unchanged=True)
    return Value(column["type"], None if bare == "null" else bare)

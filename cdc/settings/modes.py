"""What the settings ask of values, events and columns, as plain objects: pure, no pydantic.

The codec and the envelope must not know where settings come from; cdc.settings makes these.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

PLACEHOLDER: Final = b"__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class ValueModes:
    """How values of some types are written; the defaults are ours, which lose nothing."""

    decimal: Literal["text", "precise", "double", "string"] = "text"
    time_precision: Literal[
        "native",
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    ] = "native"
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    interval: Literal["numeric", "string", "text"] = "text"
    hstore: Literal["json", "map", "text"] = "text"
    include_unknown: bool = True
    placeholder: bytes = PLACEHOLDER
    lossless: bool = True


@dataclass(frozen=True, slots=True)
class EventModes:
    """Which events there are, and what goes with them; the defaults are ours.

    ``tombstones`` None: after a delete in a compacted topic only. ``skipped`` holds Debezium's
    letters. ``unchanged`` says what an update has for a TOASTed value that PostgreSQL didn't send;
    with ``reselect`` it is read again, for a compacted topic, and that counts only where it can't.
    """

    tombstones: bool | None = None
    skipped: frozenset[str] = frozenset()
    unchanged: Literal["absent", "placeholder"] = "absent"
    reselect: bool = True
    skip_without_change: bool = False
    transaction_metadata: bool = False
    position_header: bool = True
    context_headers: bool = False
    key_change_headers: bool = False


class Patterns:
    """Regular expressions that are held against whole names in any case, as Debezium does.

    A dot is any character: a name may have lines.
    """

    __slots__ = ("_patterns",)

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = [re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def first(self, *names: str) -> int | None:
        """The index of the first pattern that one of the names matches."""
        for index, pattern in enumerate(self._patterns):
            if any(pattern.fullmatch(name) for name in names):
                return index
        return None

    def match(self, *names: str) -> bool:
        """Whether one of the names matches a pattern."""
        return self.first(*names) is not None


class KeyRule(NamedTuple):
    """One table of ``message.key.columns``: which columns make its key."""

    tables: Patterns
    columns: tuple[str, ...]


class ColumnRule(NamedTuple):
    """What is done to the texts of some columns; ``length`` is of the mask, or kept of the text.

    ``hash`` is Java's name of a digest (SHA-256); ``version`` 1 seeds it by Java's serialized
    text, 2 by UTF-8, as Debezium's ``column.mask.hash`` and ``column.mask.hash.v2``.
    """

    kind: Literal["truncate", "mask", "hash"]
    columns: Patterns
    length: int = 0
    hash: str = ""
    salt: str = ""
    version: Literal[1, 2] = 1


@dataclass(frozen=True, slots=True)
class ColumnModes:
    """Which columns events have, what masks them, and what makes a key; empty: as they are."""

    include: Patterns = Patterns(())  # noqa: RUF009 (immutable)
    exclude: Patterns = Patterns(())  # noqa: RUF009
    rules: tuple[ColumnRule, ...] = ()
    keys: tuple[KeyRule, ...] = ()
    source_type_of: Patterns = Patterns(())  # noqa: RUF009
    source_type_of_types: Patterns = Patterns(())  # noqa: RUF009

    def keeps(self, table: str, column: str) -> bool:
        """Whether events have ``schema.table``'s column."""
        name = f"{table}.{column}"
        return (not self.include or self.include.match(name)) and not self.exclude.match(name)

    def rule(self, table: str, column: str) -> ColumnRule | None:
        """What masks a column: the first rule that names it, truncation before masks and hashes."""
        name = f"{table}.{column}"
        return next((rule for rule in self.rules if rule.columns.match(name)), None)

    def key_columns(self, table: str) -> tuple[str, ...] | None:
        """The columns that make a table's key instead of its primary key, None: that does."""
        return next((rule.columns for rule in self.keys if rule.tables.match(table)), None)

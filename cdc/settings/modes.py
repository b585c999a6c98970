"""Settings of values, events and columns → plain objects, without pydantic.

The codec and the envelope don't depend on the origin of settings. cdc.settings makes these objects.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

PLACEHOLDER: Final = b"__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class ValueModes:
    """How values of some types are written. The defaults are ours, which lose nothing."""

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
    """Which events exist, and their companions. The defaults are ours.

    ``tombstones`` None: only after a delete in a compacted topic. ``skipped`` has Debezium's
    letters. ``unchanged`` is an update's form of a TOASTed value that PostgreSQL didn't send. With
    ``reselect``, a compacted topic's value is read again, and ``unchanged`` applies only if that
    fails.
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
    """Regular expressions that match whole names in any case, as in Debezium.

    A dot matches any character: a name may have several lines.
    """

    __slots__ = ("_patterns",)

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = [re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def first(self, *names: str) -> int | None:
        """Return the index of the first pattern that matches one of the names."""
        for index, pattern in enumerate(self._patterns):
            if any(pattern.fullmatch(name) for name in names):
                return index
        return None

    def match(self, *names: str) -> bool:
        """Whether one of the names matches a pattern."""
        return self.first(*names) is not None


class KeyRule(NamedTuple):
    """One table of ``message.key.columns``: the columns of its key."""

    tables: Patterns
    columns: tuple[str, ...]


class ColumnRule(NamedTuple):
    """A mask of some columns' texts. ``length`` is the mask's, or the length kept of the text.

    ``hash`` is Java's name of a digest (SHA-256). ``version`` 1 seeds it with Java's serialized
    text, 2 with UTF-8, as Debezium's ``column.mask.hash`` and ``column.mask.hash.v2``.
    """

    kind: Literal["truncate", "mask", "hash"]
    columns: Patterns
    length: int = 0
    hash: str = ""
    salt: str = ""
    version: Literal[1, 2] = 1


@dataclass(frozen=True, slots=True)
class ColumnModes:
    """Columns of events: their selection, masks and keys. Empty: no change."""

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
        """Return a column's mask: the first rule that names it.

        Truncation precedes masks and hashes.
        """
        name = f"{table}.{column}"
        return next((rule for rule in self.rules if rule.columns.match(name)), None)

    def key_columns(self, table: str) -> tuple[str, ...] | None:
        """Return the columns of a table's key that replace its primary key. None: nothing does."""
        return next((rule.columns for rule in self.keys if rule.tables.match(table)), None)

"""Names and patterns of one signal → the captured tables that they match.

Patterns are foreign: each is matched with each table, on the stream's thread. So patterns that can
be slow are refused, and the time for all patterns of a signal is limited.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from cdc.records.schema import TableName
from cdc.settings.modes import Patterns
from snapshots.signals.parsed import SignalError

_CHARACTERS_MAX: Final = 1_000
_REPEATS_MAX: Final = 3
"""The most repeats in a pattern, none of them of its one group: each makes matching slower."""
_SECONDS_MAX: Final = 0.5
"""The time for a signal's patterns. An accepted one needs up to 0.2 s for a long name."""
_PLAIN: Final = re.compile(r"(?:[^\\\[\](){}*+?|^$]|\\[^a-zA-Z0-9])*", re.DOTALL)
"""A name, in which dots mean themselves."""
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_REPEATS: Final = re.compile(r"(?:[*+?]|\{[\d,]*\})[?+]?")


class SignalNames:
    """Finds the tables that a signal names, in any case, like patterns of settings."""

    def __init__(self, captured: Iterable[TableName]) -> None:
        """``captured`` are the tables that may be named."""
        self._captured = sorted(captured)
        self._by_text = defaultdict[str, list[TableName]](list)
        for table in self._captured:
            self._by_text[str(table).lower()].append(table)
        self._begun = time.thread_time()

    def tables(self, name: str) -> list[TableName]:
        """Return the tables that match a name or pattern, in order. Raise SignalError."""
        if len(name) > _CHARACTERS_MAX:
            raise SignalError(f"a name has more than {_CHARACTERS_MAX:,} characters")
        if _PLAIN.fullmatch(name):
            return self._by_text.get(_ESCAPE.sub(r"\1", name).lower(), [])
        pattern = _pattern(name)
        return [table for table in self._captured if self._matches(pattern, table)]

    def _matches(self, pattern: Patterns, table: TableName) -> bool:
        if time.thread_time() - self._begun > _SECONDS_MAX:
            raise SignalError(
                "its patterns take too long to match: write the tables' names instead"
            )
        return pattern.match(str(table))


def _pattern(pattern: str) -> Patterns:
    """Return a pattern whose matching time is bounded by a name's length. Raise SignalError."""
    plain = _ESCAPE.sub("", pattern)
    repeats = len(_REPEATS.findall(plain)) + ("|" in plain)
    is_nested = plain.count("(") > 1 or "(?" in plain or any(f"){each}" in plain for each in "*+?{")
    has_reference = any(escaped.isdecimal() for escaped in _ESCAPE.findall(pattern))
    if is_nested or has_reference or repeats > _REPEATS_MAX:
        raise SignalError(
            f"{pattern!r} could take long to match: a pattern may have one pair of (), no (? or"
            f" \\1, and {_REPEATS_MAX} of * + ? {{}}, none of them after a ); all its | count as"
            " one of these. Write the tables' names instead"
        )
    try:
        return Patterns((pattern,))
    except (re.error, OverflowError, RecursionError) as error:
        raise SignalError(f"{pattern!r} isn't a regular expression: {error}") from None

"""A table's rows → records, each with Debezium's marker of where in the snapshot it stands; pure.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html (snapshot events)
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from cdc.records.record import Part
from cdc.stream.translation import Limits
from cdc.wal.frames import copy_data_end
from snapshots.copied_rows import Copied, last_copy_data

_ONE: Final = Limits(1, 1)


class Marker(StrEnum):
    """Where in a snapshot a row stands: Debezium's ``source.snapshot``."""

    FIRST = "first"
    FIRST_IN_DATA_COLLECTION = "first_in_data_collection"
    TRUE = "true"
    LAST_IN_DATA_COLLECTION = "last_in_data_collection"
    LAST = "last"


class Marked:
    """A table's rows → records, as copied_rows.Copied does it; the last row waits for ``end``.

    ``copied`` makes what takes rows with a marker; ``first``: it is the first table that is read.
    """

    def __init__(self, copied: Callable[[Marker], Copied], *, first: bool) -> None:
        self._copied = copied
        self._first = Marker.FIRST if first else Marker.FIRST_IN_DATA_COLLECTION
        self._others: Copied | None = None
        self._made: list[Part] = []
        self._held: bytearray | None = None
        self.rows = 0
        """How many rows have their marker."""

    def feed(self, data: bytearray, start: int, end: int, limits: Limits) -> int:
        """As Copied.feed."""
        last, stop = last_copy_data(data, start, end)
        if stop == start:
            return start
        if self._held is None and self._others is None:
            return self._hold(data, start, copy_data_end(data, start, end))
        if self._held is not None:
            self._mark_held(self._first if self._others is None else Marker.TRUE)
        if self._others is None:
            self._others = self._copied(Marker.TRUE)
        before = self._others.rows
        start = self._others.feed(data, start, last, limits)
        self._made += self._others.take()
        self.rows += self._others.rows - before
        return self._hold(data, last, stop) if start == last else start

    def end(self, is_last: Callable[[], bool]) -> None:
        """The table has no more rows; ``is_last`` tells whether no later table has one."""
        if self._held is None:
            return
        marker = Marker.LAST_IN_DATA_COLLECTION
        if is_last():
            marker = Marker.LAST
        elif self._others is None and self._first is Marker.FIRST:
            marker = Marker.FIRST
        self._mark_held(marker)

    def take(self) -> list[Part]:
        """What was made since the last time."""
        made, self._made = self._made, []
        return made

    def _hold(self, data: bytearray, start: int, stop: int) -> int:
        self._held = data[start:stop]
        return stop

    def _mark_held(self, marker: Marker) -> None:
        """Give the row that was held back its marker."""
        assert self._held is not None  # noqa: S101 (its callers have looked)
        copied = self._copied(marker)
        copied.feed(self._held, 0, len(self._held), _ONE)
        self._made += copied.take()
        self.rows += 1
        self._held = None

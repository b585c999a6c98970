"""Transactions that were open when tables joined → which of these may be read by now.

What such a transaction did to a table before it was published isn't in the stream. One that stays
open for hours holds up all tables that have joined since: they wait together, at the price of one.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from cdc.errors import MillraceError
from cdc.records.schema import TableName
from cdc.records.state import SnapshotRequest
from snapshots.chunk import OPEN_REMEDY
from snapshots.windows import Job, WindowReader

log = structlog.get_logger()
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 10.0
"""How often it is looked; and after that came to nothing."""
_PATIENCE_S: Final = 2.0


class Elders:
    """Asks, while anybody waits, up to which transaction all have ended."""

    def __init__(self, reader: WindowReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._ended_below = 0
        self._waiting: set[TableName] = set()
        self._since = 0.0
        self._is_told = False
        self._asking: Job[int] | None = None
        self._next = 0.0

    def have_ended(self, name: TableName, request: SnapshotRequest) -> bool:
        """Whether a table may be read; one that may not waits from here on."""
        if request.behind_xid <= self._ended_below:
            return True
        if not self._waiting:
            self._since, self._is_told = self._clock(), False
        self._waiting.add(name)
        return False

    def turn(self) -> bool:
        """Look whether others have ended; returns whether tables have to be asked for again."""
        now = self._clock()
        if self._asking is None:
            if self._waiting and now >= self._next:
                self._asking = self._reader.oldest_open()
            return False
        if not self._asking.future.done():
            return False
        asked, self._asking = self._asking, None
        self._next = now + _LOOK_S
        if (error := asked.failure()) is not None:
            if not isinstance(error, MillraceError):
                raise error  # a bug of ours
            self._next = now + _AGAIN_S
            log.warning("can't look for open transactions", reason=error.what)
            return False
        found = asked.found or 0
        if found > self._ended_below:
            self._ended_below = found
            self._waiting.clear()  # who still waits says so
            return True
        if now - self._since > _PATIENCE_S and not self._is_told:
            self._is_told = True
            tables = sorted(map(str, self._waiting))
            log.warning(
                "tables can't be read yet: transactions are open that may have changed them before"
                " they were published",
                tables=tables,
                remedy=OPEN_REMEDY,
            )
        return False

"""Tables that join the publication while streaming goes on → reads of their rows.

A table's first change tells of it, too; but a table may be quiet for long.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from cdc.errors import MillraceError
from cdc.postgres.described import TableDescription
from cdc.postgres.failures import quote
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.settings import CaptureSettings
from cdc.tables.tables import Tables
from snapshots.windows import Job, WindowReader

log = structlog.get_logger()
LOOK_S: Final = 5.0


class Arrivals:
    """Looks for tables that the log doesn't follow."""

    def __init__(
        self,
        reader: WindowReader,
        tables: Tables,
        settings: CaptureSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._tables = tables
        self._settings = settings
        self._clock = clock
        self._next = clock() + LOOK_S
        self._looking: Job[list[TableDescription]] | None = None
        self._found: deque[TableDescription] = deque()
        self._told: set[TableName] = set()

    def turn(self, reached: Position) -> list[Record]:
        """Begin to read one that has joined; returns what the log gets.

        Others have their turn in between: it takes a topic, which brokers take a while to make.
        Raises UnreadTableError where that can't be done while streaming.
        """
        if begun := self._tables.begin_joined(reached):
            return begun
        if self._found:
            return self._begin(self._found.popleft(), reached)
        if self._looking is None:
            if self._clock() >= self._next and self._settings.lossless:
                followed = filter(self._tables.is_followed, self._tables.states)
                known = frozenset([*followed, *self._tables.joining])
                self._looking = self._reader.look_for_others(known)
            return []
        if not self._looking.future.done():
            return []
        looking, self._looking = self._looking, None
        self._next = self._clock() + LOOK_S
        error = looking.failure()
        if isinstance(error, MillraceError):
            log.warning("can't look for new tables", reason=error.what, remedy=error.remedy)
        elif error is not None:
            raise error  # a bug of ours
        self._found.extend(looking.found or ())
        return []

    def _begin(self, table: TableDescription, reached: Position) -> list[Record]:
        name = table.name
        if self._tables.is_followed(name) or name in self._tables.joining:  # by its first change
            return []
        if not table.entry:
            if name not in self._told:
                self._told.add(name)
                log.warning(
                    "a table passes the lists, but isn't published",
                    table=str(name),
                    remedy=f"ALTER PUBLICATION {quote(self._settings.publication_name)} ADD TABLE"
                    f" ONLY {quote(name.namespace)}.{quote(name.name)};",
                )
            return []
        return self._tables.join(table, reached)

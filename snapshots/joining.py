"""Tables that join the publication while streaming → reads of their rows, once these may begin."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, MutableMapping, Sequence
from functools import partial
from typing import Final

import psycopg
import structlog

from cdc.errors import MillraceError
from cdc.lines import name_first
from cdc.postgres import publishing
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.running import Running
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from cdc.records.state import SnapshotRequest, TableState
from cdc.settings import CaptureSettings
from cdc.tables.tables import Joined, Tables
from snapshots.chunk import open_remedy
from snapshots.windows import Job, WindowReader

log = structlog.get_logger()
_CHECK_S: Final = 0.5
_AGAIN_S: Final = 10.0
"""How often open transactions are checked, and the pause after a failure."""
PATIENCE_S: Final = 2.0
"""How long transactions may be open before the log reports the wait for them."""
NEW_TABLES_S: Final = 5.0
"""How often new tables are looked for."""


class _Wait:
    """A table that waits for transactions older than ``behind_xid`` (64 bits) that wrote to it.

    ``writers`` (32 bits) are those that haven't ended, after the first answer. The log reports
    the wait once, at ``warn_at``.
    """

    def __init__(self, oid: int, behind_xid: int, warn_at: float) -> None:
        self.oid = oid
        self.behind_xid = behind_xid
        self.writers: frozenset[int] | None = None
        self.warn_at = warn_at

    def is_over(self, running: Running) -> bool:
        """Whether they have ended, by a new answer. Writers after the first answer are younger.

        If the writers are known, no XID decides this: one may be open that isn't visible yet.
        """
        if running.writers is None:
            return self.behind_xid <= running.oldest
        now = running.writers.get(self.oid, frozenset())
        self.writers = now if self.writers is None else self.writers & now
        return not self.writers


class OpenTransactions:
    """Asks, while a table waits, whether transactions have ended that may have written to it.

    A transaction that was open, and hasn't written to the table, matters only if its later changes
    may have the old form (cdc/postgres/running.py).
    """

    def __init__(self, reader: WindowReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._ended: dict[TableName, int] = {}
        """The XIDs (64 bits) up to which tables needn't wait: each finding has its own XID."""
        self._waits: dict[TableName, _Wait] = {}
        self._job: Job[Running] | None = None
        self._asked: tuple[_Wait, ...] = ()
        self._next = 0.0
        self._failure = ""
        """Why the last question failed."""

    def have_ended(self, table: CapturedTable, request: SnapshotRequest) -> bool:
        """Whether a table may be read. If not, it waits from here on."""
        name, behind_xid = table.name, request.behind_xid
        if behind_xid <= self._ended.get(name, 0):
            return True
        wait = self._waits.get(name)
        if wait is None or (wait.oid, wait.behind_xid) != (table.oid, behind_xid):
            self._waits[name] = _Wait(table.oid, behind_xid, self._clock() + PATIENCE_S)
        return False

    def keep(self, tables: Collection[TableName]) -> None:
        """Wait only for these tables. All others no longer have requests."""
        for name in self._waits.keys() - tables:
            del self._waits[name]

    def turn(self) -> bool:
        """Check whether transactions have ended. Return whether a wait is over."""
        now = self._clock()
        if self._job is None and self._waits and now >= self._next:
            self._asked = tuple(self._waits.values())
            self._job = self._reader.running([wait.oid for wait in self._asked])
        if self._job is None or not self._job.future.done():
            return False
        job, self._job = self._job, None
        self._next = now + _CHECK_S
        if isinstance(error := job.failure(), MillraceError):
            self._next = now + _AGAIN_S
            if error.what != self._failure:
                log.warning("can't look for open transactions", reason=error.what)
            self._failure = error.what
            return False
        assert job.result is not None  # noqa: S101 (it hasn't failed)
        self._failure = ""
        over = {
            name: wait.behind_xid
            for name, wait in self._waits.items()
            if wait in self._asked and wait.is_over(job.result)
        }
        self._ended |= over
        for name in over:
            del self._waits[name]
        self._warn(now, job.result.oldest_at_primary)
        return bool(over)

    def _warn(self, now: float, oldest: int) -> None:
        """Warn of tables that have waited for a while, once for each.

        If all transactions below ``oldest`` have ended at the primary, the tables wait for a
        standby's replay (cdc/postgres/checks/standby.py).
        """
        late = {
            name: wait
            for name, wait in self._waits.items()
            if now > wait.warn_at and wait.behind_xid > oldest
        }
        if not late:
            return
        for wait in late.values():
            wait.warn_at = math.inf
        writers = [wait.writers for wait in late.values() if wait.writers is not None]
        log.warning(
            "tables can't be read yet: open transactions may have changed them before they were"
            " published, or before DDL",
            tables=name_first(sorted(late)),
            remedy=open_remedy(frozenset[int]().union(*writers)),
        )


class NewTables:
    """Looks for tables that joined the publication and that the log doesn't follow yet."""

    def __init__(
        self,
        reader: WindowReader,
        tables: Tables,
        settings: CaptureSettings,
    ) -> None:
        self._reader = reader
        self._tables = tables
        self._settings = settings
        self._next = time.monotonic() + NEW_TABLES_S
        self._job: Job[list[TableDescription]] | None = None
        self._described: deque[TableDescription] = deque()
        self._refused: list[TableName] = []
        """The tables that could never be captured when the last search for new ones began."""
        self._told: dict[int, str] = {}
        """Why tables can't be added to the publication, as far as it was logged."""

    def turn(self, reached: Position) -> Joined:
        """Begin to read a table that has joined. Return the log's part.

        Each turn begins one table: it takes a topic, and brokers need time to create it. Raise
        UnreadTableError if the table can't be read while streaming.
        """
        if (begun := self._tables.begin_waiting(reached)).records:
            return begun
        if self._described:
            return self._begin(self._described.popleft(), reached)
        if self._job is not None and self._job.future.done():
            job, self._job = self._job, None
            self._next = time.monotonic() + NEW_TABLES_S
            if isinstance(error := job.failure(), MillraceError):
                log.warning("can't look for new tables", reason=error.what, remedy=error.remedy)
            self._described.extend(job.result or ())
            return Joined([] if job.result is None else self._forget(job.result))
        if self._job is None and time.monotonic() >= self._next and self._settings.lossless:
            followed = filter(self._tables.states.is_followed, self._tables.states)
            states = self._tables.states.values()
            self._refused = [state.name for state in states if not state.is_in_log]
            others_than = frozenset([*followed, *self._tables.states.waiting])
            others = partial(
                _others,
                settings=self._settings,
                than=others_than,
                states=tuple(states),
                told=self._told,
            )
            self._job = self._reader.ask(others)
        return Joined([])

    def _forget(self, present: Sequence[TableDescription]) -> list[Record]:
        """Remove the states of tables that could never be captured, and are gone."""
        states, names = self._tables.states, {table.name for table in present}
        refused = [name for name in self._refused if name in states and not states[name].is_in_log]
        gone = (states.forget(name) for name in refused if name not in names)
        return [record for records in gone for record in records]

    def _begin(self, table: TableDescription, reached: Position) -> Joined:
        name, states = table.name, self._tables.states
        if states.is_followed(name) or name in states.waiting:  # since its first change
            return Joined([])
        if not table.entry:
            return Joined(self._tables.obstacles.leave_out(table, reached))
        return self._tables.join(table, reached)


def _others(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    than: frozenset[TableName],
    states: Sequence[TableState],
    told: MutableMapping[int, str],
) -> list[TableDescription]:
    """Describe captured tables that aren't in ``than``.

    Tables without a state in ``states`` are added to the publication, if Millrace has created it. A
    locked one is left for the next search.
    """
    captured = captured_tables(connection, settings)
    new = publishing.unknown(captured, states)
    addable = publishing.addable(connection, settings, new)
    locked = publishing.add(connection, settings, addable, told)
    others = [t for t in captured if t.name not in than and t.oid not in locked]
    return described_tables(connection, settings, others) if others else []

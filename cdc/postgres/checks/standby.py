"""A standby that rows are read from → what reads wait for there, and since when.

It must show everything streamed so far before a chunk is read. If it is unavailable, or its replay
is paused or broken, reads wait that long. The log, ``millrace status`` and the health endpoints
report it, and reads continue automatically.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

import psycopg
import structlog

from cdc.errors import MillraceError, SourceSettingError, SourceUnreachableError
from cdc.postgres.checks.soon import connect_soon
from cdc.postgres.connection import current_wal_end, query
from cdc.postgres.failures import server_address
from cdc.records.position import Lsn
from cdc.settings import Settings

log = structlog.get_logger()
WAIT_S: Final = 10.0
"""How long a chunk waits for the standby's replay before a later attempt."""
TOLD_S: Final = 5.0
"""A longer wait is reported ..."""
WARN_S_MAX: Final = 600.0
"""... and reported again, at least this often."""
_LATELY_S: Final = 90.0
"""A wait without a note for this long is over: nothing is left to read."""
_LOOK_S: Final = 1.0
_POLL_S: Final = 0.02
_IDENTITY: Final = "SELECT system_identifier, pg_is_in_recovery() FROM pg_control_system()"
_REPLAY: Final = """
SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text,
    CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
    EXISTS (SELECT FROM pg_stat_wal_receiver)
"""


class ReplayState(NamedTuple):
    """A standby's progress. ``is_received``: whether it gets WAL from another server."""

    is_standby: bool
    replayed: Lsn
    is_paused: bool
    is_received: bool

    @property
    def remedy(self) -> str:
        """The remedy, as far as the standby's state shows it."""
        if self.is_paused:
            return "its replay is paused; let a superuser run there: SELECT pg_wal_replay_resume();"
        if not self.is_received:
            return "it has no connection to the primary (no WAL receiver): read its server log"
        return "find out what its replay waits for (pg_stat_activity there, and its server log)"


class _Standstill(NamedTuple):
    """A wait of reads: its place and reason, the LSN needed, and its start (monotonic)."""

    where: str
    what: str
    remedy: str
    needed: Lsn
    since: float


def replay(standby: psycopg.Connection) -> ReplayState:
    """Return how far a server has replayed WAL."""
    ((is_standby, lsn, is_paused, is_received),) = query(standby, _REPLAY)
    return ReplayState(is_standby, Lsn.parse(lsn) if lsn else Lsn(0), is_paused, is_received)


def check_standby(standby: psycopg.Connection, primary: psycopg.Connection) -> None:
    """Raise SourceSettingError unless one is a standby of the other's cluster."""
    ((ours, _),) = query(primary, _IDENTITY)
    ((its, is_standby),) = query(standby, _IDENTITY)
    if its != ours or not is_standby:
        reason = "isn't a standby" if its == ours else "belongs to another cluster"
        raise SourceSettingError(
            f"the server in [snapshot_source] {reason}",
            where=server_address(standby.pgconn),
            remedy="set [snapshot_source] to a standby of [source]; without the section, rows are"
            " read from [source]",
        )


def await_replay(
    standby: psycopg.Connection,
    needed: Lsn,
    wait: Callable[[float], bool],
    note: Callable[[ReplayState], None] | None = None,
    wait_s: float = WAIT_S,
) -> None:
    """Wait until the standby shows all earlier commits. ``wait`` returns when to give up.

    Raise SourceUnreachableError if it takes too long, or the standby was promoted.
    """
    until = time.monotonic() + wait_s
    while True:
        now = replay(standby)
        if now.is_standby and note is not None:
            note(now)
        if now.is_standby and now.replayed >= needed:
            return
        if not now.is_standby or time.monotonic() > until or wait(_POLL_S):
            break
    state = _behind(now, needed) if now.is_standby else "is no longer a standby"
    raise SourceUnreachableError(
        f"the standby for snapshots {state}",
        where=server_address(standby.pgconn),
        remedy=now.remedy if now.is_standby else "set [snapshot_source] to a standby",
    )


def why_unread(settings: Settings) -> MillraceError | None:
    """Return why the standby can't serve reads now. None: it can, or none is configured."""
    if settings.standby is None:
        return None
    try:
        with (
            closing(connect_soon(settings.source, purpose="status")) as primary,
            closing(connect_soon(settings.standby, purpose="status")) as standby,
        ):
            check_standby(standby, primary)
            await_replay(standby, current_wal_end(primary), _sleep, wait_s=_LOOK_S)
    except MillraceError as error:
        return error
    return None


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _behind(now: ReplayState, needed: Lsn) -> str:
    return f"has replayed {now.replayed}, but {needed} is needed"


class StandbyWatch:
    """Collects what reads see of the standby. Any thread may report and ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wait: _Standstill | None = None
        self._noted = -math.inf
        self._warn_at_s = TOLD_S
        """How long a wait lasts before it is reported, or reported again."""

    def note(self, where: str, now: ReplayState, needed: Lsn) -> None:
        """Report the standby's progress, and the LSN that a read needs."""
        with self._lock:
            if self._wait is not None and now.replayed >= self._wait.needed:
                self._end()
            if self._wait is not None or now.replayed < needed:
                needed = self._wait.needed if self._wait else needed
                what = f"the standby for snapshots {_behind(now, needed)}"
                self._go_on(where, what, now.remedy, needed)

    def failed(self, error: MillraceError) -> None:
        """Report that the standby doesn't answer."""
        with self._lock:
            needed = self._wait.needed if self._wait else Lsn(0)
            self._go_on(error.where, error.what, error.remedy, needed)

    def trouble(self) -> str:
        """The cause and start of a long wait. Empty: reads don't wait."""
        with self._lock:
            wait, now = self._wait, self._clock()
            if wait is None or now - wait.since < TOLD_S or now - self._noted > _LATELY_S:
                return ""
            return f"{wait.what} ({wait.where}), for {now - wait.since:.0f} s: {wait.remedy}"

    def _go_on(self, where: str, what: str, remedy: str, needed: Lsn) -> None:
        """Record that a read begins to wait, or still waits."""
        now = self._clock()
        if self._wait is None or now - self._noted > _LATELY_S:
            self._warn_at_s, since = TOLD_S, now
        else:
            since = self._wait.since
        self._wait, self._noted = _Standstill(where, what, remedy, needed, since), now
        waited_s = now - since
        if waited_s < self._warn_at_s:
            return
        self._warn_at_s = waited_s + min(max(waited_s, TOLD_S), WARN_S_MAX)
        log.warning(
            "the standby can't serve reads: they continue once it has caught up",
            reason=what,
            where=where,
            since_s=round(waited_s),
            remedy=remedy,
        )

    def _end(self) -> None:
        if self._warn_at_s > TOLD_S:
            log.info("the standby serves reads again")
        self._wait, self._warn_at_s = None, TOLD_S

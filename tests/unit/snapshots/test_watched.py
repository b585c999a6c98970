"""Checks of the catalog, one after another → how long a table has been seen as gone."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import psycopg
import pytest

from cdc.compiled.fast import Cursor
from cdc.errors import SourceUnreachableError
from cdc.postgres.fingerprints import CatalogTable
from cdc.records.fingerprint import TableFingerprint
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import TableState
from cdc.settings import CaptureSettings
from cdc.tables.doubts import Differences
from cdc.tables.states import WaitingTable
from snapshots.catalog_check import CatalogCheck
from snapshots.inspection import Finding, Inspection, WatchedTable
from snapshots.windows import Job, WindowReader
from tests.fixtures.made_tables import STATE, tables

SETTINGS = CaptureSettings(**{"topic.prefix": "pre", "table.include.list": "public.t"})
START = Position(1, Lsn(1_000), 0)
MADE = TableFingerprint(columns="", identity="", seen="1:1:")
THERE = CatalogTable(MADE, STATE.name, entry=9)


class Daemon:
    """A daemon whose checks find of one table that it ``is_there``, or not; or can't tell."""

    def __init__(self, watched_ms: int = 0, state: TableState = STATE) -> None:
        self.tables = tables()
        self.tables.states.watched_ms = watched_ms
        self.tables.states.put(state)
        self.is_there, self.fails = True, False
        self.undecided = set[TableName]()
        self.wal_end, self.cursor = Lsn(0), Cursor(START, START, START.commit_lsn)
        self.start(SETTINGS)

    def start(self, settings: CaptureSettings) -> None:
        """Have another check, with these lists."""
        self.settings = settings
        self.check = CatalogCheck(cast("WindowReader", self), self.tables, settings)

    def ask(self, question: Callable[[psycopg.Connection], Inspection]) -> Job[Inspection]:
        """Answer at once, as a reader of windows would."""
        del question
        job, watched = Job[Inspection](), WatchedTable(self.state, MADE)
        job.future = Future()
        if self.fails:
            job.future.set_exception(SourceUnreachableError("away"))
            return job
        job.future.set_result(None)
        is_missed = self.settings.captures(str(STATE.name)) and not self.is_there
        findings = [Finding(watched, None)] if is_missed else []
        if self.is_there and self.state.gone_ms:
            findings = [Finding(watched, THERE, Differences())]
        job.result = Inspection(
            Lsn(0),
            self.wal_end,
            {STATE.name: THERE},
            findings,
            {},
            self.undecided,
            {},
            system="here",
        )
        return job

    @property
    def state(self) -> TableState:
        return self.tables.states[STATE.name]

    @property
    def gone_s(self) -> float:
        """For how long the table was seen to be gone."""
        return (self.tables.states.watched_ms - self.state.gone_watched_ms) / 1_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the daemon's monotonic clock shows."""
    now = [100.0]
    monkeypatch.setattr("snapshots.catalog_check.time.monotonic", lambda: now[0])
    return now


def check(daemon: Daemon, clock: list[float], at_s: float) -> None:
    """A check that begins at that time, and is through, unless the stream is behind."""
    clock[0] = at_s
    daemon.check.note_ddl()
    for _ in range(3):  # it is asked, answers, and counts
        daemon.check.turn(daemon.cursor)


def test_time_counts_from_the_check_that_missed_a_table_to_the_last_one(
    clock: list[float],
) -> None:
    daemon = Daemon()
    check(daemon, clock, 100)
    daemon.is_there = False
    check(daemon, clock, 110)
    assert daemon.state.gone_ms
    assert daemon.gone_s == 0
    check(daemon, clock, 120)
    check(daemon, clock, 135)
    assert daemon.gone_s == 25


def test_time_between_checks_that_cant_tell_of_all_tables_counts_as_a_minute_at_most(
    clock: list[float],
) -> None:
    daemon = Daemon()
    daemon.is_there = False
    check(daemon, clock, 100)
    daemon.fails = True
    check(daemon, clock, 4_000)
    daemon.fails, daemon.undecided = False, {STATE.name}
    check(daemon, clock, 8_000)
    assert daemon.gone_s == 0
    daemon.undecided = set()
    check(daemon, clock, 9_000)
    assert daemon.gone_s == 60


def test_a_table_that_is_back_is_found_before_more_time_counts(clock: list[float]) -> None:
    """It came back while the daemon was down; then the stream has hours to catch up with."""
    before = {"gone_ms": 1_000, "gone_system": "here", "gone_watched_ms": 3_000}
    daemon = Daemon(7_000, STATE.model_copy(update=before))
    daemon.wal_end = Lsn(9_000)
    check(daemon, clock, 100)
    check(daemon, clock, 20_000)
    assert daemon.state.gone_ms
    assert daemon.gone_s == 4, "as it was before the start"
    daemon.cursor.begin(100, Lsn(9_000), 0)
    daemon.cursor.commit(Lsn(9_000), Lsn(9_100))
    check(daemon, clock, 20_001)
    assert not daemon.state.gone_ms


def test_a_table_that_the_lists_left_out_for_a_while_is_gone_anew(clock: list[float]) -> None:
    """Nobody looked whether it was back."""
    daemon = Daemon()
    daemon.is_there = False
    check(daemon, clock, 100)
    lists, left_out = SETTINGS, SETTINGS.model_copy(update={"table_exclude_list": ("public.t",)})
    daemon.start(left_out)
    check(daemon, clock, 110)
    check(daemon, clock, 150)
    assert daemon.gone_s == 50
    unseen = daemon.state
    assert not unseen.gone_system, "sinks keep the rows"
    daemon.start(lists)
    check(daemon, clock, 160)
    assert daemon.gone_s == 0
    assert daemon.state.gone_system == "here"


def test_no_time_counts_while_another_table_of_the_name_waits_to_be_read(
    clock: list[float],
) -> None:
    daemon = Daemon()
    daemon.is_there = False
    check(daemon, clock, 100)
    waiting = daemon.tables.states.waiting
    waiting[STATE.name] = cast("WaitingTable", None)
    check(daemon, clock, 110)
    assert daemon.gone_s == 0

"""A table that was set aside, and can be captured now → read again, unless that is stopped."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

import psycopg
import pytest

from cdc.compiled.fast import Cursor
from cdc.postgres.described import TableDescription
from cdc.postgres.fingerprints import CatalogTable
from cdc.records.fingerprint import TableFingerprint
from cdc.records.position import Lsn, Position
from cdc.records.state import SnapshotRequest, TableState
from cdc.settings import CaptureSettings
from snapshots.catalog_check import CatalogCheck
from snapshots.inspection import Inspection
from snapshots.signals.requests import Requests
from snapshots.windows import Job, WindowReader
from tests.fixtures.made_tables import COLUMNS, STATE, tables
from tests.unit.cdc.tables.test_tables import described

NAME = STATE.name
CAPTURE = {"topic.prefix": "pre", "table.include.list": "public.t"}
START = Position(1, Lsn(1_000), 0)
SEEN = TableFingerprint(columns="", identity="", seen="100:100:")
ABLE = replace(described(*COLUMNS), oid=STATE.oid, name=NAME)
"""The table as it can be captured."""


class SetAside:
    """A daemon one of whose tables is set aside; ``described`` is what a check sees of it."""

    def __init__(self, clock: list[float], **capture: object) -> None:
        self.described: TableDescription = ABLE
        self._clock = clock
        self._settings = CaptureSettings(**{**CAPTURE, **capture})
        self.tables = tables()
        self.tables.reads.set_aside(NAME, "it has no key")
        self.restart()

    def restart(self) -> None:
        """Begin with what the state has alone."""
        self._check = CatalogCheck(cast("WindowReader", self), self.tables, self._settings)
        self._requests = Requests(self._settings, self.tables)

    def ask(self, question: Callable[[psycopg.Connection], Inspection]) -> Job[Inspection]:
        """Answer at once, as a reader of windows would."""
        del question
        job = Job[Inspection]()
        job.future = Future()
        job.future.set_result(None)
        catalog = {NAME: CatalogTable(SEEN, NAME, entry=9)}
        aside = {NAME: self.described}
        job.result = Inspection(Lsn(0), Lsn(0), catalog, [], {NAME: SEEN}, set(), aside)
        return job

    @property
    def state(self) -> TableState:
        return self.tables.states[NAME]

    def check(self) -> tuple[SnapshotRequest, ...]:
        """The table's requests once a check is through, and what it has found is begun."""
        self._check.note_ddl()
        return self.turn(4)

    def turn(self, turns: int) -> tuple[SnapshotRequest, ...]:
        """The table's requests after some turns."""
        for _ in range(turns):
            self._clock[0] += 0.2
            self._check.turn(Cursor(START, START, START.commit_lsn))
        return self.state.requests

    def stop(self) -> None:
        """Follow a signal that stops what is read."""
        self._requests.follow("s", "stop-snapshot", None, START)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the daemon's monotonic clock shows."""
    now = [100.0]
    monkeypatch.setattr("snapshots.catalog_check.time.monotonic", lambda: now[0])
    return now


def test_a_signal_stops_the_read_for_good(clock: list[float]) -> None:
    daemon = SetAside(clock)
    (request,) = daemon.check()
    assert (request.is_own, request.reset) == (True, True)
    daemon.stop()
    assert daemon.check() == ()
    daemon.restart()
    assert daemon.check() == ()
    daemon.tables.reads.set_aside(NAME, "it has no identity")
    assert daemon.check() == ()
    assert daemon.state.doubt is not None
    assert daemon.state.doubt.refused == "signal s stopped it"
    first = SnapshotRequest(kind="initial")
    daemon.tables.begin_anew(ABLE, START, (first,))
    assert (daemon.state.doubt.refused, daemon.state.doubt.is_stopped) == ("", False)


def test_a_table_that_is_set_aside_in_its_read_waits_for_a_check_that_tells(
    clock: list[float],
) -> None:
    daemon = SetAside(clock)
    assert len(daemon.check()) == 1
    daemon.tables.reads.set_aside(NAME, "it has no key")
    assert daemon.turn(3) == ()
    assert len(daemon.check()) == 1


def test_a_table_that_no_chunk_can_read_has_a_way_back(clock: list[float]) -> None:
    daemon = SetAside(clock)
    daemon.described = replace(ABLE, all_changes=False)
    assert not daemon.described.is_chunked
    assert daemon.check() == ()
    assert daemon.state.doubt is not None
    assert "stop it first" in daemon.state.doubt.refused

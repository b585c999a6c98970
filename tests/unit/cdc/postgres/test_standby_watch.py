"""The standby's state during reads → the reports, their times, and the end of the watch."""

from structlog.testing import capture_logs

from cdc.errors import SourceUnreachableError
from cdc.postgres.checks.standby import TOLD_S, WARN_S_MAX, ReplayState, StandbyWatch
from cdc.records.position import Lsn

WHERE = "replica:5432/shop"


class Watched:
    """A watch whose clock the test has."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watch = StandbyWatch(clock=lambda: self.now)

    def note(self, at: float, replayed: int, needed: int, *, is_paused: bool = False) -> str:
        self.now = at
        look = ReplayState(
            is_standby=True, replayed=Lsn(replayed), is_paused=is_paused, is_received=True
        )
        self.watch.note(WHERE, look, Lsn(needed))
        return self.watch.trouble()


def test_one_that_follows_is_no_trouble_however_far_behind_it_always_is() -> None:
    watched = Watched()
    with capture_logs() as lines:
        assert not any(watched.note(at / 2, 10 * at, 10 * at + 10) for at in range(100))
    assert lines == []


def test_one_that_stands_still_is_told_with_since_when_and_ever_more_rarely() -> None:
    watched = Watched()
    with capture_logs() as lines:
        told = [
            watched.note(float(at), 16, 32 + at, is_paused=True)
            for at in range(int(4 * WARN_S_MAX))
        ]
    assert told[int(TOLD_S) - 1] == ""
    what = "the standby for snapshots has replayed 0/10, but 0/20 is needed"
    assert told[int(TOLD_S)].startswith(f"{what} ({WHERE}), for 5 s:")
    assert "SELECT pg_wal_replay_resume()" in told[-1]
    assert [line["since_s"] for line in lines] == [5, 10, 20, 40, 80, 160, 320, 640, 1240, 1840]
    with capture_logs() as lines:
        assert watched.note(2_401, 64, 64) == ""
    assert [line["event"] for line in lines] == ["the standby serves reads again"]


def test_one_that_is_away_is_told_and_so_is_its_return() -> None:
    watched = Watched()
    away = SourceUnreachableError("connection refused", where=WHERE, remedy="start it")
    with capture_logs() as lines:
        for at in (0.0, 4.0, 8.0):
            watched.now = at
            watched.watch.failed(away)
    assert watched.watch.trouble() == f"connection refused ({WHERE}), for 8 s: start it"
    assert [line["reason"] for line in lines] == ["connection refused"]
    assert watched.note(9, 16, 16) == ""


def test_what_nobody_waits_for_any_more_is_no_trouble() -> None:
    watched = Watched()
    assert watched.note(0, 16, 32) == ""
    assert watched.note(8, 16, 32) != ""
    watched.now = 200
    assert watched.watch.trouble() == ""
    assert watched.note(201, 16, 32) == ""

"""Records of tables' states → the output of the command that watches them."""

import io
import threading
import time
from unittest.mock import Mock

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from cdc.errors import NotDoneError
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import (
    Phase,
    Progress,
    SignalOffset,
    SnapshotOutcome,
    SnapshotRequest,
    TableState,
)
from cdc.settings import Settings
from deploy.commands import snapshot_watch
from deploy.commands.console import TableBars
from deploy.commands.snapshot_watch import SnapshotWatch
from tests.fixtures.made_states import streaming, table_state

STATE = table_state(TableName("public", "t"))
FIRST = SnapshotRequest(kind="initial")
OWN = SnapshotRequest(kind="incremental", signal="own", order=1)
OTHER = SnapshotRequest(kind="incremental", signal="other", order=2)


class Watching(SnapshotWatch):
    """Watches one read, without a log."""

    def __init__(self, wanted: SnapshotRequest) -> None:
        self._states, self._sizes, self._taken = {}, {}, set()
        self._refused: list[str] = []
        self._paused: set[str] = set()
        self._looking = threading.Thread()
        self._follower = Mock(take=lambda: ())
        self.signal_offset, self._is_passed, self._read_until = -1, False, 5
        self._settings = Settings(
            source={},
            capture={"topic.prefix": "pre", "table.include.list": "public.*"},
            kafka={"bootstrap.servers": "nowhere"},
        )
        self._bars = TableBars(Console(file=io.StringIO()))
        self.wanted = {"public.t": wanted}

    def refused(self, *states: TableState) -> list[str]:
        """What it says in the end of states that come at once."""
        for state in states:
            self._learn(state)
        assert not self.wanted
        return self._refused


def test_another_read_that_ends_right_behind_hides_nothing() -> None:
    states = [
        STATE.model_copy(update={"requests": left, "outcome": outcome(done) if done else None})
        for left, done in (((OWN, OTHER), ""), ((OTHER,), "own"), ((), "other"))
    ]
    assert Watching(OWN).refused(*states) == []
    assert Watching(OWN).refused(states[0], states[2]) == ["public.t (abandoned)"]


def outcome(signal: str) -> SnapshotOutcome:
    return SnapshotOutcome(signal=signal, status="SUCCEEDED", rows=1)


@pytest.mark.parametrize(("phase", "said"), [("streaming", []), ("snapshot", ["abandoned"])])
def test_of_a_first_read_the_phase_tells_how_it_has_ended(phase: str, said: list[str]) -> None:
    begun = STATE.model_copy(update={"phase": Phase.SNAPSHOT, "requests": (FIRST,)})
    ended = STATE.model_copy(update={"phase": Phase(phase)})
    assert Watching(FIRST).refused(begun, ended) == [f"public.t ({reason})" for reason in said]


def test_a_paused_read_is_told_once_and_again_when_it_is_paused_once_more() -> None:
    watching = Watching(OWN)
    paused, running = (
        STATE.model_copy(update={"requests": (OWN.model_copy(update={"paused": paused}),)})
        for paused in (True, False)
    )
    with capture_logs() as logs:
        for state in (paused, paused, running, paused):
            watching._learn(state)
    assert [(line["event"], line["table"]) for line in logs] == [("paused", "public.t")] * 2


def test_a_resume_that_nobody_follows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Watching(OWN)._settings.capture.signal_topic

    def followed(offset: int) -> Progress:
        offsets = {topic: SignalOffset(offset=offset), "another": SignalOffset(offset=9)}
        return streaming(Position(1, Lsn(5), 0), signal_offsets=offsets)

    progress = followed(5)
    monkeypatch.setattr(snapshot_watch, "last_progress", lambda *_: progress)
    watching = Watching(OWN)
    watching._learn(STATE.model_copy(update={"requests": (OWN,)}))
    watching.signal_offset = 5
    watching._check_taken(29)
    with pytest.raises(NotDoneError, match="within 30 s"):
        watching._check_taken(31)
    progress = followed(6)
    watching._check_taken(31)
    watching._check_taken(32)


def test_what_was_committed_while_we_began_to_look_is_no_news() -> None:
    asked = STATE.model_copy(update={"requests": (OWN,), "ts_ms": 2})
    watching = Watching(OWN)
    watching._learn(asked)
    watching._take(4, STATE.model_copy(update={"ts_ms": 1}))
    assert watching.wanted, "it wasn't asked for then"
    watching._take(5, STATE.model_copy(update={"ts_ms": 1, "outcome": outcome("own")}))
    assert not watching.wanted


def test_servers_that_dont_answer_hold_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer, stop = threading.Event(), threading.Event(), threading.Event()

    def ask(_settings: Settings) -> bool:
        asked.set()
        stop.set()
        return answer.wait(30)

    monkeypatch.setattr(snapshot_watch, "is_captured", ask)
    monkeypatch.setattr(snapshot_watch, "_CHECK_S", 0.0)
    watching = Watching(OWN)
    watching._taken.add("public.t")
    began = time.monotonic()
    assert not watching.show(stop, [])
    assert asked.is_set()
    assert time.monotonic() - began < 10
    answer.set()

"""Records of tables' states → what the command that watches them says."""

import io

import pytest
from rich.console import Console

from cdc.records.position import Lsn
from cdc.records.state import Phase, SnapshotOutcome, SnapshotRequest, TableState
from deploy.bars import TableBars
from deploy.snapshot import _Watch

STATE = TableState(
    namespace="public",
    table="t",
    topic="pre.public.t",
    partitions=1,
    cleanup="compact",
    epoch=1,
    phase=Phase.STREAMING,
    snapshot_lsn=Lsn(1),
)
FIRST = SnapshotRequest(kind="initial")
OWN = SnapshotRequest(kind="incremental", signal="own", order=1)
OTHER = SnapshotRequest(kind="incremental", signal="other", order=2)


class Watching(_Watch):
    """Watches one read, without a log."""

    def __init__(self, wanted: SnapshotRequest) -> None:
        self._states, self._sizes, self._taken = {}, {}, set()
        self._refused: list[str] = []
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
    assert Watching(OWN).refused(states[0], states[2]) == ["public.t (given up)"]


def outcome(signal: str) -> SnapshotOutcome:
    return SnapshotOutcome(signal=signal, status="SUCCEEDED", rows=1)


@pytest.mark.parametrize(("phase", "said"), [("streaming", []), ("snapshot", ["given up"])])
def test_of_a_first_read_the_phase_tells_how_it_has_ended(phase: str, said: list[str]) -> None:
    begun = STATE.model_copy(update={"phase": Phase.SNAPSHOT, "requests": (FIRST,)})
    ended = STATE.model_copy(update={"phase": Phase(phase)})
    assert Watching(FIRST).refused(begun, ended) == [f"public.t ({one})" for one in said]

"""An instant → whether the log has all of the source's changes before it."""

from cdc.records.position import Lsn, Position
from compaction.verify.comparable import lacks
from tests.fixtures.made_states import streaming

REACHED = streaming(Position(1, Lsn(500), 0))


def test_the_log_has_what_was_committed_before_the_instant_on_the_same_timeline() -> None:
    assert lacks(REACHED, Lsn(500), 1) == ""
    assert "the log has reached 0/1F4" in lacks(REACHED, Lsn(501), 1)
    assert "hasn't followed the failover" in lacks(REACHED, Lsn(400), 2)

"""A stream that starts again → refused if it doesn't continue the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import GapError
from cdc.records.position import Lsn, Position
from cdc.stream.resumed import Resumed


class Log:
    """What a log knows when it has seen these commits, and keepalives up to ``idle``.

    ``part``: a transaction that it has in part.
    """

    def __init__(self, commits: dict[int, int], idle: int, part: int | None = None) -> None:
        self.last = max((lsn for lsn, frames in commits.items() if frames), default=9)
        self.cut = self.position = Position(1, Lsn(max(self.last, idle, *commits)), 0)
        if part is not None:
            self.position = Position(1, Lsn(part), 1)

    def sees(self, commits: dict[int, int], begin: int, wal_end: int) -> bool:
        """A start, from ``begin`` on: those with frames are sent, others perhaps not.

        Returns whether what it has may be acknowledged.
        """
        resumed = Resumed(Lsn(self.last), self.position, self.cut, Lsn(begin))
        for lsn, frames in sorted(commits.items()):
            if lsn >= begin and (frames or lsn % 2):
                resumed.begins(Lsn(lsn))
                resumed.ends(Lsn(lsn), frames)
        resumed.has_seen_all(Lsn(wal_end))
        return resumed.is_settled


COMMITS = st.dictionaries(st.integers(11, 60), st.integers(0, 2), min_size=1, max_size=12)


@given(COMMITS, st.integers(10, 60), st.data())
def test_a_stream_of_the_same_history_is_never_refused(
    commits: dict[int, int], idle: int, data: st.DataObject
) -> None:
    end = max(idle, *commits)
    part = end + data.draw(st.integers(1, 10)) if data.draw(st.booleans()) else None
    log = Log(commits, idle, part)
    begin = data.draw(st.integers(10, end + 1))
    later = {lsn + end + 10: frames for lsn, frames in data.draw(COMMITS).items()}
    if part is not None:
        later[part] = 3
    assert log.sees({**commits, **later}, begin, end + 200)


@given(COMMITS, COMMITS, st.integers(10, 60), st.integers(10, 60))
def test_a_server_that_was_set_back_is_found_out_whatever_it_has_written_since(
    commits: dict[int, int], others: dict[int, int], back: int, idle: int
) -> None:
    """Nothing is let pass that would leave changes out, but for a commit in the very same place."""
    log = Log(commits, idle)
    kept = {lsn: frames for lsn, frames in commits.items() if lsn < back}
    written = {lsn: frames for lsn, frames in others.items() if lsn >= back}
    begin = max((lsn + 1 for lsn, frames in kept.items() if frames), default=10)
    missing = [lsn for lsn, frames in written.items() if frames and lsn < log.cut.commit_lsn]
    gone = [lsn for lsn, frames in commits.items() if frames and lsn >= back]
    if log.last not in written and (missing or gone):
        with pytest.raises(GapError):
            log.sees({**kept, **written}, begin, 1_000)


@given(COMMITS, st.integers(61, 70), st.integers(71, 90), st.integers(1, 2))
def test_a_transaction_that_the_log_has_in_part_has_to_come_again(
    commits: dict[int, int], part: int, other: int, frames: int
) -> None:
    with pytest.raises(GapError):
        Log(commits, 60, part).sees({**commits, other: frames}, 61, 1_000)
    with pytest.raises(GapError):
        Log(commits, 60, part).sees(commits, 61, 1_000)


def test_nothing_is_acknowledged_before_all_that_the_log_has_was_seen_again() -> None:
    resumed = Resumed(Lsn(20), Position(1, Lsn(90), 0), Position(1, Lsn(90), 0), Lsn(10))
    told = []
    for lsn in (15, 20, 89):
        resumed.begins(Lsn(lsn))
        resumed.ends(Lsn(lsn), int(lsn <= 20))
        told.append(resumed.is_settled)
    resumed.has_seen_all(Lsn(90))
    assert [*told, resumed.is_settled] == [False, False, False, True]

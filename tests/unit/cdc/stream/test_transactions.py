"""The cursor: whatever the log already has, exactly the rest is handed out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.compiled.extension import fast
from cdc.errors import CorruptMessageError, GapError
from cdc.records.position import Lsn, Position
from cdc.stream.transactions import Cursor, Resumed

START = Position(1, Lsn(100), 0)
"""A slot's consistent point: the next record, perhaps a commit, starts exactly there."""


def walk(cursor: Cursor, frames: list[int]) -> list[Position]:
    """Transactions with these numbers of frames, the first committing at the consistent point."""
    given_out = []
    for number, count in enumerate(frames):
        commit_lsn = Lsn(100 + 10 * number)
        cursor.begin(number, commit_lsn, 0)
        given_out += [position for _ in range(count) if (position := cursor.next())]
        cursor.commit(commit_lsn, Lsn(commit_lsn + 10))
    return given_out


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_a_start_at_any_position_goes_on_with_exactly_the_rest(
    frames: list[int], data: st.DataObject
) -> None:
    everything = walk(Cursor(START, START, Lsn(100)), frames)
    assert everything == sorted(set(everything))
    assert len(everything) == sum(frames)
    reached = data.draw(st.sampled_from([START, *everything]))
    resumed = Cursor(reached, START, Lsn(100))
    assert walk(resumed, frames) == [position for position in everything if position > reached]
    assert resumed.flush_lsn == 100 + 10 * len(frames)


def test_the_cut_never_lies_inside_of_a_transaction() -> None:
    cursor = Cursor(START, START, Lsn(100))
    cursor.begin(1, Lsn(150), 0)
    cursor.next()
    cursor.idle_at(Lsn(900))
    assert (cursor.cut, cursor.flush_lsn) == (START, 100)
    cursor.commit(Lsn(150), Lsn(160))
    assert (cursor.cut, cursor.flush_lsn) == (Position(1, Lsn(150), 1), 160)


def test_the_cut_stays_before_a_transaction_that_is_in_the_log_in_part() -> None:
    cursor = Cursor(Position(1, Lsn(150), 7), START, Lsn(100))
    cursor.idle_at(Lsn(110))
    assert (cursor.cut, cursor.reached.commit_lsn) == (Position(1, Lsn(110), 0), 150)
    cursor.begin(1, Lsn(120), 0)
    assert cursor.next() is None
    cursor.commit(Lsn(120), Lsn(130))
    assert (cursor.cut, cursor.flush_lsn) == (Position(1, Lsn(120), 1), 130)
    assert cursor.reached == Position(1, Lsn(150), 7)


def test_a_commit_that_starts_where_a_keepalive_stood_is_not_skipped() -> None:
    cursor = Cursor(START, START, Lsn(100))
    cursor.idle_at(Lsn(200))
    assert (cursor.cut, cursor.flush_lsn) == (Position(1, Lsn(200), 0), 200)
    cursor.begin(1, Lsn(200), 0)
    assert cursor.next() == Position(1, Lsn(200), 1)


def test_a_keepalive_never_moves_back() -> None:
    cursor = Cursor(START, START, Lsn(100))
    cursor.idle_at(Lsn(50))
    assert (cursor.cut, cursor.flush_lsn) == (START, 100)


def test_messages_out_of_order_are_corrupt() -> None:
    cursor = Cursor(START, START, Lsn(100))
    with pytest.raises(CorruptMessageError, match="outside"):
        cursor.next()
    cursor.begin(1, Lsn(150), 0)
    with pytest.raises(CorruptMessageError, match="inside"):
        cursor.begin(2, Lsn(160), 0)
    with pytest.raises(CorruptMessageError, match="another"):
        cursor.commit(Lsn(160), Lsn(170))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_message_apart_from_transactions_has_a_place_between_them(compiled: bool) -> None:
    if compiled and fast is None:
        pytest.skip("there is no compiled part")
    cursor = (fast.Cursor if compiled else Cursor)(START, START, Lsn(100))
    cursor.idle_at(Lsn(110))
    position = cursor.message_at(Lsn(120))
    assert position == Position(1, Lsn(120), 0)
    assert (cursor.reached, cursor.cut, cursor.flush_lsn) == (position, position, 110)
    cursor.begin(1, Lsn(120), 0)  # the one that wrote it commits right behind it
    assert cursor.next() == Position(1, Lsn(120), 1)
    assert cursor.cut == position
    with pytest.raises(CorruptMessageError):
        cursor.message_at(Lsn(140))


def test_a_message_that_the_log_has_is_not_given_out_again() -> None:
    cursor = Cursor(Position(1, Lsn(120), 0), START, Lsn(100))
    assert cursor.message_at(Lsn(110)) is None
    assert cursor.message_at(Lsn(120)) is None
    assert cursor.message_at(Lsn(121)) == Position(1, Lsn(121), 0)


def test_what_a_restart_finds_of_a_transaction() -> None:
    """Its frames so far are known by their place; its end is known by the cut alone."""
    cursor = Cursor(Position(1, Lsn(150), 2), START, Lsn(100))
    cursor.begin(1, Lsn(150), 0)
    assert [cursor.next(), cursor.position.index, cursor.next(), cursor.position.index] == [
        None,
        1,
        None,
        2,
    ]
    assert not cursor.is_ended
    cursor.commit(Lsn(150), Lsn(160))
    again = Cursor(cursor.reached, cursor.cut, Lsn(100))
    again.begin(1, Lsn(150), 0)
    again.next()
    again.next()
    assert again.is_ended


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

"""The cursor: it hands out exactly the frames that the log lacks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.compiled.fast import COMMITS_MAX, Cursor
from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn, Origin, Position
from tests.fixtures.stream_model import ModelCursor

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


def test_a_message_apart_from_transactions_has_a_place_between_them() -> None:
    cursor = Cursor(START, START, Lsn(100))
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


LSNS = st.integers(98, 103).map(Lsn)
XIDS = st.sampled_from([1, 2, 1 + COMMITS_MAX])
STEPS = st.one_of(
    st.tuples(st.just("begin"), XIDS, LSNS, st.integers(-9, 9)),
    st.tuples(st.sampled_from(["next", "next", "next"])),
    st.tuples(st.just("commit"), LSNS, LSNS),
    st.tuples(st.just("message_at"), LSNS),
    st.tuples(st.just("idle_at"), LSNS),
    st.tuples(st.just("came_from"), st.builds(Origin, LSNS, st.just("o"))),
    st.tuples(st.just("committed_at"), XIDS),
)
MEMBERS = (
    "reached", "cut", "flush_lsn", "cut_ts_us", "transaction", "latest", "last_commit",
    "position", "is_ended",
)  # fmt: skip


def told(cursor: Any, name: str, *arguments: Any) -> Any:
    """What a member is or returns; None is what it raises instead."""
    try:
        member = getattr(cursor, name)
        return member(*arguments) if callable(member) else member
    except CorruptMessageError as error:
        return error.what


@given(st.integers(0, 3), st.integers(98, 103), st.lists(STEPS, max_size=30))
def test_a_cursor_goes_where_the_model_goes(
    index: int, commit_lsn: int, steps: list[tuple[Any, ...]]
) -> None:
    """Commits end the transaction that was begun, and any other now and then."""
    reached = Position(1, Lsn(commit_lsn), index)
    cursors = Cursor(reached, START, Lsn(100)), ModelCursor(reached, START, Lsn(100))
    for name, *arguments in steps:
        transaction = cursors[1].transaction
        if name == "commit" and transaction is not None and arguments[1] % 4:
            arguments[0] = transaction.commit_lsn
        fast, model = (told(cursor, name, *arguments) for cursor in cursors)
        assert fast == model
        for member in MEMBERS:
            assert told(cursors[0], member) == told(cursors[1], member), (name, member)

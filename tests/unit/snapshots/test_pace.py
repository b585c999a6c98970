"""Rows are read as fast as the limit and the source's latency allow, and no faster."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.pace import BURST_S, JUDGE_S, Pace


class Clock:
    """A time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def feel(pace: Pace, clock: Clock, latency_s: float, *, shared: bool = True) -> None:
    """Let a second pass in which statements took so long, and 1,000 rows were read."""
    pace.took(1_000)
    clock.now += JUDGE_S
    pace.felt(latency_s, is_shared=shared)


def loaded(*, limit: int = 0) -> tuple[Pace, Clock]:
    """A pace whose source has a latency of 1 ms when nothing is read."""
    clock = Clock()
    pace = Pace(limit, clock=clock)
    pace.calibrate([0.001])
    feel(pace, clock, 0.001)
    return pace, clock


@given(
    st.integers(1, 5_000),
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 2_000)), min_size=1, max_size=60),
)
def test_no_second_has_more_rows_than_the_limit_and_what_was_kept(
    limit: int, tries: list[tuple[float, int]]
) -> None:
    clock = Clock()
    pace = Pace(limit, clock=clock)
    taken: list[tuple[float, int]] = []
    for pause_s, wanted in tries:
        clock.now += pause_s
        if rows := min(wanted, pace.room()):
            pace.took(rows)
            taken.append((clock.now, rows))
    burst = max(1.0, limit * BURST_S)
    for begin, _ in taken:
        within = sum(rows for at, rows in taken if begin <= at < begin + 1)
        assert within <= limit + burst + 1e-6


@given(st.integers(1, 5_000), st.integers(1, 100_000))
def test_rows_that_were_planned_are_paid_for_once(limit: int, rows_max: int) -> None:
    clock = Clock()
    pace = Pace(limit, clock=clock)
    planned = pace.rows_at_once(rows_max)
    assert 1 <= planned <= max(1, min(rows_max, limit))
    room = pace.room()
    pace.plan(planned)
    pace.took(planned, planned)
    assert pace.room() == room - planned
    pace.plan(planned)
    pace.took(0, planned)  # there were none: it is as if nobody had asked
    assert pace.room() == room - planned


def test_who_waits_as_long_as_is_said_may_go_on() -> None:
    clock = Clock()
    pace = Pace(10, clock=clock)
    pace.took(25)
    assert pace.room() == 0
    clock.now += pace.wait_s() + 1e-6
    assert (pace.room(), pace.wait_s()) == (1, 0)


def test_rows_are_waited_for_by_the_hundredth_of_a_second() -> None:
    clock = Clock()
    pace = Pace(60_000, clock=clock)
    pace.took(pace.room())
    assert pace.wait_s() == pytest.approx(0.01)
    clock.now += 0.005
    assert pace.wait_s() == pytest.approx(0.005)
    clock.now += 0.006
    assert (round(pace.room(), -1), pace.wait_s()) == (660, 0)


def test_without_a_limit_there_is_room_until_the_source_is_slow() -> None:
    pace, clock = loaded()
    assert pace.wait_s() == 0
    assert pace.rows_at_once(20_000) == 20_000
    feel(pace, clock, 0.005)
    assert pace.rate == 500
    feel(pace, clock, 0.005)
    assert pace.rate == 250


def test_a_slow_source_never_stops_a_read() -> None:
    pace, clock = loaded()
    for _ in range(50):
        feel(pace, clock, 0.005)
    assert pace.rate == pytest.approx(1_000 / 64)
    clock.now += 3600
    assert pace.room() > 0


def test_the_rate_grows_again_until_it_holds_nothing_back() -> None:
    pace, clock = loaded(limit=2_000)
    feel(pace, clock, 0.005)
    feel(pace, clock, 0.001)
    assert pace.rate == pytest.approx(500 + 1_000 / 32)
    for _ in range(40):
        feel(pace, clock, 0.001)
    assert pace.rate == 2_000


def test_what_was_always_slow_is_the_baseline() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    for _ in range(10):
        feel(pace, clock, 0.005)
    assert pace.rate == math.inf


@pytest.mark.parametrize("idle", ["nobody else", "nothing read"])
def test_a_slow_source_is_only_spared_where_that_helps_somebody(idle: str) -> None:
    pace, clock = loaded()
    if idle == "nobody else":
        feel(pace, clock, 0.005, shared=False)
    else:
        clock.now += JUDGE_S
        pace.felt(0.005, is_shared=True)
    assert pace.rate == math.inf

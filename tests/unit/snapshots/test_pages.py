"""Ranges of TIDs: after reads of any parts in any order, the rest is missing."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from snapshots.reader import ALL, END, Range, merged, missing, next_range, pages_of, parse_tid, tid

SMALL = st.integers(0, 40)
RANGES = st.lists(st.tuples(SMALL, SMALL | st.just(END)))


def tids(ranges: list[Range]) -> set[int]:
    """Which of the first few are in the ranges; 41 stands for all behind."""
    return {number for first, end in ranges for number in range(first, min(end, 42))}


@given(RANGES)
def test_what_is_there_and_what_is_missing_are_all_rows_and_nothing_twice(
    ranges: list[Range],
) -> None:
    there, lacking = list(merged(ranges)), list(missing(ranges))
    assert tids(there) == tids(ranges)
    assert tids(lacking) == tids([ALL]) - tids(ranges)
    assert merged(there + lacking) == (ALL,)
    assert all(first[1] < second[0] for first, second in pairwise(there))


@given(RANGES, st.integers(0, 30), st.integers(1, 10))
def test_chunk_after_chunk_everything_is_read_once(
    ranges: list[Range], pages: int, chunk_pages: int
) -> None:
    taken: list[Range] = [
        (first << 14, min(end << 14, END)) for first, end in ranges if first < end
    ]
    before = merged(taken)
    found = []
    while (one := next_range(taken, pages, chunk_pages)) is not None:
        taken.append(one)
        found.append(one)
    assert merged(taken) == (ALL,)
    for one in found:
        assert not any(one[0] < end and first < one[1] for first, end in before)
        assert one[1] - one[0] <= chunk_pages << 16 or one[1] >= (pages - chunk_pages) << 16


def test_the_last_chunk_has_what_was_added_since() -> None:
    assert next_range([], 0, 4) == (0, END)
    assert next_range([(0, 4 << 16)], 6, 4) == (4 << 16, END)
    assert next_range([ALL], 6, 4) is None


def test_a_chunk_that_was_cut_leaves_the_rest_of_its_page() -> None:
    assert next_range([(0, (2 << 16) + 7)], 100, 4) == ((2 << 16) + 7, 6 << 16)


def test_pages_are_counted_as_far_as_they_are_there() -> None:
    assert pages_of([(0, 3 << 16), (5 << 16, END)], 8) == 6
    assert pages_of([ALL], 0) == 0


def test_tids_are_read_as_they_are_written() -> None:
    assert tid((4294967295 << 16) + 291) == "(4294967295,291)"
    assert parse_tid(b"(4294967295,291)") == (4294967295 << 16) + 291

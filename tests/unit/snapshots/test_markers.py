"""Debezium's markers of snapshot rows, as its recorded snapshots have them."""

from hypothesis import given
from hypothesis import strategies as st

from snapshots.copytext import Row
from snapshots.markers import Marker, marked


def marks(batches: list[list[Row]], *, first: bool, last: bool) -> list[str]:
    found = marked(batches, first=first, is_last=lambda: last)
    return [marker.value for batch in found for _, marker in batch]


def rows(number: int) -> list[Row]:
    return [(b"%d" % index,) for index in range(number)]


def test_the_rows_of_the_first_the_middle_and_the_last_table() -> None:
    middle = ["true", "true"]
    assert marks([rows(4)], first=True, last=False) == [
        "first",
        *middle,
        "last_in_data_collection",
    ]
    assert marks([rows(4)], first=False, last=False) == [
        "first_in_data_collection",
        *middle,
        "last_in_data_collection",
    ]
    assert marks([rows(4)], first=False, last=True) == ["first_in_data_collection", *middle, "last"]


def test_a_single_row() -> None:
    assert marks([rows(1)], first=True, last=True) == ["last"]
    assert marks([rows(1)], first=True, last=False) == ["first"]
    assert marks([rows(1)], first=False, last=False) == ["last_in_data_collection"]


def test_a_table_without_rows_asks_nothing() -> None:
    def asked() -> bool:
        raise AssertionError

    assert list(marked([[], []], first=True, is_last=asked)) == []


@given(st.lists(st.integers(0, 3)), st.booleans(), st.booleans())
def test_batches_make_no_difference(sizes: list[int], first: bool, last: bool) -> None:
    given_rows = rows(sum(sizes))
    batches, taken = [], 0
    for size in sizes:
        batches.append(given_rows[taken : taken + size])
        taken += size
    found = list(marked(batches, first=first, is_last=lambda: last))
    assert [row for batch in found for row, _ in batch] == given_rows
    assert marks(batches, first=first, last=last) == marks([given_rows], first=first, last=last)
    assert all(isinstance(marker, Marker) for batch in found for _, marker in batch)

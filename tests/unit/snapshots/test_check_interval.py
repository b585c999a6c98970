"""The duration of catalog checks → the time of the next one."""

import pytest

from snapshots.catalog_check import interval_s


@pytest.mark.parametrize(
    ("took_s", "tables", "expected"),
    [
        ([], 1, 5.0),
        ([0.1], 1_000, 5.0),
        ([0.15], 1_000, 7.5),
        ([3.0], 1_000, 10.0),  # a source that is busy, or tables that somebody has locked
        ([0.15], 5_000, 7.5),
        ([0.15, 300.0, 0.2], 5_000, 7.5),  # of that one check alone nothing follows
        ([3.0], 5_000, 60.0),
    ],
)
def test_checks_take_two_percent_of_the_time_but_come_every_minute(
    took_s: list[float], tables: int, expected: float
) -> None:
    assert interval_s(took_s, tables) == pytest.approx(expected)

"""A row reads the same from snapshot and stream; Debezium's differences are kept apart."""

from typing import Any

import pytest

from cdc.events.rules import EventRules
from tests.fixtures.made_changes import NATIVE, events, insert, read, table
from tests.fixtures.preset import DEBEZIUM

SPECIAL = table("id int4!, d date, tz timetz, n name")


def shown(rules: EventRules, *values: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the snapshot and the stream say of one row."""
    one, other = events(SPECIAL, read("1", *values), insert("1", *values), rules=rules)
    return one.value["after"], other.value["after"]


@pytest.mark.parametrize("date", ["2024-01-01", "0044-03-15 BC", "infinity", "-infinity"])
def test_natively_a_row_reads_the_same_from_both(date: str) -> None:
    snapshot, stream = shown(NATIVE, date, "10:00:00+01:02:03", "nm")
    assert snapshot == stream
    assert snapshot["n"] == "nm"


@pytest.mark.parametrize(
    ("date", "snapshot", "stream"),
    [
        ("2024-01-01", 19_723, 19_723),
        ("0044-03-15 BC", -703_383, -735_160),
        ("infinity", -622_191_234, -2_147_472_692),
        ("-infinity", -625_821_272, -2_147_472_691),
    ],
)
def test_debezium_s_snapshot_has_other_dates(date: str, snapshot: int, stream: int) -> None:
    one, other = shown(DEBEZIUM, date, "10:00:00+01", "nm")
    assert (one["d"], other["d"]) == (snapshot, stream)


def test_debezium_s_snapshot_has_no_time_with_seconds_in_its_offset() -> None:
    one, other = shown(DEBEZIUM, "2024-01-01", "10:00:00+01:02:03", "nm")
    assert (one["tz"], other["tz"]) == (None, "08:57:57Z")


def test_debezium_s_stream_has_no_names() -> None:
    one, other = shown(DEBEZIUM, "2024-01-01", "10:00:00+01", "nm")
    assert (one["n"], other["n"]) == ("nm", None)

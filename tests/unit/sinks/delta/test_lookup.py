"""Bounds in files' statistics, and values → whether a file may have any of them."""

import json
from datetime import timedelta
from typing import Any

import pytest

from sinks.delta.lookup import BoundedColumn, Spans, bounded_columns


@pytest.mark.parametrize(
    ("kind", "low", "high", "bounds"),
    [
        ("bigint", 3, 9, (3, 9)),
        ("string", "a", "b", ("a", "b")),
        ("date", "1969-12-31", "1970-01-03", (-1, 2)),
        # Milliseconds, rounded down: the greatest may be up to one later.
        ("timestamp", "1970-01-01T00:00:00.001Z", "1970-01-01T01:00:00.000+01:00", (1000, 1000)),
        (
            "timestamp_ntz",
            "1970-01-01T00:00:00.000",
            "1970-01-02T00:00:00.000",
            (timedelta(0), timedelta(days=1, milliseconds=1)),
        ),
        # What Python has no time for, and what isn't there, leaves out no file.
        ("date", "-0044-03-15", "1970-01-03", None),
        ("timestamp", "+12345-01-01T00:00:00.000Z", "+12345-01-01T00:00:00.000Z", None),
        ("bigint", None, 9, None),
    ],
)
def test_bounds_are_read_as_values_are(
    kind: str, low: Any, high: Any, bounds: tuple[Any, Any] | None
) -> None:
    stats = json.dumps({"minValues": {"c": low}, "maxValues": {"c": high}})
    assert BoundedColumn("c", kind).bounds_in(stats) == bounds


def test_files_without_statistics_have_no_bounds() -> None:
    assert BoundedColumn("c", "bigint").bounds_in(None) is None
    assert BoundedColumn("c", "bigint").bounds_in('{"numRecords": 1}') is None


def test_spans_meet_what_they_are_around_or_within() -> None:
    spans = Spans([(10, 90), (20, 30), (200, 200)])
    assert [spans.meet(*of) for of in ((0, 9), (40, 50), (91, 199), (200, 300), (201, 300))] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert (spans.least, spans.greatest) == (10, 200)


def test_columns_of_other_types_have_no_bounds_and_names_are_those_in_files() -> None:
    physical = {"delta.columnMapping.physicalName": "col-1"}
    fields = [
        {"name": "a", "type": "long", "metadata": physical},
        {"name": "b", "type": "double", "metadata": {}},
        {"name": "c", "type": {"type": "array"}, "metadata": {}},
    ]
    assert bounded_columns(fields) == {"a": BoundedColumn("col-1", "bigint")}

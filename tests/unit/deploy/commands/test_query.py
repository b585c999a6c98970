"""Rows of `millrace query`, in the form of other tools."""

import datetime as dt
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest
from pyspark.sql import Row

from deploy.commands.query import cell, plain


@pytest.mark.parametrize(
    ("value", "in_csv", "in_json"),
    [
        (None, "", None),
        (True, "true", True),
        (Decimal("1.50"), "1.50", Decimal("1.50")),
        (dt.date(2026, 1, 2), "2026-01-02", dt.date(2026, 1, 2)),
        (bytearray(b"\1\2"), r"\x0102", "AQI="),
        ([1, None, "é"], '[1, null, "é"]', [1, None, "é"]),
        (Row(a=1, b=Row(c=[True])), '{"a": 1, "b": {"c": [true]}}', {"a": 1, "b": {"c": [True]}}),
        ({"k": Decimal("1.5")}, '{"k": "1.5"}', {"k": Decimal("1.5")}),
        (
            {1: "one", dt.date(2026, 1, 2): "two"},
            '{"1": "one", "2026-01-02": "two"}',
            {"1": "one", "2026-01-02": "two"},
        ),
        ([nan, -inf, b"x"], '["NaN", "-Infinity", "eA=="]', ["NaN", "-Infinity", "eA=="]),
    ],
)
def test_arrays_and_structs_are_json_in_every_form(value: Any, in_csv: str, in_json: Any) -> None:
    assert cell(value) == in_csv
    assert plain(value) == in_json

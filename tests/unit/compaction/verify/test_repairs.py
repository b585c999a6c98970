"""Keys of rows that differ → orders that fit in a message; why some can't be sent again."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.records.orders import ORDER_BYTES_MAX, REPAIR_ORDERS, RepairOrder
from compaction.verify.hashed import KeyTexts
from compaction.verify.repairs import DifferingRows, _fitting, _why_not
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule

RULE = Rule(Kind.TEXT, lambda value: value)
TABLE = ComparedTable(
    (ComparedColumn("id", "renamed", RULE), ComparedColumn("v", "v", RULE)), (0,), {}
)
UNKEYED = ComparedTable(TABLE.columns, (), {})


@given(st.lists(st.text(max_size=2_000), max_size=50))
def test_all_keys_are_ordered_in_messages_that_are_kept_whole(texts: list[str]) -> None:
    keys = [{"id": text} for text in texts]
    orders = [
        RepairOrder(id="0" * 32, log="1" * 32, table="public.t" * 16, keys=tuple(some))
        for some in _fitting(keys)
    ]
    assert [key for order in orders for key in order.keys] == keys
    sizes = [len(order.model_dump_json().encode()) for order in orders]
    assert all(len(REPAIR_ORDERS) + size < ORDER_BYTES_MAX for size in sizes)


@pytest.mark.parametrize(
    ("compared", "identifying", "keys", "why"),
    [
        (TABLE, ("id",), [("1",)], ""),
        (TABLE, ("id", "other"), [("1",)], "the key that the log has"),
        (UNKEYED, (), [()], "the key that the log has"),
        (TABLE, ("id",), [("1",), (None,)], "the keys of some aren't known"),
        (TABLE, ("id",), [()], "the keys of some aren't known"),
        (TABLE, ("id",), [("é" * ORDER_BYTES_MAX,)], "too long"),
    ],
)
def test_rows_that_cannot_be_sent_again_are_told_why(
    compared: ComparedTable, identifying: tuple[str, ...], keys: list[KeyTexts], why: str
) -> None:
    description = SimpleNamespace(name="public.t", identifying_columns=identifying)
    read = cast("Any", SimpleNamespace(description=description, compared=compared))
    told = _why_not(DifferingRows(read, keys))
    assert why in told
    assert bool(why) == bool(told)
    assert not told or "millrace snapshot public.t" in told

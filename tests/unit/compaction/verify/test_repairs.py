"""Keys of rows that differ → orders that fit in a message, or why a row can't be sent again."""

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.records.orders import ORDER_BYTES_MAX, REPAIR_ORDERS, RepairOrder
from compaction.verify.hashed import KeyTexts
from compaction.verify.repairs import REPAIRED_MAX, DifferingRows, _fits, _fitting, _why_not
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule
from compaction.verify.source import SourceRead

RULE = Rule(Kind.TEXT, lambda value: value)
TABLE = ComparedTable(
    (ComparedColumn("id", "renamed", RULE), ComparedColumn("v", "v", RULE)), (0,), {}
)
UNKEYED = ComparedTable(TABLE.columns, (), {})


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=2_000)


@given(st.lists(TEXT, max_size=50))
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
    ("compared", "identifying", "count", "why"),
    [
        (TABLE, ("id",), 1, ""),
        (TABLE, ("id", "other"), 1, "their keys in the log are unknown"),
        (UNKEYED, (), 1, "their keys in the log are unknown"),
        (TABLE, ("id",), REPAIRED_MAX + 1, "more than 10,000"),
    ],
)
def test_tables_whose_rows_cannot_be_sent_again_are_told_why(
    compared: ComparedTable, identifying: tuple[str, ...], count: int, why: str
) -> None:
    read = made(compared, identifying)
    told = _why_not(DifferingRows(read, [(str(number),) for number in range(count)]))
    assert why in told
    assert bool(why) == bool(told)
    assert not told or "millrace snapshot public.t" in told


def test_keys_that_nobody_knows_or_that_fit_in_no_order_are_left_out() -> None:
    read, long = made(TABLE, ("id",)), "é" * ORDER_BYTES_MAX
    keys: list[KeyTexts] = [("1",), (None,), (), ("\0",), ("caf\ufffd",), (long,), ("",)]
    assert [texts for texts in keys if _fits(read, texts)] == [("1",), ("",)]


def made(compared: ComparedTable, identifying: tuple[str, ...]) -> SourceRead:
    """A table that was read."""
    description = SimpleNamespace(name="public.t", identifying_columns=identifying)
    return cast("SourceRead", SimpleNamespace(description=description, compared=compared))

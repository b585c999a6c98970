"""When an event needs more than the hot path, and which defaults are Debezium's."""

from dataclasses import replace

import pytest

from cdc.events.rules import EventRules
from cdc.settings.modes import ColumnModes, ColumnRule, EventModes, KeyRule, ValueModes
from tests.fixtures.made_changes import NATIVE, patterns
from tests.fixtures.preset import DEBEZIUM

NAME = patterns("public.t.name")


@pytest.mark.parametrize(
    "rules",
    [
        NATIVE,
        replace(NATIVE, message_prefix_include=NAME),
        replace(NATIVE, columns=ColumnModes(keys=(KeyRule(NAME, ("name",)),))),
        replace(NATIVE, columns=ColumnModes(source_type_of=NAME)),
    ],
)
def test_the_hot_path_writes_what_is_native(rules: EventRules) -> None:
    assert rules.plain


@pytest.mark.parametrize(
    "rules",
    [
        DEBEZIUM,
        replace(NATIVE, values=ValueModes(decimal="double")),
        replace(NATIVE, events=EventModes(transaction_metadata=True)),
        replace(NATIVE, events=EventModes(skipped=frozenset("t"))),
        replace(NATIVE, columns=ColumnModes(exclude=NAME)),
        replace(NATIVE, columns=ColumnModes(rules=(ColumnRule("mask", NAME, 3),))),
        replace(NATIVE, field_names="avro"),
    ],
)
def test_everything_else_goes_the_readable_way(rules: EventRules) -> None:
    assert not rules.plain


def test_debezium_s_defaults() -> None:
    events = DEBEZIUM.events
    assert (events.tombstones, events.skipped, events.unchanged) == (
        True,
        frozenset("t"),
        "placeholder",
    )
    assert events.context_headers
    assert events.key_change_headers
    assert not events.position_header
    assert not events.transaction_metadata
    assert not DEBEZIUM.lossless
    assert DEBEZIUM.values == ValueModes(
        "precise", "adaptive", "bytes", "numeric", "json", False, lossless=False
    )

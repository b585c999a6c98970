"""The defaults that are Debezium's."""

from cdc.settings.modes import ValueModes
from tests.fixtures.preset import DEBEZIUM


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

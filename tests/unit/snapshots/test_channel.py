"""Records of the signals' topic → followed one turn at a time."""

from typing import Any, cast

import pytest

from cdc.kafka.signal_topic import Followed
from cdc.records.position import Lsn, Position
from cdc.records.state import SignalOffset
from snapshots import channel
from snapshots.channel import Background, Channels
from tests.unit.snapshots.test_requests import SignalledTables


class Topic:
    """A topic to which somebody writes faster than it is read."""

    def __init__(self) -> None:
        self.offset = 0

    def take(self) -> Any:
        while True:
            self.offset += 1
            yield Followed("id", self.offset - 1, b"pre", b"{")


def test_a_turn_ends_whatever_comes_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "_TURN_S", 0.05)
    signalled, nothing, topic = SignalledTables(), cast("Any", None), Topic()
    background = Background(nothing, nothing, nothing, nothing)
    channels = Channels(
        signalled.settings.capture,
        None,
        signalled.tables,
        background,
        cast("Any", topic),
        SignalOffset(),
    )
    for _ in range(2):
        assert channels._follow_topic(Position(1, Lsn(5), 0)) == []
        assert channels.offset == SignalOffset(topic_id="id", offset=topic.offset)

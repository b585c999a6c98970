"""Records of any writer → read in order, with few of them in memory."""

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.kafka import options, signal_topic
from cdc.kafka.signal_topic import Follower

RECORDS = 200
VALUE = bytes(1 << 20)


class Topic:
    """A topic with large records, as the clients show it."""

    def __init__(self, key: bytes = b"p", value: bytes | None = VALUE) -> None:
        self.polled = 0
        self.key, self.value = key, value

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, RECORDS

    def assign(self, _places: object) -> None:
        """It has one partition."""

    def poll(self, timeout_s: float) -> Any:
        if self.polled == RECORDS:
            time.sleep(timeout_s)
            return None
        self.polled += 1
        number = self.polled - 1
        return SimpleNamespace(
            error=lambda: None,
            offset=lambda: number,
            key=lambda: self.key,
            value=lambda: self.value,
        )

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[Any]]:
        described = Future[Any]()
        described.set_result(SimpleNamespace(topic_id="id"))
        return {"signals": described}


@pytest.mark.parametrize(("key", "value"), [(b"p", VALUE), (VALUE, None)], ids=["value", "key"])
def test_few_of_many_large_records_are_in_memory(
    key: bytes, value: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(key, value)
    monkeypatch.setattr(options, "client", lambda *_: topic)
    monkeypatch.setattr(signal_topic, "POLL_S", 0.01)
    follower = Follower({"bootstrap.servers": "nowhere"}, "signals")
    offsets: list[int] = []
    deadline = time.monotonic() + 30
    time.sleep(0.2)
    while len(offsets) < RECORDS:
        assert time.monotonic() < deadline, offsets
        assert topic.polled - len(offsets) <= 8 + 2
        offsets += [record.offset for record in follower.take()]
        time.sleep(0.005)
    follower.close()
    assert offsets == list(range(RECORDS))


def test_what_comes_meanwhile_is_for_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records somebody writes, and however long it takes to follow each."""
    topic = Topic()
    monkeypatch.setattr(options, "client", lambda *_: topic)
    monkeypatch.setattr(signal_topic, "POLL_S", 0.01)
    follower = Follower({"bootstrap.servers": "nowhere"}, "signals")
    time.sleep(0.2)
    taken = 0
    for _ in follower.take():
        taken += 1
        time.sleep(0.03)
    follower.close()
    assert 0 < taken <= 8 + 2

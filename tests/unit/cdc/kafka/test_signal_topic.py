"""Records that anybody wrote → taken in order, with few of them in memory meanwhile."""

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

    def __init__(self) -> None:
        self.polled = 0

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
            error=lambda: None, offset=lambda: number, key=lambda: b"p", value=lambda: VALUE
        )

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[Any]]:
        described = Future[Any]()
        described.set_result(SimpleNamespace(topic_id="id"))
        return {"signals": described}


def test_few_of_many_large_records_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
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

"""Requests about topics: how long they are repeated, and which aren't."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewTopic

from cdc.errors import LogAccessError, LogUnreachableError, MillraceError
from cdc.kafka.admin import LATEST, LogAdmin, do_nothing
from cdc.kafka.portions import PARTITIONS_PER_REQUEST_MAX

OFFSET = 7


class Client:
    """A client as librdkafka is: one partition without a leader fails a whole request."""

    def __init__(self, lost: str, code: int = KafkaError._TIMED_OUT) -> None:
        self._lost = lost
        self._code = code
        self.asked: list[set[str]] = []
        self.on_request: Callable[[], None] = Mock()

    def poll(self, _seconds: float) -> None:
        """Nothing to serve."""

    def list_topics(self, timeout: float) -> None:
        """Who the controller is; nobody here asks."""

    def list_offsets(
        self, specs: Iterable[TopicPartition], **_more: object
    ) -> dict[TopicPartition, Future[Any]]:
        partitions = list(specs)
        self.asked.append({partition.topic for partition in partitions})
        self.on_request()
        answer: Future[Any] = Future()
        if self._lost in self.asked[-1]:
            answer.set_exception(KafkaException(KafkaError(self._code)))
        else:
            answer.set_result(Mock(offset=OFFSET))
        return dict.fromkeys(partitions, answer)


def admin_of(client: Client, while_waiting: Callable[[], None] = do_nothing) -> LogAdmin:
    admin = LogAdmin({"bootstrap.servers": "127.0.0.1:1"}, while_waiting)
    vars(admin)["_client"] = client
    return admin


def test_a_topic_without_a_leader_costs_the_others_one_wait_and_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cdc.kafka.admin.PATIENCE_S", 0.5)
    client = Client("lost")
    admin = admin_of(client)
    partitions = [("lost", 0), ("fine", 0), ("fine", 1)]
    for _ in range(2):
        failed: dict[str, MillraceError] = {}
        offsets = admin.list_offsets(partitions, LATEST, failed=failed)
        assert offsets == {("fine", 0): OFFSET, ("fine", 1): OFFSET}
        assert isinstance(failed["lost"], LogUnreachableError)
    assert client.asked[:3] == [{"lost", "fine"}, {"lost"}, {"fine"}]
    assert client.asked[-1] == {"fine"}, "it was waited for once"


def test_a_password_that_is_no_longer_right_isnt_waited_for() -> None:
    client = Client("t", KafkaError._TRANSPORT)
    admin = admin_of(client)
    client.on_request = lambda: admin._complaints.append(KafkaError(KafkaError._AUTHENTICATION))
    began = time.monotonic()
    with pytest.raises(LogAccessError):
        admin.list_offsets([("t", 0)], LATEST)
    assert time.monotonic() - began < 30


def test_whoever_waits_may_end_the_wait() -> None:
    def end() -> None:
        raise LogUnreachableError("told to stop")

    began = time.monotonic()
    with pytest.raises(LogUnreachableError, match="told to stop"):
        admin_of(Client("t"), end).list_offsets([("t", 0)], LATEST)
    assert time.monotonic() - began < 30


def test_a_request_that_is_never_answered_is_given_up_like_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cdc.kafka.admin.PATIENCE_S", 0.1)
    monkeypatch.setattr("cdc.kafka.admin.METADATA_S", 0.1)
    client = Client("none")
    monkeypatch.setattr(client, "list_offsets", lambda specs, **_: {one: Future() for one in specs})
    failed: dict[str, MillraceError] = {}
    partitions = [("t", number) for number in range(1_000)]
    began = time.monotonic()
    assert admin_of(client).list_offsets(partitions, LATEST, failed=failed) == {}
    assert isinstance(failed["t"], LogUnreachableError)
    assert time.monotonic() - began < 30


class SlowCluster:
    """A broker that shows topics some time after its controller has made them, a few at a time."""

    def __init__(self, first_s: float, per_topic_s: float) -> None:
        self.now, self.requests = 0.0, list[int]()
        self._first_s, self._per_topic_s = first_s, per_topic_s
        self._made = list[str]()

    def create_topics(self, topics: list[NewTopic], **_more: object) -> dict[str, Future[None]]:
        self.requests.append(sum(topic.num_partitions for topic in topics))
        self._made += [topic.topic for topic in topics]
        answer: Future[None] = Future()
        answer.set_result(None)
        return {topic.topic: answer for topic in topics}

    def list_topics(self, timeout: float) -> Mock:
        shown = max(0, int((self.now - self._first_s) / self._per_topic_s))
        return Mock(controller_id=1, topics=dict.fromkeys(self._made[:shown]))

    def poll(self, _seconds: float) -> None:
        """Nothing to serve."""

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("first_s", "per_topic_s"),
    [pytest.param(65.0, 0.001, id="all of them late"), pytest.param(5.0, 1.0, id="one by one")],
)
def test_a_thousand_topics_are_waited_for_as_long_as_a_busy_broker_takes(
    monkeypatch: pytest.MonkeyPatch, first_s: float, per_topic_s: float
) -> None:
    """Else they count as topics that the user may not see."""
    cluster = SlowCluster(first_s, per_topic_s)
    clock = Mock(monotonic=lambda: cluster.now, sleep=cluster.sleep)
    monkeypatch.setattr("cdc.kafka.admin.time", clock)
    admin = LogAdmin({"bootstrap.servers": "127.0.0.1:1"})
    vars(admin)["_client"] = cluster
    names = [f"t{number}" for number in range(1_000)]
    assert admin.create(NewTopic(name, 3, 1) for name in names) == {}
    assert len(cluster.list_topics(timeout=1).topics) == len(names)
    assert max(cluster.requests) <= PARTITIONS_PER_REQUEST_MAX


def test_topics_that_are_never_shown_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SlowCluster(1e9, 1.0)
    clock = Mock(monotonic=lambda: cluster.now, sleep=cluster.sleep)
    monkeypatch.setattr("cdc.kafka.admin.time", clock)
    admin = LogAdmin({"bootstrap.servers": "127.0.0.1:1"})
    vars(admin)["_client"] = cluster
    assert admin.create([NewTopic("t", 3, 1)]) == {}
    assert cluster.now < 12

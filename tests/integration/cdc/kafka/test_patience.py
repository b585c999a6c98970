"""Brokers between two leaders → requests are repeated for a while.

The faults are injected, as a single broker has no other leader; the rest is real.
tests/faults/test_three_brokers.py has real ones.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.errors import LogUnreachableError, MillraceError
from cdc.kafka.admin import LATEST, LogAdmin
from deploy.local.kafka import Kafka
from tests.integration.cdc.kafka.test_producer import make_topic

pytestmark = pytest.mark.kafka

NO_LEADER: Final = (
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError._DESTROY,
    KafkaError._TRANSPORT,
)
"""Among these "Leader high watermark is not caught up", and "Broker handle destroyed"."""


def details(admin: LogAdmin, topic: str) -> Any:
    """What the topic is, and what went wrong."""
    failed: dict[str, MillraceError] = {}
    found = admin.details([topic], failed)
    return found[topic].partitions, failed


REQUESTS: Final[dict[str, tuple[str, Callable[[LogAdmin, str], Any], Any]]] = {
    "offsets": ("list_offsets", lambda a, t: a.list_offsets([(t, 0)], LATEST), 0),
    "settings": ("describe_configs", lambda a, t: a.describe([t])[t].partitions, 1),
    "topics": ("describe_topics", details, (1, {})),
    "new topic": ("create_topics", lambda a, t: a.create([NewTopic(f"{t}-new", 1, 1)]), {}),
    "deleted": ("delete_topics", lambda a, t: a.delete([t]), {}),
}
"""A request → the client's call, how to make it, and the right answer."""


def break_requests(monkeypatch: pytest.MonkeyPatch, call: str, codes: list[int]) -> None:
    """Let a call of the client fail, with one code after the other."""
    real = getattr(AdminClient, call)

    def failing(client: AdminClient, requests: Any, **more: Any) -> Any:
        answers = real(client, requests, **more)
        if not codes:
            return answers
        for answer in answers.values():
            answer.exception()  # it was done, and nobody hears of it
        lost: Future[Any] = Future()
        lost.set_exception(KafkaException(KafkaError(codes.pop())))
        return dict.fromkeys(answers, lost)

    monkeypatch.setattr(AdminClient, call, failing)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_finds_no_leader_is_made_again(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call, request, answer = REQUESTS[name]
    topic = make_topic(kafka, topic_prefix)
    admin = LogAdmin(kafka.client_options())
    codes = list(NO_LEADER)
    break_requests(monkeypatch, call, codes)
    found = request(admin, topic)
    assert not codes
    if name == "deleted":
        assert {error.name() for error in found.values()} <= {"UNKNOWN_TOPIC_OR_PART"}
        assert topic not in admin.partitions()
    else:
        assert found == ({(topic, 0): answer} if name == "offsets" else answer)


def test_a_client_asks_for_metadata_before_its_first_request(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that knows no leaders waits in librdkafka, one time in four, until it runs out."""
    topic, asked = make_topic(kafka, topic_prefix), list[str]()
    assert LogAdmin(kafka.client_options()).list_offsets([(topic, 0)], LATEST)  # it has a leader

    def note(name: str) -> None:
        real = getattr(AdminClient, name)

        def noted(client: AdminClient, *words: Any, **more: Any) -> Any:
            asked.append(name)
            return real(client, *words, **more)

        monkeypatch.setattr(AdminClient, name, noted)

    note("list_topics")
    note("list_offsets")
    admin = LogAdmin(kafka.client_options())
    for _ in range(2):
        assert admin.list_offsets([(topic, 0)], LATEST)
    assert asked == ["list_topics", "list_offsets", "list_offsets"]


def test_it_is_given_up_in_time_and_the_configuration_isnt_blamed(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(kafka, topic_prefix)
    admin = LogAdmin(kafka.client_options())
    monkeypatch.setattr("cdc.kafka.admin.PATIENCE_S", 3.0)  # a busy machine's first answer is late
    break_requests(monkeypatch, "list_offsets", [KafkaError.OFFSET_NOT_AVAILABLE] * 1_000)
    waits: list[None] = []
    admin._while_waiting = lambda: waits.append(None)
    with pytest.raises(LogUnreachableError) as caught:
        admin.list_offsets([(topic, 0)], LATEST)
    assert waits
    assert "bootstrap.servers" not in str(caught.value)


def test_brokers_that_have_answered_are_waited_for_and_then_not_blamed_on_the_configuration(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.kafka.admin.REACH_S", 0.0)
    real, faults = AdminClient.list_topics, [0, 0, 0]

    def failing(client: AdminClient, **more: Any) -> Any:
        if not faults:
            return real(client, **more)
        faults.pop()
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    admin = LogAdmin(kafka.client_options())
    assert admin.broker_count() == 1
    monkeypatch.setattr(AdminClient, "list_topics", failing)
    assert admin.broker_count() == 1
    assert not faults
    monkeypatch.setattr("cdc.kafka.admin.PATIENCE_S", 0.5)
    faults += [0] * 10_000
    with pytest.raises(LogUnreachableError) as caught:
        admin.broker_count()
    assert "bootstrap.servers is right" not in caught.value.remedy

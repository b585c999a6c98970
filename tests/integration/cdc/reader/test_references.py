"""The objects that a record refers to, if they become visible after the record."""

import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from cdc.kafka.admin import LogAdmin
from cdc.reader import references
from cdc.reader.references import References
from cdc.reader.topics import ReadTopics
from cdc.records.dead_letters import PIECES_PARTITION, claim_of, piece_key
from cdc.records.schema import Column, TableSchema
from cdc.records.topics import claim_topic, schema_topic
from cdc.settings import Settings
from deploy.local.kafka import Kafka

pytestmark = pytest.mark.kafka
VALUE = "größe".encode() * 40
SCHEMA = TableSchema(
    namespace="public",
    table="t",
    version=1,
    since="",
    topic="t",
    replica_identity="d",
    columns=(Column(name="id", type="int4", type_oid=23, declared="integer", key=1),),
    signature="",
)


class Log:
    """The topics that records refer to, and who writes there what is shown after a while."""

    def __init__(self, kafka: Kafka, prefix: str, delivery: str) -> None:
        self.settings = Settings.model_validate(
            {
                "source": {},
                "capture": {"topic.prefix": prefix},
                "kafka": kafka.client_options(),
                "log": {"delivery": delivery},
            }
        )
        compacted = {"cleanup.policy": "compact"}
        topics = [
            NewTopic(claim_topic(prefix), 2, 1, config=compacted),
            NewTopic(schema_topic(prefix), 1, 1, config=compacted),
        ]
        assert LogAdmin(kafka.client_options()).create(topics) == {}
        self.claim, self._pieces = claim_of(prefix, "a", VALUE, 100)
        self._schemas = schema_topic(prefix)
        ids = {"transactional.id": prefix} if delivery == "exactly_once" else {}
        self.writer = Producer({**kafka.client_options(), **ids})
        self.warned: list[str] = []

    def begin(self) -> None:
        """Write a claim's pieces and a schema, which nobody is shown yet."""
        self.writer.init_transactions(30)
        self.writer.begin_transaction()
        self.write()

    def write(self) -> None:
        """Write them."""
        for number, piece in enumerate(self._pieces):
            key = piece_key("claim", self.claim.id, number)
            self.writer.produce(self.claim.topic, piece, key, PIECES_PARTITION)
        self.writer.produce(self._schemas, SCHEMA.model_dump_json(), b"{}", 0)
        self.writer.flush(30)

    def references(self) -> References:
        topics = ReadTopics(self.settings, None)
        return References(self.settings, topics, lambda: None, self.warned.append)


@pytest.fixture
def log(kafka: Kafka, topic_prefix: str) -> Callable[..., Log]:
    return lambda delivery="exactly_once": Log(kafka, topic_prefix, delivery)


def later(do: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.5, do)
    timer.start()
    return timer


def test_a_value_and_a_schema_that_are_shown_late_are_not_lost(log: Callable[..., Log]) -> None:
    made, now_ms = log(), time.time_ns() // 1_000_000
    made.begin()
    found = made.references()
    timer = later(lambda: made.writer.commit_transaction(30))
    assert found.value(made.claim, now_ms) == VALUE
    assert found.schema("public.t", 1, now_ms) == SCHEMA
    timer.join()
    began = time.monotonic()
    assert found.value(made.claim.model_copy(update={"id": "b"}), now_ms) is None
    assert time.monotonic() - began < 10, "what is gone is waited for"


def test_a_value_that_was_given_up_is_lost(log: Callable[..., Log]) -> None:
    made, now_ms = log(), time.time_ns() // 1_000_000
    made.begin()
    timer = later(lambda: made.writer.abort_transaction(30))
    assert made.references().value(made.claim, now_ms) is None
    timer.join()


def test_without_transactions_what_comes_behind_its_record_is_waited_for(
    log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, now_ms = log("at_least_once"), time.time_ns() // 1_000_000
    timer = later(made.write)
    assert made.references().value(made.claim, now_ms) == VALUE
    timer.join()
    monkeypatch.setattr(references, "MARKERS_S", 0.2)
    gone = made.claim.model_copy(update={"id": "b"})
    assert made.references().value(gone, now_ms) is None

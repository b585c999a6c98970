"""A record that the broker refuses, among many like it → its identity, and the reason."""

from collections.abc import Iterator

import pytest
from confluent_kafka.cimpl import NewTopic

from cdc.dead_letters.guard import Refusals
from cdc.errors import RecordRefusedError, RefusedRecord
from cdc.kafka.admin import LogAdmin
from cdc.kafka.producer import LogWriter, Suspects
from cdc.records.position import Lsn, Position, header
from cdc.records.record import Record
from deploy.local.kafka import Kafka

pytestmark = pytest.mark.kafka
CULPRITS = {700, 1_400}


def at(index: int) -> Position:
    return Position(1, Lsn(100), index)


@pytest.fixture
def topics(kafka: Kafka, topic_prefix: str) -> Iterator[tuple[str, str]]:
    """One that refuses records without a key, and one that doesn't."""
    names = f"{topic_prefix}.keyed", f"{topic_prefix}.keyless"
    policies: tuple[dict[str, str], ...] = ({"cleanup.policy": "compact"}, {})
    made = [NewTopic(name, 1, 1, config=c) for name, c in zip(names, policies, strict=True)]
    admin = LogAdmin(kafka.client_options())
    assert admin.create(made) == {}
    yield names
    admin.delete(names)


def records(keyed: str, keyless: str) -> list[Record]:
    """Two of 1,500 are refused: they have neither key nor anything else to tell them by."""

    def record(index: int) -> Record:
        refused = index in CULPRITS
        topic = keyed if refused or index % 2 else keyless
        key = b"k" if topic == keyed and not refused else None
        return Record(topic, key, b"v", [("millrace.position", header(at(index), 1))])

    return [record(index) for index in range(1, 1_501)]


def test_each_culprit_is_found_in_a_few_starts(
    kafka: Kafka, topics: tuple[str, str], topic_prefix: str
) -> None:
    refusals = Refusals()
    refusals.topics.add(topics[0])
    tries: list[Suspects | None] = []

    def start() -> RecordRefusedError | None:
        tries.append(refusals.suspects)
        options = kafka.client_options()
        writer = LogWriter(options, topic_prefix, lambda: None, refusals.suspects)
        writer.open()
        try:
            kept = [
                one
                for index, one in enumerate(records(*topics), 1)
                if (str(at(index)), one.topic, one.key) not in refusals.reasons
            ]
            writer.write(kept)
            writer.commit()
        except RecordRefusedError as error:
            return error
        finally:
            writer.close()
        return None

    while (error := start()) is not None:
        assert refusals.learn(error)
        assert len(tries) < 10
    assert refusals.reasons.keys() == {(str(at(index)), topics[0], None) for index in CULPRITS}
    assert len(tries) <= 7


def refusal(topic: str, suspects: int) -> RecordRefusedError:
    error = RecordRefusedError("too large")
    error.refused = RefusedRecord(topic, b"k", str(at(1)), str(at(1)), suspects)
    return error


def test_a_record_that_is_refused_though_a_dead_letter_stands_in_sets_its_table_aside() -> None:
    refusals = Refusals()
    refusals.topics.add("t")
    assert refusals.learn(refusal("t", 1))
    assert not refusals.of_tables, "the next stay on the stream has a dead letter in its place"
    assert refusals.learn(refusal("t", 1))
    assert refusals.of_tables.keys() == {"t"}


def test_of_other_tables_the_topic_tells_which_one_it_is() -> None:
    refusals = Refusals()
    assert not refusals.has_any
    assert refusals.learn(refusal("t", 50))
    assert refusals.has_any, "the batch may be too large, and no record: smaller ones come first"
    assert not refusals.of_tables
    assert refusals.learn(refusal("t", 50))
    assert refusals.of_tables.keys() == {"t"}
    assert refusals.learn(refusal("alone", 1))
    assert refusals.of_tables.keys() == {"t", "alone"}


def test_what_does_not_tell_its_record_ends_the_daemon() -> None:
    assert not Refusals().learn(RecordRefusedError("odd"))


def test_a_search_that_leads_nowhere_sets_the_table_aside() -> None:
    refusals = Refusals()
    refusals.topics.add("t")
    error = RecordRefusedError("odd")
    error.refused = RefusedRecord("t", b"k", "", "", 50)
    tries = 0
    while not refusals.of_tables:
        assert refusals.learn(error)
        tries += 1
    assert tries == 5

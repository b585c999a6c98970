"""A group's records in the log → its place."""

import pytest

from cdc.errors import ConfigError, LogForgottenError, MillraceError
from cdc.kafka.admin import LogAdmin, do_nothing
from cdc.kafka.making import TopicMaker
from cdc.log.state import read_all
from cdc.reader.group import ReaderGroup
from cdc.reader.topics import TableTopic
from cdc.records.made_topics import MadeTopic
from cdc.records.position import Lsn, Position
from cdc.records.topics import dead_letter_topic, made_topic, reader_topic
from cdc.settings import Settings
from deploy.local.kafka import Kafka

pytestmark = pytest.mark.kafka
TOPIC = TableTopic("public.t", "p.public.t", 2, "id-1")
TOPICS = {TOPIC.name: TOPIC}


def test_a_group_stands_where_its_members_and_its_first_start_say(
    kafka: Kafka, topic_prefix: str
) -> None:
    settings = Settings.model_validate(
        {
            "source": {},
            "capture": {"topic.prefix": topic_prefix},
            "kafka": kafka.client_options(),
        }
    )
    one, other = (ReaderGroup(settings, "g") for _ in range(2))
    one.ensure_topic()
    assert not one.read()
    assert not other.read()
    kept_from = {TOPIC.name: {0: 4, 1: 4}}
    one.begin(TOPICS, {TOPIC.name: {0: 5, 1: 1}}, kept_from)
    other.begin(TOPICS, {TOPIC.name: {0: 3, 1: 7}}, kept_from)  # both were new at once
    one.read()
    assert [one.offset(TOPIC, number) for number in range(2)] == [3, 1]
    one.keep(TOPICS, {(TOPIC.name, 0): 9})
    other.read()
    assert [other.offset(TOPIC, number) for number in range(2)] == [9, 1]
    assert other.unknown({**TOPICS, "new": TOPIC._replace(name="new")}).keys() == {"new"}

    other.require_there({TOPIC.name: {0: 9, 1: 4}})  # what went was older than log.keep
    for lows in ({0: 10, 1: 1}, {0: 9, 1: 5}):
        with pytest.raises(LogForgottenError, match="the group g is too late"):
            other.require_there({TOPIC.name: lows})
    assert other.ids() == {TOPIC.name: "id-1"}
    with pytest.raises(ConfigError, match="reads changes one by one"):
        other.require_kind(transactions=True)

    dead_letters = TableTopic("", dead_letter_topic(topic_prefix), 1, "id-1")
    one.keep({dead_letters.name: dead_letters}, {(dead_letters.name, 0): 7})
    other.read()
    assert other.offset(dead_letters, 0) == 7
    assert other.offset(dead_letters._replace(id="id-2"), 0) == 0
    assert other.ids() == {TOPIC.name: "id-1"}, "a group may go on with another topic of these"

    ledger = ReaderGroup(settings, "ledger")
    assert not ledger.read()
    starts = {TOPIC.name: {0: 0, 1: 0}}
    ledger.begin(TOPICS, starts, starts, Position(0, Lsn(0), 0))
    ledger.keep_cut(TOPICS, {(TOPIC.name, 0): 2, (TOPIC.name, 1): 3}, Position(1, Lsn(9), 0))
    again = ReaderGroup(settings, "ledger")
    assert again.read()
    again.require_kind(transactions=True)
    assert again.cut == Position(1, Lsn(9), 0)
    assert [again.offset(TOPIC, number) for number in range(2)] == [2, 3]
    old = TOPIC._replace(table="public.old", name="old", begun_ms=1)
    with pytest.raises(ConfigError, match=r"without public\.old so far"):
        again.require_tables({"old": old}, {})
    again.require_tables(TOPICS, {"new": "public.new"})
    with pytest.raises(ConfigError, match=r"with public\.t so far"):
        again.require_tables({}, {TOPIC.name: TOPIC.table})


def test_a_topic_that_brokers_refuse_to_make_is_not_taken_for_ours(
    kafka: Kafka, topic_prefix: str
) -> None:
    """The user may make it then: `drop` leaves it."""
    options = kafka.client_options()
    sections = {"source": {}, "capture": {"topic.prefix": topic_prefix}, "kafka": options}
    plain = Settings.model_validate(sections)
    TopicMaker(plain, LogAdmin(plain.kafka), do_nothing).write_down(["p.other"])
    copies = {"topic.replication.factor": 3, "topic.min.insync.replicas": 1}
    settings = Settings.model_validate({**sections, "log": copies})
    with pytest.raises(MillraceError, match="replication"):
        ReaderGroup(settings, "g").ensure_topic()
    noted = read_all(plain.kafka, made_topic(topic_prefix), MadeTopic)
    assert [each.topic for each in noted] == ["p.other"]
    ReaderGroup(plain, "g").ensure_topic()
    noted = read_all(plain.kafka, made_topic(topic_prefix), MadeTopic)
    assert reader_topic(topic_prefix) in [each.topic for each in noted]

"""[log] and the brokers → the copies of new topics, and warnings of existing ones."""

import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError
from cdc.kafka.admin import TopicDescription
from cdc.kafka.copies import copies_of, too_few
from cdc.settings.model import LogSettings


@pytest.mark.parametrize(
    ("brokers", "given", "copies"),
    [
        (1, {}, (1, 1)),
        (2, {}, (2, 1)),
        (3, {}, (3, 2)),
        (5, {}, (3, 2)),
        (5, {"topic.replication.factor": 5}, (5, 2)),
        (5, {"topic.replication.factor": 5, "topic.min.insync.replicas": 3}, (5, 3)),
        (3, {"topic.replication.factor": 1}, (1, 1)),
        (3, {"topic.min.insync.replicas": 1}, (3, 1)),
    ],
)
def test_topics_have_three_copies_and_need_two_where_there_are_brokers_for_them(
    brokers: int, given: dict[str, int], copies: tuple[int, int]
) -> None:
    assert copies_of(LogSettings.model_validate(given), brokers) == copies


def test_more_in_sync_than_there_are_copies_is_refused() -> None:
    given = {"topic.replication.factor": 2, "topic.min.insync.replicas": 3}
    with pytest.raises(ValidationError, match=r"topic\.min\.insync\.replicas exceeds"):
        LogSettings.model_validate(given)


@pytest.mark.parametrize("brokers", [1, 2])
def test_more_in_sync_than_the_cluster_has_copies_for_is_refused(brokers: int) -> None:
    given = LogSettings.model_validate({"topic.min.insync.replicas": 3})
    with pytest.raises(ConfigError, match="no record could be written") as caught:
        copies_of(given, brokers)
    assert f"set it to at most {brokers}" in caught.value.remedy


@pytest.mark.parametrize(("min_isr", "is_short"), [("1", False), ("2", False), ("3", True)])
def test_a_topic_that_needs_more_than_its_copies_is_warned_of(
    min_isr: str, *, is_short: bool
) -> None:
    topics = {"t": TopicDescription(1, {"min.insync.replicas": min_isr}, replicas=2)}
    assert [names for *_, names in too_few(topics, 1)] == [["t"]] * is_short


def test_what_one_broker_may_take_along_is_named_where_the_cluster_has_several() -> None:
    topics = {
        "lone": TopicDescription(1, {"min.insync.replicas": "1"}, replicas=1),
        "pair": TopicDescription(1, {"min.insync.replicas": "1"}, replicas=2),
        "lax": TopicDescription(1, {"min.insync.replicas": "1"}, replicas=3),
        "safe": TopicDescription(1, {"min.insync.replicas": "2"}, replicas=3),
    }
    assert [names for *_, names in too_few(topics, 3)] == [["lone"], ["pair"], ["lax"]]
    assert [names for *_, names in too_few(topics, 2)] == [["lone"], ["lax"]]
    assert not list(too_few(topics, 1))

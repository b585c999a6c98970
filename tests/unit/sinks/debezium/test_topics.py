"""The contents of several tables' topics -> the applicable tables, and reasons for the rest."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from cdc.errors import LogAccessError, LogForgottenError, MillraceError
from cdc.log.offsets import Offsets
from cdc.records.schema import TableName
from cdc.settings import Settings
from sinks.debezium.log import BrokerTopic
from sinks.debezium.topics import DebeziumTopics
from sinks.delta.target import LakehouseTarget
from sinks.run.engine import Run
from sinks.run.options import RunContext, RunOptions
from sinks.run.wanted import WantedTable
from tests.fixtures.made_plans import table_plan

T, U = TableName("public", "t"), TableName("public", "u")
HIDDEN = TableName("public", "v")
TOPICS = {name: f"p.{name}" for name in (T, U)}


class MadeLog:
    """Topics, the first of which ends at offset 5, and one that nobody may look at."""

    def __init__(self, _kafka: dict[str, str], *_more: object) -> None: ...

    def tables(self, _prefix: str, _captures: Any) -> dict[TableName, str]:
        return {**TOPICS, HIDDEN: "p.public.v"}

    def describe(
        self, topics: list[str], failed: dict[str, MillraceError]
    ) -> dict[str, BrokerTopic]:
        failed["p.public.v"] = LogAccessError("hidden")
        return {topic: BrokerTopic("id", 1, None) for topic in topics if topic != "p.public.v"}

    def bounds(
        self, topics: dict[str, BrokerTopic], _failed: dict[str, MillraceError]
    ) -> tuple[Offsets, Offsets]:
        assert set(topics) == set(TOPICS.values())
        return (
            {topic: {0: 0} for topic in TOPICS.values()},
            {TOPICS[T]: {0: 5}, TOPICS[U]: {0: 9}},
        )

    def cluster(self) -> str:
        return "c"


def no_session(_records: int = 0) -> NoReturn:
    raise AssertionError("nothing here needs Spark")


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DebeziumTopics:
    monkeypatch.setattr("sinks.debezium.topics.TopicLog", MadeLog)
    settings = Settings.model_validate(
        {
            "preset": "debezium",
            "source": {},
            "capture": {"topic.prefix": "p"},
            "kafka": {"bootstrap.servers": "nowhere:1"},
            "lakehouse": {"path": str(tmp_path), "topics_written_by": "debezium"},
        }
    )
    assert settings.lakehouse is not None
    context = RunContext(settings, no_session, print, RunOptions())
    return DebeziumTopics(context, settings.lakehouse)


def test_a_topic_that_lost_records_or_is_hidden_stops_its_own_table(
    topics: DebeziumTopics,
) -> None:
    state = topics.state(None)
    assert state is not None
    before = {
        str(name): table_plan(topic=topic, source=str(name), base=1, start={0: 7}, end={0: 7})
        for name, topic in TOPICS.items()
    }
    wanted = {str(name): WantedTable(str(name)) for name in (*TOPICS, HIDDEN)}
    refused = topics.refused(before, wanted, state)
    assert {name: type(error) for name, error in refused.items()} == {
        str(T): LogForgottenError,
        str(HIDDEN): LogAccessError,
    }
    tables = topics.proposed(before, state, {str(U): WantedTable(str(U))})
    assert {name: table.end for name, table in tables.items()} == {str(U): {0: 9}}


def test_a_hidden_topic_whose_delta_table_was_removed_stops_its_own_table_only(
    topics: DebeziumTopics,
) -> None:
    state = topics.state(None)
    assert state is not None
    lakehouse = topics._settings.lakehouse
    assert lakehouse is not None
    context = RunContext(topics._settings, no_session, print, RunOptions())
    target = LakehouseTarget(context, lakehouse)
    wanted, *_ = target.wanted(state, [])
    topic = state.tables[str(HIDDEN)].topic
    before = {str(HIDDEN): table_plan(topic=topic, source=str(HIDDEN), base=1, start={0: 7})}
    standing, refused = Run(context, topics, target)._standing(before, state, wanted)
    assert standing == before
    assert {name: type(error) for name, error in refused.items()} == {str(HIDDEN): LogAccessError}

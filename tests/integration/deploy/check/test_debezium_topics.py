"""Topics that a real Debezium wrote, as the last run read them → a check's findings."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from cdc.errors import ExitCode
from cdc.kafka.admin import LogAdmin
from cdc.kafka.sending import send
from cdc.records.schema import TableName
from cdc.settings import Settings
from deploy.check.lakehouse import check_lakehouse
from deploy.check.result import CheckResult, Level
from deploy.check.scene import Scene
from deploy.local.kafka import Kafka
from sinks.debezium.log import TopicLog
from sinks.debezium.topics import NOWHERE
from sinks.run.debezium_topic import DebeziumTopic
from sinks.run.plan import RunPlan
from sinks.run.plans import lakehouse_plans
from sinks.run.summary import RunOutcome
from tests.fixtures.made_plans import table_plan

pytestmark = pytest.mark.kafka
NAME = "public.orders"


@pytest.fixture
def scene(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Callable[[], Scene]:
    """A check of a lakehouse whose topics a real Debezium writes."""
    settings = Settings.model_validate({
        "preset": "debezium",
        "source": {},
        "capture": {"topic.prefix": topic_prefix},
        "kafka": kafka.client_options(),
        "lakehouse": {"path": str(tmp_path / "lake"), "topics_written_by": "debezium"},
    })  # fmt: skip
    return lambda: Scene(settings, "millrace.toml")


@pytest.fixture
def topic(kafka: Kafka, topic_prefix: str) -> str:
    """A topic of a table, with a record."""
    name = f"{topic_prefix}.{NAME}"
    made(kafka, name)
    return name


def made(kafka: Kafka, topic: str) -> None:
    """Make a topic, and write a record."""
    LogAdmin(kafka.client_options()).create([NewTopic(topic, 1, 1)])
    send(kafka.client_options(), topic, [(b"{}", b"{}")])


def lines(scene: Scene) -> dict[str, CheckResult]:
    """What a check says of the lakehouse."""
    return {each.requirement: each for each in check_lakehouse(scene)}


def test_a_topic_that_was_made_again_is_what_a_run_refuses(
    kafka: Kafka, topic: str, topic_prefix: str, scene: Callable[[], Scene], tmp_path: Path
) -> None:
    log, lake = TopicLog(kafka.client_options()), tmp_path / "lake"
    assert lines(scene())["applied so far"].found == "nothing yet"
    described = log.describe([topic], {})[topic]
    applied = table_plan(
        topic=topic,
        source=NAME,
        start={0: 1},
        end={0: 1},
        next={0: 1},
        base=3,
        debezium=DebeziumTopic(topic_id=described.id),
    )
    last = RunPlan(
        run=3,
        prefix=topic_prefix,
        log=f"topics of cluster {log.cluster()}",
        cut=NOWHERE,
        cut_ts_us=0,
        ts_ms=1,
        tables={NAME: applied},
        written_by="debezium",
    )
    plans = lakehouse_plans(str(lake), pytest.fail)
    plans.start(last)
    plans.finish(RunOutcome(run=3, ts_ms=1, failed={}))
    place = lake.joinpath(*TableName.parse(NAME), "_delta_log")
    place.mkdir(parents=True)
    (place / "_last_checkpoint").write_text("{}")
    for requirement in ("applied so far", "Delta tables", "derived tables"):
        assert lines(scene())[requirement].level is Level.OK, requirement

    admin = LogAdmin(kafka.client_options())
    assert admin.delete([topic]) == {}
    made(kafka, topic)
    line = lines(scene())["derived tables"]
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.LOG_FORGOTTEN)
    assert line.found.startswith("the topic was created again")
    assert line.where == f"topic {topic}"

    assert line.remedy.startswith("remove the Delta table")
    shutil.rmtree(place)
    assert lines(scene())["derived tables"].level is Level.OK


def test_without_any_topic_a_check_says_what_a_run_does(scene: Callable[[], Scene]) -> None:
    line = lines(scene())["applied so far"]
    assert (line.level, line.exit_code) == (Level.FAILURE, ExitCode.LOG_MISSING)

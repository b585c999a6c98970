"""Wrong brokers and topics → the findings of `check`, and its own command, which corrects them."""

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from cdc.kafka.probe import ClusterProbe, TopicRights
from cdc.records.schema import TableName
from cdc.records.topics import data_topic, progress_topic, runs_topic, status_topic
from deploy.check import runner
from deploy.check.log import check_log
from deploy.check.result import CheckReport, CheckResult, Level
from deploy.check.runner import run_parts
from deploy.check.scene import Scene
from deploy.check.source import check_source
from deploy.check.topics import check_topics
from deploy.local.kafka import Kafka
from tests.fixtures.checks import scenes_of
from tests.fixtures.source import Conninfo, run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
COMMAND: Final = re.compile(
    r"kafka-configs --bootstrap-server \S+ --alter --entity-type topics --entity-name (\S+)"
    r" --add-config ([\w.]+)=(\S+)"
)
DOWN_S: Final = 9.0
"""Less than a start waits for brokers that are silent; they are given four seconds."""
Scenes = Callable[..., Callable[[], Scene]]


@pytest.fixture
def scenes(tmp_path: Path, database: Conninfo, kafka: Kafka, topic_prefix: str) -> Scenes:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")

    def make(**sections: dict[str, Any]) -> Callable[[], Scene]:
        own = {"slot.name": f"slot_{database['dbname']}", **sections.pop("capture", {})}
        options = kafka.client_options() | sections.pop("kafka", {})
        return scenes_of(tmp_path, database, options, topic_prefix, own, **sections)

    return make


def look(scene: Scene) -> CheckReport:
    parts = {"source": partial(check_source, scene), "kafka": partial(check_log, scene)}
    return CheckReport.of(run_parts(parts))


def failures(report: CheckReport, part: str = "kafka") -> list[CheckResult]:
    return [each for each in report.findings if (each.level, each.part) == (Level.FAILURE, part)]


def make_topic(admin: AdminClient, name: str, partitions: int, **config: str) -> None:
    topic = NewTopic(name, partitions, 1, config=config)
    for future in admin.create_topics([topic]).values():
        future.result()


def test_the_command_that_is_printed_mends_a_topic(
    scenes: Scenes, kafka_admin: AdminClient, topic_prefix: str, intended_topics: set[str]
) -> None:
    name = data_topic(topic_prefix, TableName("public", "t"))
    intended_topics.add(name)
    make_topic(kafka_admin, name, 3, **{"cleanup.policy": "compact", "max.message.bytes": "1000"})
    scene = scenes()
    report = look(scene())
    found = {each.found.split(": ", 1)[-1].split(" is ")[0] for each in failures(report)}
    assert found == {"min.compaction.lag.ms", "delete.retention.ms"}
    remedies = [each.remedy for each in report.findings if name in each.found]
    commands = [match for remedy in remedies for match in COMMAND.findall(remedy)]
    assert {setting for _, setting, _ in commands} == found | {"max.message.bytes"}
    for topic, setting, value in commands:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in kafka_admin.incremental_alter_configs([resource]).values():
            future.result()
    mended = look(scene())
    assert failures(mended) == []
    assert not any(name in each.found for each in mended.findings)


def test_a_topic_with_other_partitions_is_named_with_both_ways_out(
    scenes: Scenes, kafka_admin: AdminClient, topic_prefix: str, intended_topics: set[str]
) -> None:
    name = data_topic(topic_prefix, TableName("public", "t"))
    intended_topics.add(name)
    keep = str(7 * 86_400_000)
    promised = {"min.compaction.lag.ms": keep, "delete.retention.ms": keep}
    make_topic(kafka_admin, name, 5, **{"cleanup.policy": "compact", **promised})
    (finding,) = failures(look(scenes()()))
    assert "has 5 partitions, not 3" in finding.found
    assert finding.remedy == "delete the topic, or set topic.partitions = 5 in [log]"
    assert failures(look(scenes(log={"topic.partitions": 5})())) == []


def test_a_topic_of_state_whose_partitions_no_setting_decides_is_to_be_made_again(
    scenes: Scenes, kafka_admin: AdminClient, topic_prefix: str, intended_topics: set[str]
) -> None:
    """As brokers make it that make a topic for whoever names it."""
    wrong = {progress_topic(topic_prefix), status_topic(topic_prefix)}
    intended_topics.update(wrong)
    for name in wrong:
        make_topic(kafka_admin, name, 3, **{"cleanup.policy": "compact"})
    scene = scenes()
    while not wrong <= ClusterProbe(scene().settings.kafka).cluster().topics.keys():
        time.sleep(0.05)
    told = [each for each in look(scene()).findings if "has 3 partitions, not 1" in each.found]
    assert {each.level for each in told} == {Level.FAILURE, Level.WARNING}
    for finding in told:
        assert "topic.partitions" not in finding.remedy
        assert re.search(r"kafka-topics --bootstrap-server \S+ --delete --topic ", finding.remedy)
        is_failure = finding.level is Level.FAILURE
        assert ("begin a new log: millrace drop --yes --topics" in finding.remedy) == is_failure


def test_a_topic_of_reports_that_is_wrong_or_new_meanwhile_is_no_failure(
    scenes: Scenes, kafka_admin: AdminClient, topic_prefix: str, intended_topics: set[str]
) -> None:
    scene = scenes()()
    scene.tables.settle([])
    scene.log.settle(None)
    probe = ClusterProbe(scene.settings.kafka)
    listed = probe.cluster()
    status, progress = status_topic(topic_prefix), progress_topic(topic_prefix)
    intended_topics.update({status, progress})
    make_topic(kafka_admin, progress, 1, **{"cleanup.policy": "compact"})
    found = list(check_topics(scene, probe, listed))
    assert [each.level for each in found if each.requirement == "creating topics"] == [Level.OK]
    make_topic(kafka_admin, status, 2, **{"cleanup.policy": "delete"})
    while status not in (listed := probe.cluster()).topics:
        time.sleep(0.05)
    found = list(check_topics(scene, probe, listed))
    wrong = [each for each in found if f"topic {status}" in each.found]
    assert {each.level for each in wrong} == {Level.WARNING}
    assert not [each for each in found if each.level is Level.FAILURE]


def test_a_topic_that_the_user_may_not_see_is_not_one_that_is_to_be_made(
    scenes: Scenes,
    kafka_admin: AdminClient,
    topic_prefix: str,
    intended_topics: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without Describe, brokers list as if it weren't there."""
    name = progress_topic(topic_prefix)
    intended_topics.add(name)
    make_topic(kafka_admin, name, 1, **{"cleanup.policy": "compact"})
    real = ClusterProbe.cluster

    def hiding(probe: ClusterProbe) -> Any:
        cluster = real(probe)
        cluster.topics.pop(name, None)
        return cluster

    monkeypatch.setattr(ClusterProbe, "cluster", hiding)
    (finding,) = failures(look(scenes()()))
    assert finding.found == f"topic {name} exists, but the user lacks the right to see it"
    assert "--operation Describe " in finding.remedy


def test_copies_that_no_broker_could_be_lost_of_are_refused(scenes: Scenes) -> None:
    (finding,) = failures(look(scenes(log={"topic.min.insync.replicas": 2})()))
    assert finding.requirement == "copies of new topics"
    assert "exceeds the copies of new topics (1, in a cluster of 1 brokers)" in finding.found


def test_more_copies_than_brokers_are_refused_without_a_topic(
    scenes: Scenes, kafka_admin: AdminClient, topic_prefix: str
) -> None:
    (finding,) = failures(look(scenes(log={"topic.replication.factor": 3})()))
    assert finding.requirement == "creating topics"
    assert not [name for name in kafka_admin.list_topics(timeout=30).topics if topic_prefix in name]


def test_brokers_that_are_away_take_seconds_and_hide_nothing_else(scenes: Scenes) -> None:
    began = time.monotonic()
    report = look(scenes(kafka={"bootstrap.servers": "127.0.0.1:1"})())
    assert time.monotonic() - began < DOWN_S
    assert [each.requirement for each in failures(report)] == ["connection"]
    levels = {(each.part, each.requirement): each.level for each in report.findings}
    assert levels["kafka", "everything else"] is Level.UNKNOWN
    assert levels["source", "continuity"] is Level.UNKNOWN
    assert levels["source", "publication"] is levels["tables", "public.t"] is Level.OK


def test_a_source_that_is_away_hides_no_broker(scenes: Scenes) -> None:
    scene = scenes(source={"port": "1"})()
    report = look(scene)
    assert [each.requirement for each in failures(report, "source")] == ["connection"]
    assert failures(report) == []
    unknown = {each.part for each in report.findings if each.level is Level.UNKNOWN}
    assert unknown == {"source", "tables", "kafka"}


def test_a_log_that_is_read_before_the_slot_is_compared_with_nothing(
    scenes: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "WAIT_S", 0.1)
    scene = scenes()()
    run_parts({"kafka": partial(check_log, scene)})  # nobody tells of the slot
    recorded = scene.log.get()
    assert recorded is not None
    assert not recorded.is_behind_slot
    found = run_parts({"source": partial(check_source, scene)})
    (continuity,) = (each for each in found if each.requirement == "continuity")
    assert continuity.level is Level.UNKNOWN
    assert "too late" in continuity.found


def test_an_option_that_the_client_does_not_know_is_named(scenes: Scenes) -> None:
    (finding,) = failures(look(scenes(kafka={"no.such.option": "1"})()))
    assert "no.such.option" in finding.found


@pytest.fixture
def guarded(server_folder: Path) -> Iterator[Kafka]:
    """Start a broker that asks for rights, and lets everybody do what no rule is about."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:nobody",
    }
    broker = Kafka(server_folder, settings)
    yield broker.start()
    broker.stop()


@pytest.mark.proof  # a broker of its own
@pytest.mark.native("its settings are those of the broker itself")
def test_rights_are_told_by_the_operations_that_brokers_authorize(
    scenes: Scenes, guarded: Kafka, topic_prefix: str
) -> None:
    admin = AdminClient({**guarded.client_options()})
    name = data_topic(topic_prefix, TableName("public", "t"))
    keep = str(7 * 86_400_000)
    promised = {"min.compaction.lag.ms": keep, "delete.retention.ms": keep}
    make_topic(admin, name, 3, **{"cleanup.policy": "compact", **promised})
    scene = scenes(kafka=guarded.client_options())
    assert failures(look(scene())) == []

    def rule(
        kind: ResourceType,
        what: str,
        operation: AclOperation,
        permission: AclPermissionType = AclPermissionType.DENY,
    ) -> AclBinding:
        literal, user = ResourcePatternType.LITERAL, "User:ANONYMOUS"
        return AclBinding(kind, what, literal, user, "*", operation, permission)

    own = f"millrace-{topic_prefix}-{scene().settings.capture.slot_name}-check"
    status = status_topic(topic_prefix)
    make_topic(admin, status, 1, **{"cleanup.policy": "compact"})
    rules = [
        *(rule(ResourceType.TOPIC, each, AclOperation.WRITE) for each in (name, status)),
        *(
            rule(ResourceType.TOPIC, each, operation, AclPermissionType.ALLOW)
            for each in (name, status)
            for operation in (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
        ),
        rule(ResourceType.TRANSACTIONAL_ID, own, AclOperation.WRITE),
    ]
    for future in admin.create_acls(rules).values():
        future.result()
    report = look(scene())
    of_kafka = [each for each in report.findings if each.part == "kafka"]
    by_name = {each.requirement: each for each in reversed(of_kafka)}
    assert by_name["rights to topics"].level is Level.FAILURE
    warned = [each for each in of_kafka if f"lacks WRITE on {status}" in each.found]
    assert [each.level for each in warned] == [Level.WARNING]
    assert f"lacks WRITE on {name}" in by_name["rights to topics"].found
    assert "--operation Write" in by_name["rights to topics"].remedy
    assert by_name["transactions"].level is Level.UNKNOWN
    assert own in by_name["transactions"].found
    assert by_name["brokers"].found == "1 of 1 answer"


def test_topics_of_signals_notifications_and_runs_that_are_not_right_are_warnings(
    scenes: Scenes,
    kafka_admin: AdminClient,
    topic_prefix: str,
    intended_topics: set[str],
) -> None:
    own = {
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": f"{topic_prefix}.notices",
        "signal.enabled.channels": "kafka",
        "signal.kafka.topic": f"{topic_prefix}.signals",
    }
    runs = runs_topic(topic_prefix)
    wrong = {
        own["notification.sink.topic.name"]: (3, {"cleanup.policy": "delete"}),
        own["signal.kafka.topic"]: (1, {"cleanup.policy": "compact"}),
        runs: (1, {"cleanup.policy": "delete", "retention.ms": "1000"}),
    }
    intended_topics.update(wrong)
    for name, (partitions, config) in wrong.items():
        make_topic(kafka_admin, name, partitions, **config)
    scene = scenes(capture=own)
    while not wrong.keys() <= ClusterProbe(scene().settings.kafka).cluster().topics.keys():
        time.sleep(0.05)
    report = look(scene())
    assert failures(report) == []
    told = {
        name: each
        for each in report.findings
        for name in wrong
        if each.level is Level.WARNING and f"topic {name}" in each.found
    }
    assert told.keys() == wrong.keys()
    assert "has 3 partitions" in told[own["notification.sink.topic.name"]].found
    delete = f"--delete --topic {topic_prefix}.notices; the next start creates it again"
    assert delete in told[own["notification.sink.topic.name"]].remedy
    assert "cleanup.policy is compact" in told[own["signal.kafka.topic"]].found
    assert "retention.ms is 1000, not 604800000" in told[runs].found
    (command,) = COMMAND.findall(told[runs].remedy)
    assert command == (runs, "retention.ms", "604800000")


def test_rights_that_a_start_only_warns_of_are_warnings(
    scenes: Scenes,
    kafka_admin: AdminClient,
    topic_prefix: str,
    intended_topics: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whom brokers don't let write reports captures all the same; without progress nobody does."""
    status, progress = status_topic(topic_prefix), progress_topic(topic_prefix)
    intended_topics.update({status, progress})
    for name in (status, progress):
        make_topic(kafka_admin, name, 1, **{"cleanup.policy": "compact"})
    real = ClusterProbe.topics

    def topics(probe: ClusterProbe, names: list[str]) -> Any:
        described = real(probe, names)
        return {
            name: each._replace(operations=each.operations - {"WRITE"})
            for name, each in described.items()
            if isinstance(each, TopicRights)
        }

    monkeypatch.setattr(ClusterProbe, "topics", topics)
    scene = scenes()
    while not {status, progress} <= ClusterProbe(scene().settings.kafka).cluster().topics.keys():
        time.sleep(0.05)
    told = [each for each in look(scene()).findings if each.requirement == "rights to topics"]
    levels = {each.found: each.level for each in told}
    assert levels == {
        f"the user lacks WRITE on {status}": Level.WARNING,
        f"the user lacks WRITE on {progress}": Level.FAILURE,
    }
    assert all("--operation Write" in each.remedy for each in told)

"""Required topics → those that don't meet the requirements, or couldn't be created."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from confluent_kafka import KafkaError
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]

from cdc.errors import ConfigError, LogAccessError, TopicMismatchError
from cdc.kafka.copies import copies_of, too_few
from cdc.kafka.errors import is_passing, log_error
from cdc.kafka.grants import TOPIC_OPERATIONS, grants, hidden_topic
from cdc.kafka.options import MESSAGE_BYTES_MAX
from cdc.kafka.probe import ClusterProbe, TopicRights
from cdc.kafka.topic_settings import STATE_CONFIG, STATUS_CONFIG, WantedTopic
from cdc.kafka.wanted_topics import (
    channel_mismatches,
    data_config,
    new_topic,
    state_topics,
    topic_mismatches,
    topics_beside,
    wanted_topic,
)
from cdc.lines import name_first
from cdc.records.topics import OWN_TOPICS, made_topic, runs_topic, status_topic
from deploy.check.result import Area, Level
from deploy.check.runner import CheckResults
from deploy.check.scene import Scene

_ALL_OF_CLUSTER: Final = frozenset({"ALTER", "ALTER_CONFIGS", "CLUSTER_ACTION", "CREATE"})
"""A user with all of these is the brokers' own, or no rights are required."""


class _RequestedTopic(NamedTuple):
    """A topic, the settings of a new one, and its retention.

    An existing *channel* stays unchanged, whatever it is. ``operations`` are needed on it.
    """

    topic: WantedTopic
    config: Mapping[str, str]
    keep_ms: int
    is_channel: bool = False
    operations: frozenset[str] = TOPIC_OPERATIONS


def check_topics(scene: Scene, probe: ClusterProbe, cluster: ClusterMetadata) -> CheckResults:
    """Check topics of the log's state and of tables. Creates none."""
    yield from _TopicsCheck(scene, probe, cluster).findings()


@dataclass
class _TopicsCheck:
    """One check of the topics."""

    scene: Scene
    probe: ClusterProbe
    cluster: ClusterMetadata

    def __post_init__(self) -> None:
        self.part = Area("kafka")
        self.settings = self.scene.settings
        self.kafka = self.settings.kafka
        self.prefix = self.settings.capture.topic_prefix
        self.keep_ms = int(self.settings.log.keep.total_seconds() * 1_000)
        reports = (status_topic(self.prefix), runs_topic(self.prefix))
        self.spared = {*reports, self.settings.capture.signal_topic}
        """A start warns of problems of these, and continues."""

    def findings(self) -> CheckResults:
        """Check that existing topics are correct, and that others can be created."""
        wanted = list(self._state_topics())
        try:
            tables = self.scene.tables.get()
            if tables is None:
                why = "the captured tables are unknown"
                yield self.part.unknown("topics of tables", why)
            recorded = self.scene.log.get()
            for table in tables or ():
                state = recorded.states.get(str(table.name)) if recorded else None
                topic = wanted_topic(self.prefix, self.settings.log, table, state)
                wanted.append(_RequestedTopic(topic, data_config(self.kafka), self.keep_ms))
        except TopicMismatchError as mismatch:
            yield self.part.of_error("topics", mismatch)
        names = [topic.name for topic, *_ in wanted if topic.name in self.cluster.topics]
        described = self.probe.topics(names)
        existing: dict[str, TopicRights] = {}
        for name, answer in described.items():
            if isinstance(answer, KafkaError):
                error = log_error(answer, "describing a topic", f"topic {name}")
                is_refusal = isinstance(error, LogAccessError)
                level = self._level(name) if is_refusal else Level.UNKNOWN
                yield self.part.of_error("topics", error, level)
            else:
                existing[name] = answer
        yield from self._mismatches(wanted, existing)
        yield from self._limits(wanted, existing)
        yield from self._rights(existing, wanted)
        yield from self._creation([each for each in wanted if each.topic.name not in names])

    def _level(self, name: str) -> Level:
        """Return how severe a topic's problem is for a start."""
        return Level.WARNING if name in self.spared else Level.FAILURE

    def _state_topics(self) -> Iterator[_RequestedTopic]:
        made = WantedTopic(made_topic(self.prefix), 1, "compact", content="state")
        own = [*state_topics(self.prefix), made]
        yield from (_RequestedTopic(topic, STATE_CONFIG, 0) for topic in own)
        status = WantedTopic(status_topic(self.prefix), 1, "compact", content="reports")
        yield _RequestedTopic(status, STATUS_CONFIG, 0)
        for name, operations in self._channels():
            topic = WantedTopic(name, 1, "delete")
            yield _RequestedTopic(topic, {}, self.keep_ms, is_channel=True, operations=operations)
        for beside in topics_beside(self.settings.capture):
            yield _RequestedTopic(beside, data_config(self.kafka), self.keep_ms)

    def _channels(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield topics of signals, notifications and runs, and the rights needed there."""
        capture = self.settings.capture
        yield runs_topic(self.prefix), TOPIC_OPERATIONS
        # The sender of signals in a topic of the user's own isn't the daemon.
        is_own = capture.signal_topic.startswith(OWN_TOPICS)
        yield capture.signal_topic, TOPIC_OPERATIONS - (frozenset() if is_own else {"WRITE"})
        if capture.notification_topic is not None:
            yield capture.notification_topic, TOPIC_OPERATIONS - {"READ"}

    def _mismatches(
        self,
        wanted: list[_RequestedTopic],
        existing: dict[str, TopicRights],
    ) -> CheckResults:
        """Check partitions, policies and retentions of existing topics."""
        is_right = True
        for each in wanted:
            topic, rights, servers = each.topic, existing.get(each.topic.name), self.probe.servers
            if rights is None and topic.name in self.cluster.topics:
                continue  # it isn't described
            description, level = rights.description if rights else None, self._level(topic.name)
            if not each.is_channel:
                mismatches = topic_mismatches(topic, description, each.keep_ms, servers)
            elif description is None:
                continue  # it is still to be created
            else:
                keep_ms = each.keep_ms if topic.name == runs_topic(self.prefix) else None
                mismatches = channel_mismatches(topic.name, description, servers, keep_ms)
                level = Level.WARNING
            for what, remedy in mismatches:
                is_right = False
                error = TopicMismatchError(what, where=servers, remedy=remedy)
                yield self.part.of_error("topics and log.keep", error, level)
        if is_right:
            new = len(wanted) - len(existing)
            exist = f"{len(existing)} exist with the right settings, {new} are new"
            yield self.part.ok("topics and log.keep", exist, f"log.keep = {self.settings.log.keep}")

    def _limits(
        self,
        wanted: list[_RequestedTopic],
        existing: dict[str, TopicRights],
    ) -> CheckResults:
        """Check the limits and copies of existing topics."""
        own = int(self.kafka.get("message.max.bytes", MESSAGE_BYTES_MAX))
        for topic, config, *_ in wanted:
            rights = existing.get(topic.name)
            limit = int(rights.description.config.get("max.message.bytes", own)) if rights else own
            if limit < own and "max.message.bytes" in config:
                yield self.part.warning(
                    "max.message.bytes",
                    f"topic {topic.name} accepts {limit:,} bytes, less than message.max.bytes ="
                    f" {own:,} in [kafka]: a larger row sets its table aside",
                    f"kafka-configs --bootstrap-server {self.probe.servers} --alter --entity-type"
                    f" topics --entity-name {topic.name} --add-config max.message.bytes={own}",
                )
        topics = {name: each.description for name, each in existing.items()}
        for what, remedy, names in too_few(topics, len(self.cluster.brokers)):
            yield self.part.warning("copies", f"{what}: {name_first(sorted(names))}", remedy)

    def _rights(
        self, existing: dict[str, TopicRights], wanted: list[_RequestedTopic]
    ) -> CheckResults:
        """Check the operations that brokers list as authorized."""
        part = self.part
        lacking: dict[tuple[frozenset[str], Level], list[str]] = {}
        needed = {each.topic.name: each.operations for each in wanted}
        for name, rights in existing.items():
            if missing := needed[name] - rights.operations:
                lacking.setdefault((missing, self._level(name)), []).append(name)
        for (missing, level), names in lacking.items():
            operations = ", ".join(sorted(missing))
            error = LogAccessError(
                f"the user lacks {operations} on {name_first(sorted(names))}",
                where=self.probe.servers,
                remedy=grants(self.probe.servers, self.prefix, names, missing),
            )
            yield part.of_error("rights to topics", error, level)
        if existing and not lacking:
            yield part.ok(
                "rights to topics", f"the user has all needed rights on {len(existing)} topics"
            )

    def _creation(self, new: list[_RequestedTopic]) -> CheckResults:
        """Request topics with validation only."""
        part = self.part
        try:
            copies = copies_of(self.settings.log, len(self.cluster.brokers))
        except ConfigError:
            return  # reported above
        asked = [new_topic(topic, copies, config, keep) for topic, config, keep, *_ in new]
        refusals = self.probe.refusals(asked)
        existing = [
            name
            for name, refusal in refusals.items()
            if refusal.code() == KafkaError.TOPIC_ALREADY_EXISTS
        ]
        refusals = {name: refusals[name] for name in refusals.keys() - {*existing}}
        hidden = self._hidden(existing)
        for name in hidden:
            unseen = hidden_topic(name, self.probe.servers, self.prefix)
            yield part.of_error("rights to topics", unseen, self._level(name))
        by_reason: dict[tuple[str, Level], tuple[KafkaError, list[str]]] = {}
        for name, refusal in refusals.items():
            reason = refusal.str(), self._level(name)
            by_reason.setdefault(reason, (refusal, []))[1].append(name)
        for (_, at_worst), (refusal, names) in by_reason.items():
            where = f"topics {name_first(sorted(names))}"
            error = log_error(refusal, "creating topics (validated only)", where)
            level = Level.UNKNOWN if is_passing(refusal) else at_worst
            yield part.of_error("creating topics", error, level)
        if not refusals and not hidden:
            yield part.ok(
                "creating topics", f"{len(asked)} can be created" if asked else "no topic is new"
            )
        operations = self.probe.operations()
        if asked and (isinstance(operations, KafkaError) or not operations >= _ALL_OF_CLUSTER):
            why = f"{len(asked)} topics don't exist yet, so the user's rights on them are unknown"
            remedy = "run `millrace check` again after the first start"
            yield part.unknown("rights to new topics", why, remedy)

    def _hidden(self, existing: list[str]) -> list[str]:
        """Return those of the topics that brokers don't list. Others were created since."""
        listed = self.probe.cluster().topics if existing else {}
        return [name for name in existing if name not in listed]

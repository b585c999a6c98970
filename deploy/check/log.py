"""Kafka → the log's requirements of its brokers, its topics, and the user's rights.

Topics are validated, not created. Transactions are tried with an id of the check's own, since the
daemon's id would fence the daemon.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]

from cdc.capture.servers import transactional_id
from cdc.errors import ConfigError, MillraceError
from cdc.kafka.copies import copies_of
from cdc.kafka.errors import is_access, is_passing, log_error
from cdc.kafka.options import MESSAGE_BYTES_MAX
from cdc.kafka.probe import RELEASE_MIN, SUFFIX, ClusterProbe
from cdc.log.offsets import versions_by_table
from cdc.log.state import last_progress, read_all
from cdc.records.schema import TableSchema
from cdc.records.state import TableState
from cdc.records.topics import progress_topic, schema_topic, table_topic
from deploy.check.result import Area, CheckResult, Unanswered
from deploy.check.scene import CapturedLog, Scene
from deploy.check.topics import check_topics

_REQUEST_BYTES: Final = "socket.request.max.bytes"


def check_log(scene: Scene) -> Iterator[CheckResult]:
    """Check the whole log."""
    part = Area("kafka")
    try:
        probe = ClusterProbe(scene.settings.kafka)
        cluster = probe.cluster()
    except MillraceError as error:
        yield part.of_error("connection", error)
        yield part.unknown("everything else", "there is no connection")
        scene.log.settle(None)
        return
    try:
        yield from _Log(scene, probe, cluster, part).findings()
    finally:
        scene.log.settle(None)


@dataclass
class _Log:
    """One check of the brokers. At least one has answered."""

    scene: Scene
    probe: ClusterProbe
    cluster: ClusterMetadata
    part: Area

    def __post_init__(self) -> None:
        self.settings = self.scene.settings
        self.kafka = self.settings.kafka
        self.prefix = self.settings.capture.topic_prefix
        self.brokers: dict[int, dict[str, str]] = {}
        """Each broker's settings, as far as they are readable."""

    def findings(self) -> Iterator[CheckResult]:
        """Check brokers, the log's progress, rights and topics."""
        yield self.part.ok("connection", f"a broker answers at {self.probe.servers}")
        yield self.part.tried("release", self._release, f"Kafka {RELEASE_MIN} or newer")
        if not self.settings.captures_itself:  # their owner decides about these topics
            yield from self._reached()
            return
        yield self.part.tried("state of the log", self._state)
        yield from self._reached()
        yield from self._settings_of_brokers()
        yield self.part.tried("copies of new topics", self._copies)
        if self.settings.log.delivery == "exactly_once":
            yield self.part.tried("transactions", self._transactions)
        yield from check_topics(self.scene, self.probe, self.cluster)

    def _release(self) -> str | Unanswered:
        release = self.probe.release()
        if not self.probe.knows_versions:
            return Unanswered("the Kafka client doesn't report which requests the brokers support")
        if not release:
            raise ConfigError(
                "the brokers are older than Kafka 2.5: a producer can't continue after a"
                " transaction error",
                where=self.probe.servers,
                remedy="upgrade the brokers",
            )
        return f"{release} or newer, by the requests that the brokers support"

    def _state(self) -> str:
        """Read the log's progress after the slot, as a daemon moves the slot up to it."""
        is_behind_slot = self.scene.slot.get() is not None
        capture = self.settings.capture
        progress = last_progress(self.kafka, progress_topic(self.prefix), capture.slot_name)
        states = read_all(self.kafka, table_topic(self.prefix), TableState)
        by_table = {str(state.name): state for state in states}
        schemas = versions_by_table(read_all(self.kafka, schema_topic(self.prefix), TableSchema))
        self.scene.log.settle(CapturedLog(progress, by_table, schemas, is_behind_slot))
        if progress is None:
            return f"topic.prefix {self.prefix} has no log yet"
        in_log = sum(state.is_in_log for state in states)
        return f"epoch {progress.position.epoch}, {progress.events:,} events, {in_log} tables"

    def _reached(self) -> Iterator[CheckResult]:
        """Check whether each broker can be reached from here, by its advertised name."""
        answers, reached = self.probe.broker_settings(self.cluster.brokers), 0
        for number, answer in sorted(answers.items()):
            broker = self.cluster.brokers[number]
            address = f"{broker.host}:{broker.port}"
            if not isinstance(answer, KafkaError):
                self.brokers[number] = answer
            elif is_access(answer):
                reached += 1  # it has answered, but its settings aren't readable
            else:
                error = log_error(answer, f"asking broker {number}", address, connected=False)
                error.remedy = (
                    f"make {address}, the broker's advertised.listeners, reachable from this"
                    " machine, and check that the broker runs"
                )
                yield self.part.of_error("brokers", error)
        if reached := reached + len(self.brokers):
            yield self.part.ok("brokers", f"{reached} of {len(answers)} answer")

    def _settings_of_brokers(self) -> Iterator[CheckResult]:
        part = self.part
        if not self.brokers:
            why = "no broker shows its settings: the user lacks DescribeConfigs on the cluster"
            for name in ("auto.create.topics.enable", "message.max.bytes of the brokers"):
                yield part.unknown(name, why)
            return
        makers = [
            n for n, each in self.brokers.items() if _is_true(each, "auto.create.topics.enable")
        ]
        if makers:
            yield part.warning(
                "auto.create.topics.enable",
                "brokers create a topic when any client names it: if another client names one of"
                " ours first, it gets the wrong settings",
                "set auto.create.topics.enable=false on the brokers, and restart them",
            )
        else:
            yield part.ok("auto.create.topics.enable", "false")
        largest = int(self.kafka.get("message.max.bytes", MESSAGE_BYTES_MAX))
        least = min(int(each.get(_REQUEST_BYTES, largest)) for each in self.brokers.values())
        if least < largest:
            yield part.warning(
                "message.max.bytes",
                f"message.max.bytes is {largest:,}, but the brokers accept requests of at most"
                f" {least:,} bytes",
                f"raise {_REQUEST_BYTES} on the brokers, or set message.max.bytes = {least} in"
                " [kafka]",
            )
        else:
            yield part.ok(
                "message.max.bytes", f"{largest:,}; the brokers accept {least:,} in a request"
            )

    def _copies(self) -> str:
        copies = copies_of(self.settings.log, len(self.cluster.brokers))
        return (
            f"{copies.replication_factor} copies, {copies.min_isr} of them in sync;"
            f" {len(self.cluster.brokers)} brokers"
        )

    def _transactions(self) -> str | Unanswered:
        own = transactional_id(self.settings.capture)
        name = f"{own}{SUFFIX}"
        refusal = self.probe.transaction_refusal(name)
        if refusal is None:
            return f"tried with the id {name}; the daemon's ids, {own} and {own}.2, aren't tried"
        if refusal.name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            return Unanswered(
                f"the brokers refuse the id {name}, which only this check uses; the daemon uses"
                f" {own} and {own}.2",
                f"allow Write on transactional ids with the prefix {own}",
            )
        if is_passing(refusal):
            return Unanswered(f"the coordinator didn't answer: {refusal.str()}")
        raise log_error(refusal, "beginning a transaction", f"transactional.id {name}")


def _is_true(settings: dict[str, str], name: str) -> bool:
    return settings.get(name, "").lower() == "true"

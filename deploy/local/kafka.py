"""A folder → a running Kafka broker (KRaft) on loopback ports, optionally with SASL_SSL.

Clients use the listener CLIENT. The broker talks to itself through INTERNAL, so that a proxy before
the first (`advertised_port`) can be cut without breaking the broker. With security there is a third
listener, SECURE, with TLS and a password, in addition to the plain one.
"""

import base64
import logging
import re
import secrets
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.local.certificates import Certificates
from deploy.local.jars import classpath, java
from deploy.local.processes import Command, Server, accepts, reserve_port

Mechanism = Literal["PLAIN", "SCRAM-SHA-512"]

_librdkafka = logging.getLogger("deploy.local.kafka.librdkafka")

_LOG_CONFIGURATION: Final = """\
shutdownHook = disable
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1} %m%n
"""
# One node, seconds from kill -9 to its return, and compaction that a test can wait for. A shorter
# session would end whenever a busy machine stalls. All of these save copies or seconds. Limits of
# topics and records keep Kafka's defaults, including auto.create.topics.enable=true.
_SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "broker.session.timeout.ms": "4500",
    "broker.heartbeat.interval.ms": "1000",
    # How often an idle controller writes a record. The default is twice a second.
    "metadata.max.idle.interval.ms": "5000",
}
CLASSES: Final = Path(__file__).parents[2] / ".cache" / "kafka.jsa"
"""The output of kafka_classes.py."""
# The JVM's best compiler pays off after minutes of load. Before that it costs a third more.
_BRIEF: Final = ("-Xms128m", "-Xmx384m", "-XX:TieredStopAtLevel=1")
# As much as Kafka's own scripts allow. A broker's objects die young, unless an early collection
# copies them. With 100 MiB for the young generation, the broker stalls far more often.
_LASTING: Final = ("-Xms1g", "-Xmx1g", "-Xmn600m")


@dataclass(frozen=True, slots=True)
class Security:
    """The SECURE listener's requirements of clients, and its certificates."""

    certificates: Certificates
    mechanism: Mechanism = "PLAIN"
    username: str = "millrace"


class Kafka(Server):
    """One Kafka broker."""

    name = "Kafka"

    def __init__(
        self,
        base_dir: Path,
        settings: Mapping[str, str] | None = None,
        *,
        security: Security | None = None,
        keep: bool = False,
        lasting: bool = False,
        node: int = 1,
        cluster_id: str | None = None,
    ) -> None:
        """Set ``node`` and ``cluster_id`` for one of several; each has the settings of all."""
        super().__init__()
        self._node = node
        self._cluster_id = cluster_id or new_cluster_id()
        self.port = reserve_port()
        self.advertised_port = self.port
        self.settings = dict(settings or {})
        self.environment: dict[str, str] = {}
        self.java_options: tuple[str, ...] = ()
        self._ports = {"INTERNAL": reserve_port(), "CONTROLLER": reserve_port()}
        if security is not None:
            self._ports["SECURE"] = reserve_port()
        self._folder = base_dir / "kafka"
        self._security = security
        self._password = secrets.token_hex(16)
        self._keep = keep
        self._jvm = _LASTING if lasting else _BRIEF

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients without TLS."""
        return f"127.0.0.1:{self.advertised_port}"

    @property
    def inner_servers(self) -> str:
        """The broker's own address, which bypasses a proxy before clients."""
        return f"127.0.0.1:{self._ports['INTERNAL']}"

    @property
    def voter(self) -> str:
        """Its entry in controller.quorum.voters."""
        return f"{self._node}@127.0.0.1:{self._ports['CONTROLLER']}"

    def client_options(self) -> dict[str, str]:
        """Return librdkafka's options to connect, with TLS and password if there is security."""
        if self._security is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        return {
            "bootstrap.servers": f"127.0.0.1:{self._ports['SECURE']}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self._security.mechanism,
            "sasl.username": self._security.username,
            "sasl.password": self._password,
            "ssl.ca.location": str(self._security.certificates.authority),
        }

    def start(self) -> Self:
        """Start the broker, with formatting at the first start. Wait until it serves metadata."""
        self.format()
        properties = str(self._folder / "server.properties")
        options = (*self._jvm, *self.java_options)
        command = self._java(self.name, *options, "kafka.Kafka", properties)
        self.process = command.start(keep=self._keep)
        self.process.wait_until(self._answers)
        return self

    @property
    def data(self) -> Path:
        """The broker's log folder."""
        return self._folder / "data"

    def format_as(self, fresh: Path) -> None:
        """Copy another node's fresh data, except its identity. This saves a JVM for each."""
        shutil.copytree(fresh, self.data)
        text = (self.data / "meta.properties").read_text()
        for name, value in {"node.id": self._node, "directory.id": new_cluster_id()}.items():
            text = re.sub(f"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        (self.data / "meta.properties").write_text(text)

    def format(self) -> None:
        """Write the properties, and create a data folder if it is missing."""
        fresh = not (self.data / "meta.properties").exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log4j2.properties").write_text(_LOG_CONFIGURATION)
        properties = self._folder / "server.properties"
        properties.touch(mode=0o600)
        properties.write_text(
            "".join(f"{name}={value}\n" for name, value in self._properties().items())
        )
        if fresh:
            self._format(properties)

    def wipe(self) -> None:
        """Remove all data, as a lost disk does. The next start begins without."""
        shutil.rmtree(self.data)

    def _properties(self) -> dict[str, str]:
        listeners = {"CLIENT": self.port, **self._ports}
        advertised = {**listeners, "CLIENT": self.advertised_port}
        del advertised["CONTROLLER"]
        protocols = {name: "SASL_SSL" if name == "SECURE" else "PLAINTEXT" for name in listeners}
        properties = {
            **_SETTINGS,
            "node.id": str(self._node),
            "controller.quorum.voters": self.voter,
            "listeners": _addresses(listeners),
            "advertised.listeners": _addresses(advertised),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "log.dirs": str(self.data),
        }
        if self._security is not None:
            properties |= self._security_properties(self._security)
        return properties | self.settings

    def _security_properties(self, security: Security) -> dict[str, str]:
        if security.mechanism == "PLAIN":
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            users = f' user_{security.username}="{self._password}"'
        else:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
            users = ""  # in the cluster's metadata, written by `format`
        listener = "listener.name.secure"
        login = f"{listener}.{security.mechanism.lower()}.sasl.jaas.config"
        return {
            "sasl.enabled.mechanisms": security.mechanism,
            login: f"{module} required{users};",
            f"{listener}.ssl.keystore.type": "PEM",
            f"{listener}.ssl.keystore.location": str(security.certificates.key_store),
        }

    def _format(self, properties: Path) -> None:
        words = ["kafka.tools.StorageTool", "format", "-c", str(properties)]
        words += ["-t", self._cluster_id]
        if self._security is not None and self._security.mechanism != "PLAIN":
            user = f"[name={self._security.username},password={self._password}]"
            words += ["--add-scram", f"{self._security.mechanism}={user}"]
        self._java("Kafka's storage tool", *_BRIEF, *words).run()

    def _java(self, name: str, *words: str) -> Command:
        options: tuple[str, ...] = (
            "-XX:+UseSerialGC",
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}",
            *("-cp", classpath("kafka")),
        )
        if CLASSES.exists() and CLASSES.stat().st_size and not self.java_options:
            options += (f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:cds=off", "-Xlog:class+path=off")
        words = (java(), *options, *words)
        return Command(name, words, self._folder / "kafka.log", environment=self.environment)

    def _answers(self) -> bool:
        # Asked too early, librdkafka would complain about each refused connection.
        if not accepts(self.port):
            return False
        try:
            client = AdminClient({"bootstrap.servers": self.inner_servers}, logger=_librdkafka)
            return bool(client.list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def _addresses(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())


def cluster(folder: Path, count: int) -> list[Kafka]:
    """Return brokers of one cluster, not started. Each of them is also a controller."""
    name = new_cluster_id()
    nodes = [Kafka(folder / str(n), node=n, cluster_id=name) for n in range(1, count + 1)]
    voters = ",".join(node.voter for node in nodes)
    copies, in_sync = str(min(count, 3)), str(2 if count > 2 else 1)
    for node in nodes:
        node.settings |= {
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
        }
    return nodes


def new_cluster_id() -> str:
    """Return an id for a new cluster."""
    # Kafka's tools take an id that begins with "-" for an option, so the first bit is cleared.
    random = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([random[0] & 0x7F]) + random[1:]).decode().rstrip("=")

"""A number → a cluster with as many brokers, each behind a proxy, with its own disk and clock.

The harness bypasses the proxies. Each broker is also a controller, so two of three must be up.
"""

import json
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.local.kafka import Kafka, cluster
from tests.chaos.shim import Shim
from tests.fixtures.proxy import Proxy

_IN_SYNC_S: Final = 90.0
_FENCED_S: Final = 30.0
_POLL_S: Final = 0.2
_TRANSACTIONS: Final = "__transaction_state"


class Node:
    """A broker, the way to it, and what its disk and clock are like."""

    def __init__(self, kafka: Kafka, library: Path, control: Path) -> None:
        self.kafka = kafka
        self.shim = Shim(library, control, kafka.data)
        kafka.environment.update(self.shim.environment)
        self.way = Proxy(kafka.port)
        kafka.advertised_port = self.way.port


class Cluster:
    """The brokers of a run."""

    def __init__(self, folder: Path, library: Path, count: int) -> None:
        self.nodes = [
            Node(kafka, library, folder / f"kafka.{number}.control")
            for number, kafka in enumerate(cluster(folder / "brokers", count), 1)
        ]

    @property
    def client_options(self) -> dict[str, str]:
        """How daemons connect: by the proxies."""
        return {"bootstrap.servers": ",".join(n.kafka.bootstrap_servers for n in self.nodes)}

    @property
    def reader(self) -> dict[str, str]:
        """The way past the proxies."""
        return {"bootstrap.servers": ",".join(node.kafka.inner_servers for node in self.nodes)}

    def start(self) -> None:
        """Start all of them: one alone waits for others."""
        first, *others = (node.kafka for node in self.nodes)
        first.format()
        for kafka in others:
            kafka.format_as(first.data)
        self.start_again(self.nodes)

    def start_again(self, nodes: Iterable[Node]) -> None:
        """Start some, side by side."""
        kafkas = [node.kafka for node in nodes]
        with ThreadPoolExecutor(len(kafkas)) as threads:
            for started in [threads.submit(kafka.start) for kafka in kafkas]:
                started.result()

    def end(self) -> None:
        """Kill all of them, and cut the ways."""
        for node in self.nodes:
            node.way.cut()
            node.kafka.kill()

    def ways(self, act: Callable[[Proxy], None]) -> None:
        """Do the same to all ways."""
        for node in self.nodes:
            act(node.way)

    def some(self, choose: random.Random) -> Node:
        """Any of them."""
        return choose.choice(self.nodes)

    def leader(self, topic: str) -> Node:
        """The broker that leads a topic's first partition, or any where nobody tells."""
        with suppress(KafkaException, KeyError):
            return self._node(self._metadata().topics[topic].partitions[0].leader)
        return self.nodes[0]

    def coordinator(self) -> Node:
        """The broker that commits the daemons' transactions: their topic has one partition."""
        return self.leader(_TRANSACTIONS)

    def controller(self) -> Node:
        """The controller that is active, as the nodes have last heard."""
        heard = [(0, -1)]
        for node in self.nodes:
            with suppress(OSError, ValueError):
                file = node.kafka.data / "__cluster_metadata-0" / "quorum-state"
                state = json.loads(file.read_text())
                heard.append((state["leaderEpoch"], state["leaderId"]))
        return self._node(max(heard)[1])

    def await_in_sync(self) -> bool:
        """Wait until each partition has all its copies, of which none lags; returns whether so."""
        return self._until(lambda: all(len(p.isrs) == len(p.replicas) for p in self._partitions()))

    def await_fenced(self, node: Node) -> bool:
        """Wait until no partition counts on a broker that is gone; returns whether so."""
        number = self.nodes.index(node) + 1
        return self._until(lambda: all(number not in p.isrs for p in self._partitions()), _FENCED_S)

    def _until(self, ready: Callable[[], bool], timeout_s: float = _IN_SYNC_S) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                if ready():
                    return True
            time.sleep(_POLL_S)
        return False

    def _partitions(self) -> list[Any]:
        topics = self._metadata().topics.values()
        return [partition for topic in topics for partition in topic.partitions.values()]

    def _metadata(self) -> Any:
        return AdminClient({**self.reader, "log_level": 0}).list_topics(timeout=5)

    def _node(self, number: int) -> Node:
        return self.nodes[number - 1] if number > 0 else self.nodes[0]

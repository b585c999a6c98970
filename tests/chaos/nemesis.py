"""A seed → faults, one after another. The daemon recovers once a fault has ended."""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cdc.records.topics import progress_topic
from tests.chaos.cluster import Node
from tests.chaos.stand import PREFIX, ROLE, TABLES, Stand
from tests.chaos.verdict import KEYS
from tests.fixtures.proxy import Proxy

_STEP_S: Final = 0.05
_DIES_S: Final = 10.0
_CLOCK_S: Final = (-90_000, -3_000, 600, 3_000)
"""Brokers refuse records of more than an hour ahead (log.message.timestamp.after.max.ms)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One that was injected: its kind, and when it was over (seconds of the monotonic clock)."""

    kind: str
    ended: float
    hit: bool
    """Whether it met anything: a full disk that nobody wrote to is no fault."""


class Nemesis:
    """Knows how to break each part, and how to mend it again."""

    def __init__(self, stand: Stand, seed: int, kinds: Mapping[str, int]) -> None:
        self._stand = stand
        self._random = random.Random(f"nemesis {seed}")  # noqa: S311 (repeatable)
        self._kinds = [kind for kind, weight in kinds.items() for _ in range(weight)]
        self._left: list[str] = []

    def calm_s(self) -> float:
        """How long to leave them alone before the next one."""
        return self._random.uniform(0.1, 2.0)

    def impatient(self) -> bool:
        """Whether the next one comes before this one is recovered from."""
        return self._random.random() < 0.2

    def next(self) -> Fault:
        """Choose one, do it, and end it."""
        if not self._left:  # so that a short run has many kinds
            self._left = self._random.sample(self._kinds, len(self._kinds))
        kind = self._left.pop()
        hit = KINDS[kind](self) is not False
        return Fault(kind, time.monotonic(), hit)

    def kill_daemon(self) -> None:
        self._stand.active().process.kill()

    def stop_daemon(self) -> None:
        self._stand.active().process.stop()

    def kill_daemon_amid_commits(self) -> None:
        """A broker that hangs has what was sent and not committed: then the daemon dies."""
        kafka = self._stand.cluster.coordinator().kafka
        kafka.pause()
        self._last(0.2, 1.0)
        self._stand.active().process.kill()
        kafka.resume()

    def pause_daemon(self) -> None:
        process = self._stand.active().process
        process.pause()
        self._last(1, 15)
        process.resume()

    def kill_broker(self) -> None:
        self._kill(self._stand.cluster.some(self._random))

    def pause_broker(self) -> None:
        kafka = self._stand.cluster.some(self._random).kafka
        kafka.pause()
        self._last(1, 8)
        kafka.resume()

    def kill_leader(self) -> None:
        """Of the topic that each of the daemon's transactions writes to."""
        self._kill(self._stand.cluster.leader(progress_topic(PREFIX)))

    def kill_coordinator(self) -> None:
        self._kill(self._stand.cluster.coordinator())

    def kill_controller(self) -> None:
        self._kill(self._stand.cluster.controller())

    def kill_two_brokers(self) -> None:
        """No record is taken, and no leader elected, until one is back."""
        self._kill(*self._random.sample(self._stand.cluster.nodes, 2))

    def roll_brokers(self) -> bool:
        """Restart one after the other, as an upgrade does."""
        cluster, are_in_sync = self._stand.cluster, True
        for node in cluster.nodes:
            node.kafka.stop()
            cluster.start_again([node])
            are_in_sync &= cluster.await_in_sync()
        return are_in_sync

    def wipe_broker(self) -> bool:
        """A disk is lost, of a broker that others don't count on any more; then it is copied."""
        cluster = self._stand.cluster
        if not cluster.await_in_sync():
            return False
        node = cluster.some(self._random)
        node.kafka.kill()
        if is_fenced := cluster.await_fenced(node):
            node.kafka.wipe()
        cluster.start_again([node])
        return cluster.await_in_sync() and is_fenced

    def _kill(self, *nodes: Node) -> None:
        for node in nodes:
            node.kafka.kill()
        self._last(0, 3)
        self._stand.cluster.start_again(nodes)

    def end_walsender(self) -> bool:
        pid = self._stand.walsender()
        return pid is not None and bool(self._stand.ask(f"SELECT pg_terminate_backend({pid})"))

    def kill_walsender(self) -> bool:
        """PostgreSQL ends all sessions then, and recovers from its WAL."""
        if not _send(self._stand.walsender(), signal.SIGKILL):
            return False
        time.sleep(_STEP_S)  # the server's main process notices first
        return self._stand.until(lambda: self._stand.ask("SELECT 1"))

    def pause_walsender(self) -> bool:
        pid = self._stand.walsender()
        if not _send(pid, signal.SIGSTOP):
            return False
        self._last(1, 8)
        return _send(pid, signal.SIGCONT)

    def crash_postgres(self) -> None:
        self._stand.postgres.kill()
        self._last(0, 2)
        self._stand.postgres.start()

    def cut_source(self) -> None:
        self._stand.source_way.cut()
        self._last(0, 4)
        self._stand.source_way.restore()

    def deafen_source(self) -> None:
        self._stand.source_way.deafen()
        self._last(1, 12)
        self._stand.source_way.restore()

    def stall_source(self) -> None:
        self._stand.source_way.stall()
        self._last(1, 8)
        self._stand.source_way.restore()

    def slow_source(self) -> None:
        self._stand.source_way.slow(self._random.uniform(0.02, 0.2))
        self._last(2, 6)
        self._stand.source_way.restore()

    def cut_kafka(self) -> None:
        self._stand.cluster.ways(Proxy.cut)
        self._last(0, 4)
        self._stand.cluster.ways(Proxy.restore)

    def deafen_kafka(self) -> None:
        self._stand.cluster.ways(Proxy.deafen)
        self._last(1, 8)
        self._stand.cluster.ways(Proxy.restore)

    def stall_kafka(self) -> None:
        self._stand.cluster.ways(Proxy.stall)
        self._last(1, 8)
        self._stand.cluster.ways(Proxy.restore)

    def slow_kafka(self) -> None:
        delay_s = self._random.uniform(0.02, 0.2)
        self._stand.cluster.ways(lambda way: way.slow(delay_s))
        self._last(2, 6)
        self._stand.cluster.ways(Proxy.restore)

    def fill_broker_disk(self) -> bool:
        """The broker gives up its log directory, and with it itself; somebody makes room."""
        node = self._stand.cluster.some(self._random)
        shim, kafka = node.shim, node.kafka
        before = shim.refused
        shim.fill_disk(True)
        process = kafka.process
        self._stand.until(lambda: process is None or not process.running, _DIES_S)
        shim.fill_disk(False)
        kafka.kill()
        kafka.start()
        return shim.refused > before

    def fill_spill_disk(self) -> bool:
        shim = self._stand.daemon_shim
        before = shim.refused
        shim.fill_disk(True)
        self._last(2, 6)
        shim.fill_disk(False)
        return shim.refused > before

    def lock_role_out(self) -> None:
        self._without(f"ALTER ROLE {ROLE} NOLOGIN", f"ALTER ROLE {ROLE} LOGIN")

    def forbid_replication(self) -> None:
        self._without(f"ALTER ROLE {ROLE} NOREPLICATION", f"ALTER ROLE {ROLE} REPLICATION")

    def revoke_select(self) -> None:
        tables = ", ".join(TABLES)
        self._stand.ask(f"REVOKE SELECT ON {tables} FROM {ROLE}")
        self._last(1, 4)
        self._stand.ask(f"GRANT SELECT ON {tables} TO {ROLE}")

    def change_publication(self) -> None:
        """Options that make no difference to these tables; every one is sent anew."""
        name = self._stand.publication
        for statement in (
            f"ALTER PUBLICATION {name} SET (publish_via_partition_root = false)",
            f"ALTER PUBLICATION {name} SET TABLE {', '.join(sorted(TABLES))}",
            f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)",
        ):
            # A session that changes a table's schema may deadlock with it.
            self._stand.until(lambda statement=statement: [self._stand.ask(statement)])
            self._last(0, 0.5)

    def ask_for_snapshots(self) -> bool:
        """Tables are read once more while they change, now and then with a pause."""
        tables = self._random.sample([table for table, key in KEYS.items() if key], 2)
        names = [f"public.{table}" for table in tables]
        is_paused = self._random.random() < 0.3
        if not self._stand.signal("execute-snapshot", {"data-collections": names}):
            return False
        if is_paused and self._stand.signal("pause-snapshot", {}):
            self._last(0, 2)
            self._stand.signal("resume-snapshot", {})
        return True

    def move_daemon_clock(self) -> None:
        self._move_clock(self._stand.daemon_shim.set_clock)

    def move_broker_clock(self) -> None:
        self._move_clock(self._stand.cluster.some(self._random).shim.set_clock)

    def _move_clock(self, set_clock: Callable[[int], None]) -> None:
        set_clock(self._random.choice(_CLOCK_S))
        self._last(2, 6)
        set_clock(0)

    def _without(self, take: str, give: str) -> None:
        self._stand.ask(take)
        sessions = f"pg_stat_activity WHERE usename = '{ROLE}'"
        self._stand.ask(f"SELECT count(pg_terminate_backend(pid)) FROM {sessions}")
        self._last(1, 5)
        self._stand.ask(give)

    def _last(self, least_s: float, most_s: float) -> None:
        time.sleep(self._random.uniform(least_s, most_s))


def _send(pid: int | None, number: signal.Signals) -> bool:
    """Signal a process that others may have ended by now; returns whether it was there."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


KINDS: Final[Mapping[str, Callable[[Nemesis], bool | None]]] = {
    "daemon killed": Nemesis.kill_daemon,
    "daemon killed amid commits": Nemesis.kill_daemon_amid_commits,
    "daemon stopped": Nemesis.stop_daemon,
    "daemon paused": Nemesis.pause_daemon,
    "broker killed": Nemesis.kill_broker,
    "broker paused": Nemesis.pause_broker,
    "broker's disk full": Nemesis.fill_broker_disk,
    "broker's clock moved": Nemesis.move_broker_clock,
    "walsender ended": Nemesis.end_walsender,
    "walsender killed": Nemesis.kill_walsender,
    "walsender paused": Nemesis.pause_walsender,
    "PostgreSQL crashed": Nemesis.crash_postgres,
    "source cut off": Nemesis.cut_source,
    "source deaf": Nemesis.deafen_source,
    "source stalled": Nemesis.stall_source,
    "source slow": Nemesis.slow_source,
    "Kafka cut off": Nemesis.cut_kafka,
    "Kafka deaf": Nemesis.deafen_kafka,
    "Kafka stalled": Nemesis.stall_kafka,
    "Kafka slow": Nemesis.slow_kafka,
    "spill's disk full": Nemesis.fill_spill_disk,
    "role locked out": Nemesis.lock_role_out,
    "replication forbidden": Nemesis.forbid_replication,
    "SELECT revoked": Nemesis.revoke_select,
    "publication changed": Nemesis.change_publication,
    "daemon's clock moved": Nemesis.move_daemon_clock,
    "snapshots asked for": Nemesis.ask_for_snapshots,
    "leader killed": Nemesis.kill_leader,
    "coordinator killed": Nemesis.kill_coordinator,
    "controller killed": Nemesis.kill_controller,
    "two brokers killed": Nemesis.kill_two_brokers,
    "brokers rolled": Nemesis.roll_brokers,
    "broker wiped": Nemesis.wipe_broker,
}
OF_THREE: Final[Mapping[str, int]] = {
    "leader killed": 3,
    "coordinator killed": 3,
    "controller killed": 3,
    "two brokers killed": 2,
    "brokers rolled": 2,
    "broker wiped": 2,
}
"""The same of those that take a cluster of three."""
WEIGHTS: Final[Mapping[str, int]] = {
    **{kind: 1 for kind in KINDS if kind not in OF_THREE},
    "snapshots asked for": 6,
    "daemon killed": 6,
    "daemon killed amid commits": 3,
    "broker killed": 2,
    "PostgreSQL crashed": 2,
}
"""How often each comes in a round."""

"""A backlog of WAL -> events a second into Kafka, next to pg_recvlogical draining the same WAL.

Each round writes rows while nobody reads. Then the daemon and pg_recvlogical, each with its own
slot from the same place, take turns; who goes first alternates. The daemon is timed from its first
Kafka transaction to its last, as a reader sees them, so its start doesn't count; pg_recvlogical
from its start to its end, of which connecting is some hundredths of a second.
"""

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.captured import DRAIN, backlog, drain_s
from benchmarks.scene import PREFIX, Scene, cpu_s, peak_rss_mb, say, topic_of
from benchmarks.shapes import Shape
from benchmarks.visible import Reader, Volume
from cdc.records.state import Progress
from cdc.records.topics import progress_topic
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process


class Cpu(NamedTuple):
    """CPU seconds of the processes that a change goes through."""

    daemon: float
    walsender: float
    broker: float

    def since(self, before: "Cpu", events: int) -> "Cpu":
        """µs per event since then."""
        return Cpu(
            *(round((now - then) / events * 1e6, 2) for now, then in zip(self, before, strict=True))
        )


class Round(NamedTuple):
    """Events (rows) and the seconds they took, CPU in µs per event."""

    events: int
    seconds: float
    rows: int
    pg_recvlogical_s: float
    cpu: Cpu
    rss_mb: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def ratio(self) -> float:
        """The daemon's rate in parts of pg_recvlogical's."""
        return self.rate / (self.rows / self.pg_recvlogical_s)


def snapshot(pipeline: Pipeline) -> None:
    """Let a daemon make slot and topics."""
    pipeline.catch_up().stop()


def measure(
    scene: Scene, shape: Shape, rows: int, rounds: int, per_transaction: int = 0
) -> list[Round]:
    """Make the rounds; no daemon may be running."""
    return [
        _round(scene, shape, rows, per_transaction, daemon_first=bool(number % 2))
        for number in range(rounds)
    ]


def volume(scene: Scene, table: str) -> Volume:
    """What is in a table's topic."""
    reader = Reader(scene.kafka, topic_of(table))
    found = reader.volume()
    reader.close()
    return found


def _round(
    scene: Scene, shape: Shape, rows: int, per_transaction: int, *, daemon_first: bool
) -> Round:
    say(f"stream: {rows:,} rows of shape {shape.name}")
    with scene.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [DRAIN])
        end = backlog(scene, shape, rows, per_transaction)
        if daemon_first:
            events, seconds, cpu, rss_mb = daemon_rate(scene, rows)
            drained_s = drain_s(scene, DRAIN, end)
        else:
            drained_s = drain_s(scene, DRAIN, end)
            events, seconds, cpu, rss_mb = daemon_rate(scene, rows)
        connection.execute("SELECT pg_drop_replication_slot(%s)", [DRAIN])
    done = Round(events, seconds, rows, drained_s, cpu, rss_mb)
    say(
        f"  daemon {done.rate:,.0f} events/s, pg_recvlogical {rows / drained_s:,.0f}: ratio "
        f"{done.ratio:.2f}, {cpu.daemon:.1f} µs of CPU per event, peak RSS {rss_mb} MiB"
    )
    return done


def daemon_rate(
    scene: Scene, rows: int, environment: Mapping[str, str] | None = None
) -> tuple[int, float, Cpu, float]:
    """Let a daemon stream the rows: events and seconds, CPU in µs per event, peak RSS."""
    before = scene.pipeline.progress()
    assert before is not None  # noqa: S101 (the snapshot has left one)
    reader = Reader(scene.kafka, progress_topic(PREFIX))
    reader.from_end()
    daemon = scene.pipeline.start(environment)
    first: tuple[int, float, Cpu] | None = None
    for progress, seen in reader.states(Progress):
        done = progress.events - before.events
        if done and first is None:
            first = done, seen.at, _cpu(scene, daemon)
        if done >= rows:
            break
    reader.close()
    assert first is not None  # noqa: S101 (the loop ends after an event)
    events, seconds = done - first[0], seen.at - first[1]
    if not events:
        raise ValueError("all rows went in one Kafka transaction: there is nothing to time")
    figures = events, seconds, _cpu(scene, daemon).since(first[2], events), peak_rss_mb(daemon)
    scene.pipeline.wait_until_logged(scene.pipeline.wal_end(), daemon)
    daemon.stop()
    return figures


def _cpu(scene: Scene, daemon: Process) -> Cpu:
    with scene.connect() as connection:
        found = connection.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE active AND slot_name <> %s", [DRAIN]
        ).fetchone()
    broker = scene.broker.process
    return Cpu(
        cpu_s(daemon.pid), cpu_s(found[0]) if found else 0.0, cpu_s(broker.pid) if broker else 0.0
    )

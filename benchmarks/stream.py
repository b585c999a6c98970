"""A backlog of WAL -> events a second into Kafka, next to pg_recvlogical draining the same WAL.

Each round inserts rows while nobody reads. Then the daemon and pg_recvlogical, each with its own
slot from the same place, take turns; who goes first alternates. The daemon is timed from its first
Kafka transaction to its last, as a reader sees them, so its start doesn't count; pg_recvlogical
from its start to its end, of which connecting is some hundredths of a second.
"""

import os
import subprocess
import time
from typing import Final, NamedTuple

from benchmarks import table
from benchmarks.scene import PREFIX, Scene, cpu_s, peak_rss_mb, say, topic_of
from benchmarks.visible import Reader, Volume
from cdc.records.position import Lsn
from cdc.records.state import Progress
from cdc.records.topics import progress_topic

_SLOT: Final = "drain"


class Round(NamedTuple):
    """Rates in events (rows) a second."""

    daemon: float
    pg_recvlogical: float
    cpu_us: float
    rss_mb: float

    @property
    def ratio(self) -> float:
        """The daemon's rate in parts of pg_recvlogical's."""
        return self.daemon / self.pg_recvlogical


def measure(scene: Scene, rows: int, rows_per_transaction: int, rounds: int) -> list[Round]:
    """Make the rounds; no daemon may be running."""
    return [
        _round(scene, rows, rows_per_transaction, daemon_first=bool(number % 2))
        for number in range(rounds)
    ]


def volume(scene: Scene, rows: int) -> Volume:
    """What the rounds and the snapshot have left in the topic; raises unless it is every row."""
    reader = Reader(scene.kafka, topic_of(table.NAME))
    found = reader.volume()
    reader.close()
    if found.records != rows:
        raise RuntimeError(f"the log has {found.records} records of {rows} rows")
    return found


def _round(scene: Scene, rows: int, rows_per_transaction: int, *, daemon_first: bool) -> Round:
    say(f"stream: {rows:,} rows in transactions of {rows_per_transaction:,}")
    with scene.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [_SLOT])
        scene.fill(rows, rows_per_transaction)
        end = scene.pipeline.wal_end()
        # pg_recvlogical ends at the first thing beyond its end, so there is one.
        connection.execute(f"UPDATE {table.BEATS} SET beats = 0 WHERE id = 1")
        connection.execute("CHECKPOINT")
        if daemon_first:
            rate, cpu_us, rss_mb = _daemon(scene, rows)
            drained = rows / _drain_s(scene, end)
        else:
            drained = rows / _drain_s(scene, end)
            rate, cpu_us, rss_mb = _daemon(scene, rows)
        connection.execute("SELECT pg_drop_replication_slot(%s)", [_SLOT])
    done = Round(rate, drained, cpu_us, rss_mb)
    say(
        f"  daemon {rate:,.0f} events/s, pg_recvlogical {drained:,.0f}: ratio {done.ratio:.2f}, "
        f"{cpu_us:.1f} µs of CPU per event, peak RSS {rss_mb} MiB"
    )
    return done


def _daemon(scene: Scene, rows: int) -> tuple[float, float, float]:
    """Let a daemon stream the rows: events a second, CPU in µs per event, peak RSS."""
    before = scene.pipeline.progress()
    assert before is not None  # noqa: S101 (the snapshot has left one)
    reader = Reader(scene.kafka, progress_topic(PREFIX))
    reader.from_end()
    daemon = scene.pipeline.start()
    first: tuple[int, float, float] | None = None
    for progress, seen in reader.states(Progress):
        done = progress.events - before.events
        if done and first is None:
            first = done, seen.at, cpu_s(daemon)
        if done >= rows:
            break
    reader.close()
    assert first is not None  # noqa: S101 (the loop ends after an event)
    events, seconds = done - first[0], seen.at - first[1]
    if not events:
        raise ValueError("all rows went in one Kafka transaction: there is nothing to time")
    figures = events / seconds, (cpu_s(daemon) - first[2]) / events * 1e6, peak_rss_mb(daemon)
    scene.pipeline.wait_until_logged(scene.pipeline.wal_end(), daemon)
    daemon.stop()
    return figures


def _drain_s(scene: Scene, end: Lsn) -> float:
    publication = scene.pipeline.settings.capture.publication_name
    words = [
        *(str(scene.postgres.bin("pg_recvlogical")), "--start", f"--slot={_SLOT}"),
        *(f"--dbname={scene.source['dbname']}", f"--file={os.devnull}", "--no-loop"),
        *(f"--endpos={end}", "--option=proto_version=4"),
        *(f"--option=publication_names={publication}", "--option=messages=true"),
    ]
    started = time.monotonic()
    subprocess.run(words, env=scene.environment(), check=True)
    return time.monotonic() - started

"""Updates at a fixed rate -> how long after its commit a reader of Kafka sees each.

`make bench NAME=latency`: to one table, then to twenty.

pgbench writes clock_timestamp() with every update; a read_committed reader takes the time when it
gets the event. Both clocks are this machine's. The row's time is taken just before the commit, so
the commit itself counts as latency.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from benchmarks.scene import Scene, load, peak_rss_mb, say, scene, topic_of

_WARM_UP_S: Final = 15.0
"""The broker compiles itself meanwhile."""
_QUIET_S: Final = 3.0
_ROWS: Final = 1_000
_TABLE: Final = """
    CREATE TABLE beat{n} (id integer PRIMARY KEY, beats integer NOT NULL, at timestamptz);
    INSERT INTO beat{n} SELECT i, 0, now() FROM generate_series(1, {rows}) i;
"""
_UPDATE: Final = """\\set id random(1, {rows})
UPDATE beat{n} SET beats = beats + 1, at = clock_timestamp() WHERE id = :id;
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.latency")
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--tables", type=int, nargs="*", default=[1, 20])
    options = parser.parse_args(arguments)
    figures: dict[str, float] = {"load_before": load()}
    for tables in options.tables:
        with scene() as made:
            found = measure(made, tables, options.rate, options.seconds)
        kind = "" if tables == 1 else f"_{tables}_topics"
        figures |= {f"{name}{kind}": round(value, 1) for name, value in found._asdict().items()}
    print(json.dumps({"benchmark": "latency", "figures": figures}))
    return 0


class LatencyFigures(NamedTuple):
    """Milliseconds, the rate that was reached, and the daemon's memory."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    transactions_per_s: float
    events: int
    rss_mb: float


def measure(made: Scene, tables: int, rate: int, seconds: int) -> LatencyFigures:
    """Update so many tables for so long, after a warm-up, while a daemon streams."""
    say(f"latency: {rate} transactions/s into {tables} tables for {seconds} s")
    with made.connect() as connection:
        for number in range(1, tables + 1):
            connection.execute(_TABLE.format(n=number, rows=_ROWS))
    daemon = made.pipeline.start()
    made.pipeline.wait_until_logged(made.pipeline.wal_end(), daemon)
    scripts = []
    for number in range(1, tables + 1):
        scripts.append(made.pipeline.folder / f"beat{number}.sql")
        scripts[-1].write_text(_UPDATE.format(n=number, rows=_ROWS), encoding="ascii")
    consumer = _reader(made, tables)
    workload = _pgbench(made, scripts, rate, seconds + _WARM_UP_S)
    measured_from = time.time() + _WARM_UP_S
    times: list[tuple[float, float]] = []
    last = time.monotonic()
    while workload.poll() is None or time.monotonic() - last < _QUIET_S:
        message = consumer.poll(0.2)
        seen_at = time.time()
        if message is None or (value := message.value()) is None:
            continue
        last = time.monotonic()
        at = datetime.fromisoformat(json.loads(value)["after"]["at"]).timestamp()
        if at >= measured_from:
            times.append((at, seen_at))
    consumer.close()
    rss_mb = peak_rss_mb(daemon)
    daemon.stop()
    if workload.returncode != 0:
        raise RuntimeError(f"pgbench ended with exit code {workload.returncode}")
    waits = [(seen_at - at) * 1_000 for at, seen_at in times]
    cuts = quantiles(waits, n=100)
    reached = (len(times) - 1) / (max(at for at, _ in times) - min(at for at, _ in times))
    figures = LatencyFigures(cuts[49], cuts[98], max(waits), reached, len(times), rss_mb)
    say(
        f"  p50 {figures.p50_ms:.1f} ms, p99 {figures.p99_ms:.1f} ms at "
        f"{figures.transactions_per_s:.0f} transactions/s"
    )
    return figures


def _reader(made: Scene, tables: int) -> Consumer:
    """A read_committed reader of what comes from now on."""
    consumer = Consumer(
        {
            **made.kafka,
            "group.id": "benchmarks",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "100",
        }
    )
    known = consumer.list_topics(timeout=10).topics
    places = []
    for topic in (topic_of(f"beat{number}") for number in range(1, tables + 1)):
        for partition in known[topic].partitions:
            place = TopicPartition(topic, partition)
            _, place.offset = consumer.get_watermark_offsets(place, timeout=10)
            places.append(place)
    consumer.assign(places)
    consumer.poll(0.2)
    return consumer


def _pgbench(
    scene: Scene, scripts: Sequence[Path], rate: int, seconds: float
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(str(scene.postgres.bin("pgbench")), "--no-vacuum", "--protocol=prepared"),
            *(f"--rate={rate}", f"--time={seconds:.0f}", "--client=2"),
            *(f"--file={script}" for script in scripts),
        ],
        env=scene.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

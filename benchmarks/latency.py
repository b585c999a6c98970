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
from statistics import median, quantiles
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.scene import Scene, load, peak_rss_mb, say, scene, topic_of

_WARM_UP_S: Final = 40.0
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
    parser.add_argument("--seconds", type=int, default=10, help="of each window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--tables", type=int, nargs="*", default=[1, 20])
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {"load_before": load()}
    for tables in options.tables:
        with scene() as made:
            found = measure(made, tables, options.rate, options.seconds, options.windows)
        kind = "" if tables == 1 else f"_{tables}_topics"
        figures |= {f"{name}{kind}": value for name, value in found.items()}
    print(json.dumps({"benchmark": "latency", "figures": figures}))
    return 0


def measure(made: Scene, tables: int, rate: int, seconds: int, windows: int) -> dict[str, object]:
    """Update so many tables for so long, after a warm-up, while a daemon streams."""
    say(f"latency: {rate} transactions/s into {tables} tables, {windows} times {seconds} s")
    with made.connect() as connection:
        for number in range(1, tables + 1):
            connection.execute(_TABLE.format(n=number, rows=_ROWS))
    daemon = made.pipeline.catch_up()
    scripts = []
    for number in range(1, tables + 1):
        scripts.append(made.pipeline.folder / f"beat{number}.sql")
        scripts[-1].write_text(_UPDATE.format(n=number, rows=_ROWS), encoding="ascii")
    consumer = _reader(made, tables)
    workload = _pgbench(made, scripts, rate, windows * seconds + _WARM_UP_S)
    since = time.time() + _WARM_UP_S
    waits: list[list[float]] = [[] for _ in range(windows)]
    size = 0
    last = time.monotonic()
    while workload.poll() is None or time.monotonic() - last < _QUIET_S:
        message = consumer.poll(0.2)
        seen_at = time.time()
        if message is None or (value := message.value()) is None:
            continue
        last = time.monotonic()
        at = datetime.fromisoformat(json.loads(value)["after"]["at"]).timestamp()
        window = int((at - since) // seconds)
        if 0 <= window < windows:
            waits[window].append((seen_at - at) * 1_000)
            size += len(message.key() or b"") + len(value)
    consumer.close()
    rss_mb = peak_rss_mb(daemon)
    daemon.stop()
    if workload.returncode != 0:
        raise RuntimeError(f"pgbench ended with exit code {workload.returncode}")
    return _figures(waits, seconds) | {"bytes": size, "rss_mb": rss_mb}


def _figures(waits: list[list[float]], seconds: int) -> dict[str, object]:
    """Milliseconds: of each window, and the medians of the windows."""
    cuts = [quantiles(window, n=100) for window in waits]
    runs = [(round(cut[49], 1), round(cut[98], 1)) for cut in cuts]
    events = sum(map(len, waits))
    figures = {
        "runs": runs,
        "p50_ms": median(p50 for p50, _ in runs),
        "p99_ms": median(p99 for _, p99 in runs),
        "max_ms": round(max(map(max, waits)), 1),
        "transactions_per_s": round(events / seconds / len(waits), 1),
        "rows": events,
    }
    say(f"  p50 {figures['p50_ms']} ms, p99 {figures['p99_ms']} ms")
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

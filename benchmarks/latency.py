"""Updates at a fixed rate -> how long after its commit a reader of Kafka sees each.

pgbench writes clock_timestamp() with every update; a read_committed reader takes the time when it
gets the event. Both clocks are this machine's. The row's time is taken just before the commit, so
the commit itself counts as latency.
"""

import json
import subprocess
import time
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Final, NamedTuple

from benchmarks import table
from benchmarks.scene import Scene, say, topic_of
from benchmarks.visible import Reader

_WARM_UP_S: Final = 3.0
_QUIET_S: Final = 3.0
_UPDATE: Final = f"""\\set id random(1, {table.BEAT_ROWS})
UPDATE {table.BEATS} SET beats = beats + 1, at = clock_timestamp() WHERE id = :id;
"""


class LatencyFigures(NamedTuple):
    """Milliseconds, and the rate that was reached."""

    transactions_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    events: int


def measure(scene: Scene, rate: int, seconds: int) -> LatencyFigures:
    """Update for so long, after a warm-up, while a daemon streams."""
    say(f"latency: {rate} transactions/s for {seconds} s")
    script = scene.pipeline.folder / "beat.sql"
    script.write_text(_UPDATE, encoding="ascii")
    reader = Reader(scene.kafka, topic_of(table.BEATS))
    reader.from_end()
    workload = _pgbench(scene, script, rate, seconds + _WARM_UP_S)
    measured_from = time.time() + _WARM_UP_S
    times: list[tuple[float, float]] = []
    last = time.monotonic()
    while workload.poll() is None or time.monotonic() - last < _QUIET_S:
        seen = reader.poll()
        if seen is not None:
            last = time.monotonic()
            at = datetime.fromisoformat(json.loads(seen.value)["after"]["at"]).timestamp()
            if at >= measured_from:
                times.append((at, seen.at))
    reader.close()
    if workload.returncode != 0:
        raise RuntimeError(f"pgbench ended with exit code {workload.returncode}")
    waits = [(seen_at - at) * 1_000 for at, seen_at in times]
    cuts = quantiles(waits, n=100)
    reached = (len(times) - 1) / (max(at for at, _ in times) - min(at for at, _ in times))
    figures = LatencyFigures(reached, cuts[49], cuts[98], max(waits), len(times))
    say(
        f"  p50 {figures.p50_ms:.1f} ms, p99 {figures.p99_ms:.1f} ms at "
        f"{figures.transactions_per_s:.0f} transactions/s"
    )
    return figures


def _pgbench(scene: Scene, script: Path, rate: int, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(str(scene.postgres.bin("pgbench")), "--no-vacuum", "--protocol=prepared"),
            *(f"--rate={rate}", f"--time={seconds:.0f}", "--client=2", f"--file={script}"),
        ],
        env=scene.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

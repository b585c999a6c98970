"""A filled table -> rows a second into the log, next to COPY … TO STDOUT of the same table.

`make bench NAME=snapshot`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.scene import PREFIX, Scene, cpu_s, load, peak_rss_mb, say, scene
from benchmarks.shapes import MIXED, NAME
from benchmarks.visible import Reader
from cdc.records.state import Phase, TableState
from cdc.records.topics import table_topic
from deploy.local.processes import Process


class SnapshotFigures(NamedTuple):
    """Rates in rows a second."""

    rows: int
    daemon: float
    copy: float
    cpu_us: float
    rss_mb: float


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.snapshot")
    parser.add_argument("--rows", type=int, default=300_000)
    options = parser.parse_args(arguments)
    before = load()
    with scene() as made:
        found, daemon = measure(made, options.rows)
        daemon.stop()
    figures = {
        "rows": found.rows,
        "rows_per_s": round(found.daemon),
        "copy_rows_per_s": round(found.copy),
        "ratio_to_copy": round(found.daemon / found.copy, 3),
        "cpu_us_per_row": round(found.cpu_us, 2),
        "rss_mb": found.rss_mb,
        "load_before": before,
    }
    print(json.dumps({"benchmark": "snapshot", "figures": figures}))
    return 0


def measure(scene: Scene, rows: int) -> tuple[SnapshotFigures, Process]:
    """Fill the table, COPY it, start a daemon that snapshots it, COPY it again.

    Returns the daemon, too: it streams from there on.
    """
    say(f"snapshot: a table of {rows:,} rows")
    scene.create(MIXED, rows)
    scene.write(MIXED, rows, rows)
    copies = [_copy_s(scene)]
    daemon = scene.pipeline.start()
    started = ended = 0.0
    reader = Reader(scene.kafka, table_topic(PREFIX))
    reader.from_beginning()
    cpu = cpu_s(daemon.pid)
    for state, seen in reader.states(TableState):
        if state.table == NAME:
            started = started or seen.made
            ended = seen.at
            if state.phase is Phase.STREAMING:
                break
    cpu = cpu_s(daemon.pid) - cpu
    reader.close()
    copies.append(_copy_s(scene))
    figures = SnapshotFigures(
        rows, rows / (ended - started), rows / median(copies), cpu / rows * 1e6, peak_rss_mb(daemon)
    )
    say(
        f"  {figures.daemon:,.0f} rows/s into the log, COPY to nowhere {figures.copy:,.0f} rows/s, "
        f"peak RSS {figures.rss_mb} MiB"
    )
    return figures, daemon


def _copy_s(scene: Scene) -> float:
    statement = f"COPY {NAME} TO STDOUT"
    words = [str(scene.postgres.bin("psql")), "-X", "-q", "-o", os.devnull, "-c", statement]
    started = time.monotonic()
    subprocess.run(words, env=scene.environment(), check=True)
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

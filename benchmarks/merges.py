"""The log -> seconds of two merges into Delta tables: the first load, then some changes.

`make bench NAME=merges`.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import shapes, snapshot_kafka
from benchmarks.scene import Scene, load, say, scene
from deploy.local.processes import Process


class MergeFigures(NamedTuple):
    """Seconds of a whole `millrace merge lakehouse`, the start of its JVM included."""

    rows: int
    first_s: float
    changes: int
    second_s: float


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.merges")
    parser.add_argument("--rows", type=int, default=600_000)
    options = parser.parse_args(arguments)
    before = load()
    with scene() as made:
        snapshot_kafka.fill(made, options.rows)
        daemon = snapshot_kafka.snapshot(made.pipeline, options.rows).daemon
        found = measure(made, daemon, options.rows)
        daemon.stop()
    figures = {
        "first_rows": found.rows,
        "first_s": round(found.first_s, 1),
        "second_changes": found.changes,
        "second_s": round(found.second_s, 1),
        "load_before": before,
    }
    print(json.dumps({"benchmark": "merges", "figures": figures}))
    return 0


def measure(scene: Scene, daemon: Process, rows: int) -> MergeFigures:
    """Merge what is there, change some rows, merge that."""
    scene.pipeline.wait_until_logged(scene.pipeline.wal_end(), daemon)
    say(f"merge: {rows:,} rows into a new Delta table")
    first_s = _merge_s(scene)
    with scene.connect() as connection:
        changes = shapes.change(connection)
    scene.pipeline.wait_until_logged(scene.pipeline.wal_end(), daemon)
    say(f"merge: {changes:,} changed and deleted rows")
    return MergeFigures(rows, first_s, changes, _merge_s(scene))


def _merge_s(scene: Scene) -> float:
    started = time.monotonic()
    done = scene.pipeline.millrace("merge", "lakehouse", timeout_s=600)
    seconds = time.monotonic() - started
    if done.returncode != 0:
        raise RuntimeError(f"the merge ended with exit code {done.returncode}: {done.stderr}")
    say(f"  {seconds:.1f} s: {(done.stdout.strip().splitlines() or ['-'])[-1]}")
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

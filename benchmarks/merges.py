"""The log -> seconds of two merges into Delta tables: the first load, then some changes."""

import time
from typing import NamedTuple

from benchmarks import table
from benchmarks.scene import Scene, say
from deploy.local.processes import Process


class MergeFigures(NamedTuple):
    """Seconds of a whole `millrace merge lakehouse`, the start of its JVM included."""

    rows: int
    first_s: float
    changes: int
    second_s: float


def measure(scene: Scene, daemon: Process, rows: int) -> MergeFigures:
    """Merge what is there, change some rows, merge that."""
    scene.pipeline.wait_until_logged(scene.pipeline.wal_end(), daemon)
    say(f"merge: {rows:,} rows into a new Delta table")
    first_s = _merge_s(scene)
    with scene.connect() as connection:
        changes = table.change(connection)
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

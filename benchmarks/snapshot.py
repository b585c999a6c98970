"""A filled table -> rows a second into the log, next to COPY … TO STDOUT of the same table."""

import os
import subprocess
import time
from statistics import median
from typing import NamedTuple

from benchmarks import table
from benchmarks.scene import PREFIX, Scene, cpu_s, peak_rss_mb, say
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


def measure(scene: Scene, rows: int) -> tuple[SnapshotFigures, Process]:
    """Fill the table, COPY it, start a daemon that snapshots it, COPY it again.

    Returns the daemon, too: it streams from there on.
    """
    say(f"snapshot: a table of {rows:,} rows")
    scene.fill(rows, rows)
    copies = [_copy_s(scene)]
    daemon = scene.pipeline.start()
    started = ended = 0.0
    reader = Reader(scene.kafka, table_topic(PREFIX))
    reader.from_beginning()
    cpu = cpu_s(daemon)
    for state, seen in reader.states(TableState):
        if state.table == table.NAME:
            started = started or seen.made
            ended = seen.at
            if state.phase is Phase.STREAMING:
                break
    cpu = cpu_s(daemon) - cpu
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
    statement = f"COPY {table.NAME} TO STDOUT"
    words = [str(scene.postgres.bin("psql")), "-X", "-q", "-o", os.devnull, "-c", statement]
    started = time.monotonic()
    subprocess.run(words, env=scene.environment(), check=True)
    return time.monotonic() - started

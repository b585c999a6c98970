"""Hours in small -> one JSON line: memory under a steady load, WAL retained while all is idle.

`make bench NAME=soak ARGS="--minutes 30"`; README.md says what each figure means.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.scene import Scene, load, say, scene
from benchmarks.shapes import SHAPES, Shape
from cdc.postgres.connection import query
from deploy.local.processes import Process

_PARTS: Final = 6
_SAMPLE_S: Final = 5.0
_TELL_EVERY: Final = 12
_MIB: Final = 1 << 20
_PAUSE_S: Final = 0.1
_RETAINED: Final = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots"
_WRITTEN: Final = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"
_ELSEWHERE: Final = (
    "INSERT INTO elsewhere SELECT repeat(md5(%s::text), 30) FROM generate_series(1, 100)"
)


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=30, help="of load")
    parser.add_argument("--idle-minutes", type=float, default=6, help="without a change, after it")
    parser.add_argument("--rows", type=int, default=2_000, help="written per second of load")
    parser.add_argument("--shape", choices=SHAPES, default="mixed")
    options = parser.parse_args(arguments)
    shape, before = SHAPES[options.shape], load()
    say("starting PostgreSQL and Kafka")
    with scene() as made:
        made.create(shape, options.rows)
        daemon = made.pipeline.catch_up()
        rss = _under_load(made, shape, daemon, options.minutes * 60, options.rows)
        made.pipeline.wait_until_logged(made.pipeline.wal_end(), daemon)
        written, retained = _idle(made, options.idle_minutes * 60)
        daemon.stop()
    figures = {
        "shape": options.shape,
        "minutes": options.minutes,
        "rows_per_s": options.rows,
        "rss_mb": [round(median(part), 1) for part in _parts(rss)],
        "rss_max_mb": round(max(rss), 1),
        "idle_minutes": options.idle_minutes,
        "idle_written_mb": round(written / _MIB, 1),
        "idle_retained_mb": [round(max(part) / _MIB, 1) for part in _parts(retained)],
        "load_before": before,
    }
    print(json.dumps({"benchmark": "soak", "figures": figures}))
    return 0


def _under_load(
    made: Scene, shape: Shape, daemon: Process, seconds: float, rows: int
) -> list[float]:
    """Write so many rows a second, in ten transactions; the daemon's sizes meanwhile, in MiB."""

    def write() -> None:
        each = max(1, rows // 10)
        with made.connect() as connection:
            for number in count():
                if stop.wait(_PAUSE_S):
                    return
                first = 1 if shape.updates else rows + 1 + number * each
                connection.execute(shape.write, (first, first + each - 1))

    stop = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        return _samples(seconds, lambda: _rss_mb(daemon), "MiB of memory")
    finally:
        stop.set()
        writer.join()


def _idle(made: Scene, seconds: float) -> tuple[int, list[float]]:
    """WAL that another database writes, and what the slot holds of it, in bytes.

    One WAL for all databases of a server: it is what fills disks behind a slot of an idle one.
    """
    elsewhere = made.postgres.create_database("elsewhere")

    def write() -> None:
        with psycopg.connect(make_conninfo(**elsewhere), autocommit=True) as connection:
            connection.execute("CREATE TABLE elsewhere (v text)")
            for number in count():
                if stop.wait(_PAUSE_S):
                    return
                connection.execute(_ELSEWHERE, [number])

    stop = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        with made.connect() as connection:
            before = _asked(connection, _WRITTEN)
            retained = _samples(seconds, lambda: _asked(connection, _RETAINED), "bytes retained")
            return _asked(connection, _WRITTEN) - before, retained
    finally:
        stop.set()
        writer.join()


def _samples(seconds: float, sample: Callable[[], float], unit: str) -> list[float]:
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_SAMPLE_S)
        found.append(sample())
        if len(found) % _TELL_EVERY == 0:
            say(f"  {found[-1]:,.0f} {unit}")
    return found


def _parts(samples: list[float]) -> list[list[float]]:
    size = max(1, len(samples) // _PARTS)
    return [samples[start : start + size] for start in range(0, size * _PARTS, size)]


def _rss_mb(process: Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _asked(connection: psycopg.Connection, statement: str) -> int:
    ((value,),) = query(connection, statement)
    return int(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

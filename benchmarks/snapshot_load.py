"""A pgbench, and a snapshot beside it -> how much longer its transactions take.

`make bench NAME=snapshot-load`; README.md says what each figure means.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.scene import PREFIX, Scene, load, say, scene
from benchmarks.shapes import NAME
from benchmarks.snapshot_kafka import fill
from cdc.records.state import TableState
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process

_CLIENTS = 4
_SCALE = 20
_TURN_S = 3.0
_SETTLE_S = 0.5
_TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.snapshot_load")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--limit", type=int, default=60_000, help="rows a second")
    parser.add_argument("--seconds", type=int, default=63, help="of each pgbench")
    options = parser.parse_args(arguments)
    figures: dict[str, object] = {}
    before = load()
    with _memory() as log_folder, scene(log_folder=log_folder) as made:
        assert made.broker.process is not None  # noqa: S101 (it was started)
        _give_way(made.broker.process)
        fill(made, options.rows)
        _pgbench(made, "-i", "-q", "-s", str(_SCALE))
        most = _tps(_pgbench(made, "-T", str(20)))
        figures["rate_tps"] = rate = round(most / 3)
        say(f"  pgbench: {most:,.0f} transactions/s at most; from here on {rate:,}")
        with _snapshot(made, "first", {"snapshot.adaptive": "false"}) as (_, rows):
            rows.wait_for(options.rows)  # a broker compiles itself first, and isn't the source
        for name, pace in {
            "limited": {"snapshot.rows.per.second.max": options.limit},
            "adaptive": {"snapshot.adaptive": "true"},
            "unlimited": {"snapshot.adaptive": "false"},
        }.items():
            with _snapshot(made, name, pace) as (daemon, rows):
                turns = _turns(made, rate, options.seconds, daemon)
                read = rows() / (options.seconds / 2)
            figures |= {f"{key}_{name}": value for key, value in _compared(turns).items()}
            figures[f"rows_per_s_{name}"] = round(read)
    print(json.dumps({"benchmark": "snapshot-load", "figures": {**figures, "load_before": before}}))
    return 0


class _Turn(NamedTuple):
    """Some seconds of a pgbench, with the snapshot beside it or with that standing still."""

    is_beside: bool
    p95_ms: float


def _compared(turns: Sequence[_Turn]) -> dict[str, float]:
    """Turns next to each other are compared: what else the machine does comes and goes."""
    alone = median(turn.p95_ms for turn in turns if not turn.is_beside)
    added = median(
        turn.p95_ms - (turns[number - 1].p95_ms + turns[number + 1].p95_ms) / 2
        for number, turn in enumerate(turns[:-1])
        if number and turn.is_beside
    )
    return {
        "p95_ms_alone": round(alone, 2),
        "added_p95_ms": round(added, 2),
        "added_p95_percent": round(100 * added / alone, 1),
    }


@contextmanager
def _memory() -> Iterator[Path]:
    """A folder whose files share no disk with PostgreSQL's: an fsync waits for all who write."""
    with TemporaryDirectory(prefix="millrace-bench-", dir="/dev/shm") as folder:
        yield Path(folder)


def _give_way(process: Process) -> None:
    """Let it have what the others leave of the processors: it would be on another machine.

    Each server is a session of its own, and sessions are weighed against each other before their
    threads are (sched(7), "The autogroup feature"): so both are told.
    """
    session = Path(f"/proc/{process.pid}/autogroup")
    if session.exists():
        session.write_text("19", encoding="ascii")
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def _snapshot(
    made: Scene, name: str, pace: Mapping[str, str | int]
) -> Iterator[tuple[Process, "Rows"]]:
    """A daemon that reads the table, and what tells how many rows were read meanwhile."""
    folder = made.pipeline.folder / name
    folder.mkdir()
    capture: dict[str, str | int] = {
        "slot.name": name,
        "table.include.list": f"public.{NAME}",
        **pace,
    }
    pipeline = Pipeline(folder, made.source, made.kafka, prefix=f"{PREFIX}{name}", capture=capture)
    daemon = pipeline.start()
    _give_way(daemon)
    rows = Rows(pipeline)
    rows.wait_for(1)
    try:
        yield daemon, rows
    finally:
        daemon.stop()
        with made.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


class Rows:
    """How many rows of the table were read since the first were."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._before = 0

    def wait_for(self, rows: int) -> None:
        """Wait until so many were read."""
        while (before := self._read()) < rows:
            threading.Event().wait(0.2)
        self._before = before

    def __call__(self) -> int:
        """Since then."""
        return self._read() - self._before

    def _read(self) -> int:
        return sum(_rows(state) for state in self._pipeline.tables())


def _rows(state: TableState) -> int:
    return state.initial.rows if state.initial else state.rows_sent


def _turns(made: Scene, rate: int, seconds: int, daemon: Process) -> list[_Turn]:
    """A pgbench, and every other few seconds the daemon stands still: the 95th percentiles.

    They are of what transactions take from the time at which they are due.
    """
    prefix = made.pipeline.folder / "latencies"
    for old in made.pipeline.folder.glob("latencies*"):
        old.unlink()
    begun: list[float] = []
    ended = threading.Event()
    turning = threading.Thread(target=_take_turns, args=[daemon.pid, begun, ended])
    turning.start()
    try:
        _pgbench(made, "-T", str(seconds), "-R", str(rate), "-l", f"--log-prefix={prefix}")
    finally:
        ended.set()
        turning.join()
    # client_id transaction_no time script_no time_epoch time_us schedule_lag: time has the lag.
    lines = (
        line.split()
        for path in made.pipeline.folder.glob("latencies*")
        for line in Path(path).read_text(encoding="ascii").splitlines()
    )
    took = [(int(line[4]) + int(line[5]) / 1e6, int(line[2]) / 1_000) for line in lines]
    turns = []
    for number, (start, end) in enumerate(pairwise(begun)):
        within = sorted(ms for at, ms in took if start + _SETTLE_S < at < end)
        turns.append(_Turn(number % 2 == 1, within[int(0.95 * len(within))]))
    say("  p95 in ms, alone and beside: " + ", ".join(f"{turn.p95_ms:.1f}" for turn in turns))
    return turns


def _take_turns(pid: int, begun: list[float], ended: threading.Event) -> None:
    """Let a process stand still, and go on, and so forth; notes when each turn began."""
    kinds = cycle((signal.SIGSTOP, signal.SIGCONT))
    while not ended.is_set():
        os.kill(pid, next(kinds))
        begun.append(time.time())
        ended.wait(_TURN_S)
    os.kill(pid, signal.SIGCONT)


def _pgbench(made: Scene, *words: str) -> str:
    clients = () if "-i" in words else ("-n", "-c", str(_CLIENTS), "-j", "1")
    command = [str(made.postgres.bin("pgbench")), *clients, *words, str(made.source["dbname"])]
    done = subprocess.run(
        command, env=made.environment(), check=True, capture_output=True, text=True
    )
    return done.stdout


def _tps(output: str) -> float:
    found = _TPS.search(output)
    assert found is not None, output  # noqa: S101 (pgbench prints it)
    return float(found[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A pgbench, and a snapshot beside it -> how much longer its transactions take.

`make bench NAME=snapshot-load`; README.md says what each figure means.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.scene import PREFIX, Scene, load, say, scene
from benchmarks.shapes import NAME
from benchmarks.snapshot_kafka import fill
from cdc.records.state import TableState
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process

_CLIENTS = 4
_SCALE = 20
_TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.snapshot_load")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--limit", type=int, default=60_000, help="rows a second")
    parser.add_argument("--seconds", type=int, default=20, help="of each pgbench")
    options = parser.parse_args(arguments)
    before = load()
    with _memory() as log_folder, scene(log_folder=log_folder) as made:
        assert made.broker.process is not None  # noqa: S101 (it was started)
        _give_way(made.broker.process)
        fill(made, options.rows)
        _pgbench(made, "-i", "-q", "-s", str(_SCALE))
        most = _tps(_pgbench(made, "-T", str(options.seconds)))
        rate = round(most / 3)
        say(f"  pgbench: {most:,.0f} transactions/s at most; from here on {rate:,}")
        with _snapshot(made, "first", {"snapshot.adaptive": "false"}) as rows:
            rows.wait_for(options.rows)  # a broker compiles itself first, and isn't the source
        alone = [_p95_ms(made, rate, options.seconds)]
        beside = {}
        for name, pace in {
            "limited": {"snapshot.rows.per.second.max": options.limit},
            "adaptive": {"snapshot.adaptive": "true"},
            "unlimited": {"snapshot.adaptive": "false"},
        }.items():
            with _snapshot(made, name, pace) as rows:
                beside[name] = _p95_ms(made, rate, options.seconds), rows() / options.seconds
            alone.append(_p95_ms(made, rate, options.seconds))
    figures: dict[str, object] = {
        "rate_tps": rate,
        "p95_ms_alone": [round(one, 2) for one in alone],
    }
    for number, (name, (p95, rows_per_s)) in enumerate(beside.items()):
        base = (alone[number] + alone[number + 1]) / 2
        figures[f"p95_ms_{name}"] = round(p95, 2)
        figures[f"added_p95_ms_{name}"] = round(p95 - base, 2)
        figures[f"added_p95_percent_{name}"] = round(100 * (p95 / base - 1), 1)
        figures[f"rows_per_s_{name}"] = round(rows_per_s)
    print(json.dumps({"benchmark": "snapshot-load", "figures": {**figures, "load_before": before}}))
    return 0


@contextmanager
def _memory() -> Iterator[Path]:
    """A folder whose files share no disk with PostgreSQL's: an fsync waits for all who write."""
    with TemporaryDirectory(prefix="millrace-bench-", dir="/dev/shm") as folder:
        yield Path(folder)


def _give_way(process: Process) -> None:
    """Let it have what the others leave of the processors: it would be on another machine."""
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


@contextmanager
def _snapshot(made: Scene, name: str, pace: Mapping[str, str | int]) -> Iterator["Rows"]:
    """A daemon that reads the table; what is given tells how many rows were read meanwhile."""
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
        yield rows
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


def _p95_ms(made: Scene, rate: int, seconds: int) -> float:
    """The 95th percentile of what transactions take from the time at which they are due."""
    prefix = made.pipeline.folder / "latencies"
    for old in made.pipeline.folder.glob("latencies*"):
        old.unlink()
    words = ("-T", str(seconds), "-R", str(rate), "-l", f"--log-prefix={prefix}")
    _pgbench(made, *words)
    # client_id transaction_no time script_no time_epoch time_us schedule_lag: time has the lag.
    took = sorted(
        int(line.split()[2]) / 1_000
        for path in made.pipeline.folder.glob("latencies*")
        for line in Path(path).read_text(encoding="ascii").splitlines()
    )
    found = took[int(0.95 * len(took))]
    say(f"  {len(took):,} transactions, p95 {found:.2f} ms")
    return found


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

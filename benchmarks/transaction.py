"""Rows of one transaction -> one JSON line: memory, disk, how soon after its commit all is there.

`make bench NAME=transaction ARGS="--rows 50000000"`; README.md says what each figure means.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.captured import DRAIN, drain_s
from benchmarks.scene import PREFIX, Scene, load, peak_rss_mb, say, scene
from benchmarks.shapes import SHAPES, Shape
from benchmarks.visible import Reader
from cdc.records.state import Progress
from cdc.records.topics import progress_topic
from deploy.local.processes import Process

_SAMPLE_S: Final = 0.5


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.transaction")
    parser.add_argument("--rows", type=int, default=5_000_000, help="in all transactions together")
    parser.add_argument("--transactions", type=int, default=1, help="open at the same time")
    parser.add_argument("--shape", choices=SHAPES, default="narrow")
    parser.add_argument("--no-drain", action="store_true", help="leave pg_recvlogical out")
    options = parser.parse_args(arguments)
    shape, before = SHAPES[options.shape], load()
    say("starting PostgreSQL and Kafka")
    with scene() as made:
        made.create(shape, options.rows)
        daemon = made.pipeline.catch_up()
        figures = _measure(made, shape, daemon, options.rows, options.transactions)
        if not options.no_drain:
            end = made.pipeline.wal_end()
            with made.connect() as connection:
                connection.execute("SELECT pg_logical_emit_message(true, 'end', '')")
            figures["pg_recvlogical_s"] = seconds = round(drain_s(made, DRAIN, end), 1)
            figures["ratio_to_pg_recvlogical"] = round(seconds / figures["seconds"], 2)
    print(
        json.dumps(
            {
                "benchmark": "transaction",
                "figures": {
                    "shape": options.shape,
                    "rows": options.rows,
                    "transactions": options.transactions,
                    **figures,
                    "load_before": before,
                },
            }
        )
    )
    return 0


def _measure(
    made: Scene, shape: Shape, daemon: Process, rows: int, transactions: int
) -> dict[str, float]:
    before = made.pipeline.progress()
    assert before is not None  # noqa: S101 (the daemon has streamed)
    reader = Reader(made.kafka, progress_topic(PREFIX))
    reader.from_end()
    with made.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [DRAIN])
    disk = _Disk(daemon)
    say(f"writing {rows:,} rows in {transactions} transaction(s)")
    started = time.time()
    _write(made, shape, rows, transactions)
    committed = time.time()
    say(f"  committed after {committed - started:.1f} s; {disk.most >> 20} MiB on disk")
    told = committed
    for progress, seen in reader.states(Progress):
        done = progress.events - before.events
        if seen.at - told > 20:
            say(f"  {done:,} events")
            told = seen.at
        if done >= rows:
            break
    reader.close()
    disk.end()
    with made.connect() as connection:
        spilled = connection.execute(
            "SELECT spill_bytes, stream_bytes FROM pg_stat_replication_slots WHERE slot_name <> %s",
            [DRAIN],
        ).fetchone()
    assert spilled is not None  # noqa: S101 (the daemon's slot is there)
    figures = {
        "write_s": round(committed - started, 1),
        "seconds": round(seen.at - committed, 1),
        "events_per_s": round(rows / (seen.at - committed)),
        "rss_mb": peak_rss_mb(daemon),
        "disk_bytes": disk.most,
        "source_spill_bytes": int(spilled[0]),
        "source_stream_bytes": int(spilled[1]),
    }
    made.pipeline.wait_until_logged(made.pipeline.wal_end(), daemon)
    daemon.stop()
    return figures


def _write(made: Scene, shape: Shape, rows: int, transactions: int) -> None:
    """Write the rows in parts, in turns, and commit all at once."""
    part = max(1, min(rows // transactions, 1_000_000))
    connections = [made.connect() for _ in range(transactions)]
    try:
        for connection in connections:
            connection.execute("BEGIN")
        for number, start in enumerate(range(1, rows + 1, part)):
            end = min(start + part - 1, rows)
            connections[number % transactions].execute(shape.write, (start, end))
            say(f"  {end:,} rows written")
        for connection in connections:
            connection.execute("COMMIT")
    finally:
        for connection in connections:
            connection.close()


class _Disk:
    """Looks at how much the daemon's files without a name hold."""

    def __init__(self, daemon: Process) -> None:
        self.most = 0
        self._files = Path(f"/proc/{daemon.pid}/fd")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            held = 0
            for file in self._files.iterdir():
                try:
                    if "deleted" in str(file.readlink()):
                        held += file.stat().st_size
                except OSError:  # closed meanwhile
                    continue
            self.most = max(self.most, held)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

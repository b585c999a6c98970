"""A filled table -> rows a second into the log, next to COPY … TO STDOUT and Debezium Server.

`make bench NAME=snapshot-kafka`; README.md says what each figure means. Debezium takes part where
`make bench-peers` has fetched it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from benchmarks import debezium
from benchmarks.captured import Captured
from benchmarks.scene import PREFIX, Scene, cpu_s, load, peak_rss_mb, say, scene
from benchmarks.shapes import MIXED, NAME
from benchmarks.visible import Reader
from cdc.postgres import slot
from cdc.records.position import Position
from cdc.records.state import Phase, TableState
from cdc.records.topics import table_topic
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process
from snapshots.initial import InitialSnapshot
from snapshots.pace import Pace


class Run(NamedTuple):
    """One daemon's snapshot: seconds, processor time (µs a row), memory, and its process."""

    seconds: float
    cpu_us: float
    rss_mb: float
    daemon: Process


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.snapshot_kafka")
    parser.add_argument("--rows", type=int, default=10_000_000)
    turns = "snapshot.max.threads of each snapshot: the figures are the first number's medians"
    parser.add_argument("--threads", default="2,1,2,4,2", help=turns)
    parser.add_argument("--no-peers", action="store_true", help="leave Debezium Server out")
    options = parser.parse_args(arguments)
    threads = [int(number) for number in options.threads.split(",")]
    figures: dict[str, object] = {"rows": options.rows, "cores": os.cpu_count() or 0}
    figures["load_before"] = load()
    with scene() as made:
        fill(made, options.rows)
        figures |= _against_copy(made, options.rows, threads)
        rate = options.rows / _seconds(figures["seconds"])
        if debezium.is_there() and not options.no_peers:
            theirs = debezium.measure_snapshot(made, MIXED, options.rows)
            figures["debezium_rows_per_s"] = round(theirs.rate)
            figures["ratio_to_debezium"] = round(rate / theirs.rate, 2)
        figures["percent_read_again"] = _read_again(made, options.rows)
    print(json.dumps({"benchmark": "snapshot-kafka", "figures": figures}))
    return 0


def fill(made: Scene, rows: int) -> None:
    """Make the table, and let PostgreSQL settle."""
    say(f"a table of {rows:,} rows")
    made.create(MIXED, rows)
    made.write(MIXED, rows, 100_000)
    with made.connect() as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _seconds(value: object) -> float:
    assert isinstance(value, float)  # noqa: S101 (a figure of ours)
    return value


def _against_copy(made: Scene, rows: int, threads: Sequence[int]) -> dict[str, object]:
    """A snapshot by each number of threads, in turn, with a COPY to nowhere before and behind each.

    Before all of them one is made by which the broker compiles itself.
    """
    runs: dict[int, list[Run]] = {number: [] for number in threads}
    ratios: dict[int, list[float]] = {number: [] for number in threads}
    _turn(made, "first", threads[0], rows)
    copies = [_copy_s(made)]
    for turn, number in enumerate(threads):
        run = _turn(made, f"turn{turn}", number, rows)
        copies.append(_copy_s(made))
        runs[number].append(run)
        ratios[number].append((copies[-2] + copies[-1]) / 2 / run.seconds)
        told = f"{rows / run.seconds:,.0f} rows/s, {ratios[number][-1]:.3f} of COPY"
        say(f"  {number} threads: {told}, RSS {run.rss_mb} MiB")
    discarded = _discarded_s(made, rows)
    copies.append(_copy_s(made))
    say(f"  COPY to nowhere {rows / median(copies):,.0f} rows/s, dropped {rows / discarded:,.0f}")
    firsts = runs[threads[0]]
    seconds = {number: median(run.seconds for run in of) for number, of in runs.items()}
    return {
        "seconds": round(seconds[threads[0]], 2),
        "rows_per_s": round(rows / seconds[threads[0]]),
        "copy_rows_per_s": round(rows / median(copies)),
        "ratio_to_copy": round(median(ratios[threads[0]]), 3),
        "ratios": [round(ratio, 3) for ratio in ratios[threads[0]]],
        "ratio_to_copy_discarding": round((copies[-2] + copies[-1]) / 2 / discarded, 3),
        "rows_per_s_by_threads": {n: round(rows / one) for n, one in seconds.items()},
        "ratio_by_threads": {n: round(median(of), 3) for n, of in ratios.items()},
        "cpu_us_per_row": round(median(run.cpu_us for run in firsts), 2),
        "rss_mb": max(run.rss_mb for of in runs.values() for run in of),
    }


def _turn(made: Scene, name: str, threads: int, rows: int) -> Run:
    run = snapshot(_pipeline(made, name, threads), rows)
    run.daemon.stop()
    _forget(made, name)
    return run


def _pipeline(made: Scene, name: str, threads: int, **capture: str | int) -> Pipeline:
    """One with topics and a slot of its own."""
    folder = made.pipeline.folder / name
    folder.mkdir()
    own: dict[str, str | int] = {"slot.name": name, "snapshot.max.threads": threads, **capture}
    return Pipeline(folder, made.source, made.kafka, prefix=f"{PREFIX}{name}", capture=own)


def _forget(made: Scene, name: str) -> None:
    """Take the slot and the topics away, which would fill the disk."""
    with made.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
    admin = AdminClient(dict(made.kafka))
    for done in admin.delete_topics([f"{PREFIX}{name}.public.{NAME}"]).values():
        done.result()


def snapshot(pipeline: Pipeline, rows: int) -> Run:
    """Start a daemon, and wait until the table is whole; the clock starts with its first record."""
    daemon = pipeline.start()
    started = ended = 0.0
    reader = Reader(pipeline.settings.kafka, table_topic(pipeline.settings.capture.topic_prefix))
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
    return Run(ended - started, cpu / rows * 1e6, peak_rss_mb(daemon), daemon)


def _discarded_s(made: Scene, rows: int) -> float:
    """The same reader and encoder, whose records nobody keeps."""
    captured = Captured(made)
    settings = made.pipeline.settings
    tables = captured.tables()
    with slot.exact_snapshot(settings.source, "discarded") as exported:
        position = Position(1, exported.consistent_point, 0)
        started = time.monotonic()
        reader = InitialSnapshot(settings.source, settings.capture, Pace())
        batches = reader.read(
            exported,
            position,
            captured.described,
            lambda table: tables.encoders.encoder(tables.schemas.described(table, position)[0]),
        )
        read = sum(batch.events for batch in batches)
        seconds = time.monotonic() - started
    if read != rows:
        raise RuntimeError(f"{read} records of {rows} rows")
    return seconds


def _read_again(made: Scene, rows: int) -> float:
    """SIGKILL in the middle: how many percent of the rows are in the log twice."""
    pipeline = _pipeline(made, "killed", 2)
    daemon = pipeline.start()
    reader = Reader(pipeline.settings.kafka, table_topic(f"{PREFIX}killed"))
    reader.from_beginning()
    for state, _ in reader.states(TableState):
        if state.pages_done > state.pages_total // 2:
            break
    reader.close()
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait(10)
    daemon = pipeline.catch_up()
    daemon.stop()
    log = Reader(pipeline.settings.kafka, f"{PREFIX}killed.public.{NAME}")
    found = log.volume().records
    log.close()
    say(f"  killed in the middle, and gone on: {found:,} records of {rows:,} rows")
    return round(100 * (found - rows) / rows, 2)


def _copy_s(made: Scene) -> float:
    statement = f"COPY {NAME} TO STDOUT"
    words = [str(made.postgres.bin("psql")), "-X", "-q", "-o", os.devnull, "-c", statement]
    started = time.monotonic()
    subprocess.run(words, env=made.environment(), check=True)
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

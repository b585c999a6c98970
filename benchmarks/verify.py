"""A table's rows -> one JSON line: a verify, next to reading both sides and throwing it away.

`make bench NAME=verify`; README.md says what each figure means.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import shapes
from benchmarks.lakehouse import HEAP, Lake, captured, jvm_pid, open_spark, settle
from benchmarks.scene import Scene, cpu_s, load, own_peak_rss_mb, peak_rss_of, say, scene
from compaction.verify.options import VerifyOptions
from compaction.verify.run import verify
from sinks.run.options import RunContext, RunOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COPY = "COPY (SELECT * FROM {} WHERE ctid >= '({},0)' AND ctid < '({},0)') TO STDOUT"
_COPY_LAST = "COPY (SELECT * FROM {} WHERE ctid >= '({},0)') TO STDOUT"


class Turn(NamedTuple):
    """Seconds, and those of the processors: of this process, and of the JVM."""

    seconds: float
    own_cpu_s: float
    jvm_cpu_s: float


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.verify")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default=HEAP, help="of the driver's JVM")
    options = parser.parse_args(arguments)
    figures: dict[str, object] = {
        "rows": options.rows,
        "sessions": options.sessions,
        "cores": os.cpu_count() or 0,
        "load_before": load(),
    }
    with scene() as made:
        spark = open_spark(options.heap)
        try:
            figures |= _measure(made, spark, options)
            figures["jvm_rss_mb"] = peak_rss_of(jvm_pid(spark))
            figures["own_rss_mb"] = own_peak_rss_mb()
        finally:
            spark.stop()
    print(json.dumps({"benchmark": "verify", "figures": figures}))
    return 0


def _measure(made: Scene, spark: "SparkSession", options: argparse.Namespace) -> dict[str, object]:
    table = shapes.mixed("verified")
    made.create(table, options.rows)
    made.write(table, options.rows)
    settle(made)
    lake, daemon = captured(made, spark, "verify", "public.verified")
    lake.merge()
    say(f"{options.rows:,} rows on both sides")
    kinds: dict[str, Callable[[], None]] = {
        "verify": partial(_verify, lake, options.sessions, options.rows),
        "reading": partial(_read_both, made, lake, options.sessions),
    }
    turns: dict[str, list[Turn]] = {name: [] for name in kinds}
    for number in range(options.rounds + 1):
        for name in list(kinds)[:: 1 if number % 2 else -1]:
            turn = _timed(spark, kinds[name])
            say(f"  {name}: {turn.seconds:.1f} s, {turn.own_cpu_s + turn.jvm_cpu_s:.1f} s of CPU")
            if number:  # in the first round the JVM compiles
                turns[name].append(turn)
    daemon.stop()
    pairs = list(zip(turns["verify"], turns["reading"], strict=True))
    seconds = median(turn.seconds for turn in turns["verify"])
    return {
        "runs": [[round(ours.seconds, 2), round(bare.seconds, 2)] for ours, bare in pairs],
        "ratio_to_reading_both": round(median(a.seconds / b.seconds for a, b in pairs), 2),
        "rows_per_s": round(options.rows / seconds),
        "cpu_s": {
            name: {
                "own": round(median(turn.own_cpu_s for turn in of), 2),
                "jvm": round(median(turn.jvm_cpu_s for turn in of), 2),
            }
            for name, of in turns.items()
        },
    }


def _timed(spark: "SparkSession", run: Callable[[], None]) -> Turn:
    pid = jvm_pid(spark)
    started, own_s, jvm_s = time.monotonic(), time.process_time(), cpu_s(pid)
    run()
    return Turn(time.monotonic() - started, time.process_time() - own_s, cpu_s(pid) - jvm_s)


def _verify(lake: Lake, sessions: int, rows: int) -> None:
    """A verify, which must find nothing."""
    context = RunContext(lake.settings, lake.session, lambda _: None, RunOptions())
    report = verify(context, VerifyOptions(sessions=sessions))
    if report.exit_code != 0 or sum(table.rows for table in report.tables) != rows:
        raise RuntimeError(report.model_dump_json())


def _read_both(made: Scene, lake: Lake, sessions: int) -> None:
    """The source by COPY, the Delta table by a scan, both at once; nobody keeps a row."""
    with made.connect() as connection:
        pages = connection.execute(
            "SELECT pg_relation_size('verified') / current_setting('block_size')::int"
        ).fetchone()
    assert pages is not None  # noqa: S101 (of the table that was made)
    with ThreadPoolExecutor(sessions + 1) as executor:
        scanned = executor.submit(
            lambda: (
                lake.spark.read.format("delta")
                .load(lake.path("verified"))
                .write.format("noop")
                .mode("overwrite")
                .save()
            )
        )
        each = pages[0] // sessions + 1
        copies = [
            executor.submit(_copy, made, number * each, (number + 1) * each, number == sessions - 1)
            for number in range(sessions)
        ]
        for done in (scanned, *copies):
            done.result()


def _copy(made: Scene, first: int, end: int, is_last: bool) -> None:
    statement = (_COPY_LAST if is_last else _COPY).format("verified", first, end)
    with made.connect() as connection, connection.cursor().copy(statement.encode()) as copy:
        for _ in copy:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Sizes -> one JSON line: a merge of changes from the log, next to a bare MERGE and to a stream's.

`make bench NAME=merge`; README.md says what each figure means.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import shapes
from benchmarks.bare_merge import bare_merge, lay_ready
from benchmarks.foreach_batch import stream_into
from benchmarks.lakehouse import (
    HEAP,
    Lake,
    captured,
    figures_of,
    in_turns,
    jvm_pid,
    open_spark,
    ratio,
    rotated,
    settle,
    wait_until_logged,
)
from benchmarks.scene import Scene, load, own_peak_rss_mb, peak_rss_of, say, scene
from benchmarks.textbook import textbook
from cdc.errors import ExitCode
from cdc.settings.lakehouse import TableKind
from deploy.local.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Figures = dict[str, object]

STAGES = ("nothing", "merge", "kinds", "fifty")
KINDS: tuple[TableKind, ...] = ("current", "history", "changes")
_KINDS_PART = 4
"""The part of the other stages' rows and changes: a history takes several times as long."""
_TABLES = 50
_TABLE_ROWS = 10_000
_TABLE_CHANGES = 1_000
_NOTHING_RUNS = 5


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.merge")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default=HEAP, help="of the driver's JVM")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of these")
    options = parser.parse_args(arguments)
    stages = options.stages.split(",")
    if unknown := set(stages) - set(STAGES):
        parser.error(f"there is no stage {', '.join(unknown)}")
    figures: Figures = {"cores": os.cpu_count() or 0, "heap": options.heap, "load_before": load()}
    with scene() as made:
        if "nothing" in stages:
            figures |= _nothing(made)
        if stages != ["nothing"]:
            spark = open_spark(options.heap)
            try:
                if "merge" in stages:
                    figures |= _merge(made, spark, options)
                if "kinds" in stages:
                    figures |= _kinds(made, spark, options)
                if "fifty" in stages:
                    figures |= _fifty(made, spark, options.rounds)
                figures["jvm_rss_mb"] = peak_rss_of(jvm_pid(spark))
                figures["python_rss_mb"] = own_peak_rss_mb()
            finally:
                spark.stop()
    print(json.dumps({"benchmark": "merge", "figures": figures}))
    return 0


def _nothing(made: Scene) -> Figures:
    """Wall time of `millrace merge lakehouse` where the log has nothing new."""
    shape = shapes.mixed("idle")
    made.create(shape, 1_000)
    made.write(shape, 1_000)
    folder = made.pipeline.folder / "idle"
    folder.mkdir()
    capture = {"table.include.list": "public.idle"}
    pipeline = Pipeline(folder, made.source, made.kafka, prefix="idle", capture=capture)
    pipeline.catch_up().stop()
    _merge_alone_s(pipeline, ExitCode.OK)
    seconds = [_merge_alone_s(pipeline, ExitCode.NOTHING_TO_DO) for _ in range(_NOTHING_RUNS)]
    say(f"nothing to do: {median(seconds):.2f} s")
    return {"nothing_to_do_s": round(median(seconds), 2)}


def _merge_alone_s(pipeline: Pipeline, expected: ExitCode) -> float:
    started = time.monotonic()
    done = pipeline.millrace("merge", "lakehouse")
    seconds = time.monotonic() - started
    if done.returncode != expected:
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout} {done.stderr}")
    return seconds


def _merge(made: Scene, spark: "SparkSession", options: argparse.Namespace) -> Figures:
    """One large table: its first load, then its changes in three ways."""
    table = shapes.NAME
    say(f"merge: a table of {options.rows:,} rows, and its log")
    made.create(shapes.MIXED, options.rows)
    made.write(shapes.MIXED, options.rows, 100_000)
    lake, daemon = captured(made, spark, "large", f"public.{table}")
    first_s = lake.merge_s()
    say(f"  first load: {first_s:.1f} s")
    servers, start = made.kafka["bootstrap.servers"], lake.goes_on(table)
    with textbook(servers, start, lake.folder.with_name("textbook"), options.heap) as job:
        say(f"  the textbook's job has its table, too; now {options.changes:,} changes")
        with made.connect() as connection:
            shapes.change(connection, table, options.rows, options.changes)
        wait_until_logged(lake, daemon)
        daemon.stop()
        settle(made)
        final = lake.folder.with_name("final")
        lay_ready(spark, lake.settings.kafka, start, lake.log(), final)
        streamed = _Streamed(table, lake.folder.with_name("checkpoint"))
        took = in_turns(
            options.rounds,
            lake,
            table,
            {
                "millrace": Lake.merge,
                "bare": lambda copy: bare_merge(spark, final, copy.path(table)),
                "tuned_foreach_batch": streamed.merge,
            },
            foreach_batch=job.turn,
        )
    return {
        "rows": options.rows,
        "changes": options.changes,
        "first_s": round(first_s, 1),
        **figures_of(took),
        "ratio_to_bare_merge": ratio(took, "millrace", "bare"),
        "ratio_to_foreach_batch": ratio(took, "foreach_batch", "millrace"),
        "ratio_to_tuned_foreach_batch": ratio(took, "tuned_foreach_batch", "millrace"),
    }


class _Streamed:
    """The stream's job in Millrace's own session, and into its table.

    Every turn begins with the changes and has a checkpoint of its own.
    """

    def __init__(self, table: str, checkpoints: Path) -> None:
        self._table = table
        self._checkpoints = checkpoints
        self._turns = 0

    def merge(self, copy: Lake) -> None:
        """Merge the changes into a copy."""
        self._turns += 1
        stream_into(
            copy.spark,
            copy.settings.kafka["bootstrap.servers"],
            copy.goes_on(self._table),
            copy.path(self._table),
            str(self._checkpoints / str(self._turns)),
        )


def _kinds(made: Scene, spark: "SparkSession", options: argparse.Namespace) -> Figures:
    """One table, and each kind of derived table: the same changes into a lakehouse of each."""
    table = "kinds"
    rows, changes = options.rows // _KINDS_PART, options.changes // _KINDS_PART
    say(f"kinds: a table of {rows:,} rows, and its log")
    made.create(shapes.mixed(table), rows)
    made.write(shapes.mixed(table), rows, 100_000)
    lake, daemon = captured(made, spark, "kinds", f"public.{table}")
    lakes = {kind: replace(lake, folder=lake.folder.with_name(kind), kind=kind) for kind in KINDS}
    first_s = {kind: round(one.merge_s(), 1) for kind, one in lakes.items()}
    say(f"  first loads: {first_s}; now {changes:,} changes")
    with made.connect() as connection:
        shapes.change(connection, table, rows, changes)
    wait_until_logged(lake, daemon)
    daemon.stop()
    settle(made)
    took = rotated(
        options.rounds, {kind: partial(one.turn, table, Lake.merge) for kind, one in lakes.items()}
    )
    return {
        "rows_kinds": {kind: turns[-1].content.rows for kind, turns in took.items()},
        "changes_kinds": changes,
        "first_kinds_s": first_s,
        **figures_of(took, "_kinds"),
        "ratio_history_to_current": ratio(took, "history", "current"),
        "ratio_changes_to_current": ratio(took, "changes", "current"),
    }


def _fifty(made: Scene, spark: "SparkSession", rounds: int) -> Figures:
    """Fifty small tables: one run of Millrace, and a bare MERGE after the other."""
    tables = [f"t{number:02}" for number in range(_TABLES)]
    say(f"fifty: {_TABLES} tables of {_TABLE_ROWS:,} rows, and their log")
    for table in tables:
        made.create(shapes.mixed(table), _TABLE_ROWS)
        made.write(shapes.mixed(table), _TABLE_ROWS)
    lake, daemon = captured(made, spark, "fifty", r"public\.t\d\d")
    first_s = lake.merge_s()
    say(f"  first loads: {first_s:.1f} s; now {_TABLE_CHANGES:,} changes of each")
    with made.connect() as connection:
        for table in tables:
            shapes.change(connection, table, _TABLE_ROWS, _TABLE_CHANGES)
    wait_until_logged(lake, daemon)
    daemon.stop()
    settle(made)
    final = lake.folder.with_name("final")
    state = lake.log()
    for table in tables:
        lay_ready(spark, lake.settings.kafka, lake.goes_on(table), state, final / table)

    def bare(copy: Lake) -> None:
        for table in tables:
            bare_merge(spark, final / table, copy.path(table))

    took = in_turns(rounds, lake, tables[0], {"millrace": Lake.merge, "bare": bare})
    return {
        "first_fifty_tables_s": round(first_s, 1),
        **figures_of(took, "_fifty_tables"),
        "ratio_fifty_tables": ratio(took, "millrace", "bare"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

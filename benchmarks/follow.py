"""Commits at a steady pace -> how long after each a reader of the Delta tables sees it.

`make bench NAME=follow`: PostgreSQL, the daemon, Kafka, and `millrace merge lakehouse --follow`.

Each commit updates one row of one table, in turns. The reader (deltalake, no Spark) looks every few
milliseconds whether a table has a new version, and then reads it: a commit is seen once the row of
the newest one is. A table's commits are seen in their order, so that tells all before it, too.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from deltalake import DeltaTable, QueryBuilder

from benchmarks.scene import Scene, load, peak_rss_mb, peak_rss_of, say, scene
from cdc.records.schema import TableName
from deploy.local.processes import Process
from sinks.changes.derived import table_path
from sinks.run.plans import lakehouse_plans

_LOOK_S: Final = 0.01
_WITHIN_S: Final = 180.0
_SMALL_ROWS: Final = 1_000
_TABLE: Final = """
    CREATE TABLE {name} (id integer PRIMARY KEY, beat bigint NOT NULL, note text);
    INSERT INTO {name} SELECT i, 0, md5(i::text) || md5((-i)::text)
    FROM generate_series(1, {rows}) i;
"""
_UPDATE: Final = "UPDATE {name} SET beat = %s WHERE id = %s"
_NEWEST: Final = "SELECT max(beat) AS beat FROM t"


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.follow")
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000, help="of the last table")
    parser.add_argument("--rate", type=int, default=20, help="commits a second")
    parser.add_argument("--warm-up", type=int, default=90, help="seconds before what is measured")
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args(arguments)
    before = load()
    with scene() as made:
        found = measure(made, options)
    print(json.dumps({"benchmark": "follow", "figures": {**found, "load_before": before}}))
    return 0


@dataclass
class _Table:
    """A table, when each of its commits was made, and how many milliseconds later it was seen."""

    name: str
    folder: Path
    made: list[tuple[int, float]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    delta: DeltaTable | None = None

    def look(self) -> None:
        """Read the table, if it has a new version."""
        if self.delta is None:
            self.delta = DeltaTable(self.folder)
        else:
            version = self.delta.version()
            self.delta.update_incremental()
            if self.delta.version() == version:
                return
        answer = QueryBuilder().register("t", self.delta).execute(_NEWEST).read_all()
        newest, at = answer["beat"][0].as_py(), time.time()
        while self.made and self.made[0][0] <= newest:
            _, committed = self.made.pop(0)
            self.waits.append((committed, (at - committed) * 1_000))


def measure(made: Scene, options: argparse.Namespace) -> dict[str, Any]:
    """Commit at this pace, behind a warm-up, while the daemon streams and merges follow."""
    names = [f"beat{number}" for number in range(1, options.tables + 1)]
    with made.connect() as connection:
        for name in names:
            rows = options.rows if name == names[-1] else _SMALL_ROWS
            connection.execute(_TABLE.format(name=name, rows=rows))
    daemon = made.pipeline.catch_up()
    place = str(made.pipeline.folder / "lakehouse")
    tables = [_Table(n, Path(table_path(place, TableName("public", n)))) for n in names]
    merge = made.pipeline.follow()
    merge.wait_until(
        lambda: all(DeltaTable.is_deltatable(str(t.folder)) for t in tables), _WITHIN_S
    )
    say(f"follow: {options.rate} commits/s into {len(tables)} tables")
    since = time.time() + options.warm_up
    _watch(made, tables, options.rate, since + options.seconds)
    rss_mb = {"merge_rss_mb": peak_rss_mb(merge), "jvm_rss_mb": peak_rss_of(_jvm(merge))}
    merge.stop()
    daemon.stop()
    return _figures(tables, _runs(place, since, options.seconds), since, options.seconds) | rss_mb


def _watch(made: Scene, tables: Sequence[_Table], rate: int, until: float) -> None:
    """Commit and look, until the last commit is seen."""
    writer = threading.Thread(target=_write, args=(made, tables, rate, until))
    writer.start()
    while writer.is_alive() or any(table.made for table in tables):
        for table in tables:
            table.look()
        if time.time() > until + _WITHIN_S:
            raise TimeoutError(f"some commits weren't seen within {_WITHIN_S:.0f} s")
        time.sleep(_LOOK_S)
    writer.join()


def _write(made: Scene, tables: Sequence[_Table], rate: int, until: float) -> None:
    """Commits at times that don't depend on how long each takes."""
    started, number = time.time(), 0
    with made.connect() as connection:
        while (at := started + number / rate) < until:
            time.sleep(max(0.0, at - time.time()))
            number += 1
            table = tables[number % len(tables)]
            key = number % _SMALL_ROWS + 1
            connection.execute(_UPDATE.format(name=table.name), (number, key))
            table.made.append((number, time.time()))


def _jvm(merge: Process) -> int:
    """The merge's own child: Spark's driver."""
    children = Path(f"/proc/{merge.pid}/task/{merge.pid}/children").read_text(encoding="ascii")
    return int(children.split()[0])


def _runs(place: str, since: float, seconds: int) -> list[float]:
    """The seconds of each run that ended in the time that is measured."""
    plans = lakehouse_plans(place, _no_spark)
    outcomes = (plans.outcome_of(run) for run in plans.runs())
    return [
        outcome.seconds
        for outcome in outcomes
        if outcome is not None and since <= outcome.ts_ms / 1_000 < since + seconds
    ]


def _no_spark() -> Any:
    raise AssertionError("a local lakehouse is read without Spark")


def _figures(
    tables: Sequence[_Table], runs: Sequence[float], since: float, seconds: int
) -> dict[str, Any]:
    waits = [wait for table in tables for at, wait in table.waits if at >= since]
    cuts = quantiles(waits, n=100)
    figures = {
        "commits": len(waits),
        "p50_ms": round(cuts[49]),
        "p95_ms": round(cuts[94]),
        "p99_ms": round(cuts[98]),
        "max_ms": round(max(waits)),
        "runs": len(runs),
        "runs_per_minute": round(60 * len(runs) / seconds, 1),
        "run_s": round(median(runs), 2),
    }
    say(f"  p50 {figures['p50_ms']} ms, p99 {figures['p99_ms']} ms, {figures['run_s']} s a run")
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

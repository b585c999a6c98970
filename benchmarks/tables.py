"""Many small tables -> what one change, an idle compaction and the newest cut cost beside others.

`make bench NAME=tables`; README.md says what each figure means.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks import starts
from benchmarks.lakehouse import HEAP, Lake, captured, jvm_pid, open_spark, wait_until_logged
from benchmarks.scene import Scene, cpu_s, load, say, scene
from compaction.lakehouse import compact_lakehouse
from sinks.delta.cuts import cut_at
from sinks.run.plans import lakehouse_plans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS: Final = 100


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.tables")
    parser.add_argument("--tables", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--changes", type=int, default=8)
    options = parser.parse_args(arguments)
    figures: dict[str, object] = {"load_before": load(), "tables": options.tables}
    measured: dict[str, list[float]] = {}
    with scene() as made:
        spark = open_spark(HEAP)
        try:
            _measure(made, spark, 2, 1)  # what comes first is compiled meanwhile
            for count in options.tables:
                for name, value in _measure(made, spark, count, options.changes).items():
                    measured.setdefault(name, []).append(value)
                    say(f"  {count:,} tables: {name} {value}")
        finally:
            spark.stop()
        figures |= starts.measured(made, options.tables)
    print(json.dumps({"benchmark": "tables", "figures": figures | measured}))
    return 0


def _measure(made: Scene, spark: "SparkSession", count: int, changes: int) -> dict[str, float]:
    schema = f"of_{count}"
    with made.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        for number in range(count):
            table = f"{schema}.t{number}"
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)".encode())
            rows = f"SELECT i, 0 FROM generate_series(1, {_ROWS}) i"
            connection.execute(f"INSERT INTO {table} {rows}".encode())
    lake, daemon = captured(made, spark, schema, rf"{schema}\..*")
    try:
        first_s = lake.merge_s()
        runs_s = []
        for number in range(changes):
            with made.connect() as connection:
                connection.execute(f"UPDATE {schema}.t1 SET v = {number} WHERE id = 1".encode())
            wait_until_logged(lake, daemon)
            runs_s.append(lake.merge_s())
    finally:
        daemon.stop()
    sizes = _record_bytes(Path(lake.folder, "_millrace", "runs"))
    began = time.monotonic()
    cut_at(lakehouse_plans(str(lake.folder), lambda: spark), "latest")
    query_s = time.monotonic() - began
    return {
        "merge_s_per_table": round(first_s / count, 3),
        "merge_one_changed_s": round(median(runs_s), 2),
        "run_record_bytes": median(sizes),
        "run_record_bytes_max": max(sizes),
        "query_latest_s": round(query_s, 4),
        "compact_first_cpu_s_per_table": round(_cpu_s(spark, lambda: _compact(lake)) / count, 3),
        "compact_cpu_s_per_table": round(_cpu_s(spark, lambda: _compact(lake)) / count, 3),
    }


def _record_bytes(folder: Path) -> list[int]:
    """How large the records of each run are."""
    sizes: dict[str, int] = {}
    for path in folder.glob("[0-9]*.json"):
        sizes[path.name[:20]] = sizes.get(path.name[:20], 0) + path.stat().st_size
    return list(sizes.values())


def _compact(lake: Lake) -> None:
    for _ in compact_lakehouse(lake.settings, lake.session):
        pass


def _cpu_s(spark: "SparkSession", act: Callable[[], None]) -> float:
    """The processors' seconds that something takes, here and in the JVM."""
    jvm, own = cpu_s(jvm_pid(spark)), time.process_time()
    act()
    return round(cpu_s(jvm_pid(spark)) - jvm + time.process_time() - own, 3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

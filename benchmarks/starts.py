"""Many tables, or partitions -> how long a first start and a restart take, and what they write.

`make bench NAME=tables` has these figures, too; `make bench NAME=starts` needs no Spark for them.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Final

from benchmarks.scene import Scene, cpu_s, load, peak_rss_mb, say, scene
from benchmarks.visible import Reader
from cdc.records.topics import table_topic
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process

_ROWS: Final = 100
_PARTITION_ROWS: Final = 10
_PATIENCE_S: Final = 1_800.0


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.starts")
    parser.add_argument("--tables", type=int, nargs="*", default=[10, 100, 1_000])
    parser.add_argument("--partitions", type=int, nargs="*", default=[100, 1_000])
    options = parser.parse_args(arguments)
    figures: dict[str, object] = {"load_before": load(), "tables": options.tables}
    with scene() as made:
        figures |= measured(made, options.tables, options.partitions)
    print(json.dumps({"benchmark": "starts", "figures": figures}))
    return 0


def measured(
    made: Scene, tables: Sequence[int], partitions: Sequence[int] = (100, 1_000)
) -> dict[str, object]:
    """The figures for each number of tables, and of partitions with the last over the first."""
    figures: dict[str, object] = {}
    starts = [of_tables(made, count) for count in tables]
    for name in starts[0] if starts else ():
        figures[name] = [start[name] for start in starts]
    parts = [of_partitions(made, count) for count in partitions]
    for name in parts[0] if parts else ():
        figures[f"partitions_{name}"] = [part[name] for part in parts]
    if len(parts) > 1:
        few, many = parts[0], parts[-1]
        figures["partitions"] = partitions
        figures["partitions_ratio"] = round(many["first_start_s"] / few["first_start_s"], 1)
    return figures


def of_tables(made: Scene, count: int) -> dict[str, float]:
    """A first start with so many tables, and the next one."""
    schema = f"starts_{count}"
    with made.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        for number in range(count):
            table = f"{schema}.t{number}"
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)".encode())
            rows = f"SELECT i, 0 FROM generate_series(1, {_ROWS}) i"
            connection.execute(f"INSERT INTO {table} {rows}".encode())
    return _starts(made, schema)


def of_partitions(made: Scene, count: int) -> dict[str, float]:
    """The same with a table of so many partitions."""
    schema = f"parts_{count}"
    with made.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        columns = "(id int PRIMARY KEY, v int) PARTITION BY RANGE (id)"
        connection.execute(f"CREATE TABLE {schema}.t {columns}".encode())
        for number in range(count):
            first, end = number * _PARTITION_ROWS, (number + 1) * _PARTITION_ROWS
            part = (
                f"{schema}.p{number} PARTITION OF {schema}.t FOR VALUES FROM ({first}) TO ({end})"
            )
            connection.execute(f"CREATE TABLE {part}".encode())
        rows = f"SELECT i, 0 FROM generate_series(0, {count * _PARTITION_ROWS - 1}) i"
        connection.execute(f"INSERT INTO {schema}.t {rows}".encode())
    return _starts(made, schema)


def _starts(made: Scene, schema: str) -> dict[str, float]:
    folder = made.pipeline.folder / schema
    folder.mkdir()
    capture = {"table.include.list": rf"{schema}\..*"}
    pipeline = Pipeline(folder, made.source, made.kafka, prefix=schema, capture=capture)
    reader, ended = Reader(pipeline.settings.kafka, table_topic(schema)), Event()
    with ThreadPoolExecutor(1) as executor:  # what is compacted is seen before that
        volume = executor.submit(reader.volume, ended.is_set)
        try:
            daemon, took_s = _start_s(pipeline)
            rss_mb, used_s = peak_rss_mb(daemon), cpu_s(daemon.pid)
            daemon.stop()
        finally:
            ended.set()
        written = volume.result()
    reader.close()
    daemon, restart_s = _start_s(pipeline)
    restart_cpu_s = cpu_s(daemon.pid)
    daemon.stop()
    figures = {
        "first_start_s": round(took_s, 2),
        "first_start_cpu_s": round(used_s, 2),
        "restart_s": round(restart_s, 2),
        "restart_cpu_s": round(restart_cpu_s, 2),
        "rss_mb": round(rss_mb, 1),
        "state_records": written.records,
        "state_bytes": written.record_bytes,
        "state_record_bytes_max": written.largest,
    }
    say(f"  {schema}: {figures}")
    return figures


def _start_s(pipeline: Pipeline) -> tuple[Process, float]:
    started = time.monotonic()
    daemon = pipeline.catch_up(timeout_s=_PATIENCE_S)
    return daemon, time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

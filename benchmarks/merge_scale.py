"""Two sizes of a table -> one JSON line: what a run takes on the larger one, next to the smaller.

`make bench NAME=merge-scale`; README.md says what each figure means. Each table is begun by a run
of Millrace's, of one row; the others are appended by Spark, in files of the same size. After each
turn both are restored to that version.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from benchmarks import shapes
from benchmarks.lakehouse import (
    HEAP,
    Lake,
    captured,
    jvm_pid,
    open_spark,
    wait_until_logged,
)
from benchmarks.scene import Scene, cpu_s, load, peak_rss_of, say, scene
from deploy.local.processes import Process
from sinks.delta.transaction import DeltaTransaction

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import SparkSession

ORDERS: Final = ("key", "hash")
"""Files of a range of keys each, or as a first load writes them: with keys of the whole range."""
_COLUMNS: Final = (
    "id",
    "concat('customer ', md5(string(id))) AS name",
    "concat('c', id, '@example.org') AS email",
    "cast(id * 7919 % 100000000 / 100 AS decimal(14,2)) AS balance",
    "id % 3 = 0 AS active",
    "sqrt(id) AS score",
    "int(id % 1000) AS visits",
    "timestamp_seconds(1704067200 + id * 7) AS seen_at",
    "array(concat('group ', id % 10), concat('area', id % 7)) AS tags",
    """concat('{"zip": ', id % 99999, ', "city": "C', id % 500, '", "note": "', md5(string(id * 3)),
    '"}') AS details""",
)

_METRICS: Final = (
    "executionTimeMs",
    "materializeSourceTimeMs",
    "scanTimeMs",
    "rewriteTimeMs",
    "numTargetFilesRemoved",
    "numTargetFilesAdded",
    "numTargetBytesRemoved",
    "numTargetBytesAdded",
    "numTargetRowsUpdated",
    "numTargetRowsCopied",
    "numTargetDeletionVectorsAdded",
)


class Turn(NamedTuple):
    """A run's seconds, those of the JVM's processors, and what is told of it.

    ``read`` are the files in which it looked for rows, and their bytes, of which it may have read a
    few columns only. ``metrics`` are Delta's.
    """

    seconds: float
    cpu_s: float
    read: tuple[int, int]
    metrics: dict[str, int]


class Table(NamedTuple):
    """A table of the lakehouse, and the version that has nothing but its rows."""

    name: str
    rows: int
    version: int


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.merge_scale")
    parser.add_argument("--large", type=int, default=20_000_000)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--file-rows", type=int, default=1_000_000, help="rows of a table's file")
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0])
    parser.add_argument("--changes", type=int, default=100_000, help="of a narrow range of keys")
    parser.add_argument("--random", type=int, default=1_000, help="keys all over the table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default=HEAP, help="of the driver's JVM")
    options = parser.parse_args(arguments)
    figures: dict[str, object] = {
        **{name: value for name, value in vars(options).items() if name != "rounds"},
        "cores": os.cpu_count() or 0,
        "load_before": load(),
    }
    with scene() as made:
        spark = open_spark(options.heap)
        try:
            figures |= _measure(made, spark, options)
            figures["jvm_rss_mb"] = peak_rss_of(jvm_pid(spark))
        finally:
            spark.stop()
    print(json.dumps({"benchmark": "merge-scale", "figures": figures}))
    return 0


def _measure(made: Scene, spark: "SparkSession", options: argparse.Namespace) -> dict[str, object]:
    sizes = {"small": options.small, "large": options.large}
    for name in sizes:
        made.create(shapes.mixed(name), 1)
        made.write(shapes.mixed(name), 1)
    lake, daemon = captured(made, spark, "scale", r"public\.(small|large)")
    lake.merge()
    tables = [
        Table(name, rows, _grow(lake, name, rows, options.file_rows, options.order))
        for name, rows in sizes.items()
    ]
    files = {table.name: _delta(lake, table.name).detail().first() for table in tables}
    turns: dict[str, list[Turn]] = {}
    dice = random.Random(options.large)  # noqa: S311 (the same keys each time)
    for number in range(options.rounds + 1):
        for kind, keys in {"narrow": options.changes, "random": options.random}.items():
            for table in tables[:: 1 if number % 2 else -1]:
                turn = _turn(made, lake, daemon, table, _ids(kind, table.rows, keys, dice))
                say(f"  {kind} {table.name}: {turn.seconds:.1f} s")
                if number:  # in the first round the JVM compiles
                    turns.setdefault(f"{kind}_{table.name}", []).append(turn)
    daemon.stop()
    seconds = {name: median(turn.seconds for turn in of) for name, of in turns.items()}
    return {
        "files": {name: detail["numFiles"] for name, detail in files.items() if detail},
        "bytes": {name: detail["sizeInBytes"] for name, detail in files.items() if detail},
        "runs": {name: [round(turn.seconds, 2) for turn in of] for name, of in turns.items()},
        **{f"{name}_s": round(middle, 2) for name, middle in seconds.items()},
        "cpu_s": {name: round(median(turn.cpu_s for turn in of), 2) for name, of in turns.items()},
        "ratio_large_to_small": round(seconds["narrow_large"] / seconds["narrow_small"], 2),
        "ratio_random": round(seconds["random_large"] / seconds["random_small"], 2),
        "files_read": {name: of[-1].read[0] for name, of in turns.items()},
        "bytes_of_files_read": {name: of[-1].read[1] for name, of in turns.items()},
        "metrics": {name: of[-1].metrics for name, of in turns.items()},
    }


def _grow(lake: Lake, name: str, rows: int, file_rows: int, order: str) -> int:
    """Append the rows that the first run didn't write; the version that has them."""
    from pyspark.sql import functions as F

    from sinks.changes.names import POSITION

    say(f"a table of {rows:,} rows in files of {file_rows:,}, by {order}")
    files = max(1, rows // file_rows)
    table = _delta(lake, name)
    position = table.toDF().select(POSITION).collect()[0][0]
    ids = lake.spark.range(2, rows + 1, 1, files)
    ids = ids.repartition(files, "id") if order == "hash" else ids
    grown = ids.selectExpr(*_COLUMNS).withColumn(POSITION, F.lit(position))
    grown.write.format("delta").mode("append").save(lake.path(name))
    return int(table.history(1).collect()[0]["version"])


def _ids(kind: str, rows: int, number: int, dice: random.Random) -> str:
    """A query for the keys of a turn: side by side at some place, or from all over the table."""
    if kind == "narrow":
        first = dice.randrange(1, max(2, rows - number))
        return f"SELECT generate_series({first}::bigint, {first + number - 1}) AS i"
    ids = ",".join(map(str, dice.sample(range(1, rows + 1), number)))
    return f"SELECT unnest('{{{ids}}}'::bigint[]) AS i"


def _turn(made: Scene, lake: Lake, daemon: Process, table: Table, ids: str) -> Turn:
    """Change rows, let Millrace merge them, and take that back from the Delta table."""
    with made.connect() as connection:
        shapes.put(connection, table.name, ids)
    wait_until_logged(lake, daemon)
    used_s = cpu_s(jvm_pid(lake.spark))
    with _seen() as seen:
        seconds = lake.merge_s()
    used_s = cpu_s(jvm_pid(lake.spark)) - used_s
    delta = _delta(lake, table.name)
    entry = delta.history(1).collect()[0]
    told = entry["operationMetrics"]
    metrics = {name: int(told[name]) for name in _METRICS if name in told}
    delta.restoreToVersion(table.version)
    return Turn(seconds, used_s, (len(seen), sum(seen)), metrics)


@contextmanager
def _seen() -> Iterator[list[int]]:
    """The sizes (bytes) of the files in which runs within look for rows."""
    look, sizes = DeltaTransaction.files, list[int]()

    def files(transaction: DeltaTransaction, *condition: Any) -> Any:
        found = look(transaction, *condition)
        sizes.extend(int(found.apply(number).size()) for number in range(found.size()))
        return found

    with patch.object(DeltaTransaction, "files", files):
        yield sizes


def _delta(lake: Lake, name: str) -> "DeltaTable":
    from delta.tables import DeltaTable

    return DeltaTable.forPath(lake.spark, lake.path(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The stream's job as guides leave it: Spark's and Delta's defaults, in a JVM of its own.

Neither the session nor the table has anything of Millrace's: Delta has made the table, the job has
filled it from the topic, and goes on from its checkpoint.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.foreach_batch import COLUMNS, stream_into
from benchmarks.lakehouse import Content, Turn, turn_of
from cdc.log.offsets import Offsets
from sinks.spark.jars import class_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FROM_THE_START: Final = -2
"""Kafka's word for the earliest offset."""


class Textbook:
    """A job that has filled its table, and merges the same changes as often as it is asked to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._answer()

    def turn(self) -> Turn:
        """Let it merge what its topic has by now into a copy of its table."""
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()
        seconds, used_s, content = self._answer()
        return Turn(seconds, used_s, Content(*content))

    def _answer(self) -> Any:
        assert self._process.stdout is not None  # noqa: S101 (it is a pipe)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the textbook's job has ended: {self._process.wait()}")
        return json.loads(line)


@contextmanager
def textbook(servers: str, topic: Offsets, folder: Path, heap: str) -> Iterator[Textbook]:
    """A job whose table has what the topic has now; it is ended with the context."""
    words = [servers, json.dumps(topic), str(folder), heap]
    command = [sys.executable, "-m", "benchmarks.textbook", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Textbook(process)
        finally:
            process.terminate()


def _session(heap: str) -> "SparkSession":
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.appName("textbook")
        .master("local[2]")
        .config("spark.driver.memory", heap)
        .config("spark.driver.extraClassPath", class_path())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        # Of the machine, not of the job: nothing listens for others.
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def main(arguments: Sequence[str]) -> int:
    """Fill the table, say so, and merge into a copy for each line that is read."""
    from delta.tables import DeltaTable

    servers, offsets, place, heap = arguments
    (topic,) = json.loads(offsets).items()
    name, partitions = topic
    start: Offsets = {name: {int(number): _FROM_THE_START for number in partitions}}
    folder = Path(place)
    table, turn = folder / "job", folder / "turn"
    spark = _session(heap)
    spark.sparkContext.setLogLevel("ERROR")
    made = DeltaTable.create(spark).location(str(table / "table"))
    for column, kind in COLUMNS.items():
        made = made.addColumn(column, kind)
    made.execute()
    stream_into(spark, servers, start, str(table / "table"), str(table / "checkpoint"))
    _say([0, 0, []])
    path, checkpoint = str(turn / "table"), str(turn / "checkpoint")
    go_on = partial(stream_into, spark, servers, start, path, checkpoint)
    for _ in sys.stdin:
        _say(turn_of(spark, table, turn, go_on, path))
    spark.stop()
    return 0


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A scene's tables -> their log and its lakehouse, copies of it, and what merges take on those.

All in one JVM, with the session that Millrace's own jobs have; two cores, whatever the machine has.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.scene import Scene, cpu_s, say
from cdc.log.offsets import LogReader, LogState, Offsets
from cdc.records.schema import TableName
from cdc.settings import Settings
from cdc.settings.lakehouse import DerivedTable, LakehouseSettings, TableKind
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.log.topics import MillraceTopics
from sinks.run.options import RunContext, RunOptions
from sinks.run.plans import lakehouse_plans
from sinks.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP: Final = "2g"
"""The driver's, as Millrace's own default has it."""
_MANY: Final = 1_000_000
_LOGGED_S: Final = 1_800


class Content(NamedTuple):
    """What a table has, in a form that is soon compared."""

    rows: int
    checksum: int


class Turn(NamedTuple):
    """What was applied to a copy: seconds, those of the JVM's processors, and what came of it."""

    seconds: float
    cpu_s: float
    content: Content


@dataclass(frozen=True, slots=True)
class Lake:
    """The lakehouse of a pipeline, or a copy of it that goes on with the same log."""

    spark: "SparkSession"
    pipeline: Pipeline
    folder: Path
    kind: TableKind = "current"

    @property
    def settings(self) -> Settings:
        """How a run gets at log and lakehouse."""
        place = LakehouseSettings(path=str(self.folder), kinds=(self.kind,))
        return self.pipeline.settings.model_copy(update={"lakehouse": place})

    def session(self, _records: int = 0) -> "SparkSession":
        """Spark's session, for runs."""
        return self.spark

    def path(self, table: str) -> str:
        """Where the derived one of a table of the schema ``public`` is."""
        derived = DerivedTable(source=f"public.{table}", kind=self.kind).derived_name
        return table_path(str(self.folder), TableName.parse(derived))

    def merge(self) -> None:
        """Let Millrace apply what the log has, as one run does; raises where a table fails."""
        context = RunContext(self.settings, self.session, lambda _: None, RunOptions())
        log = MillraceTopics(context)
        done = run_lakehouse(context, log)
        log.forget()
        if done.exit_code != 0:
            raise RuntimeError("; ".join(map(str, done.tables)) or done.line())

    def merge_s(self) -> float:
        """The same, in seconds."""
        started = time.monotonic()
        self.merge()
        return time.monotonic() - started

    def goes_on(self, table: str) -> Offsets:
        """Topic and offsets from which the next run reads a table."""
        last = lakehouse_plans(str(self.folder), lambda: self.spark).last()
        assert last is not None  # noqa: S101 (there was a run)
        plan = last.tables[f"public.{table}"]
        return {plan.topic: plan.next}

    def log(self) -> LogState:
        """What the log has by now."""
        capture = self.settings.capture
        state = LogReader(self.settings.kafka).state(
            capture.topic_prefix, capture.slot_name, lambda _: None
        )
        assert state is not None  # noqa: S101 (the daemon has run)
        return state

    def turn(self, table: str, apply: Callable[["Lake"], None]) -> Turn:
        """Let something be applied to a copy of its own, and look at a table that it wrote."""
        copy = replace(self, folder=self.folder.with_name("turn"))
        return turn_of(self.spark, self.folder, copy.folder, lambda: apply(copy), copy.path(table))


def turn_of(
    spark: "SparkSession", folder: Path, copy: Path, apply: Callable[[], None], path: str
) -> Turn:
    """Copy a folder, let something be applied to the copy, and look at the Delta table there."""
    shutil.copytree(folder, copy)
    pid = jvm_pid(spark)
    started, used_s = time.monotonic(), cpu_s(pid)
    apply()
    seconds, used_s = time.monotonic() - started, cpu_s(pid) - used_s
    content = content_of(spark, path)
    shutil.rmtree(copy)
    return Turn(seconds, used_s, content)


def content_of(spark: "SparkSession", path: str) -> Content:
    """All rows of a Delta table, but for the column of Millrace's own."""
    from pyspark.sql import functions as F

    from sinks.changes.names import POSITION

    rows = spark.read.format("delta").load(path).drop(POSITION)
    found = rows.select(
        F.count("*").alias("rows"), F.bit_xor(F.xxhash64(*rows.columns)).alias("checksum")
    ).collect()[0]
    return Content(found["rows"], found["checksum"])


def open_spark(heap: str, more: Mapping[str, str] | None = None) -> "SparkSession":
    """The session of a run of many records, with ``more`` of Spark's settings."""
    options = {"spark.master": "local[2]", "spark.driver.memory": heap, **(more or {})}
    return open_session(options, "benchmark", records=_MANY)


def jvm_pid(spark: "SparkSession") -> int:
    """The process of Spark's driver, which is all there is of it."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    assert jvm is not None  # noqa: S101 (of a running session)
    return int(jvm.java.lang.ProcessHandle.current().pid())


def captured(made: Scene, spark: "SparkSession", name: str, tables: str) -> tuple[Lake, Process]:
    """A log of the tables that a regular expression names, with their rows, and its daemon."""
    folder = made.pipeline.folder / name
    folder.mkdir()
    capture = {"table.include.list": tables}
    pipeline = Pipeline(folder, made.source, made.kafka, prefix=name, capture=capture)
    lake = Lake(spark, pipeline, folder / "lakehouse")
    daemon = pipeline.start()
    wait_until_logged(lake, daemon)
    return lake, daemon


def wait_until_logged(lake: Lake, daemon: Process) -> None:
    """Wait until the log has all that is in the database by now."""
    pipeline = lake.pipeline
    pipeline.wait_until_logged(pipeline.wal_end(), daemon, timeout_s=_LOGGED_S)


def settle(made: Scene) -> None:
    """Let PostgreSQL do now what it would do while we measure."""
    with made.connect() as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def in_turns(
    rounds: int,
    lake: Lake,
    table: str,
    kinds: Mapping[str, Callable[[Lake], None]],
    **others: Callable[[], Turn],
) -> dict[str, list[Turn]]:
    """What each kind takes, each round on a fresh copy; who goes first changes.

    ``others`` have copies of their own. Raises where a table that all of them have written differs
    in the end.
    """
    turns = {name: partial(lake.turn, table, kind) for name, kind in kinds.items()}
    found = rotated(rounds, {**turns, **others})
    contents = {name: turns[-1].content for name, turns in found.items()}
    if len(set(contents.values())) > 1:
        raise RuntimeError(f"the tables differ: {contents}")
    return found


def rotated(rounds: int, turns: Mapping[str, Callable[[], Turn]]) -> dict[str, list[Turn]]:
    """So many turns of each; who goes first changes."""
    found: dict[str, list[Turn]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            turn = turns[name]()
            found[name].append(turn)
            say(f"  {name}: {turn.seconds:.1f} s, {turn.cpu_s:.1f} s of CPU")
    return found


def figures_of(turns: Mapping[str, Sequence[Turn]], suffix: str = "") -> dict[str, object]:
    """Medians, and the raw seconds of each round."""
    return {
        f"runs{suffix}": [
            [round(turn.seconds, 2) for turn in of] for of in zip(*turns.values(), strict=True)
        ],
        **{
            f"{name}{suffix}_s": round(median(turn.seconds for turn in of), 2)
            for name, of in turns.items()
        },
        f"cpu{suffix}_s": {
            name: round(median(turn.cpu_s for turn in of), 2) for name, of in turns.items()
        },
    }


def ratio(turns: Mapping[str, Sequence[Turn]], of: str, to: str) -> float:
    """What one kind takes in parts of another's time: the median of the rounds' own."""
    pairs = zip(turns[of], turns[to], strict=True)
    return round(median(one.seconds / other.seconds for one, other in pairs), 2)

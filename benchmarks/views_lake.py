"""A lakehouse -> tables of facts in it, grown by Spark, and runs of views, with what these read."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks.lakehouse import Lake
from benchmarks.scene import say
from cdc.settings import Settings
from cdc.settings.views import View
from sinks.changes.names import POSITION
from sinks.log.topics import MillraceTopics
from sinks.run.options import RunContext, RunOptions
from sinks.views.run import run_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP_ROWS: Final = 1_000
"""Rows of each group, however large the table is."""
TABLE: Final = """CREATE TABLE {} (id bigint PRIMARY KEY, bucket bigint, account bigint,
    at timestamptz, amount bigint, note text)"""
STAGES_KEPT: Final = {"spark.ui.retainedStages": "10000", "spark.ui.retainedJobs": "10000"}
"""So that Spark still knows what the tasks of a run have read."""
_ROWS: Final = """SELECT i, i / {0}, i * 7919 % {1},
    timestamptz '2024-01-01 00:00:00+00' + i * interval '1 second', i % 1000, md5(i::text)"""
_GROWN: Final = (
    "id",
    "id div {0} AS bucket",
    "id * 7919 % {1} AS account",
    "timestamp_seconds(1704067200 + id) AS at",
    "id % 1000 AS amount",
    "md5(string(id)) AS note",
)


def change(connection: psycopg.Connection, name: str, first: int, last: int) -> None:
    """Write facts with keys from one to another, over those that there are."""
    rows = _ROWS.format(GROUP_ROWS, _accounts(connection, name))
    connection.execute(
        f"INSERT INTO {name} {rows} FROM generate_series({first}::bigint, {last}) i"
        " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount"
    )
    connection.execute(
        f"UPDATE {name} SET amount = amount + 1 + extract(epoch FROM now())::bigint % 1000"
        f" WHERE id BETWEEN {first} AND {last}"
    )


def _accounts(connection: psycopg.Connection, name: str) -> int:
    found = connection.execute(f"SELECT count(*) FROM {name}_accounts").fetchone()
    assert found is not None  # noqa: S101 (an aggregate returns a row)
    return int(found[0])


@dataclass(frozen=True, slots=True)
class ViewLake:
    """A lakehouse, and what runs of views in it take."""

    base: Lake

    @property
    def spark(self) -> "SparkSession":
        """Spark's session."""
        return self.base.spark

    @property
    def settings(self) -> Settings:
        """How a run gets at log and lakehouse."""
        return self.base.settings

    def merge(self) -> None:
        """Let Millrace apply what the log has."""
        self.base.merge()

    def merge_s(self) -> float:
        """The same, in seconds."""
        return self.base.merge_s()

    def grow(self, name: str, rows: int, file_rows: int) -> None:
        """Append the facts that the first run didn't write, in files of a range of keys each."""
        from pyspark.sql import functions as F

        say(f"a table of {rows:,} rows in files of {file_rows:,}")
        path = self.base.path(name)
        position = self.spark.read.format("delta").load(path).select(POSITION).collect()[0][0]
        accounts = max(1, rows // GROUP_ROWS)
        columns = (column.format(GROUP_ROWS, accounts) for column in _GROWN)
        ids = self.spark.range(2, rows + 1, 1, max(1, rows // file_rows))
        grown = ids.selectExpr(*columns).withColumn(POSITION, F.lit(position))
        grown.write.format("delta").mode("append").save(path)

    def view_path(self, name: str) -> str:
        """Where a view's table is."""
        return f"{self.base.folder}/views/{name}"

    def run_views_s(self, *views: View) -> float:
        """Bring views to the newest cut, in seconds; raises where one fails."""
        settings = self.settings.model_copy(update={"views": views})
        context = RunContext(settings, self.base.session, lambda _: None, RunOptions())
        log = MillraceTopics(context)
        started = time.monotonic()
        done = run_views(context, log)
        seconds = time.monotonic() - started
        log.forget()
        if failed := [str(table) for table in done.tables if table.error is not None]:
            raise RuntimeError("; ".join(failed))
        return seconds

    def jobs(self) -> tuple[int, int]:
        """How many jobs Spark has run so far, and the number of the last stage."""
        stages = self._stages()
        last = int(stages.apply(0).stageId()) if stages.size() else -1
        return int(self._context().dagScheduler().numTotalJobs()), last

    def read_since(self, before: tuple[int, int]) -> tuple[int, int]:
        """The jobs since then, and the rows that their tasks read of files or of what is kept."""
        jobs, last = before
        stages, rows = self._stages(), 0
        for number in range(stages.size()):
            stage = stages.apply(number)
            if int(stage.stageId()) <= last:
                break
            rows += int(stage.inputRecords())
        return int(self._context().dagScheduler().numTotalJobs()) - jobs, rows

    def _stages(self) -> Any:
        """What Spark knows of stages, the newest first."""
        context = self._context()
        jvm: Any = self.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        context.listenerBus().waitUntilEmpty()
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001
        nothing = jvm.java.util.ArrayList()
        numbers = gateway.new_array(jvm.double, 0)
        return context.statusStore().stageList(None, False, False, numbers, nothing)

    def _context(self) -> Any:
        return self.spark.sparkContext._jsc.sc()  # noqa: SLF001

"""Views and rebuilds as typed, killed at any moment → at every cut a view equals its SELECT.

There is a view of each kind: one with a history, a view over it, a bag of rows without a key, one
that is evaluated as a whole, and one with overlapping windows.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.processes import Command, Process
from deploy.status.views import with_views
from sinks.changes.derived import derived_tables, derived_view
from sinks.changes.names import END, POSITION
from sinks.delta.cuts import Cut, cuts
from sinks.delta.query import query
from sinks.job import run_lakehouse
from sinks.run.plans import lakehouse_plans
from sinks.views.records import view_path
from sinks.views.run import run_views
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.spark import run_once
from tests.fixtures.view_lake import follow_as_if_large

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.job import RunSink

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(3000),  # it starts a JVM for each command that is killed
]
KILLS: Final = int(os.environ.get("KILLS", "6"))
SEED: Final = int(os.environ.get("SEED", "1"))
LONGEST_S: Final = 6.0
"""About so long a command writes, from its first file on."""
SCHEMA: Final = """
    CREATE TABLE item (id int PRIMARY KEY, kind text, v int, at timestamptz);
    CREATE TABLE kinds (kind text PRIMARY KEY, title text);
    CREATE TABLE plain (v text, n int);
    ALTER TABLE plain REPLICA IDENTITY FULL;
    INSERT INTO kinds SELECT 'k' || i, 'kind ' || i FROM generate_series(0, 5) i;
    INSERT INTO item SELECT i, 'k' || i % 7, i % 10,
        timestamptz '2026-01-01 00:00Z' + i * interval '7 min' FROM generate_series(1, 200) i;
    INSERT INTO plain SELECT 'v' || i % 3, i % 5 FROM generate_series(1, 40) i;
"""
CHANGES: Final = (
    "UPDATE item SET v = {v}, kind = 'k{small}' WHERE id = {one}",
    "UPDATE item SET id = {fresh} WHERE id = {one}",
    "DELETE FROM item WHERE id % 50 = {one} % 50",
    "INSERT INTO item VALUES ({fresh}, 'k{small}', {v}, now())",
    "UPDATE kinds SET title = title || '+' WHERE kind = 'k{small}'",
    "DELETE FROM kinds WHERE kind = 'k{small}'",
    "INSERT INTO kinds VALUES ('k{small}', 'new') ON CONFLICT DO NOTHING",
    "INSERT INTO plain SELECT 'v' || {v} % 3, {v} % 4 FROM generate_series(1, 2)",
    "DELETE FROM plain WHERE n = {v} % 5",
    "UPDATE plain SET n = n + 1 WHERE v = 'v' || {v} % 3",
)
VIEWS: Final = {
    "sums": "SELECT kind, count(*) AS n, sum(v) AS v FROM item GROUP BY kind",
    "titles": "SELECT s.kind, k.title, s.n FROM sums s LEFT JOIN kinds k USING (kind)",
    "bag": "SELECT v, n * 2 AS n FROM plain WHERE n > 0",
    "top": "SELECT id, v FROM item ORDER BY v DESC, id LIMIT 10",
    "hops": "SELECT window(at, '1 hour', '15 minutes') AS span, kind, count(*) AS n FROM item"
    " GROUP BY 1, 2",
}
TABLES: Final = ["public.item", "public.kinds", "public.plain"]
DONE: Final = {ExitCode.OK, ExitCode.NOTHING_TO_DO}


class Stand:
    """The source, its daemon, and its lakehouse with views."""

    def __init__(
        self, made: RunningPipeline, database: dict[str, str], spark: "SparkSession"
    ) -> None:
        self.made = made
        self.spark = spark
        self.random = random.Random(SEED)  # noqa: S311 (repeatable)
        self.source = psycopg.connect(make_conninfo(**database), autocommit=True)
        self.source.execute(SCHEMA)
        self.daemon = made.catch_up()
        self.lakehouse = made.settings.require_lakehouse()
        self.folder = Path(self.lakehouse.path)
        self._fresh = 1_000
        self._started = 0

    def change(self) -> None:
        """Some transactions of the source, and wait until the log has them."""
        for _ in range(self.random.randint(1, 4)):
            self._fresh += 1
            numbers = {
                "one": self.random.randint(1, 200),
                "small": self.random.randint(0, 8),
                "v": self.random.randint(0, 20),
                "fresh": self._fresh,
            }
            self.source.execute(self.random.choice(CHANGES).format(**numbers).encode())
        self.made.wait_until_logged(self.made.wal_end(), self.daemon)

    def merge(self, run: "RunSink") -> None:
        """Run once in this process, whose JVM is there already."""
        summary = run_once(run, self.made.settings, self.spark)
        assert summary.exit_code in DONE, summary.line()

    def start(self, *words: str) -> Process:
        """Start a command as cron would."""
        self._started += 1
        module = "tests.faults.views_large"
        every = (sys.executable, "-m", module, *words, "--config", str(self.made.config))
        environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        log = self.made.folder / f"command{self._started}.log"
        process = Command(" ".join(words), every, log, environment=environment).start()
        self.made.daemons.append(process)
        return process

    def run(self, *words: str) -> None:
        """Run a command to its end."""
        process = self.start(*words)
        assert process.wait(900) in DONE, process.command.log_end()

    def kill_somewhere(self, *words: str) -> None:
        """Start a command; kill it, its JVM, or both, mostly while it writes."""
        process = self.start(*words)
        if self.random.random() < 0.8:
            self.wait_until_written(process)
            time.sleep(self.random.choice([0.05, 1]) * self.random.uniform(0, LONGEST_S))
        else:
            time.sleep(self.random.uniform(0, 3 * LONGEST_S))
        whom = self.random.choice(["both", "command", "jvm"])
        if whom == "both":
            process.kill()
        for pid in [process.pid] if whom == "command" else children(process.pid):
            with suppress(ProcessLookupError):  # it has ended in between
                os.kill(pid, signal.SIGKILL)
        process.wait(120)
        assert process.exit_code != ExitCode.BUG, process.command.log_end()

    def wait_until_written(self, process: Process) -> None:
        """Wait until a command writes, or has ended."""
        before = self._written()
        while process.running and self._written() == before:
            time.sleep(0.01)

    def _written(self) -> tuple[int, int]:
        """How many files there are, and when one was written last."""
        times = [0]
        for path in [*self.folder.glob("_millrace/*"), *self.folder.glob("*/*/*")]:
            with suppress(FileNotFoundError):
                times.append(path.stat().st_mtime_ns)
        return len(times), max(times)

    def cuts(self) -> list[Cut]:
        """The cuts, with the views that stand there."""
        plans = lakehouse_plans(str(self.folder), lambda: self.spark)
        return with_views(self.made.settings, cuts(plans))

    def answer(self, cut: Cut, sql: str) -> list[str]:
        """The rows of a query at a cut, in an order."""
        views = [derived_view(self.lakehouse, name) for name in (*cut.views, *cut.missing_views)]
        tables = derived_tables(self.lakehouse, TABLES) | {view.name: view for view in views}
        return sorted(map(repr, query(self.spark, tables, cut, sql).collect()))

    def assert_right(self) -> None:
        """At every cut, each view that stands there equals its SELECT there; all do at the last."""
        for cut in self.cuts():
            for name in cut.views:
                shown = ", ".join(self._columns(name))
                rows = self.answer(cut, f"SELECT {shown} FROM views.{name}")
                assert rows == self.answer(cut, VIEWS[name]), f"{name} at {cut}"
            if "sums" in cut.views:
                kept = self.spark.read.format("delta").load(self._path("sums_history"))
                at = f"'{cut.position}'"
                then = kept.where(f"{POSITION} <= {at} AND ({END} IS NULL OR {END} > {at})")
                rows = sorted(map(repr, then.select("kind", "n", "v").collect()))
                assert rows == self.answer(cut, "SELECT kind, n, v FROM views.sums"), str(cut)
        assert cut.views.keys() == VIEWS.keys(), cut.missing_views

    def _columns(self, view: str) -> list[str]:
        rows = self.spark.read.format("delta").load(self._path(view))
        return [name for name in rows.columns if not name.startswith("_millrace")]

    def _path(self, view: str) -> str:
        return view_path(str(self.folder), view)


class Reader(threading.Thread):
    """Reads a Delta table in a loop, and notes what it has seen, each once."""

    def __init__(self, path: str, columns: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self._path, self._columns = path, columns
        self._ends = threading.Event()
        self.seen: list[list[str]] = []

    def read(self) -> list[str]:
        """All rows, in an order."""
        rows = query_builder(self._path)
        return sorted(repr([row[name] for name in self._columns]) for row in rows)

    def run(self) -> None:
        while not self._ends.is_set():
            if (rows := self.read()) not in self.seen:
                self.seen.append(rows)

    def end(self) -> None:
        """Read no more."""
        self._ends.set()
        self.join()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.fixture
def stand(
    pipeline: Callable[..., RunningPipeline],
    database: dict[str, str],
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
) -> Stand:
    follow_as_if_large(monkeypatch)
    views: list[dict[str, Any]] = [{"name": name, "query": sql} for name, sql in VIEWS.items()]
    views[0]["history"] = True
    return Stand(pipeline(sections={"views": views}), database, spark)


def test_killed_merges_leave_views_that_are_right_at_every_cut(stand: Stand) -> None:
    for number in range(KILLS):
        stand.change()
        if number % 5 == 4:
            stand.kill_somewhere("merge", "all")
        else:
            stand.merge(run_lakehouse)
            stand.kill_somewhere("merge", "views")
        if stand.random.random() < 0.25:
            stand.merge(run_lakehouse)
            stand.merge(run_views)
    stand.change()
    stand.run("merge", "all")
    stand.assert_right()


@pytest.mark.parametrize(
    ("words", "folder", "columns", "wrong"),
    [
        (("lakehouse", "public.item"), "public/item", ("id", "kind", "v"), "v = -1"),
        (("view", "sums"), "views/sums", ("kind", "n", "v"), "n = -1"),
    ],
    ids=["table", "view"],
)
def test_a_reader_beside_killed_rebuilds_sees_the_old_rows_or_the_new_ones(
    stand: Stand, words: tuple[str, ...], folder: str, columns: tuple[str, ...], wrong: str
) -> None:
    stand.merge(run_lakehouse)
    stand.merge(run_views)
    path = f"{stand.folder}/{folder}"
    reader = Reader(path, columns)
    right = reader.read()
    stand.spark.sql(f"UPDATE delta.`{path}` SET {wrong}")
    old = reader.read()
    assert old != right
    reader.start()
    for _ in range(max(2, KILLS // 3)):
        stand.kill_somewhere("rebuild", *words)
    stand.run("rebuild", *words)
    reader.end()
    assert reader.seen in ([old, right], [right]), reader.seen
    stand.change()
    stand.merge(run_lakehouse)
    stand.merge(run_views)
    stand.assert_right()


def test_merges_and_compactions_side_by_side_leave_views_that_are_right(stand: Stand) -> None:
    for _ in range(max(2, KILLS // 4)):
        stand.merge(run_lakehouse)
        stand.merge(run_views)
        stand.change()
        stand.merge(run_lakehouse)
        merges = [stand.start("merge", "views") for _ in range(2)]
        compaction = stand.start("compact", "lakehouse")
        codes = {merge.wait(900) for merge in merges}
        assert ExitCode.OK in codes
        assert codes <= {*DONE, ExitCode.BUSY}
        assert compaction.wait(900) == ExitCode.OK, compaction.command.log_end()
    stand.assert_right()


def test_a_merge_of_views_that_is_told_to_end_continues_with_the_next(stand: Stand) -> None:
    stand.merge(run_lakehouse)
    for signals, codes in ((1, {*DONE, ExitCode.INTERRUPTED}), (2, {ExitCode.INTERRUPTED})):
        process = stand.start("merge", "views")
        stand.wait_until_written(process)
        for _ in range(signals):
            os.kill(process.pid, signal.SIGTERM)
            time.sleep(0.2)
        assert process.wait(60) in codes, process.command.log_end()
        stand.change()
        stand.merge(run_lakehouse)
    stand.merge(run_views)
    stand.assert_right()

"""Active writers, merges killed at any moment → at every cut, Delta equals the source.

A writer's n-th transaction follows from the writer's number and n, which it records in the same
transaction. So the position of each writer at a cut determines all rows of the source then.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from sinks.changes.derived import Derived, derived_tables
from sinks.changes.names import END, POSITION
from sinks.delta.cuts import Cut, cuts
from sinks.delta.query import query
from sinks.job import run_lakehouse
from sinks.run.plans import lakehouse_plans
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import run_once
from tests.integration.sinks.test_follow import under_way

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(600),  # it starts a JVM for each merge that is killed
]
WRITERS = 2
KILLS = 1
PAUSE_S = 0.1
"""Between a writer's transactions: the slower merges are, the more they have to do."""
SEED = 7
SCHEMA = """
    CREATE TABLE parent (id int PRIMARY KEY, v int, big text);
    ALTER TABLE parent ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE child (id int PRIMARY KEY, n int,
        parent int NOT NULL REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE);
    CREATE TABLE counter (writer int PRIMARY KEY, n int);
"""
TABLES = ["public.parent", "public.child", "public.counter"]
Statement = tuple[str, tuple[Any, ...]]


@dataclass
class Writer:
    """What one writer has in the source after so many transactions."""

    number: int
    done: int = 0
    parents: dict[int, tuple[int, str]] = field(default_factory=dict)
    children: dict[int, tuple[int, int]] = field(default_factory=dict)
    _next: int = 0

    def advance(self) -> list[Statement]:
        """The next transaction."""
        self.done += 1
        chance = random.Random(f"{SEED} {self.number} {self.done}")  # noqa: S311
        statements = [self._step(chance) for _ in range(chance.randint(1, 4))]
        statements.append(("UPDATE counter SET n = %s WHERE writer = %s", (self.done, self.number)))
        return statements

    def _new(self) -> int:
        self._next += 1
        return self.number * 1_000_000 + self._next

    def _step(self, chance: random.Random) -> Statement:
        value = chance.randint(0, 9)
        steps: list[Callable[[random.Random, int], Statement]] = [self._add_parent]
        if self.parents:
            steps += [self._add_child, self._add_child, self._touch, self._move, self._remove]
        if self.children:
            steps += [self._adopt, self._drop]
        return chance.choice(steps)(chance, value)

    def _add_parent(self, chance: random.Random, value: int) -> Statement:
        key, big = self._new(), f"{chance.random()}" * 150
        self.parents[key] = (value, big)
        return "INSERT INTO parent VALUES (%s, %s, %s)", (key, value, big)

    def _add_child(self, chance: random.Random, value: int) -> Statement:
        key, parent = self._new(), chance.choice(sorted(self.parents))
        self.children[key] = (value, parent)
        return "INSERT INTO child VALUES (%s, %s, %s)", (key, value, parent)

    def _touch(self, chance: random.Random, value: int) -> Statement:
        key = chance.choice(sorted(self.parents))
        self.parents[key] = (value, self.parents[key][1])  # the large value isn't in the WAL
        return "UPDATE parent SET v = %s WHERE id = %s", (value, key)

    def _move(self, chance: random.Random, _value: int) -> Statement:
        old, new = chance.choice(sorted(self.parents)), self._new()
        self.parents[new] = self.parents.pop(old)
        for key, (n, parent) in self.children.items():
            self.children[key] = (n, new if parent == old else parent)
        return "UPDATE parent SET id = %s WHERE id = %s", (new, old)

    def _remove(self, chance: random.Random, _value: int) -> Statement:
        gone = chance.choice(sorted(self.parents))
        del self.parents[gone]
        self.children = {k: child for k, child in self.children.items() if child[1] != gone}
        return "DELETE FROM parent WHERE id = %s", (gone,)

    def _adopt(self, chance: random.Random, value: int) -> Statement:
        key, parent = chance.choice(sorted(self.children)), chance.choice(sorted(self.parents))
        self.children[key] = (value, parent)
        return "UPDATE child SET n = %s, parent = %s WHERE id = %s", (value, parent, key)

    def _drop(self, chance: random.Random, _value: int) -> Statement:
        gone = chance.choice(sorted(self.children))
        del self.children[gone]
        return "DELETE FROM child WHERE id = %s", (gone,)


@contextmanager
def writing(database: dict[str, str]) -> Iterator[list[Writer]]:
    """Writers at work until the block ends, which is after their last commit."""
    writers = [Writer(number) for number in range(1, WRITERS + 1)]
    ended = threading.Event()

    def work(writer: Writer) -> None:
        with psycopg.connect(make_conninfo(**database)) as connection:
            while not ended.wait(PAUSE_S):
                for sql, values in writer.advance():
                    connection.execute(sql, values)
                connection.commit()

    threads = [threading.Thread(target=work, args=[writer]) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def replayed(progress: dict[int, int]) -> tuple[set[Any], set[Any]]:
    """Parents and children of the source once each writer has come so far."""
    parents: set[Any] = set()
    children: set[Any] = set()
    for number, done in progress.items():
        writer = Writer(number)
        while writer.done < done:
            writer.advance()
        parents |= {(key, v, big) for key, (v, big) in writer.parents.items()}
        children |= {(key, n, parent) for key, (n, parent) in writer.children.items()}
    return parents, children


def assert_source_at(spark: "SparkSession", derived: dict[str, Derived], cut: Cut) -> int:
    """Everything at the cut is what the source had; how many transactions that were."""

    def answer(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in query(spark, derived, cut, sql).collect()]

    assert cut.missing == []
    progress = dict(answer("SELECT writer, n FROM counter"))
    parents, children = replayed(progress)
    assert set(answer("SELECT id, v, big FROM parent")) == parents
    assert set(answer("SELECT id, n, parent FROM child")) == children
    assert answer("SELECT * FROM child ANTI JOIN parent ON child.parent = parent.id") == []
    # A history tells the same, at whatever position it is asked for.
    then = f"{POSITION} <= '{cut.position}' AND ({END} IS NULL OR {END} > '{cut.position}')"
    assert set(answer(f"SELECT id, v, big FROM parent_history WHERE {then}")) == parents
    return sum(progress.values())


def test_every_cut_is_the_source_though_merges_are_killed(
    pipeline: Callable[..., RunningPipeline], spark: "SparkSession", database: dict[str, str]
) -> None:
    made = pipeline(sections={"lakehouse": {"kinds": ["current", "history", "changes"]}})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        for number in range(1, WRITERS + 1):
            connection.execute("INSERT INTO counter VALUES (%s, 0)", [number])
    lakehouse = made.settings.lakehouse
    assert lakehouse is not None
    runs = Path(lakehouse.path) / "_millrace" / "runs"
    chance = random.Random(SEED)  # noqa: S311
    daemon = made.start()
    killed = 0
    with writing(database) as writers:
        made.wait_until_logged(made.wal_end(), daemon)
        while killed < KILLS:
            merge = made.start_merge()
            merge.wait_until(lambda: runs.is_dir() and under_way(runs))
            time.sleep(chance.uniform(0, 6))
            killed += merge.running
            merge.kill()
    made.wait_until_logged(made.wal_end(), daemon)
    # Another process finishes what was killed, and goes on from there.
    summary = run_once(run_lakehouse, made.settings, spark)
    assert summary.exit_code == ExitCode.OK, summary.line()

    derived = derived_tables(lakehouse, TABLES)
    found = cuts(lakehouse_plans(lakehouse.path, lambda: spark))
    assert len(found) > KILLS
    done = [assert_source_at(spark, derived, cut) for cut in found]
    assert done == sorted(set(done)), "each cut is later than the one before"
    assert done[-1] == sum(writer.done for writer in writers)
    for table in TABLES:
        events = spark.read.format("delta").load(derived[f"{table}_changes"].path)
        places = events.select("_millrace_partition", "_millrace_offset")
        assert places.distinct().count() == events.count() > 0

"""An outage longer than retention, under a real daemon → the merge's remedy, which works."""

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode, MillraceError
from cdc.records.schema import TableName
from deploy.local.kafka import Kafka
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.run.summary import RunSummary
from tests.fixtures.indexes import forget_records
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]
SCHEMA = (
    "CREATE TABLE item (id int PRIMARY KEY, v text)",
    "CREATE TABLE note (id int, v text)",
    "ALTER TABLE note REPLICA IDENTITY FULL",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    *(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')" for name in ("item", "note", "other")),
)
LATE = ("public.item", "public.note")
"""Tables whose records are gone before a merge has read them; the second one has no key."""
COMMAND = re.compile(r"`(millrace snapshot [^`]*)`")


class Stand:
    """A source, its daemon, and the lakehouse that is derived."""

    def __init__(self, made: RunningPipeline, database: Conninfo, spark: "SparkSession") -> None:
        self.made, self.database, self.spark = made, database, spark
        self.daemon = made.start()

    def write(self, *statements: str) -> None:
        """Do it, and wait until the log has it."""
        run(self.database, *statements)
        self.made.wait_until_logged(self.made.wal_end(), self.daemon)

    def follow(self, error: MillraceError) -> None:
        """Do what an error says, as it says."""
        if "stop the daemon" in error.remedy:
            assert self.made.stop(self.daemon) == 0
        (command,) = COMMAND.findall(error.remedy)
        done = self.made.millrace(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr

    def merge(self) -> RunSummary:
        return run_once(run_lakehouse, self.made.settings, self.spark)

    def derived(self, name: str, version: int | None = None) -> list[tuple[Any, ...]]:
        path = table_path(str(self.made.folder / "lakehouse"), TableName.parse(name))
        rows = query_builder(path, "SELECT id, v FROM t", version)
        return sorted((row["id"], row["v"]) for row in rows)

    def source(self, name: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(make_conninfo(**self.database)) as source:
            return sorted(source.execute(f"SELECT id, v FROM {name}".encode()).fetchall())

    def stale(self) -> list[str]:
        """The tables that aren't as in the source."""
        names = (*LATE, "public.other")
        return [name for name in names if self.derived(name) != self.source(name)]


@pytest.mark.proof
def test_tables_that_come_too_late_are_right_again_by_what_the_merge_says(
    pipeline: Callable[..., RunningPipeline],
    database: Conninfo,
    kafka: Kafka,
    spark: "SparkSession",
) -> None:
    run(database, *SCHEMA)
    made = pipeline(sections={"log": {"topic.cleanup.policy": "delete"}})
    stand = Stand(made, database, spark)
    stand.write("SELECT 1")
    assert stand.merge().exit_code == ExitCode.OK
    before = {name: stand.derived(name) for name in LATE}

    for name in LATE:
        stand.write(f"DELETE FROM {name} WHERE id = 1", f"INSERT INTO {name} VALUES (3, 'c')")
    for table in made.tables():
        if str(table.name) in LATE:
            forget_records(kafka, table.topic, table.partitions)
    every = (*LATE, "public.other")
    stand.write(*(f"INSERT INTO {name} VALUES (4, 'd')" for name in every))
    late = stand.merge()
    assert late.exit_code == ExitCode.LOG_FORGOTTEN
    errors = {table.name: table.error for table in late.tables if table.error}
    assert errors.keys() == {*LATE}
    assert stand.stale() == [*LATE], "the other goes on"
    assert {name: stand.derived(name) for name in LATE} == before

    stand.follow(errors["public.item"])
    assert stand.merge().exit_code == ExitCode.LOG_FORGOTTEN
    assert stand.stale() == ["public.note"]
    stand.write(*(f"UPDATE {name} SET v = 'later' WHERE id = 4" for name in every))
    stand.follow(errors["public.note"])
    assert stand.merge().exit_code == ExitCode.REBUILT
    assert stand.stale() == []
    assert {name: stand.derived(name, version=0) for name in LATE} == before, "time travel"
    assert stand.merge().exit_code == ExitCode.NOTHING_TO_DO

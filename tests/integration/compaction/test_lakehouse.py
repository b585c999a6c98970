"""Compaction of Delta tables: done if it pays, and without the loss of a cut."""

import datetime as dt
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from cdc.errors import ExitCode
from compaction.lakehouse import CompactedTable, compact_lakehouse
from sinks.delta.cuts import cuts
from sinks.run.plans import lakehouse_plans
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import run
from tests.fixtures.spark import at, column, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def compacted(lakehouse: Lakehouse, *, dry_run: bool = False) -> CompactedTable:
    asked: list[threading.Thread] = []

    def session() -> "SparkSession":
        asked.append(threading.current_thread())
        return lakehouse.spark

    (compacted,) = compact_lakehouse(lakehouse.settings, session, dry_run=dry_run)
    assert asked[0] is threading.main_thread(), "two threads that ask first would start two"
    return compacted


def last_job(lakehouse: Lakehouse) -> int:
    """The number of Spark's last job."""
    return max(lakehouse.spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)


def forget_all_cuts(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ``lakehouse.keep`` had passed since the last run."""
    monkeypatch.setattr("sinks.delta.evolution._MARGIN_HOURS", 0)
    assert lakehouse.settings.lakehouse is not None
    changed = lakehouse.settings.lakehouse.model_copy(update={"keep": dt.timedelta(0)})
    lakehouse.settings = lakehouse.settings.model_copy(update={"lakehouse": changed})


def test_compaction_makes_fewer_files_and_keeps_every_cut(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compaction.files.SMALL_FILES_MIN", 1)
    monkeypatch.setattr("sinks.delta.keyed.SMALL_BYTES", 0)  # which would be written anew
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    log.row("r", at(10, 0), {"id": 0, "n": 0})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    log.row("c", at(11), {"id": 1, "n": 1})
    log.reached(at(11))
    lakehouse.merge()
    version = lakehouse.version(log.schema)
    would = compacted(lakehouse, dry_run=True)
    assert would.before.pays
    assert (would.before.files, would.before.saved, would.before.rows) == (2, 1, 2)
    assert lakehouse.version(log.schema) == version, "a dry run changes nothing"
    done = compacted(lakehouse)
    assert done.after is not None
    assert (done.after.files, done.after.pays, done.vacuumed) == (1, False, 0)

    plans = lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark)
    newest = cuts(plans)[-1].versions["public.t"].version
    assert newest == lakehouse.version(log.schema), "what was replaced goes in time"
    for number, cut in enumerate(cuts(plans)):
        version = cut.versions["public.t"].version
        rows = query_builder(f"{lakehouse.folder}/public/t", version=version)
        assert {row["n"] for row in rows} == set(range(number + 1))
    log.row("u", at(30), {"id": 0, "n": 30})
    log.reached(at(30))
    assert [table.error for table in lakehouse.merge().tables] == [None]
    forget_all_cuts(lakehouse, monkeypatch)
    assert compacted(lakehouse).vacuumed > 0, "what only older cuts need goes"
    assert max(row["n"] for row in lakehouse.rows(log.schema)) == 30


def test_a_table_that_is_good_as_it_is_costs_no_job_and_gets_no_version(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VACUUM is due once for each change, when what it has replaced isn't kept any longer."""
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    idle = log.beside(table_schema(lakehouse.prefix, "idle", column("id", "int4", 1)))
    schemas = [idle.schema, log.schema]
    log.row("r", at(10, 0), {"id": 0, "n": 0})
    idle.row("r", at(10, 0), {"id": 0})
    for each in (log, idle):
        each.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()

    def compact() -> tuple[bool, list[int]]:
        """Whether it took a job, and how many versions it has made of each table."""
        jobs, before = last_job(lakehouse), [*map(lakehouse.version, schemas)]
        done = list(compact_lakehouse(lakehouse.settings, lambda: lakehouse.spark))
        assert [table.name for table in done] == ["public.idle", "public.t"]
        assert all(table.before.files == 1 and table.before.bytes > 0 for table in done)
        after = map(lakehouse.version, schemas)
        return last_job(lakehouse) > jobs, [
            new - old for new, old in zip(after, before, strict=True)
        ]

    vacuumed = 2  # versions: its beginning, and its end
    assert compact() == (True, [vacuumed, vacuumed]), "nobody knows what was there before"
    assert compact() == (False, [0, 0])
    log.row("u", at(20), {"id": 0, "n": 1})
    log.reached(at(20))
    lakehouse.merge()
    assert compact() == (False, [0, 0])
    monkeypatch.setattr("time.time", lambda now=time.time: now() + 9 * 86_400)
    assert compact()[1] == [vacuumed, vacuumed], "each has changed since the first compaction began"
    assert compact() == (False, [0, 0])


@pytest.mark.proof
def test_an_idle_tables_cuts_do_not_need_what_compaction_has_replaced(
    lakehouse: Lakehouse,
) -> None:
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    idle = log.beside(table_schema(lakehouse.prefix, "idle", column("id", "int4", 1)))
    log.row("r", at(10, 0), {"id": 0, "n": 0})
    idle.row("r", at(10, 0), {"id": 0})
    for each in (log, idle):
        each.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    list(compact_lakehouse(lakehouse.settings, lambda: lakehouse.spark))
    log.row("u", at(20), {"id": 0, "n": 1})
    log.reached(at(20))
    lakehouse.merge()
    plans = lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark)
    before, after = cuts(plans)
    left = plans.compacted()["public.idle"].at
    assert before.versions["public.idle"] == after.versions["public.idle"] == left


@pytest.mark.proof
def test_what_no_cut_needs_any_more_is_removed(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakehouse.configure(keep="1h")
    log = lakehouse.log(column("id", "int4", 1), column("n", "int4"))
    log.row("r", at(10, 0), {"id": 0, "n": 0})
    log.table(10)
    log.reached(at(10, 0))
    lakehouse.merge()
    log.row("u", at(20), {"id": 0, "n": 1})
    log.reached(at(20))
    lakehouse.merge()
    assert compacted(lakehouse).vacuumed == 0
    forget_all_cuts(lakehouse, monkeypatch)
    assert compacted(lakehouse).vacuumed > 0
    assert lakehouse.rows(log.schema) == [{"id": 0, "n": 1}]


@pytest.mark.proof  # a JVM of its own, twice
@pytest.mark.postgres
@pytest.mark.xdist_group("jvms")
def test_the_command_compacts_several_tables_in_one_spark(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str]
) -> None:
    tables = ("a", "b", "c")
    run(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in tables))
    run(database, *(f"INSERT INTO {name} VALUES (1)" for name in tables))
    made = pipeline()
    made.catch_up()
    assert made.millrace("merge", "lakehouse").returncode == ExitCode.OK
    compacted = made.millrace("compact", "lakehouse")
    assert compacted.returncode == ExitCode.OK, compacted.stdout + compacted.stderr
    assert all(f"public.{name}" in compacted.stdout for name in tables), compacted.stdout

"""The whole way as a user types it: a daemon killed twice, merges, compaction: no differences."""

import json
import random
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from cdc.records.schema import TableName
from deploy.commands.app import app
from deploy.demo.proof import connect, index_differences, lakehouse_differences
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.run.plan import ready
from sinks.search.client import connect as connect_search
from sinks.search.documents import index_name
from sinks.search.run import run_search
from tests.faults.test_killed_daemon import SMALL, assert_log_is_whole, snapshot_lsn
from tests.fixtures.few import few
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import session
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),  # the pipeline asks for it later than groups are made
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
TABLES = {"item": True, "Odd Näme": True, "loose": False}
"""Name → whether it has a key, and so an index."""
DERIVED = [
    *(f"lakehouse: public.{table}" for table in sorted(TABLES)),
    *(f"search: public.{table}" for table, keyed in sorted(TABLES.items()) if keyed),
]
"""What a verify compares."""
SCHEMA = """
    CREATE TABLE item (
        id int PRIMARY KEY, name text, price numeric(10, 2), weight double precision, on_sale bool,
        since date, seen timestamptz, made timestamp, tags text[], doc jsonb, raw bytea, big text);
    ALTER TABLE item ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE "Odd Näme" (a int, "the key" text, v bigint, PRIMARY KEY (a, "the key"));
    CREATE TABLE loose (v int, w text); ALTER TABLE loose REPLICA IDENTITY FULL;
    INSERT INTO item SELECT
        i, 'name ' || i, i / 7.0, i * 0.1, i % 2 = 0, '2020-02-29'::date + i,
        '2024-01-01 00:00:00.123456+02'::timestamptz + i * interval '1 hour',
        '1999-12-31 23:59:59.5'::timestamp - i * interval '1 day',
        ARRAY['a' || i, NULL, 'with "quotes"'], jsonb_build_object('n', i),
        decode(lpad(to_hex(i), 8, '0'), 'hex'), repeat(md5(i::text), 100)
    FROM generate_series(1, 400) i;
    INSERT INTO "Odd Näme" SELECT i, 'k' || i, i FROM generate_series(1, 200) i;
    INSERT INTO loose SELECT i % 7, 'same' FROM generate_series(1, 40) i;
"""
CHANGES = [
    "UPDATE item SET price = price + 1, name = name || '!' WHERE id = {one}",
    "UPDATE item SET big = repeat(md5('{fresh}'), 100), tags = NULL WHERE id = {one}",
    "UPDATE item SET weight = 'NaN', on_sale = NULL WHERE id = {one}",
    "DELETE FROM item WHERE id = {one}",
    "INSERT INTO item (id, name, seen) VALUES ({fresh}, 'new', now()) ON CONFLICT DO NOTHING",
    'UPDATE "Odd Näme" SET v = v + 1 WHERE a = {one}',
    'UPDATE "Odd Näme" SET "the key" = \'z{fresh}\' WHERE a = {one}',
    "INSERT INTO loose VALUES ({one}, 'same')",
    "DELETE FROM loose WHERE ctid = (SELECT min(ctid) FROM loose)",
    "UPDATE loose SET w = 'other' WHERE ctid = (SELECT max(ctid) FROM loose)",
]


def live(connection: psycopg.Connection, seed: int, transactions: int) -> None:
    """Random transactions of a few changes, every tenth rolled back."""
    choose = random.Random(seed)  # noqa: S311 (repeatable is what it has to be)
    for number in range(transactions):
        with connection.transaction(force_rollback=number % 10 == 9):
            for _ in range(choose.randint(1, 5)):
                fresh = 1_000 * seed + number * 10 + choose.randint(0, 9)
                statement = choose.choice(CHANGES).format(one=choose.randint(1, 400), fresh=fresh)
                connection.execute(statement)


def are_shown(pipeline: RunningPipeline) -> bool:
    """Whether the stream has reached the snapshot of every table."""
    progress = pipeline.progress()
    return progress is not None and all(ready(s, progress.cut) for s in pipeline.tables())


def typed(
    pipeline: RunningPipeline,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
) -> str:
    """A command, in this process: it joins the session that is there, and stops it once."""
    stops = []

    def stop(session: "SparkSession") -> None:
        stops.append(session)

    with monkeypatch.context() as patched:
        patched.setattr(type(spark), "stop", stop)
        result = CliRunner().invoke(app, [*words, "--config", str(pipeline.config)])
    assert result.exception is None, result.output
    assert len(stops) == 1
    return result.output


def assert_derived_is_source(
    pipeline: RunningPipeline, spark: "SparkSession", database: dict[str, str]
) -> None:
    """Compare every table and every index with the source, row by row."""
    settings = pipeline.settings
    assert settings.lakehouse is not None
    assert settings.search is not None
    client = connect_search(settings.search)
    with connect(database) as connection:
        for table, keyed in TABLES.items():
            name = TableName("public", table)
            path = table_path(settings.lakehouse.path, name)
            rows, differences, examples = lakehouse_differences(
                spark, connection, name, path, pipeline.folder
            )
            assert (differences, examples) == (0, [])
            assert rows > 0
            if keyed:
                index = index_name(settings.search.index_prefix, name)
                indexed, different, keys = index_differences(
                    client, connection, name, index, pipeline.folder
                )
                assert (indexed, different, keys) == (rows, 0, [])


@pytest.mark.parametrize("is_compacted", few([False, True], False), ids=["as merged", "compacted"])
def test_killed_daemons_and_cron_runs_end_in_tables_and_indexes_that_are_the_source(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    here: None,
    is_compacted: bool,
) -> None:
    made = pipeline(search=True, **SMALL)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:4"})
        assert daemon.wait(60) == -signal.SIGKILL
        live(connection, seed=1, transactions=50)
        daemon = made.start({VARIABLE: f"{FaultPoint.BATCH_COMMITTED}:3"})
        daemon.wait_until(lambda: (p := made.progress()) is not None and p.phase == "streaming")
        live(connection, seed=2, transactions=100)
        assert daemon.wait(60) == -signal.SIGKILL
        # Until a start settles it, or Kafka's timeout, a transaction of the dead one stays open.
        daemon = made.start()
        # Behind their snapshot, which may be the third start's to reach, tables aren't shown.
        daemon.wait_until(lambda: are_shown(made))
        for run in (run_lakehouse, run_search):
            assert run_once(run, made.settings, spark, print).exit_code == ExitCode.OK
        live(connection, seed=3, transactions=50)
        connection.execute('TRUNCATE "Odd Näme"')
        connection.execute("""INSERT INTO "Odd Näme" VALUES (1, 'again', 1)""")
        made.wait_until_logged(made.wal_end(), daemon)
    assert "lakehouse: run 2" in typed(made, spark, monkeypatch, "merge", "all")
    with session(database, application_name="millrace verify"):
        said = typed(made, spark, monkeypatch, "verify").splitlines()
    (warning,) = (line for line in said if "warning" in line)
    assert "another verify already reads the source: a session of another verify (pid " in warning
    _, *verified = (line for line in said if line != warning)
    assert [line.partition(", ")[2] for line in verified] == ["0 differ"] * len(DERIVED)
    assert [line.rpartition(": ")[0] for line in verified] == DERIVED
    assert_log_is_whole(made.log(), snapshot_lsn(made))
    assert_status_tells_all(made)
    assert made.stop(daemon) == ExitCode.OK
    if is_compacted:
        lines = typed(made, spark, monkeypatch, "compact")
        assert [table for table in TABLES if f"table public.{table}: " not in lines] == []
    assert_derived_is_source(made, spark, database)
    assert_drop_leaves_nothing(made)


def assert_status_tells_all(pipeline: RunningPipeline) -> None:
    """Slot, tables and sinks are in the JSON, and nothing is behind."""
    status = pipeline.status()
    assert status["slot"]["active"]
    assert status["problems"] == []
    assert {table["phase"] for table in status["tables"]} == {"streaming"}
    assert [(sink["sink"], sink["run"], sink["failed"]) for sink in status["sinks"]] == [
        ("lakehouse", 2, {}),
        ("search", 2, {}),
    ]
    assert all(sink["keep_left_s"] > 6 * 86_400 for sink in status["sinks"])
    assert all(sink["sink_lag"]["seconds"] == 0 for sink in status["sinks"])
    shown = pipeline.millrace("wait", "--now")
    assert shown.returncode == ExitCode.OK, shown.stderr
    listed = json.loads(pipeline.millrace("runs", "--json").stdout)
    assert sorted((run["job"], run["sink"], run["run"]) for run in listed[:2]) == [
        ("verify", "lakehouse", 0),
        ("verify", "search", 0),
    ]
    assert [(run["job"], run["sink"], run["run"]) for run in listed[2:]] == [
        ("merge", "search", 2),
        ("merge", "lakehouse", 2),
    ]
    assert [sink["verified"]["failed"] for sink in status["sinks"]] == [{}, {}]


def assert_drop_leaves_nothing(pipeline: RunningPipeline) -> None:
    """Shown first, changed by --yes only, and then all of it is gone."""
    named = ("--topics", "--lakehouse", "--indexes")
    shown = pipeline.millrace("drop", *named).stdout
    assert "to remove: slot" in shown
    assert "to remove: publication" in shown
    assert pipeline.millrace("drop", "--yes", *named).returncode == ExitCode.OK
    assert pipeline.millrace("drop", *named).stdout.endswith("there is nothing to remove\n")

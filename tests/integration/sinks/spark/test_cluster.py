"""A log, merged by spark-submit on a cluster, which can lose its executors during the run."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.jars import REPOSITORY
from deploy.local.kafka import Kafka
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.spark import HandLog, at, column, table_schema
from tests.fixtures.standalone import Standalone, submit

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.xdist_group("jvms"),
]
SCHEMA = """
    CREATE TABLE item (id int PRIMARY KEY, n int, name text);
    INSERT INTO item SELECT i, i, repeat(md5(i::text), 30) FROM generate_series(1, 20000) i;
"""
CHANGES = """
    UPDATE item SET n = -n WHERE id % 3 = 0;
    DELETE FROM item WHERE id % 7 = 0;
"""
ROWS = 50
ONE_WORKER = "local-cluster[1,1,512]"
"""With one core and 512 MB."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with ExitStack() as stack:
        yield Standalone(tmp_path, stack, workers=2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_merge_leaves_its_tasks_to_executors_in_other_processes(
    stack: ExitStack,
    pipeline: Callable[..., RunningPipeline],
    kafka: Kafka,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    """Master and worker are in the driver's process, as Spark's own tests have them."""
    events = tmp_path / "events"
    events.mkdir()
    spark = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
    }
    made = pipeline(sections={"spark": spark}, **{"slot.name": "millrace"})
    columns = (column("id", "int4", 1), column("n", "int4"))
    log = HandLog(kafka, topic_prefix, table_schema(topic_prefix, "item", *columns))
    for key in range(ROWS):
        log.row("r", at(10, 0), {"id": key, "n": key})
    log.table(10)
    log.row("u", at(20), {"id": 1, "n": 100})
    log.row("d", at(20, 2), None, {"id": 2})
    log.reached(at(20, 2))

    command = (REPOSITORY / "millrace.py", "merge", "lakehouse", "--config", str(made.config))
    merge = submit(ONE_WORKER, tmp_path, stack, *command)
    assert merge.wait(240) == ExitCode.OK, merge.command.log_end()
    rows = query_builder(str(tmp_path / "lakehouse" / "public" / "item"))
    expected = {key: key for key in range(ROWS) if key != 2} | {1: 100}
    assert {row["id"]: row["n"] for row in rows} == expected
    assert "driver" not in executors_of_tasks(events)


def executors_of_tasks(events: Path) -> set[str]:
    """Which executors have run tasks, by Spark's own log of events."""
    lines = [line for path in events.rglob("events_*") for line in path.read_text().splitlines()]
    ended = [event for line in lines if (event := json.loads(line))["Event"].endswith("TaskEnd")]
    assert ended, "Spark has told of no task"
    return {event["Task Info"]["Executor ID"] for event in ended}


@pytest.mark.proof
def test_a_merge_that_loses_its_executors_ends_in_what_the_source_has(
    cluster: Standalone,
    pipeline: Callable[..., RunningPipeline],
    database: dict[str, str],
    tmp_path: Path,
) -> None:
    made = pipeline()
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.catch_up()
        connection.execute(CHANGES)
        made.wait_until_logged(made.wal_end(), daemon)
        source = connection.execute("SELECT id, n, name FROM item").fetchall()
    assert made.stop(daemon) == ExitCode.OK

    config = ("--config", str(made.config))
    merge = cluster.submit(REPOSITORY / "millrace.py", "merge", "lakehouse", *config)
    table = tmp_path / "lakehouse" / "public" / "item"
    merge.wait_until(lambda: any(table.glob("*.parquet")))
    for executor in cluster.executors():  # with the records that they kept for the merge
        os.kill(executor, signal.SIGKILL)
    assert not any(table.glob("_delta_log/*.json")), "what it wrote isn't committed"
    assert merge.wait(240) == ExitCode.OK, merge.command.log_end()

    rows = [(row["id"], row["n"], row["name"]) for row in query_builder(str(table))]
    assert sorted(rows) == sorted(source)

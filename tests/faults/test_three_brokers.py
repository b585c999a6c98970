"""Three brokers, one of them killed during a daemon's and merges' runs → the source's rows."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.kafka.admin import LogAdmin
from cdc.records.position import Position
from cdc.records.schema import TableName
from cdc.records.topics import progress_topic
from deploy.local.processes import Process
from sinks.changes.derived import table_path
from tests.fixtures.brokers import Brokers
from tests.fixtures.command_line import CommandLine
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of
from tests.fixtures.readers import query_builder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
]


@contextmanager
def written(database: dict[str, str]) -> Iterator[None]:
    """Insert, update and delete rows meanwhile."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
            number = 0
            while not stop.wait(0.03):
                number += 1
                connection.execute("INSERT INTO item VALUES (%s, 0)", [number])
                connection.execute("UPDATE item SET v = v + 1 WHERE id %% 7 = %s", [number % 7])
                connection.execute("DELETE FROM item WHERE id = %s", [number - 50])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def captured(
    brokers: Brokers, database: dict[str, str], tmp_path: Path, topic_prefix: str
) -> Iterator[RunningPipeline]:
    """Make a pipeline to the three of them."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v int)")
        connection.execute("INSERT INTO item SELECT i, 0 FROM generate_series(-9, 0) i")
    made = RunningPipeline(tmp_path, database, brokers.client_options(), prefix=topic_prefix)
    made.daemons = []
    yield made
    for daemon in made.daemons:
        daemon.kill()


@pytest.mark.proof
def test_a_leader_that_is_killed_costs_no_change(
    captured: RunningPipeline, brokers: Brokers, database: dict[str, str]
) -> None:
    """A daemon that writes goes on with the other two."""
    prefix = captured.settings.capture.topic_prefix
    daemon = captured.catch_up()
    admin = LogAdmin(captured.settings.kafka)
    topics = admin.describe(name for name in admin.partitions() if prefix in name)
    copies = {(topic.replicas, topic.config["min.insync.replicas"]) for topic in topics.values()}
    assert copies == {(3, "2")}

    with written(database):
        brokers.kill_leader(progress_topic(prefix))
        time.sleep(1)
    require_logged(captured, daemon, database)


@pytest.mark.spark
@pytest.mark.proof
def test_a_leader_that_is_killed_costs_no_run_and_no_change(
    spark: "SparkSession",
    captured: RunningPipeline,
    brokers: Brokers,
    database: dict[str, str],
    typed: CommandLine,
) -> None:
    """The merge that comes with the kill finds no leader; Spark runs already."""
    del spark
    daemon = captured.catch_up()
    with written(database):
        brokers.kill_leader(progress_topic(captured.settings.capture.topic_prefix))
        merged = typed(captured.config, "merge", "lakehouse")
    assert merged.returncode == ExitCode.OK, merged.stderr
    log = require_logged(captured, daemon, database)
    (run,) = json.loads(typed(captured.config, "cuts", "--json").stdout)
    cut = Position.parse(run["position"])
    lakehouse = captured.settings.require_lakehouse().path
    derived = query_builder(table_path(lakehouse, TableName("public", "item")))
    merged_rows = sorted((row["id"], row["v"]) for row in derived)
    assert merged_rows == rows([record for record in log if record.position <= cut])


def require_logged(
    captured: RunningPipeline, daemon: Process, database: dict[str, str]
) -> list[LogRecord]:
    """The log has what the source has, and the daemon never started over; it is stopped."""
    captured.wait_until_logged(captured.wal_end(), daemon)
    assert "starting over" not in daemon.command.log_end()
    assert captured.stop(daemon) == 0
    log = captured.log()
    with psycopg.connect(make_conninfo(**database)) as connection:
        assert rows(log) == connection.execute("SELECT id, v FROM item ORDER BY id").fetchall()
    return log


def rows(records: list[LogRecord]) -> list[tuple[int, int]]:
    """What these records add up to."""
    return sorted((row["id"], row["v"]) for row in state_of(records).values())

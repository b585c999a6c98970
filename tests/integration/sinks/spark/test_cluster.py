"""A daemon's log, merged by spark-submit on a cluster that loses its executors meanwhile."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import deploy.submit
from cdc.errors import ExitCode
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.standalone import Standalone

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.xdist_group("cluster"),
]
SCHEMA = """
    CREATE TABLE item (id int PRIMARY KEY, n int, name text);
    INSERT INTO item SELECT i, i, repeat(md5(i::text), 30) FROM generate_series(1, 20000) i;
"""
CHANGES = """
    UPDATE item SET n = -n WHERE id % 3 = 0;
    DELETE FROM item WHERE id % 7 = 0;
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with ExitStack() as stack:
        yield Standalone(tmp_path, stack, workers=2)


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
    merge = cluster.submit(Path(deploy.submit.__file__), "lakehouse", *config)
    table = tmp_path / "lakehouse" / "public" / "item"
    merge.wait_until(lambda: any(table.glob("*.parquet")))
    for executor in cluster.executors():  # with the records that they kept for the merge
        os.kill(executor, signal.SIGKILL)
    assert not any(table.glob("_delta_log/*.json")), "what it wrote isn't committed"
    assert merge.wait(120) == ExitCode.OK, merge.command.log_end()

    rows = [(row["id"], row["n"], row["name"]) for row in query_builder(str(table))]
    assert sorted(rows) == sorted(source)

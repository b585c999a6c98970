"""An active writer, and merges → the source's foreign key holds at every cut."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sinks.changes.derived import derived_tables
from sinks.delta.cuts import Cut, cuts
from sinks.job import run_lakehouse
from sinks.run.plans import lakehouse_plans
from tests.faults.test_lakehouse_under_fire import SCHEMA, TABLES, WRITERS, replayed, writing
from tests.fixtures.few import few
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("runs", few([1, 3], 1))
def test_foreign_keys_hold_at_each_cut(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    runs: int,
) -> None:
    made = pipeline()
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        for number in range(1, WRITERS + 1):
            connection.execute("INSERT INTO counter VALUES (%s, 0)", [number])
    lakehouse = made.settings.lakehouse
    assert lakehouse is not None
    made.wait_until_logged(made.wal_end(), made.start())
    with writing(database):
        for _ in range(runs):
            time.sleep(0.5)
            summary = run_once(run_lakehouse, made.settings, spark)
            assert [table.error for table in summary.tables] == [None] * len(TABLES)

    derived = derived_tables(lakehouse, TABLES)
    stood = cuts(lakehouse_plans(lakehouse.path, lambda: spark))
    assert len(stood) == runs
    for cut in stood:

        def rows(table: str, *columns: str, cut: Cut = cut) -> set[tuple[Any, ...]]:
            name = f"public.{table}"
            found = query_builder(derived[name].path, version=cut.versions[name].version)
            return {tuple(row[column] for column in columns) for row in found}

        parents, children = rows("parent", "id", "v", "big"), rows("child", "id", "n", "parent")
        assert {parent for _, _, parent in children} <= {key for key, _, _ in parents}
        writers = dict(rows("counter", "writer", "n"))
        assert (parents, children) == replayed(writers)

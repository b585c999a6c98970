"""DDL under a real daemon, on a table without writes → its columns after merges."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.changes.names import POSITION
from sinks.job import run_lakehouse
from sinks.search.client import connect
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once
from tests.integration.snapshots.test_while_streaming import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
    pytest.mark.spark,
    pytest.mark.proof,
]


def test_derived_columns_have_the_names_that_the_source_has_though_nobody_writes(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    made_of = "CREATE TABLE item (id int PRIMARY KEY, a text, n int)"
    run(database, made_of, "INSERT INTO item VALUES (1, 'x', 5), (2, NULL, 6)")
    made = pipeline(search=True)
    daemon = made.catch_up()
    assert made.settings.search is not None
    client, alias = connect(made.settings.search), f"{made.settings.search.index_prefix}public.item"
    path = table_path(str(made.folder / "lakehouse"), TableName("public", "item"))

    def merged() -> None:
        """Both sinks have what the source has, by its own SELECT."""
        for sink in (run_lakehouse, run_search):
            run_once(sink, made.settings, spark, print)
        with psycopg.connect(make_conninfo(**database), row_factory=dict_row) as source:
            expected = source.execute("SELECT * FROM item ORDER BY 1").fetchall()
        key = next(iter(expected[0]))
        hits = [hit["_source"] for hit in client.search(index=alias)["hits"]["hits"]]
        for rows in (list(query_builder(path)), hits):
            kept = [{n: row.get(n) for n in row if n != POSITION} for row in rows]
            whole = [dict.fromkeys(expected[0]) | row for row in kept]
            assert sorted(whole, key=lambda row: row[key]) == expected

    merged()
    run(database, "ALTER TABLE item RENAME n TO q")
    wait_for(lambda: made.columns("public.item") == ["id", "a", "q"])
    merged()
    run(database, "ALTER TABLE item RENAME id TO key")
    wait_for(lambda: made.columns("public.item") == ["key", "a", "q"])
    merged()
    assert made.stop(daemon) == 0

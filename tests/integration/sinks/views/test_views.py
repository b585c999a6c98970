"""DML at a source, merges → at each cut every view equals its SELECT over the tables there."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.settings.views import View
from sinks.job import run_lakehouse
from sinks.views.run import run_views
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import run_once
from tests.fixtures.view_lake import fails_where_whole, follow_as_if_large
from tests.integration.sinks.views.comparison import assert_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.run.summary import RunSummary

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(900),
]

SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, name text, country text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(12, 2), at timestamptz);
CREATE TABLE clicks (page text, ms int); ALTER TABLE clicks REPLICA IDENTITY FULL;
INSERT INTO customers SELECT n, 'c' || n, (ARRAY['de', 'fr', NULL])[n % 3 + 1]
    FROM generate_series(1, 12) n;
INSERT INTO orders SELECT n, n % 15, n * 1.5, '2024-01-01Z'::timestamptz + n * interval '7 minutes'
    FROM generate_series(1, 60) n;
INSERT INTO clicks SELECT 'p' || n % 4, n FROM generate_series(1, 20) n;
"""
VIEWS = {
    "by_country": (
        "SELECT c.country, count(*) AS orders, sum(o.amount) AS amount FROM orders o"
        " JOIN customers c ON o.customer = c.id GROUP BY c.country"
    ),
    "enriched": (
        "SELECT o.id, o.amount, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.id"
    ),
    "largest": (
        "SELECT * FROM (SELECT customer, id, amount, row_number() OVER"
        " (PARTITION BY customer ORDER BY amount DESC) AS place FROM orders) WHERE place <= 2"
    ),
    "spans": (
        "SELECT window(at, '1 hour', '30 minutes') AS span, count(*) AS n FROM orders GROUP BY 1"
    ),
    "pages": "SELECT page, ms % 5 AS rest FROM clicks",
    "rich": "SELECT country FROM by_country WHERE amount > 100",
    "last_three": "SELECT id FROM orders ORDER BY at DESC LIMIT 3",
}
CHANGES = (
    "UPDATE orders SET amount = amount + 1 WHERE id % 7 = 0; DELETE FROM orders WHERE id = 9",
    "UPDATE customers SET country = 'it' WHERE id = 3; INSERT INTO customers VALUES (13, 'x', 'e')",
    (
        "UPDATE orders SET id = id + 1000 WHERE id < 5; DELETE FROM customers WHERE id = 2;"
        " INSERT INTO clicks VALUES ('p1', 1), ('p9', 3)"
    ),
    "SELECT 1",
    "TRUNCATE orders; INSERT INTO orders VALUES (1, 1, 5, now())",
)


def merged(made: RunningPipeline, spark: "SparkSession") -> "RunSummary":
    """Merge the tables, then the views."""
    run_once(run_lakehouse, made.settings, spark)
    return run_once(run_views, made.settings, spark, fails_where_whole)


@pytest.mark.parametrize("size", ["small", "as if large"])
def test_views_equal_their_queries_at_each_cut(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    size: str,
) -> None:
    if size != "small":
        follow_as_if_large(monkeypatch)
    made = pipeline()
    views = tuple(View(name=name, query=query) for name, query in VIEWS.items())
    made.settings = made.settings.model_copy(update={"views": views})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        assert_right(made, spark)
        for change in CHANGES:
            connection.execute(change)
            made.wait_until_logged(made.wal_end(), daemon)
            assert_right(made, spark)


def assert_right(made: RunningPipeline, spark: "SparkSession") -> None:
    """Every view has, after a merge, what Spark itself makes of its query."""
    summary = merged(made, spark)
    assert [(table.name, str(table.error)) for table in summary.tables if table.error] == []
    assert_equal(made.settings, spark)

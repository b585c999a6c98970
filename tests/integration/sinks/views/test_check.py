"""`millrace views check` on tables that were merged: how each view is kept, or why it can't be."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.settings.views import View
from sinks.job import run_lakehouse
from sinks.log.topics import MillraceTopics
from sinks.run.options import RunContext, RunOptions
from sinks.views.check import ViewReport, check_views
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]

SCHEMA: Final = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric);
CREATE TABLE visits (page text, ms int); ALTER TABLE visits REPLICA IDENTITY FULL;
INSERT INTO customers VALUES (1, 'a'); INSERT INTO orders VALUES (1, 1, 2.5);
"""
KEPT: Final = {
    "by_name": (
        "SELECT c.name,\n  sum(o.amount) AS amount\nFROM orders o JOIN customers c"
        " ON o.customer = c.id GROUP BY c.name"
    ),
    "first_orders": (
        "SELECT * FROM (SELECT id, customer,"
        " row_number() OVER (PARTITION BY customer ORDER BY id % 2) AS place FROM orders)"
        " WHERE place = 1"
    ),
    "dearest": "SELECT id FROM orders ORDER BY CAST(amount AS double) DESC LIMIT 3",
    "pages": "SELECT page, ms FROM visits",
    "totals": "SELECT name FROM by_name WHERE amount > 1",
    "differing": "SELECT c.id FROM customers c JOIN customers d ON c.id < d.id GROUP BY c.id",
}
REFUSED: Final = {
    "no_table": "SELECT *\nFROM nowhere",
    "no_column": "SELECT\n  nothing FROM orders",
    "by_chance": "SELECT id,\n rand() AS r FROM orders",
    "listed": "SELECT customer, collect_list(id) AS ids FROM orders GROUP BY customer",
    "one": "SELECT id FROM other",
    "other": "SELECT id FROM one",
    "twice": "SELECT o.id, c.id FROM orders o JOIN customers c ON o.customer = c.id",
    "typo": "SELECT id\nFORM orders",
}


def test_each_view_says_how_it_is_kept_or_why_it_cant_be(
    pipeline: Callable[..., RunningPipeline], spark: "SparkSession", database: dict[str, str]
) -> None:
    made = pipeline()
    views = tuple(View(name=name, query=query) for name, query in {**KEPT, **REFUSED}.items())
    made.settings = made.settings.model_copy(update={"views": views})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as source:
        source.execute(SCHEMA)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run_once(run_lakehouse, made.settings, spark)
    context = RunContext(made.settings, lambda _records=0: spark, print, RunOptions())
    reports = {report.name: report for report in check_views(context)}
    from deploy.views.command import lines

    for r in reports.values():
        print("\n".join(lines(r)))
        print(r)
    assert 0

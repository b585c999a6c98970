"""`millrace views check` on merged tables: how each view is kept, or why it can't be."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.settings.views import View
from deploy.views.command import lines
from sinks.job import run_lakehouse
from sinks.run.options import RunContext, RunOptions
from sinks.views.check import check_views
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
        " row_number() OVER (PARTITION BY customer ORDER BY id % 2) AS place,"
        " first_value(amount) OVER (PARTITION BY customer ORDER BY id % 2"
        " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS before FROM orders)"
        " WHERE place = 1"
    ),
    "dearest": "SELECT id FROM orders ORDER BY CAST(amount AS double) DESC LIMIT 3",
    "pages": "SELECT * FROM visits",
    "totals": "SELECT name FROM by_name WHERE amount > 1",
    "differing": "SELECT c.id FROM customers c JOIN customers d ON c.id < d.id GROUP BY c.id",
}
SAID: Final = {
    "by_name": (
        "by_name: kept by its changes\n"
        "  reads: public.customers, public.orders\n"
        "  identity of a row: name\n"
        "  computed together: name\n"
        "  implicit cast: CAST(o.amount AS DOUBLE), line 2, column 3"
    ),
    "first_orders": (
        "first_orders: kept by its changes\n"
        "  reads: public.orders\n"
        "  identity of a row: public.orders.id\n"
        "  computed together: customer\n"
        "  made definite: place, before: rows that are equal in ORDER BY are ordered by their key"
    ),
    "dearest": (
        "dearest: evaluated whole at each run\n"
        "  because: LIMIT\n"
        "  reads: public.orders\n"
        "  identity of a row: public.orders.id\n"
        "  made definite: LIMIT: rows that are equal in ORDER BY are ordered by their key"
    ),
    "pages": (
        "pages: kept by its changes\n"
        "  reads: public.visits\n"
        "  identity of a row: none: the view is a bag of rows\n"
        "  computed together: page, ms"
    ),
    "totals": (
        "totals: kept by its changes\n"
        "  reads: views.by_name\n"
        "  identity of a row: rows of views.by_name\n"
        "  computed together: rows of views.by_name"
    ),
    "differing": (
        "differing: kept by its changes\n"
        "  reads: public.customers\n"
        "  identity of a row: id\n"
        "  computed together: id\n"
        "  read whole: public.customers, when public.customers changes"
    ),
}
REFUSED: Final = {
    "first_of_equals": (
        "SELECT id, first_value(id) OVER (PARTITION BY customer ORDER BY amount) AS f FROM orders",
        "",
        "first_value(orders.id) has several valid results",
    ),
    "no_table": ("SELECT *\nFROM nowhere", ", line 2, column 6", "nowhere"),
    "no_column": ("SELECT\n  nothing FROM orders", ", line 2, column 3", "nothing"),
    "by_chance": ("SELECT id,\n rand() AS r FROM orders", ", line 2, column 2", "rand()"),
    "listed": (
        "SELECT customer, collect_list(id) AS ids FROM orders GROUP BY customer",
        ", line 1, column 18",
        "collect_list(orders.id) has several valid results",
    ),
    "one": ("SELECT id FROM other", "", "in a circle: one → other → one"),
    "other": ("SELECT id FROM one", "", "in a circle: other → one → other"),
    "twice": (
        "SELECT o.id, c.id FROM orders o JOIN customers c ON o.customer = c.id",
        "",
        "several columns with one name: id",
    ),
    "hidden": ("SELECT id AS _millrace_deleted FROM orders", "", "names that Millrace uses"),
    "long": (
        "SELECT id, array(INTERVAL '1' DAY) AS days FROM orders",
        "",
        "column days is of type array<interval day>, which Delta tables don't support",
    ),
    "typo": ("SELECT id\nFORM orders", ", line 2, column 6", "Syntax error"),
}


def test_each_view_says_how_it_is_kept_or_why_it_cant_be(
    pipeline: Callable[..., RunningPipeline], spark: "SparkSession", database: dict[str, str]
) -> None:
    made = pipeline()
    queries = KEPT | {name: query for name, (query, _, _) in REFUSED.items()}
    views = tuple(View(name=name, query=query) for name, query in queries.items())
    made.settings = made.settings.model_copy(update={"views": views})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as source:
        source.execute(SCHEMA)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run_once(run_lakehouse, made.settings, spark)
    said: list[str] = []
    context = RunContext(made.settings, lambda _records=0: spark, said.append, RunOptions())
    reports = {report.name: report for report in check_views(context)}
    assert said == []
    assert list(reports) == [*KEPT, *REFUSED]
    assert {name: "\n".join(lines(reports[name])) for name in KEPT} == SAID
    errors = {name: reports[name].error for name in REFUSED}
    assert {name: error.where for name, error in errors.items() if error is not None} == {
        name: f"[[views]] {name}{place}" for name, (_, place, _) in REFUSED.items()
    }
    for name, (_, _, what) in REFUSED.items():
        assert what in str(errors[name])

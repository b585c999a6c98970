"""examples/views/*.sql over a source that changes → at each cut, Spark's own results."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.settings.views import View
from deploy.demo import flights
from sinks.job import run_lakehouse
from sinks.run.options import RunContext, RunOptions
from sinks.views.check import check_views
from sinks.views.run import run_views
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import run_once
from tests.fixtures.view_lake import fails_where_whole
from tests.integration.sinks.views.comparison import assert_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.run.summary import RunSummary

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]

EXAMPLES: Final = Path(__file__).parents[4] / "examples" / "views"
ON_FLIGHTS: Final = ("delays_by_hour", "impossible_travel", "trending_destinations")
EVERY_RUN: Final = ("card_fraud", "stock")
OF_EVERY_RUN: Final = "public.payments,public.products,public.receipts,public.orders"
ALL: Final = tuple(sorted(path.stem for path in EXAMPLES.glob("*.sql")))
GENERATED: Final = tuple(name for name in ALL if name not in ON_FLIGHTS)
SCHEMA: Final = """
SET timezone = 'UTC';
CREATE TABLE customers (id int PRIMARY KEY, name text, country text);
CREATE TABLE products (id int PRIMARY KEY, name text);
CREATE TABLE receipts (id int PRIMARY KEY, product int, quantity int);
CREATE TABLE orders (id int PRIMARY KEY, customer int, product int, quantity int, status text,
    at timestamptz);
CREATE TABLE payments (id int PRIMARY KEY, card text, amount numeric, at timestamptz);
CREATE TABLE page_views (id int PRIMARY KEY, user_id int, details jsonb, at timestamptz);
CREATE TABLE clicks (id int PRIMARY KEY, user_id int, page text, at timestamptz);
CREATE TABLE purchases (id int PRIMARY KEY, user_id int, at timestamptz);
CREATE TABLE posts (id int PRIMARY KEY, author text, body text, at timestamptz);
INSERT INTO customers SELECT n, 'c' || n, (ARRAY['de', 'fr', NULL])[n % 3 + 1]
    FROM generate_series(1, 20) n;
INSERT INTO products SELECT n, 'p' || n FROM generate_series(1, 12) n;
INSERT INTO receipts SELECT n, n % 10 + 1, n % 17 FROM generate_series(1, 60) n;
INSERT INTO orders SELECT n, n % 25, n % 11 + 1, n % 3 + 1,
    (ARRAY['new', 'paid', 'cancelled'])[n % 3 + 1], '2024-01-01'::timestamptz + n * interval '7 min'
    FROM generate_series(1, 150) n;
INSERT INTO payments SELECT n, 'card ' || n % 9, n * 1.25,
    '2024-01-01'::timestamptz + n * n % 601 * interval '5 s' FROM generate_series(1, 200) n;
INSERT INTO page_views SELECT n, n % 7, jsonb_build_object('page', '/' || n % 5),
    '2024-01-01'::timestamptz + n * n % 97 * interval '11 min' FROM generate_series(1, 120) n;
INSERT INTO clicks SELECT n, n % 6, '/' || n % 4, '2024-01-01'::timestamptz + n * interval '3 s'
    FROM generate_series(1, 120) n;
INSERT INTO purchases SELECT n, n % 5, '2024-01-01'::timestamptz + n * interval '8500 ms'
    FROM generate_series(1, 40) n;
INSERT INTO posts SELECT n, 'a' || n % 4, 'Grüße, day ' || n % 8 || ' #tag_' || n % 3 || ' #x' || n,
    '2024-01-01'::timestamptz + n * interval '9 min' FROM generate_series(1, 60) n;
"""
GENERATED_CHANGES: Final = (
    # Changes of rows of each kind.
    """
    UPDATE orders SET status = 'cancelled' WHERE id % 10 = 0; DELETE FROM orders WHERE id = 7;
    INSERT INTO receipts VALUES (1000, 12, 5); DELETE FROM receipts WHERE id = 3;
    UPDATE payments SET card = 'card 0' WHERE id IN (30, 31); DELETE FROM payments WHERE id = 45;
    UPDATE customers SET country = 'it' WHERE id = 3; DELETE FROM page_views WHERE id = 9;
    UPDATE posts SET body = 'Nothing but #tag_1' WHERE id = 5; DELETE FROM clicks WHERE id = 12;
    """,
    # Rows that are late, and a customer that comes after the orders.
    """
    INSERT INTO payments SELECT 1000 + n, 'card 4', 9, '2024-01-01 00:20Z'::timestamptz
        + n * interval '1 min' FROM generate_series(1, 4) n;
    INSERT INTO page_views SELECT 1000 + n, n, '{"page": "/late"}', '2024-01-01 02:00Z'
        FROM generate_series(1, 7) n;
    INSERT INTO clicks VALUES (1000, 1, '/late', '2024-01-01 00:00:04Z');
    INSERT INTO purchases VALUES (1000, 2, '2024-01-01 00:01:00Z');
    INSERT INTO posts VALUES (1000, 'a9', 'late #tag_2', '2023-12-31 23:59Z');
    INSERT INTO customers VALUES (24, 'late', NULL);
    """,
    # Keys, and a column that no view reads.
    """
    UPDATE customers SET id = 100 WHERE id = 5; UPDATE orders SET id = id + 5000 WHERE id < 4;
    UPDATE products SET id = 100 WHERE id = 2; UPDATE payments SET id = 5000 WHERE id = 50;
    ALTER TABLE orders ADD COLUMN note text; ALTER TABLE payments ADD COLUMN note int DEFAULT 3;
    UPDATE orders SET note = 'x' WHERE id = 20; UPDATE page_views SET id = 5000 WHERE id = 60;
    """,
    """
    TRUNCATE orders; TRUNCATE payments, page_views; TRUNCATE clicks, posts;
    INSERT INTO orders VALUES (1, 24, 12, 4, 'new', '2024-02-01Z');
    INSERT INTO payments SELECT n, 'card', 1, '2024-01-01Z', n FROM generate_series(1, 7) n;
    INSERT INTO page_views VALUES (1, 1, '{}', '2024-01-01Z'), (2, 1, NULL, '2024-01-01Z');
    INSERT INTO posts VALUES (1, NULL, NULL, NULL), (2, 'a', '#b #b', '2024-01-01Z');
    """,
)
FLIGHTS: Final = """
DROP TABLE weather, planes;
DELETE FROM flights WHERE tailnum IS DISTINCT FROM 'N705TW' AND (month <> 3 OR day > 3);
"""
"""Three days, and an aircraft that is often at two airports."""
FLIGHTS_CHANGES: Final = (
    """
    UPDATE flights SET dep_delay = dep_delay + 45 WHERE day = 3; DELETE FROM flights WHERE day = 2;
    UPDATE airlines SET name = 'Other' WHERE carrier = 'UA';
    UPDATE airports SET lon = lon + 20 WHERE faa = 'LAX';
    """,
    """
    UPDATE airports SET faa = 'XXX' WHERE faa = 'JFK';
    UPDATE flights SET tailnum = 'N1' WHERE day = 1; ALTER TABLE flights ADD COLUMN note text;
    UPDATE airlines SET carrier = 'ZZ' WHERE carrier = 'AA';
    """,
    "TRUNCATE flights",
)


@pytest.fixture
def by_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep small views by what changes, too."""
    monkeypatch.setattr("sinks.views.target.WHOLE_BYTES", 0)
    monkeypatch.setattr("sinks.views.target.TOUCHED_MAX", float("inf"))


class KeptExamples:
    """Examples that are kept as views over a source that changes."""

    def __init__(
        self, made: RunningPipeline, spark: "SparkSession", names: tuple[str, ...]
    ) -> None:
        views = tuple(View(name=name, file=EXAMPLES / f"{name}.sql") for name in names)
        made.settings = made.settings.model_copy(update={"views": views})
        self._made, self._spark, self._views = made, spark, views
        self._daemon = made.start()

    def merge(self) -> "RunSummary":
        """Merge all that is committed; every view has what Spark itself makes of its query."""
        made = self._made
        made.wait_until_logged(made.wal_end(), self._daemon)
        run_once(run_lakehouse, made.settings, self._spark)
        summary = run_once(run_views, made.settings, self._spark, self._report)
        assert [str(table.error) for table in summary.tables if table.error] == []
        assert_equal(made.settings, self._spark)
        return summary

    def assert_kept_by_changes(self) -> None:
        """None is evaluated whole, and none leaves a cast to Spark."""
        settings, spark = self._made.settings, self._spark
        context = RunContext(settings, lambda _records=0: spark, pytest.fail, RunOptions())
        kept = {report.name: (report.way, report.casts) for report in check_views(context)}
        assert kept == dict.fromkeys(kept, ("changes", ()))

    @staticmethod
    def _report(line: str) -> None:
        """None of the changes has a view loaded again."""
        fails_where_whole(line)
        assert "loading a new table" not in line


@pytest.mark.usefixtures("by_changes")
@pytest.mark.parametrize(
    ("names", "changes"),
    [
        pytest.param(EVERY_RUN, ("".join(GENERATED_CHANGES[:-1]),), id="few"),
        pytest.param(GENERATED, GENERATED_CHANGES, id="all", marks=pytest.mark.proof),
    ],
)
def test_examples_equal_their_queries_at_each_cut(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    names: tuple[str, ...],
    changes: tuple[str, ...],
) -> None:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as source:
        source.execute(SCHEMA)
        lists = {"table.include.list": OF_EVERY_RUN} if names == EVERY_RUN else {}
        examples = KeptExamples(pipeline(**lists), spark, names)
        assert [table.name for table in examples.merge().tables if not table.inserted] == []
        examples.assert_kept_by_changes()
        for change in changes:
            source.execute(change)
            examples.merge()


@pytest.mark.proof
@pytest.mark.usefixtures("by_changes")
@pytest.mark.timeout(900)
def test_examples_on_flights_equal_their_queries_at_each_cut(
    pipeline: Callable[..., RunningPipeline], spark: "SparkSession", database: dict[str, str]
) -> None:
    flights.load(database)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as source:
        source.execute(FLIGHTS)
        examples = KeptExamples(pipeline(), spark, ON_FLIGHTS)
        assert [table.name for table in examples.merge().tables if not table.inserted] == []
        examples.assert_kept_by_changes()
        for change in FLIGHTS_CHANGES:
            source.execute(change)
            examples.merge()

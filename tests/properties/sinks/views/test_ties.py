"""Queries without an order of equal rows → Spark's results with the key as the order."""

from typing import TYPE_CHECKING, Final

import pytest

from sinks.views.evaluate import Evaluation
from sinks.views.operators import NEW
from tests.properties.sinks.views.comparison import Comparison, bag, compared
from tests.properties.sinks.views.tables import Row, Rows, TwoCuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EQUAL: Final[tuple[Row, ...]] = tuple((number, number % 2, 1.5, None) for number in (5, 3, 4, 1, 2))
"""Rows that aren't in the order of their keys."""


@pytest.fixture(scope="module")
def comparison(spark: "SparkSession") -> Comparison:
    """Compare in a session of its own."""
    return compared(spark)


@pytest.mark.parametrize(
    ("sql", "definite"),
    [
        pytest.param(
            "SELECT id, row_number() OVER (ORDER BY x) AS n FROM a",
            "SELECT id, row_number() OVER (ORDER BY x, id) AS n FROM a",
            id="a window without PARTITION BY",
        ),
        pytest.param(
            "SELECT id, lag(id) OVER (PARTITION BY 1 ORDER BY x) AS n FROM a",
            "SELECT id, lag(id) OVER (ORDER BY x, id) AS n FROM a",
            id="a window over a literal",
        ),
        pytest.param(
            "SELECT id, lag(id) OVER (PARTITION BY x ORDER BY d) AS n FROM a",
            "SELECT id, lag(id) OVER (PARTITION BY x ORDER BY d, id) AS n FROM a",
            id="a window with PARTITION BY",
        ),
        pytest.param(
            "SELECT id FROM a ORDER BY x DESC LIMIT 2",
            "SELECT id FROM a ORDER BY x DESC, id LIMIT 2",
            id="LIMIT",
        ),
        pytest.param(
            "SELECT (SELECT id FROM a ORDER BY x DESC LIMIT 1) AS n",
            "SELECT (SELECT id FROM a ORDER BY x DESC, id LIMIT 1) AS n",
            id="LIMIT in a scalar subquery",
        ),
        pytest.param(
            "SELECT id FROM a WHERE id > (SELECT max(i) FROM (SELECT id AS i, row_number()"
            " OVER (PARTITION BY x ORDER BY d) AS n FROM a UNION ALL SELECT 0, 1) WHERE n = 1)",
            "SELECT id FROM a WHERE id > (SELECT max(i) FROM (SELECT id AS i, row_number()"
            " OVER (PARTITION BY x ORDER BY d, id) AS n FROM a UNION ALL SELECT 0, 1) WHERE n = 1)",
            id="a window in a scalar subquery",
        ),
    ],
)
def test_equal_rows_are_ordered_by_their_key(
    comparison: Comparison, sql: str, definite: str
) -> None:
    query = comparison.read(sql)
    assert [text for text in query.definite if text.endswith("are ordered by their key")]
    rows = {"a": Rows((), EQUAL)}
    tables = {"a": TwoCuts(comparison.spark, "a", rows["a"])}
    whole = Evaluation(comparison.catalyst, query, tables).whole(NEW).collect()
    shown = (row[: len(query.columns)] for row in whole)
    assert bag(shown) == bag(comparison.own(definite, rows))

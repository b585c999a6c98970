"""Queries that were once kept wrong, or not at all."""

from typing import TYPE_CHECKING, Final

import pytest

from cdc.errors import ConfigError
from sinks.views.evaluate import Evaluation
from sinks.views.operators import NEW
from tests.properties.sinks.views.comparison import Comparison, compared
from tests.properties.sinks.views.tables import Rows, TwoCuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS: Final = {
    "a": Rows(
        ((1, 1, 1.5, None), (2, None, None, None), (3, 2, -0.0, None)),
        ((1, 1, 1.5, None), (2, 0, None, None), (4, None, 0.0, None)),
    ),
    "b": Rows(((1, 1, [1]), (2, None, None)), ((1, 1, [1]), (2, 0, None), (3, None, None))),
    "k": Rows(((1, 1.5), (None, None), (2, 0.0)), ((1, 1.5), (None, None), (3, -0.0))),
}


LARGE: Final = {
    "a": Rows(ROWS["a"].old, (*ROWS["a"].new, (5, 5, 0.0, None))),
    "b": Rows(ROWS["b"].old, (*ROWS["b"].new, (4, 5, None))),
    "k": ROWS["k"],
}
"""Tables that are looked up by values."""


@pytest.fixture(scope="module")
def comparison(spark: "SparkSession") -> Comparison:
    """Compare in a session of its own."""
    return compared(spark)


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(
            "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.x = a.x"
            " AND EXISTS (SELECT 1 FROM k WHERE k.x = b.id))",
            id="a condition of an inner subquery was lost",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "SELECT a.id, b.id AS other FROM a JOIN b ON a.x = b.x AND a.id IN (SELECT x FROM k)",
            id="a union had a key and its column as one",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "SELECT l.y, r.e FROM (SELECT DISTINCT x AS y FROM k) l"
            " FULL JOIN (SELECT DISTINCT x AS e FROM b WHERE id > 1) r ON l.y = r.e",
            id="null was the key of rows of either side",
        ),
        pytest.param(
            "SELECT q.id, e, k.d, a.x FROM (SELECT id, e FROM b LATERAL VIEW explode(l) t AS e) q"
            " FULL JOIN k ON k.x = e FULL JOIN a ON a.x = e",
            id="the number of an element had no type below two joins",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "SELECT session_window(at, '5 minutes').start AS s, count(*) AS n FROM (SELECT id, l,"
            " timestamp'2024-01-01' + make_dt_interval(0, 0, x) AS at FROM b) GROUP BY 1,"
            " session_window(at, '5 minutes')",
            id="a column that no group wants was missing where it is evaluated whole",
        ),
        pytest.param(
            "SELECT id FROM a WHERE x >= (SELECT min(x) FROM b)",
            id="a subquery that isn't correlated read nothing",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "SELECT id, e FROM a LATERAL VIEW explode(sequence(1, (SELECT max(x) FROM k))) t AS e",
            id="a subquery in explode wasn't seen",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "WITH RECURSIVE r(n) AS (SELECT id FROM a UNION ALL SELECT n + 1 FROM r WHERE n < 4)"
            " SELECT n FROM r",
            id="a recursive CTE wasn't read",
        ),
    ],
)
def test_the_rows_are_what_spark_makes_of_them(comparison: Comparison, sql: str) -> None:
    assert comparison.fault(sql, comparison.read(sql), ROWS) is None


def test_rows_that_each_task_gets_a_copy_of_may_be_looked_for_on_either_side_of_an_exists(
    comparison: Comparison,
) -> None:
    sql = "SELECT id, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.x = a.x) OR d > 0"
    query = comparison.read(sql)
    assert query.reasons == ()
    assert comparison.fault(sql, query, LARGE) is None


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT id FROM a TABLESAMPLE (50 PERCENT)", "TABLESAMPLE has several valid results"),
        (
            "SELECT count(*) AS n FROM (SELECT 'x' COLLATE UTF8_LCASE AS t FROM a) GROUP BY t",
            "t: its collation treats different texts as equal",
        ),
        (
            "SELECT a.id, q.i FROM a, LATERAL (SELECT id AS i FROM b WHERE x = a.x LIMIT 1) q",
            "a subquery has a LIMIT for each row",
        ),
        (
            "SELECT id FROM a WHERE id > (SELECT max(id) FROM a TABLESAMPLE (50 PERCENT))",
            "TABLESAMPLE has several valid results",
        ),
        ("SELECT first_value(id) OVER (ORDER BY x) AS f FROM a", "rows of its frame are equal"),
    ],
    ids=[
        "a sample",
        "a collation",
        "a limit for each row",
        "a sample inside",
        "the first of equals",
    ],
)
def test_queries_that_cant_be_kept_are_refused(comparison: Comparison, sql: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        comparison.read(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT /*+ BROADCAST(b) */ a.id FROM a JOIN b ON a.x = b.x",
        "SELECT id, x FROM a DISTRIBUTE BY x",
        "SELECT /*+ REPARTITION(2) */ id FROM a CLUSTER BY x",
    ],
)
def test_how_rows_are_spread_is_no_reason_to_read_all(comparison: Comparison, sql: str) -> None:
    query = comparison.read(sql)
    assert query.reasons == ()
    assert comparison.fault(sql, query, ROWS) is None


def test_the_last_of_equals_is_the_greatest(comparison: Comparison) -> None:
    query = comparison.read("SELECT max_by(id, d) AS last, min_by(id, d) AS first FROM a")
    assert [text.split(": ", 1)[1] for text in query.definite] == [
        "of rows equal in its order, the greatest value",
        "of rows equal in its order, the least value",
    ]
    equal = Rows((), ((2, None, 0.0, None), (3, None, -0.0, None), (9, None, None, None)))
    tables = {"a": TwoCuts(comparison.spark, "a", equal)}
    (row,) = Evaluation(comparison.catalyst, query, tables).whole(NEW).collect()
    assert (row["last"], row["first"]) == (3, 2)

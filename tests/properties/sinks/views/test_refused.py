"""Queries with several right answers → refused, with their place; those with one → read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from cdc.errors import ConfigError
from sinks.run.cuts import Instant
from sinks.views.analysis import Analysis
from sinks.views.catalyst import Catalyst
from sinks.views.evaluate import Evaluation
from sinks.views.operators import NEW
from sinks.views.pinned import pinned
from sinks.views.query import ViewQuery
from tests.fixtures.spark import at
from tests.properties.sinks.views.relations import TABLES
from tests.properties.sinks.views.tables import KEYS, Rows, TwoCuts, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from sinks.views.sources import Sources

pytestmark = pytest.mark.spark

AT_US: Final = 1_709_202_030_123_456
CUT: Final = Instant(run=1, cut=at(1), versions={})


@dataclass(frozen=True, slots=True)
class Columns:
    """A table of the grammar, as an analysis sees it."""

    columns: "StructType"


class Grammar:
    """The tables of the grammar, as what a view may read."""

    names: Final[Mapping[str, str]] = {name: name for name in TABLES}

    def schema(self, version: Columns, name: str) -> str:
        """Its columns, as JSON."""
        del name
        return str(version.columns.json())

    def key(self, name: str, cut: Instant) -> tuple[str, ...]:
        """What tells its rows apart."""
        del cut
        return KEYS[name]


class Reading:
    """Reads queries in a session like those that views have."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = pinned(spark)
        self._versions = {name: Columns(frame(self.spark, name, ()).schema) for name in TABLES}

    def read(self, sql: str) -> ViewQuery:
        """A query, or what is wrong with it."""
        analysis = Analysis(self.spark, cast("Sources", Grammar()), "v")
        versions: Any = self._versions
        return analysis.query(analysis.parsed(sql), versions, CUT)


@pytest.fixture(scope="module")
def reading(spark: "SparkSession") -> Reading:
    return Reading(spark)


OPEN: Final = (
    "listagg(string(id), ',') WITHIN GROUP (ORDER BY x)",
    "array_sort(collect_list(id), (l, r) -> l % 2 - r % 2)",
    "max_by(id, x, 2)",
    "min_by(id, x, 2)",
    "max_by(map(id, x), x)",
    "min_by(map(id, x), x)",
    "histogram_numeric(id, 2)",
    "approx_top_k(x, 1)",
    "kll_sketch_agg_bigint(id)",
    "hll_sketch_agg(id)",
)
DEFINITE: Final = (
    "listagg(string(id), ',') WITHIN GROUP (ORDER BY x, id)",
    "array_sort(collect_list(id))",
    "sort_array(collect_list(id), false)",
    "max_by(id, x)",
)


@pytest.mark.parametrize("sql", OPEN)
def test_what_has_several_right_answers_is_refused(reading: Reading, sql: str) -> None:
    with pytest.raises(ConfigError, match="has several valid results") as refused:
        reading.read(f"SELECT x,\n  {sql} AS v\nFROM a GROUP BY x")
    assert refused.value.where.startswith("v, line 2, column ")


@pytest.mark.parametrize("sql", DEFINITE)
def test_what_has_one_right_answer_is_followed(reading: Reading, sql: str) -> None:
    assert reading.read(f"SELECT x, {sql} AS v FROM a GROUP BY x").reasons == ()


@pytest.mark.parametrize(
    "sql",
    [
        "DATE 'today'",
        "TIMESTAMP_NTZ 'now'",
        "CAST(' Tomorrow' AS date)",
        "current_user()",
    ],
)
def test_what_depends_on_the_clock_or_the_user_is_refused(reading: Reading, sql: str) -> None:
    with pytest.raises(ConfigError, match="has several valid results") as refused:
        reading.read(f"SELECT id,\n  {sql} AS v FROM a")
    assert refused.value.where == "v, line 2, column 3"


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("current_time(2)", "10:20:30.12"),
        ("current_date()", "2024-02-29"),
        ("now()", "2024-02-29 10:20:30.123456"),
        ("DATE '2024-01-01'", "2024-01-01"),
    ],
)
def test_the_time_is_the_cuts(reading: Reading, sql: str, shown: str) -> None:
    query = reading.read(f"SELECT CAST({sql} AS string) AS v FROM a")
    a = {"a": TwoCuts(reading.spark, "a", Rows((), ((1, 1, 1.5, None),)))}
    (row,) = Evaluation(Catalyst(reading.spark), query, a, AT_US).whole(NEW).collect()
    assert row["v"] == shown


def test_a_pivot_has_one_right_answer(reading: Reading) -> None:
    sql = "SELECT * FROM (SELECT id, x, d FROM a) PIVOT (sum(d) FOR x IN (0, 1))"
    assert reading.read(sql).reasons == ()

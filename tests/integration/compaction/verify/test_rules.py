"""The values of a derived table that are compared, on Spark's side."""

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from compaction.verify.rules import Rule, rule_of
from sinks.changes.shape import DerivedField
from sinks.changes.types import spark_type
from tests.fixtures.spark import column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TYPES = ("int4", "int8", "bool", "float4", "float8", "date", "timestamp", "timestamptz", "time")


def test_a_text_that_cannot_be_read_is_another_value_than_null(spark: "SparkSession") -> None:
    compared = []
    for kind in TYPES:
        of = column("x", kind)
        assert spark_type(of) != "string"
        rule = rule_of(DerivedField("1", "x", "string", of, {}), "")
        assert isinstance(rule, Rule)
        compared.append(rule.compared)
    row = spark.sql("SELECT 'abc' AS x, CAST(NULL AS string) AS none").select(
        *(each(F.col("x")) for each in compared), *(each(F.col("none")) for each in compared)
    )
    values = [*(row.first() or ())]
    assert None not in values[: len(TYPES)]
    assert values[len(TYPES) :] == [None] * len(TYPES)

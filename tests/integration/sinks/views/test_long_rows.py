"""The rows that decide which others a view updates: few are copied per task, except long ones."""

from typing import TYPE_CHECKING

import pytest

from sinks.spark.jvm import kept, kept_bytes
from sinks.views import evaluate
from sinks.views.catalyst import Catalyst
from sinks.views.evaluate import SparkAlgebra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_few_rows_are_copied_unless_they_are_long(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "COPIED_BYTES_MAX", 1 << 20)
    catalyst = Catalyst(spark)
    algebra = SparkAlgebra(catalyst, {}, lambda _: None)

    def is_copied(rows: int, length: int) -> bool:
        plan = algebra.kept(catalyst.plan(_rows(spark, rows, length)))
        return "ResolvedHint" in str(plan)

    assert is_copied(200, 10)
    assert not is_copied(200, 10_000)
    assert is_copied(99, 10)
    rows, _ = kept(_rows(spark, 200, 10_000))
    assert 2_000_000 < kept_bytes(rows) < 4_000_000


def _rows(spark: "SparkSession", rows: int, length: int) -> "DataFrame":
    return spark.range(rows).selectExpr(f"concat(id, repeat('x', {length})) AS text")

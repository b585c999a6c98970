"""Spark's real errors that quote values → no other table is blamed."""

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from cdc.errors import DiskError, SinkError
from sinks.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]
VALUES = (
    "java.lang.OutOfMemoryError: Java heap space",
    "Permission denied",
    "x\nCaused by: java.io.IOException: No space left on device",
)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_or_sql_that_an_error_quotes_blames_nothing(
    spark: "SparkSession", value: str
) -> None:
    rows = spark.createDataFrame([(value,)], ["note"])
    for asked in ("CAST(note AS INT) AS n", f"mesage = '{value}' AS n"):
        with pytest.raises(SinkError) as raised, explained("public.item", timedelta(days=1)):
            rows.selectExpr(asked).collect()
        assert type(raised.value) is SinkError


def test_a_folder_that_cant_be_made_is_the_file_systems(spark: "SparkSession") -> None:
    rows = spark.range(1)
    with pytest.raises(DiskError) as raised, explained("public.item", timedelta(days=1)):
        rows.write.format("delta").save("file:///proc/millrace/item")
    assert "the lakehouse can't be written" in raised.value.what

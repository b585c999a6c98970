"""A merge with a limit for the tasks' results on the driver → a table of many times that size."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
LIMIT = "spark.driver.maxResultSize"
LIMIT_BYTES = 256 * 1024
ROW_BYTES = 64 * 1024
ROWS = 12 * LIMIT_BYTES // ROW_BYTES


@contextmanager
def limited(spark: "SparkSession") -> Iterator[None]:
    """Jobs within fail whose tasks send more than that to the driver, all together."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set(LIMIT, str(LIMIT_BYTES))
    yield
    conf.remove(LIMIT)


def text(lsn: int, key: int) -> str:
    """What can't be compressed to much less."""
    return random.Random(lsn * ROWS + key).randbytes(ROW_BYTES // 2).hex()  # noqa: S311


def test_a_merge_sends_no_rows_to_the_driver(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.delta.keyed.SMALL_BYTES", 0)  # as in a large table
    log = lakehouse.log(column("id", "int4", 1), column("large", "text"))
    for key in range(ROWS):
        log.row("r", at(10, 0), {"id": key, "large": text(10, key)})
    log.table(10)
    log.reached(at(10, 0))
    with limited(lakehouse.spark):
        assert [table.error for table in lakehouse.merge().tables] == [None]
        for key in range(0, ROWS, 2):
            log.row("u", at(20, key + 1), {"id": key, "large": text(20, key)})
        log.reached(at(20, ROWS))
        assert [table.error for table in lakehouse.merge().tables] == [None]
        with pytest.raises(Exception, match="is bigger than"):
            lakehouse.table("public.t").collect()
    rows = {row["id"]: row["large"] for row in lakehouse.rows(log.schema)}
    assert rows == {key: text(10 if key % 2 else 20, key) for key in range(ROWS)}

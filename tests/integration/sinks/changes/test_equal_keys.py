"""Keys that differ for PostgreSQL, but not for Spark → one row."""

import pytest

from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.proof
def test_a_key_of_zero_is_one_key_whatever_its_sign(lakehouse: Lakehouse) -> None:
    log = lakehouse.log(column("f", "float8", 1), column("v", "text"))
    for number in range(3):
        log.row("r", at(100, 0), {"f": number or -0.0, "v": "minus"})
    log.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()
    log.row("d", at(200, 1), None, {"f": -0.0})
    log.tombstone(at(200, 1), {"f": -0.0})
    log.row("c", at(200, 1), {"f": 0.0, "v": "plus"})
    log.reached(at(200, 1))
    lakehouse.merge()
    assert [(row["f"], row["v"]) for row in lakehouse.rows(log.schema)] == [
        (0.0, "plus"),
        (1.0, "minus"),
        (2.0, "minus"),
    ]

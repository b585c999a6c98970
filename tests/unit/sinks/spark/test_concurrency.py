"""A driver's cores, memory and [spark] → how many tables a run works on at the same time."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from cdc.errors import ConfigError
from sinks.spark.concurrency import SETTING, by_machine, tables_at_once
from sinks.spark.session import RECORDS_FEW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1 << 30


def session(given: str) -> "SparkSession":
    conf = {SETTING: given}
    return cast("SparkSession", SimpleNamespace(conf=conf))


@pytest.mark.parametrize(
    ("cores", "memory", "records", "at_once"),
    [
        pytest.param(1, GIB, 10, 2, id="half of a small table's time is planning"),
        pytest.param(8, 2 * GIB, 10, 8, id="few records need a core each"),
        pytest.param(32, 2 * GIB, 10, 16, id="and some memory"),
        pytest.param(8, 2 * GIB, RECORDS_FEW, 2, id="many need a GiB each"),
        pytest.param(8, int(3.6 * GIB), RECORDS_FEW, 4, id="a JVM doesn't count all of its heap"),
        pytest.param(8, 64 * GIB, None, 8, id="nobody knows how many: as if there were many"),
    ],
)
def test_tables_at_once_follow_the_cores_and_the_memory(
    cores: int, memory: int, records: int | None, at_once: int
) -> None:
    assert by_machine(cores, memory, records) == at_once


def test_the_user_can_set_another_number() -> None:
    assert tables_at_once(session("5"), 10) == 5


@pytest.mark.parametrize("given", ["0", "-1", "many", "", "2.5"])
def test_what_is_no_number_of_tables_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"spark\.millrace\.tablesAtOnce .* isn't a positive"):
        tables_at_once(session(given))

"""A short run of `make ddl-chaos`: each kind of DDL once, and every table is the source's."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ddl_chaos.kinds import UNSUPPORTED
from tests.ddl_chaos.run import Plan, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(600),  # it has a PostgreSQL and a Kafka of its own
]
SEED = 1


def test_whatever_ddl_there_is_every_derived_table_is_the_sources(
    server_folder: Path, spark: "SparkSession"
) -> None:
    outcome = run(Plan(1, SEED, frozenset(UNSUPPORTED)), server_folder, spark)
    assert outcome.complaints == [], f"make ddl-chaos DURATION=1 SEED={SEED}"
    assert outcome.is_good
    assert outcome.ddl.keys() == {*outcome.plan.kinds, *outcome.plan.harmless}
    assert outcome.merges > 0

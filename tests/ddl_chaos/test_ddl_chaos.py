"""A short run of `make ddl-chaos`, and its teeth: a daemon that is blind to DDL is found out."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ddl_chaos.blind import BLINDNESSES
from tests.ddl_chaos.harmless import HARMLESS
from tests.ddl_chaos.kinds import KINDS
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
BLIND_S = 30


def test_whatever_ddl_there_is_every_derived_table_is_the_sources(
    server_folder: Path, spark: "SparkSession"
) -> None:
    outcome = run(Plan(1, SEED, frozenset()), server_folder, spark)
    assert outcome.complaints == [], f"make ddl-chaos DURATION=1 SEED={SEED}"
    assert outcome.is_good
    assert outcome.ddl.keys() == {*outcome.plan.kinds, *outcome.plan.harmless}
    assert outcome.merges > 0


@pytest.mark.proof
@pytest.mark.parametrize("blindness", BLINDNESSES)
def test_a_daemon_that_is_blind_to_ddl_is_found_out(
    server_folder: Path, spark: "SparkSession", blindness: str
) -> None:
    others = {*KINDS, *HARMLESS} - {*BLINDNESSES[blindness].kinds}
    outcome = run(Plan(BLIND_S, SEED, frozenset(others), blindness), server_folder, spark)
    assert outcome.different + outcome.rereads["needless_rereads"] > 0
    assert not outcome.is_good

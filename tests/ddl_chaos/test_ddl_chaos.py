"""A short run of `make ddl-chaos`, and a check of it: it detects a daemon that is blind to DDL."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.ddl_chaos.blind_runs import blind_plan, find_out
from tests.ddl_chaos.comparison import Form
from tests.ddl_chaos.harmless import HARMLESS
from tests.ddl_chaos.kinds import KINDS
from tests.ddl_chaos.run import Plan, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.native("it starts, kills and wipes servers of its own"),
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.timeout(900),  # it has a PostgreSQL and a Kafka of its own
]
SEED = 1
TOUCHED: Final = ("labelled", "bulk.loaded", "events")
"""By some of the DDL in FEW; the rest of it may be about any table, by the log alone."""
HARDLY_EVER_S: Final = 600.0
FEW: Final = {
    "enum label in a key",
    "unlogged for a while",
    "unpublished for a while",
    "partition exchanged",
    "VACUUM FULL",
}


@pytest.mark.proof
def test_whatever_ddl_there_is_the_log_adds_up_to_the_source(server_folder: Path) -> None:
    outcome = run(Plan(1, SEED, forms=list[Form](["log"])), server_folder)
    assert outcome.complaints == [], f"make ddl-chaos DURATION=1 SEED={SEED}"
    assert outcome.is_good
    assert outcome.ddl.keys() == {*outcome.plan.kinds, *outcome.plan.harmless}


@pytest.mark.spark
def test_derived_tables_are_the_sources_after_ddl_of_several_kinds(
    server_folder: Path, spark: "SparkSession"
) -> None:
    """One merge is amid it, and one behind it."""
    others = {*KINDS, *HARMLESS} - FEW
    plan = Plan(1, SEED, others, ("log", "current"), TOUCHED, merges_s=HARDLY_EVER_S)
    outcome = run(plan, server_folder, spark)
    assert outcome.complaints == []
    assert outcome.ddl.keys() == FEW
    assert outcome.merge_seconds


@pytest.mark.spark
@pytest.mark.proof
def test_histories_archives_and_indexes_are_the_sources_too(
    server_folder: Path, spark: "SparkSession"
) -> None:
    outcome = run(Plan(1, SEED), server_folder, spark)
    assert outcome.complaints == [], f"make ddl-chaos DURATION=1 SEED={SEED}"


@pytest.mark.spark
@pytest.mark.proof
def test_derived_tables_tell_on_a_daemon_that_is_blind_to_ddl(
    server_folder: Path, spark: "SparkSession"
) -> None:
    plan = replace(blind_plan("labels", SEED), forms=("current", "history"))
    outcome = run(plan, server_folder, spark)
    assert outcome.different > 0
    assert not outcome.is_good


@pytest.mark.proof
@pytest.mark.parametrize("blindness", ["files", "old rows"])
def test_a_daemon_that_is_blind_to_ddl_is_found_out(server_folder: Path, blindness: str) -> None:
    findings = find_out([blindness], SEED, server_folder)
    assert findings.found_out == {blindness: True}, "make ddl-chaos BLIND=all has them all"

"""Short runs of `make chaos`, and a check of it: it detects a daemon that acknowledges early."""

import sys
from pathlib import Path

import pytest

from tests.chaos.run import Plan, run

pytestmark = [
    pytest.mark.native("it starts, kills and wipes servers of its own"),
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.skipif(sys.platform != "linux", reason="faults of disks and clocks need Linux"),
]
DURATION_S = 40
SEED = 33
"""Its first faults are of seven kinds, and two daemons meet them."""


@pytest.mark.timeout(900)
def test_the_log_is_what_was_committed_after_a_few_faults(server_folder: Path) -> None:
    kinds = {"daemon killed amid commits": 1, "walsender ended": 1, "Kafka cut off": 1}
    outcome = run(Plan(5, 2, kinds), server_folder)
    assert outcome.complaints + outcome.verdict.shown == []
    assert outcome.is_good
    assert outcome.faults.total() > 0
    assert outcome.verdict.transactions > 0


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_whatever_dies_the_log_is_what_was_committed(server_folder: Path) -> None:
    outcome = run(Plan(DURATION_S, SEED), server_folder)
    assert outcome.complaints + outcome.verdict.shown == [], f"make chaos SEED={SEED}"
    assert outcome.is_good
    assert len(outcome.faults) > DURATION_S // 13
    assert outcome.verdict.transactions > DURATION_S


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_a_daemon_that_acknowledges_before_kafka_has_committed_is_found_out(
    server_folder: Path,
) -> None:
    kinds = {"daemon killed amid commits": 1}
    # What it has lost may be what its log would have to reach: no use in waiting for that.
    plan = Plan(4, 3, kinds, "tests.chaos.mutant", recovery_s=10, drain_s=5)
    outcome = run(plan, server_folder)
    assert outcome.faults.total() > 0
    assert outcome.verdict.lost > 0

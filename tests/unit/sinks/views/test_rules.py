"""The rules for touched groups, over random operators on plain rows, without Spark.

``VIEW_PLANS=from-to`` runs these seeds instead. A failure names its seed.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from sinks.views.touched import Rules
from tests.fixtures.examples import examples
from tests.unit.sinks.views.broken import BROKEN
from tests.unit.sinks.views.checked import SKIPPED, fault
from tests.unit.sinks.views.plain import Rows

PLANS: Final = 1_500
"""In so many each rule that is taken out is caught."""
PROOF: Final = 200_000
SKIPPED_MAX: Final = 0.01


def seeds(count: int) -> Iterator[int]:
    """Those of the environment, else so many."""
    first, last = (int(each) for each in os.environ.get("VIEW_PLANS", f"0-{count}").split("-"))
    return iter(range(first, last))


def faults(count: int) -> list[str]:
    """What is wrong with the plans of so many seeds."""
    wrong, skipped, all_ = [], 0, 0
    for seed in seeds(count):
        all_ += 1
        why = fault(seed)
        skipped += why == SKIPPED
        if why not in {None, SKIPPED}:
            wrong.append(f"VIEW_PLANS={seed}-{seed + 1}: {why}")
    assert skipped <= all_ * SKIPPED_MAX
    return wrong


def test_the_rules_miss_no_row_and_no_group() -> None:
    assert faults(examples(PLANS)) == []


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_the_rules_miss_no_row_and_no_group_of_hundred_thousands_of_plans() -> None:
    print(f"VIEW_PLANS=0-{PROOF}")  # noqa: T201 (how to run it again)
    assert faults(PROOF) == []


@pytest.mark.parametrize("broken", BROKEN, ids=lambda rules: rules.__name__)
def test_each_rule_that_is_taken_out_is_caught(broken: type[Rules[Rows]]) -> None:
    assert any(fault(seed, broken) not in {None, SKIPPED} for seed in range(PLANS))

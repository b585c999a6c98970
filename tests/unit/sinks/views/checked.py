"""A seed → whether the rules hold for its plan."""

import random

from sinks.views.operators import NEW, OLD
from sinks.views.touched import Rules
from tests.unit.sinks.views.plain import Rows, TooManyError, bag, near_of
from tests.unit.sinks.views.plans import Case, case

SKIPPED = "too many rows"


def fault(seed: int, rules: type[Rules[Rows]] = Rules) -> str | None:
    """What is wrong with the plan of a seed; None: nothing is."""
    made = case(seed)
    try:
        return _fault(made, rules(made.algebra), random.Random(seed))  # noqa: S311 (repeatable is what it has to be)
    except TooManyError:
        return SKIPPED


def _fault(made: Case, rules: Rules[Rows], rng: random.Random) -> str | None:
    top, columns = made.top, made.top.columns
    whole = {cut: Rules(made.algebra).rows(top, cut) for cut in (OLD, NEW)}
    bags = {cut: bag(rows, columns) for cut, rows in whole.items()}
    touched = rules.touched(top)
    if missing := bags[OLD] - bags[NEW] - bag(touched.gone or [], columns):
        return f"not among those gone: {missing}"
    if missing := bags[NEW] - bags[OLD] - bag(touched.come or [], columns):
        return f"not among those come: {missing}"
    groups = rules.groups(top)
    kept = whole[OLD]
    if groups is not None:
        again = made.algebra.only(whole[OLD], groups) if groups.columns else whole[OLD]
        left = bag(whole[OLD], columns) - bag(again, columns)
        if left + bag(rules.exactly(top, NEW, groups), columns) != bags[NEW]:
            return "the groups computed again aren't those of the new cut"
    elif bag(kept, columns) != bags[NEW]:
        return "no group is touched, and the rows differ"
    for cut in (OLD, NEW):
        near = near_of(rng, whole[cut], columns)
        there = made.algebra.only(rules.rows(top, cut, near), near)
        if bag(there, columns) != bag(made.algebra.only(whole[cut], near), columns):
            return f"rows near {near} aren't all there at the {cut} cut"
    return None

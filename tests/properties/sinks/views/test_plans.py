"""Random queries over tables that change: recomputed groups equal Spark's result of all rows.

``VIEW_QUERIES=from-to`` runs these seeds instead. A failure names its seed.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.properties.sinks.views.comparison import Comparison, compared
from tests.properties.sinks.views.grammar import OPERATORS, Query, query
from tests.properties.sinks.views.tables import data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIXED: Final = (95, 150, 383, 412)
"""Short ones, of many operators. `make proof` has them, and hundreds of others."""
CHANGES: Final = 2
PROOF: Final = 560
PROOF_CHANGES: Final = 3
FOLLOWED_MIN: Final = 0.7
OPERATOR_MIN: Final = 20
SEVERAL_MIN: Final = 0.5
"""In so many of the changes two or more of the tables change that the query reads."""


@pytest.fixture(scope="module")
def comparison(spark: "SparkSession") -> Comparison:
    """Compare in a session of its own."""
    return compared(spark)


@dataclass(slots=True)
class Counts:
    """How many queries went which way, and how many have each operator."""

    queries: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    of_several: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, comparison: Comparison, seed: int, changes: int) -> None:
        """Try one query on so many changes."""
        made = query(seed)
        self.queries += 1
        self.operators.update(made.operators)
        try:
            why = self._why(comparison, seed, made, changes)
        except Exception as error:  # noqa: BLE001 (whatever Spark says of it, the others go on)
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            self.wrong.append(f"VIEW_QUERIES={seed}-{seed + 1}: {made.sql}: {why}")
            print(self.wrong[-1], flush=True)  # noqa: T201 (a run may be cut short)

    def _why(self, comparison: Comparison, seed: int, made: Query, changes: int) -> str | None:
        """What is wrong with a query, at the first change at which something is."""
        read = comparison.read(made.sql)
        self.ways["whole" if read.reasons else "followed"] += 1
        self.reasons.update(read.reasons)
        for number in range(changes):
            rows = data(f"{seed}-{number}", made.tables)
            self.changes += 1
            self.of_several += sum(of.is_changed for of in rows.values()) > 1
            if why := comparison.fault(made.sql, read, rows):
                return f"{rows}: {why}"
        return None

    def shown(self) -> str:
        """Them, as JSON."""
        return json.dumps(
            {
                "queries": self.queries,
                "changes": self.changes,
                "of_several": self.of_several,
                "ways": self.ways,
                "operators": {name: self.operators[name] for name in OPERATORS},
                "reasons": self.reasons,
            },
            indent=1,
        )


def counted(comparison: Comparison, seeds: Iterable[int], changes: int) -> Counts:
    """What became of the queries of some seeds."""
    counts = Counts()
    for seed in seeds:
        counts.add(comparison, seed, changes)
    return counts


def test_groups_computed_again_are_what_spark_makes_of_all_rows(comparison: Comparison) -> None:
    assert counted(comparison, FIXED, CHANGES).wrong == []


@pytest.mark.proof
@pytest.mark.timeout(5400)
def test_hundreds_of_queries_are_kept_right(comparison: Comparison, tmp_path: Path) -> None:
    chosen = os.environ.get("VIEW_QUERIES", f"0-{PROOF}")
    first, last = map(int, chosen.split("-"))
    counts = counted(comparison, range(first, last), PROOF_CHANGES)
    report = tmp_path / "views.json"
    report.write_text(counts.shown())
    print(f"VIEW_QUERIES={chosen}: {report}\n{counts.shown()}")  # noqa: T201 (what ran)
    assert counts.wrong == []
    if "VIEW_QUERIES" not in os.environ:
        assert counts.ways["followed"] >= FOLLOWED_MIN * counts.queries
        assert min(counts.operators[name] for name in OPERATORS) >= OPERATOR_MIN
        assert counts.of_several >= SEVERAL_MIN * counts.changes


def test_the_grammar_nests_each_operator_often_enough() -> None:
    made = [query(seed) for seed in range(PROOF)]
    operators = Counter(name for each in made for name in each.operators)
    assert min(operators[name] for name in OPERATORS) >= OPERATOR_MIN
    assert len({each.sql for each in made}) == PROOF
    assert _several(made) >= SEVERAL_MIN * PROOF


def _several(queries: "list[Query]") -> int:
    """How many change two or more of the tables that they read, in their first change."""
    return sum(
        sum(rows.is_changed for rows in data(f"{seed}-0", each.tables).values()) > 1
        for seed, each in enumerate(queries)
    )

"""How long, which seed, which kinds → one run, and what differed."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.ddl_chaos.comparison import differences
from tests.ddl_chaos.harmless import HARMLESS
from tests.ddl_chaos.kinds import KINDS
from tests.ddl_chaos.rereads import Rereads
from tests.ddl_chaos.shapes import SHAPES
from tests.ddl_chaos.source import Source, Writer
from tests.ddl_chaos.stand import Stand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CALM_S: Final = (0.0, 0.3, 1.0, 2.0)
_LONG_S: Final = 1800
"""A run of this length, or a longer one, has to have so many DDL, of each kind, and merges."""
_DDL_MIN: Final = 300
_KIND_MIN: Final = 5
_MERGES_MIN: Final = 50
_STOPS_MAX: Final = 5
_STEPS_SHOWN: Final = 8
_BEHIND: Final = {"nothing": 14, "merge": 4, "compare": 1, "restart": 2, "down": 3}
"""What comes behind a DDL, and how often; ``down``: the daemon is, while it is done."""
_BEHIND_FIRST: Final = {"nothing": 25, "merge": 1, "restart": 4, "down": 6}
"""The same in the first round, which a short run has alone: most of its time goes to merges."""
_DYING: Final = 0.05
"""How often the daemon dies between two steps of a DDL."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: at least each kind once, and as much as there is time for."""

    duration_s: float
    seed: int
    without: frozenset[str] = frozenset()
    blind: str = ""
    """To what the daemon is blind (tests/ddl_chaos/blind.py); empty: to nothing."""

    @property
    def kinds(self) -> list[str]:
        """DDL that has to be noticed."""
        return [kind for kind in KINDS if kind not in self.without]

    @property
    def harmless(self) -> list[str]:
        """DDL that is to be passed over."""
        return [kind for kind in HARMLESS if kind not in self.without]


@dataclass(slots=True)
class Outcome:
    """What has come of it."""

    plan: Plan
    ddl: Counter[str] = field(default_factory=Counter)
    dml: Counter[str] = field(default_factory=Counter)
    rereads: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    merges: int = 0
    comparisons: int = 0
    different: int = 0
    stopped: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing at all is wrong, and enough was tried."""
        return not self.complaints

    @property
    def figures(self) -> dict[str, Any]:
        """What people compare."""
        harmless = sum(count for kind, count in self.ddl.items() if kind in HARMLESS)
        return {
            "seed": self.plan.seed,
            "duration_s": self.plan.duration_s,
            "ddl": self.ddl.total(),
            "ddl_by_kind": dict(sorted(self.ddl.items())),
            "harmless_ddl": harmless,
            "dml": self.dml["statements"],
            "restarts": self.restarts,
            "merges": self.merges,
            "comparisons": self.comparisons,
            "different": self.different,
            "stopped": self.stopped,
            "rereads": self.rereads["rereads"],
            "needless_rereads": self.rereads["needless_rereads"],
            "undecidable_rereads": self.rereads["undecidable_rereads"],
        }


def run(plan: Plan, folder: Path, spark: "SparkSession") -> Outcome:
    """Let it all happen below the folder, which servers of ours have to reach."""
    outcome = Outcome(plan)
    with Stand(folder, spark, plan.blind) as stand:
        _Run(plan, outcome, stand, spark).live()
        outcome.merges = stand.merges
        outcome.stopped = len(stand.exits)
        outcome.complaints += stand.complaints
    if plan.duration_s >= _LONG_S:
        _require_enough(outcome)
    return outcome


def _require_enough(outcome: Outcome) -> None:
    kinds = (*outcome.plan.kinds, *outcome.plan.harmless)
    if rare := [kind for kind in kinds if outcome.ddl[kind] < _KIND_MIN]:
        outcome.complaints.append(f"too few of: {', '.join(rare)}")
    if outcome.ddl.total() < _DDL_MIN or outcome.merges < _MERGES_MIN:
        outcome.complaints.append("too few DDL or merges for so long a time")


class _Run:
    """One run, while it lasts."""

    def __init__(self, plan: Plan, outcome: Outcome, stand: Stand, spark: "SparkSession") -> None:
        self._plan = plan
        self._outcome = outcome
        self._stand = stand
        self._spark = spark
        self._chance = random.Random(f"run {plan.seed}")  # noqa: S311 (repeatable)
        self._source = Source(stand.conninfo, plan.seed, self._during)
        self._writer = Writer(stand.conninfo, plan.seed)
        self._rereads = Rereads(stand.log, self._source)
        self._left: list[str] = []

    def live(self) -> None:
        """Begin, go on until the time is up and each kind was done, and compare a last time."""
        self._source.make()
        self._stand.start()
        self._stand.settle(check_s=0)
        self._rereads.begin()
        self._writer.start()
        deadline = time.monotonic() + self._plan.duration_s
        try:
            for kind in self._round():
                self._step(kind)
            while time.monotonic() < deadline and len(self._stand.exits) <= _STOPS_MAX:
                for kind in self._round():
                    if time.monotonic() < deadline:
                        self._step(kind)
            with self._writer.paused():
                self._compare()
        finally:
            self._writer.stop()
            self._source.close()
        self._stand.stop()
        self._outcome.dml = self._writer.tally
        self._outcome.rereads = self._rereads.count
        self._outcome.complaints += self._rereads.needless

    def _round(self) -> list[str]:
        """Each kind once, and so many harmless ones that they are a third."""
        kinds, harmless = self._plan.kinds, self._plan.harmless
        count = len(harmless) if self._outcome.ddl.total() == 0 else len(kinds) // 2
        chosen = [*kinds, *self._chance.sample(harmless, min(count, len(harmless)))]
        self._chance.shuffle(chosen)
        return chosen

    def _step(self, kind: str) -> None:
        """One DDL, and what comes behind it."""
        then = self._next()
        if then == "down":
            self._stand.stop(kill=self._chance.random() < 0.5)
        print(f"{time.strftime('%H:%M:%S')} {kind}; {then}", flush=True)
        {**KINDS, **HARMLESS}[kind](self._source)
        self._outcome.ddl[kind] += 1
        time.sleep(self._chance.choice(_CALM_S))
        if then == "down":
            self._stand.start()
        elif then == "restart":
            self._stand.restart(kill=self._chance.random() < 0.5)
        self._outcome.restarts += then in {"down", "restart"}
        if then == "merge":
            self._stand.merge()
        elif then == "compare":
            with self._writer.paused():
                self._compare()
        self._stand.watch()
        self._rereads.follow()

    def _next(self) -> str:
        if not self._left:
            deck = _BEHIND if self._outcome.ddl else _BEHIND_FIRST
            words = [word for word, count in deck.items() for _ in range(count)]
            self._left = self._chance.sample(words, len(words))
        return self._left.pop()

    def _during(self) -> None:
        """Between two steps of a DDL."""
        if self._chance.random() < _DYING:
            self._outcome.restarts += self._stand.restart(kill=self._chance.random() < 0.7)
        self._stand.watch()

    def _compare(self) -> None:
        """Both sides, once the log has all and is merged; nobody changes the source meanwhile."""
        times = [time.monotonic()]
        if not self._stand.settle():
            return
        self._rereads.follow()
        times.append(time.monotonic())
        self._stand.merge()
        times.append(time.monotonic())
        lakehouse = self._stand.pipeline.settings.lakehouse
        assert lakehouse is not None
        different = differences(self._source, self._spark, lakehouse.path)
        times.append(time.monotonic())
        settled, merged, compared = (f"{e - b:.0f} s" for b, e in pairwise(times))
        print(f"settled in {settled}, merged in {merged}, compared in {compared}", flush=True)
        self._outcome.different += len(different)
        for table, what in different.items():
            steps = "; ".join(self._source.steps[table][-_STEPS_SHOWN:])
            self._outcome.complaints.append(f"{table} {what}, after: {steps}")
            print(f"{table} differs", flush=True)
        for table in SHAPES.keys() - different.keys():
            self._source.steps[table].clear()
        self._outcome.comparisons += 1
        self._rereads.settled()

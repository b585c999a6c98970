"""A duration, a seed and kinds of DDL → one run, and its differences."""

import random
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.ddl_chaos.blind import BLINDNESSES
from tests.ddl_chaos.comparison import FORMS, Comparison, Form
from tests.ddl_chaos.harmless import HARMLESS
from tests.ddl_chaos.kinds import KINDS, SINCE
from tests.ddl_chaos.rereads import Rereads
from tests.ddl_chaos.shapes import SHAPES
from tests.ddl_chaos.source import PAUSES_S, Source, Writer
from tests.ddl_chaos.stand import Merging, Stand
from tests.fixtures.postgres import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CALM_S: Final = (0.0, 0.3, 1.0, 2.0)
_HASTE_S: Final = (0.0, 0.0, 0.2)
"""Pauses of a run that is behind with its DDL."""
_MERGES_S: Final = 25.0
_LONG_S: Final = 1800
"""A run of this length, or a longer one, has to have so many DDL, of each kind, and merges."""
_DDL_MIN: Final = 300
_KIND_MIN: Final = 5
_MERGES_MIN: Final = 50
_HEADROOM: Final = 1.15
_COMPARED_S: Final = 240.0
"""A run that is behind with its DDL compares this often."""
_STOPS_MAX: Final = 5
_STEPS_SHOWN: Final = 8
_BEHIND: Final = {"nothing": 18, "compare": 1, "restart": 2, "down": 3}
"""What comes behind a DDL, and how often; ``down``: the daemon is, while it is done."""
_DYING: Final = 0.05
"""How often the daemon dies between two steps of a DDL."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: at least each kind once, and as much as there is time for."""

    duration_s: float
    seed: int
    without: Collection[str] = frozenset()
    forms: Collection[Form] = FORMS
    """What is compared with each table."""
    derived: Collection[str] = ()
    """The tables that alone have derived tables; empty: all."""
    blind: str = ""
    """To what the daemon is blind (tests/ddl_chaos/blind.py); empty: to nothing. Such a run has
    the kinds that tell on it alone, and ends as soon as it is found out."""
    merges_s: float = _MERGES_S
    """From the beginning of a merge to that of the next."""

    @property
    def kinds(self) -> list[str]:
        """DDL that has to be noticed."""
        return self._chosen([kind for kind in KINDS if SINCE.get(kind, VERSION) <= VERSION])

    @property
    def harmless(self) -> list[str]:
        """DDL that is to be passed over."""
        return self._chosen(HARMLESS)

    def _chosen(self, kinds: Collection[str]) -> list[str]:
        telling = BLINDNESSES[self.blind].kinds if self.blind else kinds
        return [kind for kind in telling if kind in kinds and kind not in self.without]


@dataclass(slots=True)
class Outcome:
    """What has come of it."""

    plan: Plan
    ddl: Counter[str] = field(default_factory=Counter)
    dml: Counter[str] = field(default_factory=Counter)
    rereads: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    merge_seconds: list[float] = field(default_factory=list)
    comparisons: int = 0
    different: int = 0
    stopped: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing at all is wrong, and enough was tried."""
        return not self.complaints

    @property
    def harmless(self) -> int:
        """How much of the DDL was harmless."""
        return sum(count for kind, count in self.ddl.items() if kind in HARMLESS)

    @property
    def is_found_out(self) -> bool:
        """Whether it has shown that the daemon doesn't see all that it has to."""
        return bool(self.different or self.rereads["needless_rereads"])

    @property
    def figures(self) -> dict[str, Any]:
        """What people compare."""
        return {
            "seed": self.plan.seed,
            "duration_s": self.plan.duration_s,
            "postgres": VERSION,
            "ddl": self.ddl.total(),
            "ddl_by_kind": dict(sorted(self.ddl.items())),
            "harmless_ddl": self.harmless,
            "dml": self.dml["statements"],
            "restarts": self.restarts,
            "merges": len(self.merge_seconds),
            "merge_max_s": round(max(self.merge_seconds, default=0.0), 1),
            "comparisons": self.comparisons,
            "different": self.different,
            "stopped": self.stopped,
            "rereads": self.rereads["rereads"],
            "needless_rereads": self.rereads["needless_rereads"],
            "undecidable_rereads": self.rereads["undecidable_rereads"],
        }


def run(plan: Plan, folder: Path, spark: "SparkSession | None" = None) -> Outcome:
    """Let it all happen below the folder, which servers of ours have to reach.

    Without Spark nothing is merged: of the plan's forms there is the log alone.
    """
    outcome = Outcome(plan)
    with Stand(folder, spark, plan.forms, plan.derived, plan.blind) as stand:
        _Run(plan, outcome, stand).live()
        outcome.merge_seconds = stand.merge_seconds
        outcome.stopped = len(stand.exits)
        outcome.complaints += stand.complaints
    if plan.duration_s >= _LONG_S:
        _require_enough(outcome)
    return outcome


def _require_enough(outcome: Outcome) -> None:
    kinds = (*outcome.plan.kinds, *outcome.plan.harmless)
    if rare := [kind for kind in kinds if outcome.ddl[kind] < _KIND_MIN]:
        outcome.complaints.append(f"too few of: {', '.join(rare)}")
    if outcome.ddl.total() < _DDL_MIN or len(outcome.merge_seconds) < _MERGES_MIN:
        outcome.complaints.append("too few DDL or merges for so long a time")


class _Run:
    """One run, while it lasts."""

    def __init__(self, plan: Plan, outcome: Outcome, stand: Stand) -> None:
        self._plan = plan
        self._outcome = outcome
        self._stand = stand
        self._chance = random.Random(f"run {plan.seed}")  # noqa: S311 (repeatable)
        pauses_s = BLINDNESSES[plan.blind].pauses_s if plan.blind else PAUSES_S
        self._source = Source(stand.conninfo, plan.seed, self._during, pauses_s)
        stand.tables = lambda: self._source.shapes
        self._writer = Writer(stand.conninfo, plan.seed, self._source.note)
        self._merging = Merging(stand, plan.seed, plan.merges_s)
        self._comparison = Comparison(self._source, stand.pipeline, plan.forms, plan.derived)
        self._rereads = Rereads(stand.log, self._source)
        outcome.rereads = self._rereads.count
        self._left: list[str] = []
        self._begun = self._compared = 0.0

    def live(self) -> None:
        """Begin, go on until the time is up and each kind was done, and compare a last time."""
        self._source.make()
        self._stand.start()
        self._stand.settle()
        self._rereads.begin()
        self._writer.start()
        self._begun = self._compared = time.monotonic()
        try:
            if self._plan.blind:
                self._be_found_out()
            else:
                self._merging.start()
                self._mix()
                self._merging.stop()
                self._compare()
        finally:
            self._merging.stop()
            self._writer.stop()
            self._source.close()
        self._stand.stop()
        self._outcome.dml = self._writer.tally
        self._outcome.complaints += self._rereads.needless

    def _mix(self) -> None:
        kinds = [*self._plan.kinds, *self._plan.harmless]
        done = self._outcome.ddl
        while len(self._stand.exits) <= _STOPS_MAX:
            if self._elapsed >= self._plan.duration_s and all(done[kind] for kind in kinds):
                break
            self._step(self._choose(), self._next())

    def _be_found_out(self) -> None:
        """All kinds that tell on a blind daemon, and a comparison, until it is found out."""
        while self._elapsed < self._plan.duration_s and not self._outcome.is_found_out:
            for kind in (*self._plan.kinds, *self._plan.harmless):
                self._step(kind, "nothing")
            self._compare()

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _is_late(self) -> bool:
        """Whether there were fewer DDL than a long run has to have by now."""
        due = _DDL_MIN * _HEADROOM * self._elapsed / self._plan.duration_s
        return self._plan.duration_s >= _LONG_S and self._outcome.ddl.total() < due

    def _choose(self) -> str:
        """One of those that came least; a harmless one where these are less than a third."""
        done, harmless = self._outcome.ddl, self._outcome.harmless
        is_harmless = 3 * harmless <= done.total() or not self._plan.kinds
        kinds = self._plan.harmless if is_harmless and self._plan.harmless else self._plan.kinds
        least = min(done[kind] for kind in kinds)
        return self._chance.choice([kind for kind in kinds if done[kind] == least])

    def _next(self) -> str:
        """What comes behind a DDL."""
        if not self._left:
            words = [word for word, count in _BEHIND.items() for _ in range(count)]
            self._left = self._chance.sample(words, len(words))
        then = self._left.pop()
        was_compared = time.monotonic() < self._compared + _COMPARED_S
        return "nothing" if then == "compare" and self._is_late and was_compared else then

    def _step(self, kind: str, then: str) -> None:
        """One DDL, and what comes behind it."""
        if then == "down":
            self._stand.stop(kill=self._chance.random() < 0.5)
        print(f"{time.strftime('%H:%M:%S')} {kind}; {then}", flush=True)
        is_late = self._is_late
        if not self._plan.blind:
            self._source.pauses_s = _HASTE_S if is_late else PAUSES_S
        {**KINDS, **HARMLESS}[kind](self._source)
        self._outcome.ddl[kind] += 1
        time.sleep(self._chance.choice(_HASTE_S if is_late else _CALM_S))
        if then == "down":
            self._stand.start()
        elif then == "restart":
            self._stand.restart(kill=self._chance.random() < 0.5)
        elif then == "compare":
            self._compare()
        self._outcome.restarts += then in {"down", "restart"}
        self._stand.watch()
        self._rereads.follow()

    def _during(self) -> None:
        """Between two steps of a DDL."""
        if not self._plan.blind and self._chance.random() < _DYING:
            self._outcome.restarts += self._stand.restart(kill=self._chance.random() < 0.7)
        self._stand.watch()

    def _compare(self) -> None:
        """Both sides, once the log has all and is merged; nobody changes the source meanwhile."""
        with self._writer.paused():
            times = [time.monotonic()]
            if not self._stand.settle():
                return
            self._rereads.follow()
            times.append(time.monotonic())
            with self._stand.merged():
                times.append(time.monotonic())
                different = self._comparison.differences()
            times.append(time.monotonic())
            self._rereads.settled()
        settled, merged, compared = (f"{e - b:.0f} s" for b, e in pairwise(times))
        print(f"settled in {settled}, merged in {merged}, compared in {compared}", flush=True)
        for table, forms in different.items():
            self._outcome.different += len(forms)
            steps = "; ".join(self._source.steps[table][-_STEPS_SHOWN:])
            for form, what in forms.items():
                self._outcome.complaints.append(f"{table}: {form} {what}, after: {steps}")
                print(f"{table}: {form} differs", flush=True)
        for table in SHAPES.keys() - different.keys():
            self._source.steps[table].clear()
        self._outcome.comparisons += 1
        self._compared = time.monotonic()

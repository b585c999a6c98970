"""Plans and their outcomes ⇄ files: ``<run, 20 digits>.json`` and ``<run>.done.json``.

A plan is created exclusively, so of two runs one gets the number. ``checked.json`` says when a run
last found that there is nothing to do.
"""

import re
import time
from typing import Final

from pydantic import BaseModel

from cdc.errors import BusyError
from sinks.delta.files import Files
from sinks.plan import Outcome, Plan, Stored, stored

_PLAN: Final = re.compile(r"(\d{20})\.json")
_CHECKED: Final = "checked.json"


class Checked(BaseModel):
    """When a run last found nothing to do, and up to which cut the log had nothing then."""

    ts_ms: int
    cut: str


class Plans:
    """The plans of a lakehouse."""

    def __init__(self, files: Files, where: str) -> None:
        self._files = files
        self._where = where

    def last(self) -> Plan | None:
        """The newest plan, finished or not."""
        runs = self.runs()
        return self.plan_of(runs[-1]) if runs else None

    def plan_of(self, run: int) -> Plan | None:
        """The plan of that number, if there is one."""
        return self._parse(Plan, _plan_name(run))

    def runs(self) -> list[int]:
        """The numbers of all plans, ascending."""
        matches = (_PLAN.fullmatch(name) for name in self._files.names())
        return sorted(int(match[1]) for match in matches if match)

    def outcome(self, plan: Plan) -> Outcome | None:
        """How a plan ended, if it did."""
        return self.outcome_of(plan.run)

    def outcome_of(self, run: int) -> Outcome | None:
        """How the plan of that number ended, if there is one, and it did."""
        return self._parse(Outcome, _done_name(run))

    def start(self, plan: Plan) -> None:
        """Make the plan the next one; raises BusyError if another run was first."""
        try:
            self._files.create(_plan_name(plan.run), plan.model_dump_json())
        except FileExistsError:
            raise BusyError(f"another run has made plan {plan.run}", where=self._where) from None

    def finish(self, outcome: Outcome) -> None:
        """Record that nothing of the plan is under way any more."""
        self._files.replace(_done_name(outcome.run), outcome.model_dump_json())

    def checked_ms(self) -> int:
        """When a run last found nothing to do (ms since 1970); 0: never."""
        found = self._parse(Checked, _CHECKED)
        return found.ts_ms if found else 0

    def check(self, cut: str) -> None:
        """Record that there is nothing to do now."""
        found = Checked(ts_ms=int(time.time() * 1000), cut=cut)
        self._files.replace(_CHECKED, found.model_dump_json())

    def forget(self, before_run: int) -> int:
        """Remove the plans with a lower number; the number of those that were."""
        old = [run for run in self.runs() if run < before_run]
        for run in old:
            self._files.remove(_done_name(run))
            self._files.remove(_plan_name(run))
        return len(old)

    def _parse(self, kind: type[Stored], name: str) -> Stored | None:
        text = self._files.read(name)
        return None if text is None else stored(kind, text, f"{self._where}/{name}")


def _plan_name(run: int) -> str:
    return f"{run:020}.json"


def _done_name(run: int) -> str:
    return f"{run:020}.done.json"

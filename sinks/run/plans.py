"""Plans and their outcomes ⇄ files: ``<run, 20 digits>.json`` and ``<run>.done.json``.

A plan is created exclusively, so of two runs one gets the number. ``checked.json`` says when a run
last found that there is nothing to do; ``last.json`` from which plan on the newest one is to be
looked for, since there may be a hundred thousand.
"""

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from cdc.errors import BusyError, LogFormatError
from sinks.changes.paths import local_path, runs_path
from sinks.run.files import Files, HadoopFiles, LocalFiles
from sinks.run.plan import Outcome, Plan, Stored, TablePlan, TableVersion, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAN: Final = re.compile(r"(\d{20})\.json")
_CHECKED: Final = "checked.json"
_COMPACTED: Final = "compacted.json"
_LAST: Final = "last.json"


class Checked(BaseModel):
    """When a run last found nothing to do for these tables, and up to which cut."""

    ts_ms: int = 0
    cut: str = ""
    tables: list[str] = []

    def fresh_ms(self, table: str) -> int:
        """When nothing was to do for the table, as far as this tells (ms since 1970; 0: never)."""
        return self.ts_ms if table in self.tables else 0


class Last(BaseModel):
    """A plan that there is; later ones follow it without a gap."""

    run: int


class Compacted(BaseModel):
    """Where compaction has left each table: the run that it has, and a version of it that lasts."""

    tables: dict[str, tuple[int, TableVersion]] = {}


class Plans:
    """The plans of a lakehouse."""

    def __init__(self, files: Files, where: str) -> None:
        self._files = files
        self._where = where

    def last(self) -> Plan | None:
        """The newest plan, finished or not."""
        try:
            known = self._parse(Last, _LAST)
        except LogFormatError:  # half written, where a file can't be replaced at once
            known = None
        newest = self.plan_of(known.run) if known is not None else None
        if newest is None:
            runs = self.runs()
            return self.plan_of(runs[-1]) if runs else None
        while (later := self.plan_of(newest.run + 1)) is not None:
            newest = later
        return newest

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
        self._files.replace(_LAST, Last(run=plan.run).model_dump_json())

    def finish(self, outcome: Outcome) -> None:
        """Record that nothing of the plan is under way any more."""
        self._files.replace(_done_name(outcome.run), outcome.model_dump_json())

    def checked(self) -> Checked:
        """When a run last found nothing to do."""
        return self._parse(Checked, _CHECKED) or Checked()

    def check(self, cut: str, tables: list[str]) -> None:
        """Record that there is nothing to do now for these tables."""
        found = Checked(ts_ms=int(time.time() * 1000), cut=cut, tables=tables)
        self._files.replace(_CHECKED, found.model_dump_json())

    def compacted(self) -> Compacted:
        """Where compaction has left the tables."""
        return self._parse(Compacted, _COMPACTED) or Compacted()

    def compact(self, tables: dict[str, tuple[int, TableVersion]]) -> None:
        """Record where it has left some."""
        found = Compacted(tables={**self.compacted().tables, **tables})
        self._files.replace(_COMPACTED, found.model_dump_json())

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


def lakehouse_plans(location: str, session: Callable[[], "SparkSession"]) -> Plans:
    """The plans of a lakehouse; ``session`` is called where its file system needs the JVM."""
    folder = local_path(location)
    files: Files = (
        HadoopFiles(session(), runs_path(location))
        if folder is None
        else LocalFiles(folder / "_millrace" / "runs")
    )
    return Plans(files, runs_path(location))


def _plan_name(run: int) -> str:
    return f"{run:020}.json"


def _done_name(run: int) -> str:
    return f"{run:020}.done.json"


def as_compacted(
    inherited: TableVersion, table: TablePlan, compacted: tuple[int, TableVersion] | None
) -> TableVersion:
    """The version of a table that nothing came for; where compaction has left it, if it has."""
    if compacted is None or compacted[0] != table.base or compacted[1].id != inherited.id:
        return inherited
    return max(inherited, compacted[1], key=lambda one: one.version)

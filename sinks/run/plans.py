"""Plans and their outcomes ⇄ files: ``<run, 20 digits>.json`` and ``<run>.done.json``."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from cdc.errors import BusyError, LogFormatError
from cdc.lines import Lines
from sinks.changes.derived import local_path, runs_path
from sinks.run.options import Report
from sinks.run.plan import RunPlan
from sinks.run.records import (
    OutcomeRecord,
    PlanRecord,
    TablesAfter,
    outcome_record,
    parent_of,
    plan_record,
    tables_after,
    tables_before,
    whole_outcome,
    whole_plan,
)
from sinks.run.summary import LastCheck, RunOutcome, TableVersion
from sinks.spark.files import (
    DamagedError,
    Files,
    HadoopFiles,
    LocalFiles,
    RunState,
    read_state,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PLAN: Final = re.compile(r"(\d{20})\.json")
_DONE: Final = re.compile(r"(\d{20})\.done\.json")
_RECORDS_MAX: Final = 128
"""Up to this many records of plans, which never change, are cached."""
_CHECKED: Final = "checked.json"
_COMPACTED: Final = "compacted.json"
_LAST: Final = "last.json"


class LastPlan(BaseModel):
    """The number of an existing plan. Later ones follow it without a gap."""

    run: int


class LeftTable(BaseModel):
    """A table after its last compaction: its run, and a version that lasts.

    Files that were replaced before a time in ``replaced_ms`` may still exist. VACUUM removes them
    after the retention.
    """

    model_config = ConfigDict(frozen=True)

    run: int
    at: TableVersion
    replaced_ms: tuple[int, ...] = ()

    def since(self, version: TableVersion) -> TableVersion:
        """Return the version, or the one of the same table that a later compaction has left."""
        if self.at.id != version.id:
            return version
        return max(version, self.at, key=lambda of: of.version)


class LeftTables(BaseModel):
    """Each table after its last compaction."""

    tables: dict[str, LeftTable] = {}


class Plans:
    """The plans of a lakehouse, or of any target that can keep them in a folder."""

    def __init__(self, files: Files, where: str, report: Report | None = None) -> None:
        self._files = files
        self._where = where
        self._report = report
        self._records: dict[int, PlanRecord] = {}
        self._remembering = Lock()  # views ask side by side

    def last(self) -> RunPlan | None:
        """Return the newest plan, finished or not."""
        try:
            last = self._parse(LastPlan, _LAST)
        except LogFormatError:  # half written, if a file can't be replaced atomically
            last = None
        if last is None or self.moved_by(last.run) is None:
            runs = self.runs()
            return self.plan_of(runs[-1]) if runs else None
        newest = last.run
        while self.moved_by(newest + 1) is not None:
            newest += 1
        return self.plan_of(newest)

    def plan_of(self, run: int, names: Collection[str] | None = None) -> RunPlan | None:
        """Return the plan of that number with all of its tables, or some.

        None: it doesn't exist.
        """
        if (record := self.moved_by(run)) is None:
            return None
        return whole_plan(record, tables_before(self._chain(record), names), names)

    def moved_by(self, run: int) -> PlanRecord | None:
        """Return the plan of that number with the tables that it moves. None: it doesn't exist."""
        if (record := self._records.get(run)) is None:
            if (record := self._parse(PlanRecord, _plan_name(run))) is None:
                return None
            with self._remembering:
                if len(self._records) >= _RECORDS_MAX:
                    del self._records[next(iter(self._records))]
                self._records[run] = record
        return record

    def _chain(self, record: PlanRecord) -> Iterator[PlanRecord]:
        """Yield a record, and the records of earlier moves, newest first."""
        yield record
        while record.since:
            older = self.moved_by(record.since)
            if older is None:
                raise DamagedError(
                    "can't read a run's state: a record that later ones need is missing",
                    where=f"{self._where}/{_plan_name(record.since)}",
                    remedy="put it back from a backup",
                )
            yield (record := older)

    def runs(self) -> list[int]:
        """Return the numbers of all plans, ascending."""
        return self._numbers(_PLAN)

    def ended(self) -> list[int]:
        """Return the numbers of the plans that have an outcome, ascending."""
        return self._numbers(_DONE)

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        matches = (pattern.fullmatch(name) for name in self._files.names())
        return sorted(int(match[1]) for match in matches if match)

    def outcome(self, plan: RunPlan) -> RunOutcome | None:
        """Return a plan's outcome, if it has ended."""
        return self.outcome_of(plan.run)

    def outcome_of(self, run: int, names: Collection[str] | None = None) -> RunOutcome | None:
        """Return the outcome of the plan of that number, for all tables or some, if it has ended.

        If it is damaged, the run counts as interrupted. A plan may be finished again: applied
        changes stay, and the outcome is recorded again.
        """
        if (record := self._ended_by(run)) is None:
            return None
        return whole_outcome(record, self._before(run, names), names)

    def ended_ms(self, run: int) -> int | None:
        """Return when the plan of that number ended, if it did (ms since 1970)."""
        record = self._ended_by(run)
        return None if record is None else record.ts_ms

    def _ended_by(self, run: int) -> OutcomeRecord | None:
        try:
            return self._parse(OutcomeRecord, _done_name(run))
        except DamagedError as error:
            if self._report is not None:
                self._report(Lines(f"run {run} counts as interrupted: {error}"))
            return None

    def _before(self, run: int, names: Collection[str] | None = None) -> TablesAfter:
        """Return how earlier runs have left the tables that a run doesn't move."""
        record = self.moved_by(run)
        return {} if record is None else tables_before(self._chain(record), names)

    def _after(self, run: int) -> TablesAfter:
        """Return how a run has left all tables."""
        if (record := self.moved_by(run)) is None:
            return {}
        before = self._before(run)
        return tables_after(record, before, whole_plan(record, before), self.outcome_of(run))

    def require_undamaged(self, run: int) -> None:
        """Raise DamagedError if the outcome of the plan of that number can't be read."""
        self._parse(OutcomeRecord, _done_name(run))

    def start(self, plan: RunPlan) -> None:
        """Make the plan the next one. Raise BusyError if another run was first."""
        since = parent_of(plan.run)
        if since and self.moved_by(since) is None:  # plans don't begin with the first number
            since = 0
        record = plan_record(plan, self._after(plan.run - 1), since)
        try:
            self._files.create(_plan_name(plan.run), _text(record))
        except FileExistsError:
            raise BusyError(f"another run has made plan {plan.run}", where=self._where) from None
        # The records of a lakehouse that was removed from here have the same numbers.
        self._records = {run: of for run, of in self._records.items() if run < plan.run}
        self._files.replace(_LAST, LastPlan(run=plan.run).model_dump_json())

    def finish(self, outcome: RunOutcome) -> None:
        """Record that the plan has ended."""
        record = outcome_record(outcome, self._before(outcome.run))
        self._files.replace(_done_name(outcome.run), _text(record))

    def checked(self) -> LastCheck:
        """Return when a run last found nothing to do."""
        return self._parse(LastCheck, _CHECKED) or LastCheck()

    def check(self, check: LastCheck) -> None:
        """Record a run with nothing to do."""
        self._files.replace(_CHECKED, check.model_dump_json())

    def compacted(self) -> dict[str, LeftTable]:
        """Return how compaction has left the tables.

        If this is damaged, the next one rewrites it.
        """
        try:
            return (self._parse(LeftTables, _COMPACTED) or LeftTables()).tables
        except DamagedError:
            return {}

    def compact(self, tables: Mapping[str, LeftTable]) -> None:
        """Record how compaction has left some tables."""
        left = LeftTables(tables={**self.compacted(), **tables})
        self._files.replace(_COMPACTED, left.model_dump_json())

    def forget(self, before_run: int) -> int:
        """Remove the plans with a lower number. Return the number of removed plans.

        Records that later plans need are kept: the record of ``before_run`` names them.
        """
        first = self.moved_by(before_run)
        kept = {record.run for record in self._chain(first)} if first is not None else set()
        old = [run for run in self.runs() if run < before_run]
        for run in old:
            self._files.remove(_done_name(run))
            if run not in kept:
                self._files.remove(_plan_name(run))
        self._records.clear()
        return len(old)

    def _parse(self, kind: type[RunState], name: str) -> RunState | None:
        """Read a plan, an outcome or another state. Raise LogFormatError if it isn't Millrace's."""
        try:
            return read_state(self._files, name, kind, self._where)
        except LogFormatError as error:
            error.what = f"can't read a run's state: {error.what}"
            error.remedy = (
                "`millrace merge lakehouse` records it again"
                if isinstance(error, DamagedError) and kind is OutcomeRecord
                else (
                    "if a newer Millrace wrote it, run that one; if it is damaged, restore it"
                    " from a backup"
                )
            )
            raise

    def tidy(self) -> None:
        """Remove the files of processes that died during a write."""
        self._files.tidy()


def lakehouse_plans(
    location: str, session: Callable[[], "SparkSession"], report: Report | None = None
) -> Plans:
    """Return the plans of a lakehouse. ``session`` is called if its file system needs the JVM."""
    folder = local_path(location)
    files: Files = (
        HadoopFiles(session(), runs_path(location))
        if folder is None
        else LocalFiles(folder / "_millrace" / "runs")
    )
    return Plans(files, runs_path(location), report)


def _text(record: RunPlan | RunOutcome) -> str:
    """Return a record's text, without default values, but with its format."""
    fields = record.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"format": record.format, **fields}, ensure_ascii=False)


def _plan_name(run: int) -> str:
    return f"{run:020}.json"


def _done_name(run: int) -> str:
    return f"{run:020}.done.json"


def as_compacted(version: TableVersion, base: int, left: LeftTable | None) -> TableVersion:
    """Return a version that the run ``base`` wrote, or the one that compaction has left of it."""
    return version if left is None or left.run != base else left.since(version)


def lasting_versions(
    plan: RunPlan, outcome: RunOutcome, left: Mapping[str, LeftTable]
) -> dict[str, TableVersion]:
    """Return the tables' versions after a run, or those that compaction has left since.

    Compaction replaces files of tables that no later run moves, and VACUUM removes these in time:
    the versions in the outcome may not last.
    """
    versions = dict(outcome.versions)
    for name in left.keys() & versions.keys() & plan.tables.keys():
        table = plan.tables[name]
        base = plan.run if table.commits else table.base
        versions[name] = as_compacted(versions[name], base, left[name])
    return versions

"""Plans and their outcomes → cuts: instants of the source, with each table's version there.

A cut is a position up to which every table was applied: a commit of the source, so an instant that
the source itself has shown. Each table has its own version for it.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from cdc.errors import ConfigError, SinkError
from cdc.log.offsets import LogState
from cdc.records.fields import PositionField
from cdc.records.position import Lsn, Position
from cdc.settings import LakehouseSettings
from cdc.settings.lakehouse import TableKind
from sinks.changes.derived import Derived, derived_tables
from sinks.run.cuts import Instant
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.plans import LeftTable, Plans, lakehouse_plans, lasting_versions
from sinks.run.summary import RunOutcome, TableCounts, TableVersion
from sinks.spark.session import SparkProvider

if TYPE_CHECKING:
    from sinks.changes.shape import TableShape
    from sinks.delta.difference import LakehouseReader

_RUN: Final = re.compile(r"\d{1,18}")
_RUNS_MAX: Final = 1_000
"""Maximum number of runs searched for a cut that all tables have."""


class Cut(BaseModel):
    """An instant of the source that a run has applied to the tables.

    ``position`` is the last commit's, ``committed_us`` its time (µs since 1970, UTC; 0: none was
    seen yet), ``applied_ms`` the end of the run, which took ``seconds``. ``versions`` has the
    version of each table at the cut; ``missing`` are the failed tables. ``tables`` are those with
    new records for the run. If ``views`` are requested, these are their versions, and
    ``missing_views`` has the reasons why others are missing.

    With a real Debezium's topics, it is no instant: each table has the records that its topic had
    at the run's start, at ``planned_ms``, and the position has no meaning.
    """

    model_config = ConfigDict(frozen=True)

    run: int
    position: PositionField
    committed_us: int
    applied_ms: int
    seconds: float
    versions: dict[str, TableVersion]
    missing: list[str]
    tables: dict[str, TableCounts]
    views: dict[str, TableVersion] = {}
    missing_views: dict[str, str] = {}
    planned_ms: int = 0
    is_instant: bool = True

    def __str__(self) -> str:
        if not self.is_instant:
            return f"run {self.run}, {self.where}, {_text(self.planned_ms / 1e3)}"
        epoch = f" of epoch {self.position.epoch}" if self.position.epoch > 1 else ""
        return f"run {self.run}, {self.position.commit_lsn}{epoch}, {self.committed}"

    @property
    def where(self) -> str:
        """Its LSN as text."""
        return str(self.position.commit_lsn) if self.is_instant else "the topics' ends"

    @property
    def committed(self) -> str:
        """The commit time of its last transaction, as text."""
        if not self.is_instant:
            return "not known"
        if not self.committed_us:
            return "before any commit was seen"
        return _text(self.committed_us / 1e6)


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(" ")


def cuts(plans: Plans, newest: int | None = None) -> list[Cut]:
    """Return the cuts of runs, ascending; only the ``newest`` ones if a number is given."""
    newest_first = _cuts_of(plans, reversed(plans.ended()), plans.compacted())
    return [*islice(newest_first, newest)][::-1]


def _cuts_of(plans: Plans, runs: Iterable[int], left: Mapping[str, LeftTable]) -> Iterator[Cut]:
    """Yield the cuts of runs, in the runs' order; damaged runs have none."""
    return filter(None, (_cut_of(plans, run, left) for run in runs))


def _cut_of(plans: Plans, run: int, left: Mapping[str, LeftTable]) -> Cut | None:
    plan, outcome = plans.plan_of(run), plans.outcome_of(run)
    if plan is None or outcome is None:
        return None
    return Cut(
        run=run,
        position=plan.cut,
        committed_us=plan.cut_ts_us,
        applied_ms=outcome.ts_ms,
        seconds=outcome.seconds,
        versions=lasting_versions(plan, outcome, left),
        missing=sorted(plan.all_tables.keys() - outcome.versions.keys() | outcome.failed.keys()),
        tables=outcome.tables,
        planned_ms=plan.ts_ms,
        is_instant=plan.written_by == "millrace",
    )


def cut_at(plans: Plans, at: str) -> Cut:
    """Return the newest cut that isn't later than a run's number, an LSN, a position or a time.

    It reads few runs, since later ones have later cuts. After a backward step of the source's
    clock, it returns a cut that isn't later, but whose next one is.

    Raises ConfigError for another kind of ``at``, SinkError if no cut is that old, or the newest
    one hasn't reached it yet.
    """
    runs, left = plans.ended(), plans.compacted()
    if (newest := next(_cuts_of(plans, reversed(runs), left), None)) is None:
        raise SinkError(
            "the lakehouse has no cut yet",
            where="the lakehouse",
            remedy="run `millrace merge lakehouse`",
        )
    if at == "latest":
        return newest
    is_upto, is_ahead = _instant(at, newest)
    if is_ahead:
        raise SinkError(
            f"no cut has reached {at} yet: the newest cut is {newest}",
            where="the lakehouse",
            remedy="run `millrace merge lakehouse`",
        )

    def is_later(run: int) -> bool:
        plan = plans.moved_by(run)
        return plan is not None and not is_upto(plan)

    upto = bisect_left(runs, True, key=is_later)
    if (cut := next(_cuts_of(plans, reversed(runs[:upto]), left), None)) is None:
        raise SinkError(
            f"no cut is as old as {at}: the oldest is {next(_cuts_of(plans, runs, left))}",
            where="the lakehouse",
            remedy="`millrace cuts` lists all cuts; lakehouse.keep sets how long they stay",
        )
    return cut


def _instant(at: str, newest: Cut) -> tuple[Callable[[RunPlan], bool], bool]:
    """Return a test whether a plan's cut is up to an instant, and whether that is still ahead."""
    if _RUN.fullmatch(at):
        run = int(at)
        return (lambda plan: plan.run <= run), run > newest.run
    if not newest.is_instant:
        raise ConfigError(
            f"{at}: topics of a real Debezium don't show at which instants all tables are complete",
            where="--at",
            remedy="use latest, or the number of a run; `millrace cuts` lists them",
        )
    if (position := _position(at, newest.position.epoch)) is not None:
        upto = position
        is_ahead = _commit_of(upto) > _commit_of(newest.position)
        return (lambda plan: plan.cut <= upto), is_ahead
    moment_us = _moment_us(at)
    return (lambda plan: plan.cut_ts_us <= moment_us), False


def _commit_of(position: Position) -> tuple[int, Lsn]:
    return position.epoch, position.commit_lsn


def _position(at: str, epoch: int) -> Position | None:
    """Return a position; for an LSN, one after everything committed there in the newest epoch."""
    with suppress(ValueError):
        return Position(epoch, Lsn.parse(at), (1 << 64) - 1)
    with suppress(ValueError):
        return Position.parse(at)
    return None


def _moment_us(at: str) -> int:
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise ConfigError(
            f"{at} isn't an instant",
            where="--at",
            remedy="use latest, the number of a run, an LSN (16/B374D848), or a timestamp"
            " (2026-01-31T12:00:00+01:00; without a zone it is UTC)",
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


class LakehouseCuts:
    """The cuts that tables of some ``kinds`` have, for targets that are built from these.

    ``log`` returns the log's newer state: a merge's plan may have more of the log than ``state``.
    """

    def __init__(
        self,
        lakehouse: LakehouseSettings,
        prefix: str,
        state: LogState,
        log: Callable[[RunPlan], LogState],
        session: SparkProvider,
        kinds: tuple[TableKind, ...] = ("current",),
    ) -> None:
        self._lakehouse = lakehouse
        self._prefix = prefix
        self._state = state
        self._log = log
        self._session = session
        self._reading = Lock()
        derived = derived_tables(lakehouse, state.tables)
        self._derived = {name: of for name, of in derived.items() if of.kind in kinds}

    @cached_property
    def _plans(self) -> Plans:
        return lakehouse_plans(self._lakehouse.path, self._session)

    def newest(self, tables: Collection[str]) -> Instant | None:
        """Return the newest cut that all of these tables have."""
        return next(self.instants(tables), None)

    def instants(self, tables: Collection[str]) -> Iterator[Instant]:
        """Yield the cuts that all of these tables have, newest first.

        Raises DamagedError if it is unknown whether the newest run has one.
        """
        last = self._plans.last()
        run = last.run if last is not None else 0
        left = self._plans.compacted()
        has_ended = False
        for number in range(run, max(0, run - _RUNS_MAX), -1):
            plan = self._plans.plan_of(number, tables)
            outcome = self._plans.outcome_of(number, tables)
            if not has_ended:
                self._plans.require_undamaged(number)
            if plan is None or outcome is None:
                continue
            has_ended = True
            if all(self._stands(name, plan, outcome) for name in tables):
                lasting = lasting_versions(plan, outcome, left)
                versions = {name: lasting[name] for name in sorted(set(tables))}
                yield Instant(
                    run=number,
                    cut=plan.cut,
                    versions=versions,
                    committed_us=plan.cut_ts_us,
                    made_ms=plan.ts_ms,
                )

    def _stands(self, name: str, plan: RunPlan, outcome: RunOutcome) -> bool:
        """Whether a table has the plan's cut, in columns that the log's state has."""
        derived, table = self._derived.get(name), plan.tables.get(name)
        if derived is None or table is None:
            return False
        if name in outcome.failed or name not in outcome.versions:
            return False
        with self._reading:
            if self._newest_schema(derived) < table.schema_version:
                self._state = self._log(plan)
        return self._newest_schema(derived) >= table.schema_version

    def _newest_schema(self, derived: Derived) -> int:
        versions = self._state.schemas.get(derived.source, ())
        return versions[-1].version if versions else -1

    def has(self, instant: Instant) -> bool:
        """Whether a cut still exists, and its versions of the tables are kept.

        A version may be newer than the run's, if compaction has made it.
        """
        names = instant.versions.keys()
        plan = self._plans.moved_by(instant.run)
        outcome = self._plans.outcome_of(instant.run, names)
        if plan is None or outcome is None or plan.cut != instant.cut:
            return False
        is_kept = time.time() - outcome.ts_ms / 1_000 < self._lakehouse.keep.total_seconds()
        return is_kept and all(
            (of := outcome.versions.get(name)) is not None
            and of.id == at.id
            and of.version <= at.version
            for name, at in instant.versions.items()
        )

    def shapes(self, instant: Instant) -> "dict[str, TableShape]":
        """Return the columns of the tables at a cut."""
        names = instant.versions.keys() & self._derived.keys()
        plan = self._plans.plan_of(instant.run, names)
        return {name: self._shape(name, plan.tables[name]) for name in names} if plan else {}

    def _shape(self, name: str, table: TablePlan) -> "TableShape":
        from sinks.changes.shape import derive_shape

        derived = self._derived[name]
        schemas = self._state.schemas[derived.source]
        versions = [schema for schema in schemas if schema.version <= table.schema_version]
        return derive_shape(versions, table.first_version, derived.options, derived.reserved)

    @property
    def tables(self) -> Mapping[str, Derived]:
        """The tables, by name."""
        return self._derived

    def reader(self, *instants: Instant, records: int = 0) -> "LakehouseReader":
        """Return a reader of the tables at some cuts, sized for about ``records`` records."""
        from sinks.delta.difference import LakehouseReader

        spark, rebuilt = self._session().newSession(), self.rebuilt(instants)
        return LakehouseReader(spark, self._prefix, self._derived, instants, records, rebuilt)

    def rebuilt(self, instants: Sequence[Instant]) -> set[str]:
        """Return the tables that were rebuilt between the first and the last of some cuts."""
        runs = [instant.run for instant in instants]
        plans = map(self._plans.moved_by, range(min(runs) + 1, max(runs) + 1))
        return {
            name
            for plan in plans
            if plan is not None
            for name, table in plan.tables.items()
            if table.instead_of is not None
        }

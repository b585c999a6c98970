"""Plans and their outcomes → cuts: instants of the source, and where each table has them.

A cut is a position up to which every table was applied: a commit of the source, and so an instant
that the source itself has shown. Each table has it at one of its own versions.
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
"""So many runs back a cut is looked for that all tables have."""


class Cut(BaseModel):
    """An instant of the source that a run has brought the tables to.

    ``position`` is the last commit's, ``committed_us`` its time (µs since 1970, UTC; 0: none was
    seen yet), ``applied_ms`` when the run was done, in ``seconds``. ``versions`` has the version of
    each table that stands there; ``missing`` are the others, which had failed. ``tables`` are those
    that the run had something for. Where somebody has asked for ``views`` as well, these are their
    versions, and ``missing_views`` has why others aren't there.

    Of topics that a real Debezium wrote it is no instant: each table has what its topic had when
    the run began, at ``planned_ms``, and the position says nothing.
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
        """Its LSN, for people."""
        return str(self.position.commit_lsn) if self.is_instant else "the topics' ends"

    @property
    def committed(self) -> str:
        """When its last transaction was committed."""
        if not self.is_instant:
            return "not known"
        if not self.committed_us:
            return "before any commit was seen"
        return _text(self.committed_us / 1e6)


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(" ")


def cuts(plans: Plans, newest: int | None = None) -> list[Cut]:
    """The cuts that runs have reached, ascending; only so many of the ``newest`` where asked."""
    newest_first = _cuts_of(plans, reversed(plans.ended()), plans.compacted())
    return [*islice(newest_first, newest)][::-1]


def _cuts_of(plans: Plans, runs: Iterable[int], left: Mapping[str, LeftTable]) -> Iterator[Cut]:
    """Yield the cuts that runs have reached, in their order; damaged runs have none."""
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
    """The newest cut that isn't later than a run's number, an LSN, a position or a timestamp.

    Few runs are looked at: later ones have later cuts. Where the source's clock was set back, it is
    one that isn't later, and whose next one is.

    Raises ConfigError where ``at`` is none of these, SinkError where no cut reaches back so far,
    or the newest one isn't there yet.
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
    """What tells whether a plan's cut is up to an instant; and whether that isn't reached yet."""
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
    """A position, or all of what was committed at an LSN of the newest epoch."""
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
    """The cuts at which tables of some ``kinds`` stand, for what is made of these.

    ``log`` tells what the log has by now: a merge's plan may have more of it than ``state``.
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
        """The newest cut at which all of these tables stand."""
        return next(self.instants(tables), None)

    def instants(self, tables: Collection[str]) -> Iterator[Instant]:
        """The cuts at which all of these tables stand, newest first.

        Raises DamagedError where nobody can tell if the newest run is one.
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
        """Whether a table has the plan's cut, in columns that the state of the log tells."""
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
        """Whether a cut is still that, and its versions of the tables are kept.

        A version may be a later one than the run's, which compaction had left.
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
        """The columns of the tables at a cut."""
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
        """The tables, by their names."""
        return self._derived

    def reader(self, *instants: Instant, records: int = 0) -> "LakehouseReader":
        """A reader of the tables at some cuts, for work that is that of about so many records."""
        from sinks.delta.difference import LakehouseReader

        spark, rebuilt = self._session().newSession(), self.rebuilt(instants)
        return LakehouseReader(spark, self._prefix, self._derived, instants, records, rebuilt)

    def rebuilt(self, instants: Sequence[Instant]) -> set[str]:
        """The tables that were rebuilt between the first and the last of some cuts."""
        runs = [instant.run for instant in instants]
        plans = map(self._plans.moved_by, range(min(runs) + 1, max(runs) + 1))
        return {
            name
            for plan in plans
            if plan is not None
            for name, table in plan.tables.items()
            if table.instead_of is not None
        }

"""Plans and outcomes ⇄ their records, which have the moved tables.

A run's plan has all tables, and most runs move few of them. So a plan's record has the moved
tables, and how earlier runs have left the others. ``before`` has the moves since the run ``since``,
whose own record has the moves before it, and so on.

Run 12 names run 8, which names none. Run 11 names run 10, then 8: each step clears the number's
lowest bit. So any plan needs as many records as its number has bits, and a moved table is written
about as often until all records have it that need it. Each ``WHOLE_EVERY``-th record names none,
and has all tables. An outcome's record has the changed versions.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from sinks.run.plan import RunPlan, TablePlan, goes_on
from sinks.run.summary import RunOutcome, TableVersion

WHOLE_EVERY: Final = 1024
"""After this many runs a record has all tables: later runs need no earlier record."""


class TableAfter(BaseModel):
    """A table as the last ``run`` that moved it has left it.

    It continues with ``table`` (None: no plan has it now). It is at the cuts of that run and later
    ones, at its ``version`` if it has one, unless it ``waits``.
    """

    model_config = ConfigDict(frozen=True)

    run: int
    table: TablePlan | None = None
    waits: bool = False
    version: TableVersion | None = None


TablesAfter = Mapping[str, TableAfter]


class PlanRecord(RunPlan):
    """A plan with the tables that it moves. It no longer has the ``gone`` ones."""

    gone: tuple[str, ...] = ()
    since: int = 0
    before: dict[str, TableAfter] = Field(default_factory=dict)

    @property
    def own(self) -> Collection[str]:
        """Return the tables in the record itself."""
        return {*self.tables, *self.waiting, *self.gone}


class OutcomeRecord(RunOutcome):
    """An outcome. For tables that the plan doesn't move, it has the changed ``versions``.

    The version of ``unknown`` ones is no longer known.
    """

    unknown: tuple[str, ...] = ()


_OF_PLAN: Final = tuple(name for name in RunPlan.model_fields if name not in {"tables", "waiting"})


def parent_of(run: int) -> int:
    """Return the run whose record has the earlier moves. 0: none."""
    return run & (run - 1) if run % WHOLE_EVERY else 0


def plan_record(plan: RunPlan, left: TablesAfter, since: int) -> PlanRecord:
    """Return a plan's record, based on how the run before has left the tables."""
    there = {name: after for name, after in left.items() if after.table is not None}
    moved = {
        name: table
        for name, table in plan.tables.items()
        if name not in there or there[name].waits or table != _idle(there[name], plan)
    }
    waiting = {
        name: table
        for name, table in plan.waiting.items()
        if name not in there or not there[name].waits or table != there[name].table
    }
    gone = tuple(there.keys() - plan.all_tables.keys())
    own = {*moved, *waiting, *gone}
    before = {
        name: after
        for name, after in left.items()
        if after.run >= since and name not in own and (since or after.table is not None)
    }
    header = {name: getattr(plan, name) for name in _OF_PLAN}
    return PlanRecord.model_construct(
        **header, tables=moved, waiting=waiting, gone=gone, since=since, before=before
    )


def tables_before(records: Iterable[PlanRecord], names: Collection[str] | None) -> TablesAfter:
    """Return how earlier runs have left the tables, or some, that the first record lacks.

    ``records`` are that one, and those that each names as the next.
    """
    tables: dict[str, TableAfter] = {}
    own: Collection[str] | None = None
    for record in records:
        own = record.own if own is None else own
        for name, after in record.before.items():
            if name not in tables and name not in own and (names is None or name in names):
                tables[name] = after
    return tables


def whole_plan(
    record: PlanRecord, before: TablesAfter, names: Collection[str] | None = None
) -> RunPlan:
    """Return the plan, with all of its tables, or some."""
    tables, waiting = dict[str, TablePlan](), dict[str, TablePlan]()
    for name, after in before.items():
        if after.table is not None:
            (waiting if after.waits else tables)[name] = _idle(after, record)
    own = {
        key: {name: table for name, table in of.items() if names is None or name in names}
        for key, of in (("tables", record.tables), ("waiting", record.waiting))
    }
    header = {name: getattr(record, name) for name in _OF_PLAN}
    return RunPlan.model_construct(
        **header, tables=tables | own["tables"], waiting=waiting | own["waiting"]
    )


def _idle(after: TableAfter, plan: RunPlan) -> TablePlan:
    """Return the plan of a table without new records: the log was complete when it was read."""
    table = after.table
    assert table is not None  # noqa: S101 (callers have checked)
    if after.waits or table.fresh_ms == plan.read_ms:
        return table
    return table.model_copy(update={"fresh_ms": plan.read_ms})


def outcome_record(outcome: RunOutcome, before: TablesAfter) -> OutcomeRecord:
    """Return an outcome's record, based on how earlier runs have left tables that don't move."""
    kept = _versions(before)
    versions = {name: of for name, of in outcome.versions.items() if kept.get(name) != of}
    unknown = tuple(kept.keys() - outcome.versions.keys())
    header = {name: getattr(outcome, name) for name in RunOutcome.model_fields}
    return OutcomeRecord.model_construct(**{**header, "versions": versions}, unknown=unknown)


def whole_outcome(
    record: OutcomeRecord, before: TablesAfter, names: Collection[str] | None = None
) -> RunOutcome:
    """Return the outcome, with the versions of all of its tables, or of some."""
    versions = {name: of for name, of in _versions(before).items() if name not in record.unknown}
    versions |= {name: of for name, of in record.versions.items() if names is None or name in names}
    header = {name: getattr(record, name) for name in RunOutcome.model_fields}
    return RunOutcome.model_construct(**{**header, "versions": versions})


def _versions(before: TablesAfter) -> dict[str, TableVersion]:
    """Return the versions of tables that haven't moved."""
    return {
        name: after.version
        for name, after in before.items()
        if after.version is not None and not after.waits
    }


def tables_after(
    record: PlanRecord, before: TablesAfter, plan: RunPlan, outcome: RunOutcome | None
) -> TablesAfter:
    """Return how a run has left all tables."""
    left = goes_on(plan, outcome) if outcome is not None else plan.all_tables
    versions = outcome.versions if outcome is not None else {}
    tables: dict[str, TableAfter] = {}
    for name, table in left.items():
        now = TableAfter.model_construct(
            run=plan.run,
            table=table,
            waits=name in plan.waiting,
            version=versions.get(name),
        )
        old = before.get(name)  # not of tables in the record itself
        is_same = (
            old is not None
            and old.table is not None
            and (old.waits, old.version) == (now.waits, now.version)
            and _idle(old, plan) == table
        )
        tables[name] = old if old is not None and is_same else now
    for name in {*before, *record.own} - tables.keys():
        old = before.get(name)
        is_told = old is not None and old.table is None
        tables[name] = old if old is not None and is_told else TableAfter(run=plan.run)
    return tables

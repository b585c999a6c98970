"""The lakehouse → its newest cut for some tables, and their columns there."""

import time
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cdc.errors import ConfigError
from cdc.log.offsets import LogState
from cdc.settings import Settings
from sinks.changes.derived import Derived, derived_tables
from sinks.changes.shape import TableShape, derive_shape
from sinks.run.plan import RunPlan
from sinks.run.plans import Plans, lakehouse_plans
from sinks.search.progress_records import Instant
from sinks.spark.session import SparkProvider

if TYPE_CHECKING:
    from sinks.search.joined.reading import LakehouseReader

_RUNS_MAX: Final = 1_000
"""So many runs back a cut is looked for that all tables have."""


class Lakehouse:
    """What joined documents are made of."""

    def __init__(
        self,
        settings: Settings,
        state: LogState,
        log: Callable[[], LogState],
        session: SparkProvider,
    ) -> None:
        if settings.lakehouse is None:
            raise ConfigError(
                "joined documents are made of the lakehouse's tables, and there is no lakehouse",
                where="[[search.documents]]",
                remedy='add a section [lakehouse] with path = "…"',
            )
        self._settings = settings.lakehouse
        self._prefix = settings.capture.topic_prefix
        self._log = log
        self._state = state
        self._session = session
        self._derived: dict[str, Derived] = {
            name: derived
            for name, derived in derived_tables(settings.lakehouse, state.tables).items()
            if derived.kind == "current"
        }

    @cached_property
    def _plans(self) -> Plans:
        return lakehouse_plans(self._settings.path, self._session)

    def newest(self, tables: Collection[str]) -> Instant | None:
        """The newest cut that all of these tables have."""
        last = self._plans.last()
        run = last.run if last is not None else 0
        for number in range(run, max(0, run - _RUNS_MAX), -1):
            outcome, plan = self._plans.outcome_of(number), self._plans.plan_of(number)
            if outcome is None or plan is None:
                continue
            there = outcome.versions.keys() - outcome.failed.keys()
            there -= {name for name in there if not self._has_columns(name, plan)}
            if there >= set(tables):
                versions = {name: outcome.versions[name] for name in sorted(set(tables))}
                return Instant(run=number, cut=plan.cut, versions=versions)
        return None

    def has(self, instant: Instant) -> bool:
        """Whether a cut is still that, and its versions of the tables are kept."""
        plan, outcome = self._plans.plan_of(instant.run), self._plans.outcome_of(instant.run)
        if plan is None or outcome is None or plan.cut != instant.cut:
            return False
        kept_ms = self._settings.keep.total_seconds() * 1_000
        is_kept = time.time() * 1_000 - outcome.ts_ms < kept_ms
        versions = instant.versions.items()
        return is_kept and all(outcome.versions.get(name) == version for name, version in versions)

    def _has_columns(self, name: str, plan: RunPlan) -> bool:
        """Whether the log's state that was read has the columns of a plan's table."""
        derived, table = self._derived.get(name), plan.tables.get(name)
        if derived is None or table is None:
            return False
        if self._newest_version(derived) < table.schema_version:
            self._state = self._log()  # a merge has seen more of it since then
        return self._newest_version(derived) >= table.schema_version

    def _newest_version(self, derived: Derived) -> int:
        versions = self._state.schemas.get(derived.source, ())
        return versions[-1].version if versions else -1

    def shapes(self, instant: Instant) -> dict[str, TableShape]:
        """The columns of the tables at a cut."""
        plan = self._plans.plan_of(instant.run)
        shapes: dict[str, TableShape] = {}
        for name in instant.versions:
            derived = self._derived.get(name)
            if plan is None or derived is None:
                continue
            table = plan.tables[name]
            schemas = self._state.schemas[derived.source]
            versions = [schema for schema in schemas if schema.version <= table.schema_version]
            shapes[name] = derive_shape(
                versions, table.first_version, derived.options, derived.reserved
            )
        return shapes

    def reader(self, *instants: Instant, documents: int = 0) -> "LakehouseReader":
        """A reader of the tables at some cuts, for about so many documents."""
        from sinks.search.joined.reading import LakehouseReader

        return LakehouseReader(
            self._session().newSession(), self._prefix, self._derived, instants, documents
        )

"""The lakehouse → its newest cut for some tables, their columns there, and rows and changes."""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cdc.errors import ConfigError
from cdc.settings import Settings
from sinks.batch import LogState
from sinks.delta.plans import Plans, lakehouse_plans
from sinks.derived import Derived, derived_tables
from sinks.names import DELETED
from sinks.search.joined.record import Instant
from sinks.session import Session
from sinks.shape import Shape, shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sinks.delta.table import DeltaTarget
    from sinks.search.joined.affected import Change

_RUNS_MAX: Final = 1_000
"""So many runs back a cut is looked for that all tables have."""


class Lakehouse:
    """What joined documents are made of."""

    def __init__(self, settings: Settings, state: LogState, session: Session) -> None:
        if settings.lakehouse is None:
            raise ConfigError(
                "joined documents are made of the lakehouse's tables, and there is no lakehouse",
                where="[[search.documents]]",
                remedy='add a section [lakehouse] with path = "…"',
            )
        self._settings = settings.lakehouse
        self._prefix = settings.capture.topic_prefix
        self._state = state
        self._session = session
        self._derived: dict[str, Derived] = {
            name: one
            for name, one in derived_tables(settings.lakehouse, state.tables).items()
            if one.kind == "current"
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
            if there >= set(tables) and not any(plan.tables[name].waits for name in tables):
                versions = {name: outcome.versions[name] for name in sorted(set(tables))}
                return Instant(run=number, cut=plan.cut, versions=versions)
        return None

    def has(self, instant: Instant) -> bool:
        """Whether a cut is still kept."""
        return self._plans.outcome_of(instant.run) is not None

    def shapes(self, instant: Instant) -> dict[str, Shape]:
        """The columns of the tables at a cut."""
        plan = self._plans.plan_of(instant.run)
        found: dict[str, Shape] = {}
        for name in instant.versions:
            derived = self._derived.get(name)
            if plan is None or derived is None:
                continue
            table = plan.tables[name]
            known = self._state.schemas[derived.source]
            versions = [one for one in known if one.version <= table.schema_version]
            found[name] = shape(versions, table.first_version, derived.wishes, derived.reserved)
        return found

    def reader(self, instant: Instant) -> "Callable[[str], DataFrame]":
        """What gives the rows of a table at a cut."""

        def read(name: str) -> "DataFrame":
            from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

            version = str(instant.versions[name].version)
            options = self._session().read.format("delta").option("versionAsOf", version)
            rows = options.load(self._derived[name].path)
            return rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows

        return read

    def changes(
        self, older: Instant, newer: Instant, linking: Mapping[str, Collection[str]]
    ) -> "Callable[[str], Change | None]":
        """What gives the rows of a table that changed between two cuts, by the ``linking`` columns.

        None: nothing did.
        """
        shapes = self.shapes(newer)

        def changed(name: str) -> "Change | None":
            from sinks.delta.difference import difference
            from sinks.search.joined.affected import Change

            before, after = older.versions[name], newer.versions[name]
            if before == after:
                return None
            keys, columns = shapes[name].keys, sorted(linking[name])
            target = self._target(name)
            return Change(*difference(target, before.version, after.version, keys, columns))

        return changed

    def _target(self, name: str) -> "DeltaTarget":
        from sinks.delta.table import DeltaTarget

        return DeltaTarget(self._session(), self._prefix, self._derived[name])

"""A lakehouse on this machine → what the next run refuses, by its own checks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from cdc.errors import ConfigError, MillraceError
from cdc.settings import Settings
from cdc.settings.lakehouse import LakehouseSettings
from deploy.check.applied import APPLIED, DERIVED, applied_of_log, goes_on_with_tables
from deploy.check.result import Area
from deploy.check.runner import WAIT_S, CheckResults
from deploy.check.scene import Scene, captured_of
from deploy.status.patience import give_up_after
from deploy.status.sinks import left_tables
from sinks.changes.derived import Derived, require_keyless_kind
from sinks.run.options import RunContext, RunOptions
from sinks.run.owner import changed_kinds, foreign_tables, log_folder, require_same_writer
from sinks.run.plan import RunPlan, TablePlan, require_same_log
from sinks.run.plans import Plans, lakehouse_plans
from sinks.run.wanted import CapturedTables, lakehouse_tables, wanted_in_lakehouse

DELTA: Final = "Delta tables"


def check_standing(part: Area, scene: Scene, lakehouse: LakehouseSettings) -> CheckResults:
    """Check whether runs can continue the existing lakehouse, by their own checks."""
    settings = scene.settings
    prefix = settings.capture.topic_prefix
    try:
        plans = lakehouse_plans(lakehouse.path, no_session)
        last = plans.last()
        outcome = plans.outcome(last) if last is not None else None
        if last is not None:
            require_same_writer(last, "lakehouse", prefix, lakehouse.topics_written_by)
    except MillraceError as error:
        yield part.of_error(APPLIED, error)
        return
    left = left_tables(last, outcome)
    standing = StandingLakehouse(part, settings, lakehouse, plans, last, left)
    if settings.captures_itself:
        yield from standing.of_own_log(scene)
    else:
        yield from standing.of_topics()


@dataclass
class StandingLakehouse:
    """The derived tables as the last plan has ``left`` them."""

    part: Area
    settings: Settings
    lakehouse: LakehouseSettings
    plans: Plans
    last: RunPlan | None
    left: dict[str, TablePlan]

    def of_own_log(self, scene: Scene) -> CheckResults:
        """Check with the source's catalog and our own log."""
        part, last = self.part, self.last
        if last is not None:
            yield from applied_of_log(part, scene, last)
        else:
            yield part.ok(APPLIED, "nothing yet")
        tables = scene.tables.get()
        if tables is None:
            return
        captured = captured_of(scene.settings.capture, tables)
        try:
            derived = self._derived(captured)
        except ConfigError:
            return  # a line on their names reports it
        yield from self._delta_tables(derived)
        followed = _without_key(derived, captured)
        yield from part.of_errors(
            "keys", followed, "every table that is followed by its key has one"
        )
        before, wanted = self._standing(derived), wanted_in_lakehouse(self.lakehouse, derived)
        yield from goes_on_with_tables(part, scene, before, wanted)

    def of_topics(self) -> CheckResults:
        """Check with the topics, which no state record describes."""
        from sinks.debezium.topics import DebeziumTopics

        part, last = self.part, self.last
        context = RunContext(
            self.settings, no_session, _discard, RunOptions(), give_up_after(WAIT_S)
        )
        try:
            topics = DebeziumTopics(context, self.lakehouse)
            state = topics.state(last)
            if last is not None:
                require_same_log(last, state.progress.log)
            derived = self._derived(CapturedTables.of(state.tables, {}))
        except MillraceError as error:
            yield part.of_error(APPLIED, error)
            return
        yield part.ok(APPLIED, "nothing yet" if last is None else f"run {last.run}")
        yield from self._delta_tables(derived)
        before, wanted = self._standing(derived), wanted_in_lakehouse(self.lakehouse, derived)
        refused = {**topics.refused(before, wanted, state), **changed_kinds(before, wanted)}
        found = f"the next run continues each of {len(wanted)}"
        yield from part.of_errors(DERIVED, refused.values(), found)

    def _derived(self, captured: CapturedTables) -> dict[str, Derived]:
        planned = self.last.all_tables if self.last is not None else {}
        begun = [name for name, table in planned.items() if table.base]
        return lakehouse_tables(self.settings, captured, begun)[0]

    def _delta_tables(self, derived: Mapping[str, Derived]) -> CheckResults:
        last = self.last
        while foreign := list(foreign_tables(derived, last, self.settings.capture.topic_prefix)):
            if (newest := self.plans.last()) == last:
                break
            last = newest  # a run has begun since, and may have committed
        found = "each is in the state of the last run, and Millrace wrote them all"
        yield from self.part.of_errors(DELTA, foreign, found)

    def _standing(self, derived: Mapping[str, Derived]) -> dict[str, TablePlan]:
        """Return where tables continue. One whose Delta table is missing begins again."""
        return {
            name: table.begun_again({}) if _is_gone(derived[name]) else table
            for name, table in self.left.items()
            if name in derived
        }


def _is_gone(derived: Derived) -> bool:
    """Whether the Delta table is missing. The line on Delta tables reports missing rights."""
    try:
        return log_folder(derived) is None
    except MillraceError:
        return False


def _without_key(
    derived: Mapping[str, Derived], captured: CapturedTables
) -> Iterator[MillraceError]:
    """Yield errors of tables that need a key to follow their rows, but have none."""
    for table in derived.values():
        if table.source in captured.keyless:
            try:
                require_keyless_kind(table)
            except ConfigError as error:
                yield error


def _discard(_line: str) -> None:
    """Discard a run's output."""


def no_session(_records: int = 0) -> NoReturn:
    """Raise where a run would start Spark."""
    raise AssertionError("a lakehouse on this machine is looked at without Spark")

"""A kind of derived tables, as a run sees it: its state, its plans, and how to apply a plan.

A new target is a subclass: it declares what it wants, keeps plans, and applies a table's plan in
one atomic step that records the new position. docs/explanation/runs.md describes each kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from cdc.errors import LogForgottenError, MillraceError
from cdc.log.offsets import LogState
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import LastCheck, Rows, RunOutcome, TableResult, TableVersion
from sinks.run.topics import Examination, ReadChanges, Topics
from sinks.run.wanted import WantedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PlanStore(Protocol):
    """A target's store for the plans of its runs. Its holder is the only run.

    A started plan is finished or repeated, never replaced.
    """

    def last(self) -> RunPlan | None:
        """Return the newest plan, finished or not."""

    def outcome(self, plan: RunPlan) -> RunOutcome | None:
        """Return the newest plan's outcome, if it has ended."""

    def start(self, plan: RunPlan) -> None:
        """Make the plan the next one. Raise BusyError if another run was first."""

    def finish(self, outcome: RunOutcome) -> None:
        """Record that the plan has ended."""

    def checked(self) -> LastCheck:
        """Return when a run last found nothing to do."""

    def check(self, check: LastCheck) -> None:
        """Record a run with nothing to do."""


class Forgotten(NamedTuple):
    """A table's changes that the log no longer has (``error``), and those that it still has.

    ``again`` is a plan that reads all of the latter. If the log ``is_compacted``, it has the newest
    state of each key. A gap can be marked (``can_mark``) if positions show where it begins.
    ``replaced`` is the plan of the whole table, if all rows were read again. The records show
    whether the log has all of these (``Topics.examined``). ``read_again`` says how to do this.
    """

    error: LogForgottenError
    again: TablePlan
    is_compacted: bool
    can_mark: bool
    replaced: TablePlan | None = None
    read_again: str = ""

    @property
    def has_rows(self) -> bool:
        """Whether the log has the newest state of each row, or may have it."""
        return self.is_compacted or self.replaced is not None


class Wanted(NamedTuple):
    """The derived tables to make, and remarks about others for the user.

    ``refused`` says why some wanted ones can't be made.
    """

    tables: dict[str, WantedTable]
    remarks: Sequence[str] = ()
    refused: Mapping[str, MillraceError] = MappingProxyType({})


class Rebuilt(NamedTuple):
    """The plans of tables to rewrite, and why others can't be rewritten."""

    tables: Mapping[str, TablePlan] = MappingProxyType({})
    refused: Mapping[str, MillraceError] = MappingProxyType({})


class Target(ABC):
    """The derived tables of one kind. Its methods are called in this order.

    ``ends_run`` are the errors that concern all tables, even if one table met them. They end the
    run, and the next one repeats its plan. The methods that aren't abstract are for targets with
    further features: archives, versions, an answer to gaps, separate loads.
    """

    sink: ClassVar[str]
    ends_run: ClassVar[tuple[type[MillraceError], ...]] = ()
    plans: PlanStore

    @abstractmethod
    def wanted(self, state: LogState, begun: Collection[str]) -> Wanted:
        """Return the tables to make of the captured ones. Raise ConfigError for unknown names.

        ``begun`` are the names of tables that the last plan had.
        """

    @abstractmethod
    def is_standing(self, name: str, table: TablePlan, state: LogState) -> bool:
        """Whether a wanted table exists, as earlier plans have left it.

        If it doesn't, it begins again, from the log's start.
        """

    def settle(self, plan: RunPlan, outcome: RunOutcome) -> RunOutcome:
        """Return the last plan's outcome, without failures that followed a table's own commit."""
        del plan
        return outcome

    def rebuilt(
        self,
        before: Mapping[str, TablePlan],
        failed: Collection[str],
        state: LogState,
        topics: Topics,
    ) -> Rebuilt:
        """Return the tables that a run's options rewrite, of those that can continue.

        ``before`` has their current plans. Some have ``failed`` in the last run.
        """
        del before, failed, state, topics
        return Rebuilt()

    def on_archives(
        self, tables: dict[str, TablePlan], failed: Collection[str], state: LogState
    ) -> dict[str, TablePlan]:
        """Return the tables.

        New ones start from an archive that has more than the log still has.
        """
        del failed, state
        return tables

    def behind_gap(self, name: str, table: TablePlan, forgotten: Forgotten) -> TablePlan | None:
        """Return the plan of a table whose changes the log no longer has. None: it is refused.

        It begins again if the log has every key, or all rows that were read again. The refusal has
        this error, and the target may change its remedy.
        """
        del name, table
        if forgotten.replaced is not None:
            return forgotten.replaced.model_copy(update={"base": 0})
        again = forgotten.again
        return again.begun_again(again.start) if forgotten.is_compacted else None

    def examination(self, tables: Mapping[str, TablePlan], state: LogState) -> Examination:
        """Return what to find out about these tables' new records, and what is known already."""
        del tables, state
        return Examination(lambda *_: None, {}, {})

    def rows(self, name: str) -> int | None:
        """Return the number of rows of an existing table. None: unknown."""
        del name
        return None

    @abstractmethod
    def apply(
        self, spark: "SparkSession", name: str, plan: RunPlan, read: ReadChanges
    ) -> Rows | None:
        """Apply the plan to a table, in one atomic step, unless the table has it already.

        ``read`` returns the changes. It isn't called if there is nothing to write. None: a long
        load has begun, which the target reports by itself.
        """

    def versions(self, plan: RunPlan, results: list[TableResult]) -> dict[str, TableVersion]:
        """Return the version of each table that has the plan's cut."""
        del plan, results
        return {}

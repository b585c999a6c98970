"""A kind of derived tables, as a run sees it: what stands, who may write, and how to apply a plan.

A new target is a subclass: it says what it wants, keeps plans, and applies a table's plan in one
atomic step that records the position reached. docs/explanation/runs.md says what each kind does.
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
    """Where a target keeps the plans of its runs; whoever has it is the only run.

    A plan that is started is finished or repeated, never replaced.
    """

    def last(self) -> RunPlan | None:
        """The newest plan, finished or not."""

    def outcome(self, plan: RunPlan) -> RunOutcome | None:
        """How the newest plan ended, if it did."""

    def start(self, plan: RunPlan) -> None:
        """Make the plan the next one; raises BusyError if another run was first."""

    def finish(self, outcome: RunOutcome) -> None:
        """Record that nothing of the plan is under way any more."""

    def checked(self) -> LastCheck:
        """When a run last found nothing to do."""

    def check(self, check: LastCheck) -> None:
        """Record that there was nothing to do."""


class Forgotten(NamedTuple):
    """What the log has forgotten of a table's changes (``error``), and what it still has.

    ``again`` is a plan that reads all of that. Where the log ``is_compacted``, it has the newest
    state of each key. A gap can be marked (``can_mark``) where positions tell where it begins.
    ``replaced`` is the plan of the table as a whole, where all rows were read again: whether the
    log has all of that, the records tell (``Topics.examined``). ``read_again`` says how to do it.
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
    """The derived tables that there are to be, and remarks about others for the user.

    ``refused``: why some that are wanted can't be.
    """

    tables: dict[str, WantedTable]
    remarks: Sequence[str] = ()
    refused: Mapping[str, MillraceError] = MappingProxyType({})


class Rebuilt(NamedTuple):
    """The plans of tables that are to be written as a whole, and why others can't be."""

    tables: Mapping[str, TablePlan] = MappingProxyType({})
    refused: Mapping[str, MillraceError] = MappingProxyType({})


class Target(ABC):
    """The derived tables of one kind; its methods are called in this order.

    ``ends_run`` are the errors that concern all tables, though one table met them: the run ends,
    and its plan is repeated by the next one. The methods that aren't abstract are for targets that
    have more than a run needs: archives, versions, an answer to gaps, loads of their own.
    """

    sink: ClassVar[str]
    ends_run: ClassVar[tuple[type[MillraceError], ...]] = ()
    plans: PlanStore

    @abstractmethod
    def wanted(self, state: LogState, begun: Collection[str]) -> Wanted:
        """What there is to be of the captured tables; raises ConfigError for unknown names.

        ``begun`` are the names of tables that the last plan had.
        """

    @abstractmethod
    def is_standing(self, name: str, table: TablePlan, state: LogState) -> bool:
        """Whether a wanted table is there, as the plans before have left it.

        One that isn't begins again, from the log's start.
        """

    def settle(self, plan: RunPlan, outcome: RunOutcome) -> RunOutcome:
        """The outcome of the last plan, without failures that came after a table's own commit."""
        del plan
        return outcome

    def rebuilt(
        self,
        before: Mapping[str, TablePlan],
        failed: Collection[str],
        state: LogState,
        topics: Topics,
    ) -> Rebuilt:
        """The tables that a run's options have written as a whole, of those that can go on.

        ``before`` is where these stand; some have ``failed`` in the last run.
        """
        del before, failed, state, topics
        return Rebuilt()

    def on_archives(
        self, tables: dict[str, TablePlan], failed: Collection[str], state: LogState
    ) -> dict[str, TablePlan]:
        """The tables; new ones on an archive that has more than the log still has."""
        del failed, state
        return tables

    def behind_gap(self, name: str, table: TablePlan, forgotten: Forgotten) -> TablePlan | None:
        """The plan of a table that the log has forgotten changes of; None: it is refused.

        It begins again where the log has every key, or all rows that were read again. The error is
        the refusal's, and may be given another remedy.
        """
        del name, table
        if forgotten.replaced is not None:
            return forgotten.replaced.model_copy(update={"base": 0})
        again = forgotten.again
        return again.begun_again(again.start) if forgotten.is_compacted else None

    def examination(self, tables: Mapping[str, TablePlan], state: LogState) -> Examination:
        """What is to be known, and is known, of these tables' new records."""
        del tables, state
        return Examination(lambda *_: None, {}, {})

    def rows(self, name: str) -> int | None:
        """How many rows a table has that stands; None: it can't be told."""
        del name
        return None

    @abstractmethod
    def apply(
        self, spark: "SparkSession", name: str, plan: RunPlan, read: ReadChanges
    ) -> Rows | None:
        """Apply the plan to a table, in one atomic step, unless the table has it already.

        ``read`` gives the changes; where nothing is to be written, it isn't called. None: a long
        load is begun, of which the target tells by itself.
        """

    def versions(self, plan: RunPlan, results: list[TableResult]) -> dict[str, TableVersion]:
        """The version of each table that has the plan's cut."""
        del plan, results
        return {}

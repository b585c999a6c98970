"""Topics of either writer → the state and the new records that a run needs of them.

Millrace's own log has positions, schemas and a cut (sinks/log/topics.py); topics of a real Debezium
have none of these (sinks/debezium/topics.py). The rest of a run is the same for both.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cdc.errors import LogForgottenError, MillraceError
from cdc.log.offsets import LogState, Offsets
from cdc.records.schema import TableSchema
from cdc.settings.lakehouse import TopicWriter
from sinks.changes.ends import RowsEnd
from sinks.run.plan import RunPlan, TablePlan, proposed
from sinks.run.wanted import WantedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sinks.changes.ended import Older
    from sinks.changes.newest import Newest
    from sinks.changes.shape import TableShape


class PartitionCensus(NamedTuple):
    """A partition's new records: the first offset above the cut, and how many are below it.

    ``ends`` are those of rows (TRUNCATEs, dropped partitions) that the records up to the cut tell.
    """

    above: int | None
    events: int
    ends: tuple[RowsEnd, ...] = ()
    claims_ms: int | None = None


class Examination(NamedTuple):
    """What a target adds to an examination of new records.

    ``shape`` gives the columns of a table, from its schema versions up to the plan's; it raises
    MillraceError where there can't be such, and is None for a table that isn't read early.
    ``censuses`` are those of tables that the target has examined itself. ``archived`` are the
    ends of rows that a table has in the archive that it replays.
    """

    shape: Callable[[str, TablePlan, list[TableSchema]], "TableShape | None"]
    censuses: Mapping[str, Mapping[int, PartitionCensus]]
    archived: Mapping[str, tuple[RowsEnd, ...]]


class ExaminedTables(NamedTuple):
    """The tables that a plan may have, and the errors of others."""

    tables: dict[str, TablePlan]
    refused: dict[str, MillraceError]


class TableChanges(Protocol):
    """What a plan applies to one table, in the forms that targets need.

    ``versions`` are the table's schema versions up to the plan's.
    """

    versions: Sequence[TableSchema]

    def newest(
        self, shape: "TableShape", *, ranges: bool = False
    ) -> "AbstractContextManager[Newest]":
        """The newest state of each key, kept while the context lasts."""

    def contenders(self, shape: "TableShape") -> "AbstractContextManager[DataFrame]":
        """What the newest state of each key is made of, for a target that reads them once."""

    def older(self, shape: "TableShape") -> "Older | None":
        """The stored rows that go if no change speaks of them."""

    def are_newer(self, newest: "Newest") -> bool:
        """Whether no stored row can be as new."""

    def timed(self, shape: "TableShape", stored: "DataFrame | None") -> "DataFrame":
        """The changes with the times of their commits, none of which is ``stored`` already."""

    def behind_gap(self, shape: "TableShape") -> "DataFrame | None":
        """All that the log still has, where it has forgotten changes that the table lacks."""

    def events(self, shape: "TableShape", *, records: bool) -> "DataFrame":
        """Every event, once; ``records``: with the raw key and value."""

    def images(self, shape: "TableShape") -> "DataFrame":
        """The rows that changes add and take away, of a table without a key."""


class ReadChanges(Protocol):
    """Reads what a plan applies to one table, when it is called; a target needn't.

    ``archived`` are raw records that come before those of the topics.
    """

    def __call__(
        self, archived: "DataFrame | None" = None, /
    ) -> "AbstractContextManager[TableChanges]":
        """Return the changes, which are there while the context lasts."""


class Topics(Protocol):
    """The topics of one writer; answers that are written here suit a log of Millrace's.

    A gap can be marked (``can_mark_gaps``) where positions
    tell where it begins.
    """

    written_by: TopicWriter
    can_mark_gaps: bool

    def state(self, last: RunPlan | None) -> LogState:
        """What there is to read, and at least what the ``last`` plan was made of.

        Raises LogMissingError if nothing was ever written.
        """

    def refused(
        self, before: Mapping[str, TablePlan], wanted: Mapping[str, WantedTable], state: LogState
    ) -> dict[str, MillraceError]:
        """Derived tables that can't be made of what there is, and why."""
        del before, wanted, state
        return {}

    def proposed(
        self, before: dict[str, TablePlan], state: LogState, wanted: Mapping[str, WantedTable]
    ) -> dict[str, TablePlan]:
        """The wanted tables with all that is new for them."""
        return proposed(before, state, wanted)

    def bounded(
        self, state: LogState, tables: dict[str, TablePlan], records_max: int, last: RunPlan | None
    ) -> LogState:
        """The state as if the topics ended where about so many records are read."""

    def require_retained(
        self, name: str, table: TablePlan, state: LogState, *, fresh: bool
    ) -> None:
        """Raise MillraceError where the topics may lack records that the table has to read.

        ``fresh``: it has read all that there was so short a time ago that nothing has gone since.
        LogForgottenError if they are gone.
        """

    def from_start(self, table: TablePlan, state: LogState) -> TablePlan:
        """The table's plan, from the first record that there is, to the last."""
        return table.model_copy(update={"start": state.starts[table.topic]})

    def examined(
        self, tables: dict[str, TablePlan], state: LogState, examination: Examination
    ) -> ExaminedTables:
        """The plans with a census of the tables' new records."""

    def unread(self, tables: Mapping[str, TablePlan], state: LogState) -> dict[str, MillraceError]:
        """Examined tables whose rows have other keys by now, and weren't read again."""
        del tables, state
        return {}

    def changes(
        self,
        spark: "SparkSession",
        name: str,
        plan: RunPlan,
        state: LogState,
        archived: "DataFrame | None" = None,
    ) -> "AbstractContextManager[TableChanges]":
        """What the plan applies to a table; ``archived`` are raw records that come before that."""

    def forget(self) -> None:
        """Let records go that are kept for several tables; they are read again where needed."""


def require_topic_kept(topic: str, kept_from: Offsets, what: str, keep: timedelta) -> None:
    """Raise LogForgottenError if the log has lost any record that the topic ever had."""
    from_zero = {topic: dict.fromkeys(kept_from.get(topic, {}), 0)}
    require_offsets_kept(from_zero, kept_from, what, keep)


def require_offsets_kept(start: Offsets, kept_from: Offsets, what: str, keep: timedelta) -> None:
    """Raise LogForgottenError if the log no longer has all records from ``start`` on."""
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            if kept_from.get(topic, {}).get(partition, 0) > offset:
                raise LogForgottenError(
                    f"{what} is too late: the log keeps changes for {keep} only, and may lack"
                    " changes that weren't applied",
                    where=f"topic {topic}, partition {partition}, offset {offset}",
                    remedy="rebuild the derived table if the log or an archive has all that it"
                    " needs (`millrace rebuild` with its name), or take a new snapshot",
                )

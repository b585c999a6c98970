"""Topics of either writer → the state and the new records that a run needs of them.

Millrace's own log has positions, schemas and a cut (sinks/log/topics.py). Topics of a real Debezium
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
    """A partition's new records: the first offset above the cut, and the number below it.

    ``ends`` are the ends of rows (TRUNCATEs, dropped partitions) in the records up to the cut.
    """

    above: int | None
    events: int
    ends: tuple[RowsEnd, ...] = ()
    claims_ms: int | None = None


class Examination(NamedTuple):
    """A target's additions to an examination of new records.

    ``shape`` returns the columns of a table, from its schema versions up to the plan's. It raises
    MillraceError if they are impossible, and returns None for a table that isn't read early.
    ``censuses`` are those of tables that the target has examined itself. ``archived`` are the ends
    of rows in the archive that a table replays.
    """

    shape: Callable[[str, TablePlan, list[TableSchema]], "TableShape | None"]
    censuses: Mapping[str, Mapping[int, PartitionCensus]]
    archived: Mapping[str, tuple[RowsEnd, ...]]


class ExaminedTables(NamedTuple):
    """The tables that a plan may have, and the errors of others."""

    tables: dict[str, TablePlan]
    refused: dict[str, MillraceError]


class TableChanges(Protocol):
    """A plan's changes of one table, in the forms that targets need.

    ``versions`` are the table's schema versions up to the plan's.
    """

    versions: Sequence[TableSchema]

    def newest(
        self, shape: "TableShape", *, ranges: bool = False
    ) -> "AbstractContextManager[Newest]":
        """Return the newest state of each key, kept while the context lasts."""

    def contenders(self, shape: "TableShape") -> "AbstractContextManager[DataFrame]":
        """Return the changes behind each key's newest state, for a target that reads them once."""

    def older(self, shape: "TableShape") -> "Older | None":
        """Return the stored rows that end if no change has them."""

    def are_newer(self, newest: "Newest") -> bool:
        """Whether every change is newer than any stored row."""

    def timed(self, shape: "TableShape", stored: "DataFrame | None") -> "DataFrame":
        """Return the changes with the times of their commits, without ``stored`` ones."""

    def behind_gap(self, shape: "TableShape") -> "DataFrame | None":
        """Return everything that the log still has, if it lacks changes that the table needs."""

    def events(self, shape: "TableShape", *, records: bool) -> "DataFrame":
        """Return every event, once. With ``records``, add the raw key and value."""

    def images(self, shape: "TableShape") -> "DataFrame":
        """Return the rows that changes add and remove, for a table without a key."""


class ReadChanges(Protocol):
    """Reads a plan's changes of one table on call. A target may skip the call.

    ``archived`` are raw records that come before those of the topics.
    """

    def __call__(
        self, archived: "DataFrame | None" = None, /
    ) -> "AbstractContextManager[TableChanges]":
        """Return the changes, which are available while the context lasts."""


class Topics(Protocol):
    """The topics of one writer. The methods with a body suit Millrace's own log.

    A gap can be marked (``can_mark_gaps``) if positions show where it begins.
    """

    written_by: TopicWriter
    can_mark_gaps: bool

    def state(self, last: RunPlan | None) -> LogState:
        """Return the state to read: at least the state that the ``last`` plan was made of.

        Raise LogMissingError if nothing was ever written.
        """

    def refused(
        self, before: Mapping[str, TablePlan], wanted: Mapping[str, WantedTable], state: LogState
    ) -> dict[str, MillraceError]:
        """Return derived tables that can't be made of the topics, and why."""
        del before, wanted, state
        return {}

    def proposed(
        self, before: dict[str, TablePlan], state: LogState, wanted: Mapping[str, WantedTable]
    ) -> dict[str, TablePlan]:
        """Return the wanted tables with all their new records."""
        return proposed(before, state, wanted)

    def bounded(
        self, state: LogState, tables: dict[str, TablePlan], records_max: int, last: RunPlan | None
    ) -> LogState:
        """Return the state as if the topics ended after about this many records."""

    def require_retained(
        self, name: str, table: TablePlan, state: LogState, *, fresh: bool
    ) -> None:
        """Raise MillraceError if the topics may lack records that the table has to read.

        ``fresh``: its last complete read is so recent that nothing was removed since. Raise
        LogForgottenError if records are removed.
        """

    def from_start(self, table: TablePlan, state: LogState) -> TablePlan:
        """Return the table's plan, from the first existing record to the last."""
        return table.model_copy(update={"start": state.starts[table.topic]})

    def examined(
        self, tables: dict[str, TablePlan], state: LogState, examination: Examination
    ) -> ExaminedTables:
        """Return the plans with a census of the tables' new records."""

    def unread(self, tables: Mapping[str, TablePlan], state: LogState) -> dict[str, MillraceError]:
        """Return examined tables whose rows have other keys now, and weren't read again."""
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
        """Return a plan's changes of a table.

        ``archived`` are raw records that come before them.
        """

    def forget(self) -> None:
        """Release records that are kept for several tables. They are read again if needed."""


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

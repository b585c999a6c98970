"""Topics of either writer → the state and the new records that a run needs of them.

Millrace's own log has positions, schemas and a cut; topics of a real Debezium have none of these
(sinks/debezium/topics.py). The rest of a run is the same for both; sinks/job.py chooses.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cdc.errors import MillraceError
from cdc.log.offsets import LogReader, LogState
from cdc.records.schema import TableSchema
from cdc.settings import Settings
from cdc.settings.lakehouse import TopicWriter
from sinks.changes.derived import Derived
from sinks.log.counts import Truncates, with_census
from sinks.log.records import Records
from sinks.run.options import Report, RunOptions
from sinks.run.plan import RunPlan, TablePlan, WantedTable, proposed, to_read
from sinks.run.plans import LastCheck
from sinks.run.retention import RetainedTables, retained_tables
from sinks.spark.session import RECORDS_FEW, SparkProvider, tune

if TYPE_CHECKING:
    from sinks.delta.commit import Rows
    from sinks.delta.table import DeltaTarget
    from sinks.log.early import EarlyRead


class PlannedTables(NamedTuple):
    """The tables' plans with the census of their new records, and the errors of other tables."""

    tables: dict[str, TablePlan]
    refused: dict[str, MillraceError]


class TopicSource(Protocol):
    """The topics of one writer; ``empty`` says why there may be none."""

    written_by: TopicWriter
    empty: str

    def forget(self) -> None:
        """Let records go that were kept for several tables."""

    def state(self) -> LogState | None:
        """What there is to read; None if nothing was ever written."""
        ...

    def refused(
        self, before: Mapping[str, TablePlan], derived: Mapping[str, Derived], state: LogState
    ) -> dict[str, MillraceError]:
        """Derived tables that can't be made of what there is, and why."""
        ...

    def proposed(
        self, before: dict[str, TablePlan], state: LogState, wanted: Mapping[str, WantedTable]
    ) -> dict[str, TablePlan]:
        """The wanted tables with all that is new for them."""
        ...

    def bounded(
        self, state: LogState, tables: dict[str, TablePlan], records_max: int, last: RunPlan | None
    ) -> LogState:
        """The state as if the topics ended where about so many records are read."""
        ...

    def retained_tables(
        self, state: LogState, tables: dict[str, TablePlan], checked: LastCheck
    ) -> RetainedTables:
        """What becomes of tables of which something may be forgotten."""
        ...

    def plan_tables(
        self, tables: dict[str, TablePlan], derived: Mapping[str, Derived], state: LogState
    ) -> PlannedTables:
        """Add to the plans what the tables' new records have: a census of them."""
        ...

    def apply(
        self, target: "DeltaTarget", plan: RunPlan, state: LogState, archive: str | None
    ) -> "Rows":
        """Commit what the plan says to a table, unless the table has it already."""
        ...


class MillraceTopics:
    """The log that Millrace's daemon writes."""

    written_by: TopicWriter = "millrace"
    empty = "the log is empty: has `millrace run` been started?"

    def __init__(
        self, settings: Settings, session: SparkProvider, report: Report, options: RunOptions
    ) -> None:
        self._settings = settings
        self._session = session
        self._report = report
        self._options = options
        self._log = LogReader(settings.kafka)
        self._records = Records(settings.kafka)
        self._early: dict[str, EarlyRead] = {}

    def forget(self) -> None:
        """Free the kept records; they are read again where a table needs them."""
        self._records.forget()
        # Taken away first: other tables' threads read the mapping meanwhile.
        unused, self._early = self._early, {}
        for early in unused.values():
            early.release()

    def state(self) -> LogState | None:
        """The log's state once it can be read up to its ends."""
        capture = self._settings.capture
        return self._log.state(capture.topic_prefix, capture.slot_name, self._report)

    def refused(
        self, before: Mapping[str, TablePlan], derived: Mapping[str, Derived], state: LogState
    ) -> dict[str, MillraceError]:
        """None: the daemon has made the topics as they have to be."""
        del before, derived, state
        return {}

    def proposed(
        self, before: dict[str, TablePlan], state: LogState, wanted: Mapping[str, WantedTable]
    ) -> dict[str, TablePlan]:
        """As sinks/run/plan.py has it."""
        return proposed(before, state, wanted)

    def bounded(
        self, state: LogState, tables: dict[str, TablePlan], records_max: int, last: RunPlan | None
    ) -> LogState:
        """The log as if it ended at an earlier commit."""
        from sinks.log.counts import bounded

        spark, kafka = self._session(records_max), self._settings.kafka
        cut = last.cut if last is not None else None
        return bounded(spark, kafka, state, tables, records_max, cut, self._report)

    def retained_tables(
        self, state: LogState, tables: dict[str, TablePlan], checked: LastCheck
    ) -> RetainedTables:
        """By what the log promises to keep."""
        keep = self._settings.log.keep
        return retained_tables(
            self._log, state, tables, keep=keep, checked=checked, options=self._options
        )

    def plan_tables(
        self, tables: dict[str, TablePlan], derived: Mapping[str, Derived], state: LogState
    ) -> PlannedTables:
        """By a census of headers; one large table may have had its census in an early read."""
        from sinks.log.counts import census

        pending = {name: table for name, table in tables.items() if table.pending}
        records = to_read(pending)
        spark = self._session(records).newSession()
        tune(spark, records)
        if records < RECORDS_FEW:
            self._records.keep(spark, pending.values())
        cut = state.progress.cut
        self._early = self._read_early(pending, derived, state)
        uncounted = {name: table for name, table in pending.items() if name not in self._early}
        by_table = census(spark, self._records, uncounted, cut)
        by_table |= {name: dict(early.census) for name, early in self._early.items()}
        planned = {
            name: with_census(
                table,
                by_table.get(name, {}),
                cut,
                keyed=bool(state.schemas[table.source][-1].key),
                snapshot_ms=state.tables[table.source].begun_ms,
                archived=self._archived(table, derived),
            )
            if table.pending or not table.base or table.rebuilds
            else table
            for name, table in tables.items()
        }
        return PlannedTables(planned, {})

    def _read_early(
        self, tables: dict[str, TablePlan], derived: Mapping[str, Derived], state: LogState
    ) -> dict[str, "EarlyRead"]:
        """The table with most records, if it can be read before there is a plan."""
        from sinks.delta.apply import columns_of
        from sinks.log.early import is_read_early, read_early

        name, table = max(tables.items(), key=lambda item: item[1].unread, default=("", None))
        if table is None or not is_read_early(table):
            return {}
        versions = _versions(state, table)
        try:
            columns = columns_of(derived[name], table, versions)
        except MillraceError:  # apply() raises it again
            return {}
        if not columns.keys:
            return {}
        spark = self._session(table.unread).newSession()
        early = read_early(spark, self._records, table, state.progress.cut, columns)
        return {} if early is None else {name: early}

    def _archived(self, table: TablePlan, derived: Mapping[str, Derived]) -> Truncates:
        from sinks.delta.archive import archived_truncates

        if table.replay is None:
            return ()
        return archived_truncates(self._session(), derived[table.replay.archive].path, table.replay)

    def apply(
        self, target: "DeltaTarget", plan: RunPlan, state: LogState, archive: str | None
    ) -> "Rows":
        """By the schema versions in the log."""
        from sinks.delta.apply import apply_table

        table = plan.tables[target.name]
        if table.replay is None:
            tune(target.spark, table.events, target.size_bytes())
        versions = _versions(state, table)
        early = self._early.pop(target.name, None)
        rows = early.rows if early is not None and table.truncated is None else None
        try:
            return apply_table(target, self._records, table, plan, versions, archive, rows)
        finally:
            if early is not None:
                early.release()


def _versions(state: LogState, table: TablePlan) -> list[TableSchema]:
    """A table's schema versions up to its plan's."""
    versions = state.schemas.get(table.source, ())
    return [schema for schema in versions if schema.version <= table.schema_version]

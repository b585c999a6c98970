"""The log of Millrace's daemon → a run's state, plans, and the changes that it applies.

Records that several tables need are read once, for one run or several. Those of a run's largest
table may be read before there is a plan.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from cdc.errors import MillraceError, SinkError
from cdc.log.offsets import LogReader, LogState
from cdc.records.position import Position
from cdc.records.schema import TableSchema
from cdc.settings.lakehouse import TopicWriter
from sinks.changes.generations import begins_read, newest_generation
from sinks.log.changes import EarlyRead, MillraceChanges, is_read_early, read_early
from sinks.log.counts import bounded, census, keep_counted, with_census
from sinks.log.records import Records
from sinks.run.options import RunContext
from sinks.run.plan import RunPlan, TablePlan, to_read
from sinks.run.rekeyed import has_other_key
from sinks.run.retained import lacks_rows, rows_lacking
from sinks.run.topics import (
    Examination,
    ExaminedTables,
    Topics,
    require_offsets_kept,
    require_topic_kept,
)
from sinks.spark.jvm import release
from sinks.spark.session import RECORDS_FEW, tune


class MillraceTopics(Topics):
    """The log of one daemon, for successive runs.

    Until ``forget``, they share the state that the first one has read, and the records that it
    keeps. If a run has read other records, which may take long, the next one reads the state again.
    With a position (``until``), they see the log as if it ended there.
    """

    written_by: TopicWriter = "millrace"
    can_mark_gaps = True

    def __init__(self, context: RunContext, until: Position | None = None) -> None:
        self._settings = context.settings
        self._while_waiting = context.while_waiting
        self._session = context.session
        self._report = context.report
        self._until = until
        self._state: LogState | None = None
        self._records = Records(context.settings.kafka)
        self._early: dict[str, EarlyRead] = {}

    @cached_property
    def _log(self) -> LogReader:
        return LogReader(self._settings.kafka, self._while_waiting)

    def state(self, last: RunPlan | None) -> LogState:
        """Return the log's state once it can be read up to its ends."""
        if self._state is None or self._records.are_missed or not _reaches(self._state, last):
            self.forget()
            capture = self._settings.capture
            state = self._log.state(capture.topic_prefix, capture.slot_name, self._report)
            self._state = state if self._until is None else ended_at(state, self._until)
        return self._state

    def bounded(
        self, state: LogState, tables: dict[str, TablePlan], records_max: int, last: RunPlan | None
    ) -> LogState:
        """Return the log as if it ended at an earlier commit."""
        return bounded(
            self._session(records_max),
            self._settings.kafka,
            state,
            tables,
            records_max,
            last.cut if last is not None else None,
            self._report,
        )

    def require_retained(
        self, name: str, table: TablePlan, state: LogState, *, fresh: bool
    ) -> None:
        """Check the first records of topics, and what compacted ones promise."""
        keep, start = self._settings.log.keep, {table.topic: table.start}
        is_deleted = state.tables[table.source].cleanup == "delete"
        if is_deleted and not table.base and table.replay is None:
            require_topic_kept(table.topic, state.starts, name, keep)
        require_offsets_kept(start, state.starts, name, keep)
        if not (fresh or is_deleted):
            require_offsets_kept(start, self._log.forgotten(start, keep), name, keep)

    def examined(
        self, tables: dict[str, TablePlan], state: LogState, examination: Examination
    ) -> ExaminedTables:
        """Examine the headers in a census.

        One large table may have its census from an early read.
        """
        pending = {name: table for name, table in tables.items() if table.pending}
        records = to_read(pending)
        spark = self._session(records).newSession()
        tune(spark, records)
        cut = state.progress.cut
        kept = keep_counted(spark, self._records, pending, cut) if records < RECORDS_FEW else {}
        by_table = dict(examination.censuses)
        unread = {name: table for name, table in pending.items() if name not in by_table}
        self._early = self._read_early(unread, state, examination)
        by_table = {**kept, **by_table, **{n: early.census for n, early in self._early.items()}}
        uncounted = {name: table for name, table in pending.items() if name not in by_table}
        by_table |= census(spark, self._records, uncounted, cut)
        examined = {
            name: with_census(
                table,
                by_table.get(name, {}),
                cut,
                state.tables[table.source],
                keyed=bool(versions_of(state, table)[-1].key),
                archived=examination.archived.get(name, ()),
            ).at_cut(state.schemas[table.source], cut)
            if table.pending or table.begins or table.rebuilds
            else table
            for name, table in tables.items()
        }
        refused = dict[str, MillraceError]()
        for name, table in examined.items():
            captured, starts = state.tables[table.source], state.starts[table.topic]
            if lacks_rows(table, by_table.get(name, {}), captured, starts):
                refused[name] = rows_lacking(name, table, state)
        left = {name: examined.pop(name).left_alone() for name in refused}
        stand = {name: table for name, table in left.items() if table.base}
        return ExaminedTables({**examined, **stand}, refused)

    def _read_early(
        self, tables: dict[str, TablePlan], state: LogState, examination: Examination
    ) -> dict[str, EarlyRead]:
        """Read the table with most records early, if its plan isn't needed first."""
        for name, table in sorted(tables.items(), key=lambda item: -item[1].unread):
            if not is_read_early(table):
                continue
            try:
                shape = examination.shape(name, table, versions_of(state, table))
            except MillraceError:  # the target raises it again when it applies the table
                continue
            if shape is None or not shape.keys:
                continue
            spark = self._session(table.unread).newSession()
            early = read_early(spark, self._records, table, state.progress.cut, shape)
            return {} if early is None else {name: early}
        return {}

    def unread(self, tables: Mapping[str, TablePlan], state: LogState) -> dict[str, MillraceError]:
        """Return tables whose ends of rows mix an older key with the new one."""
        errors = dict[str, MillraceError]()
        for name, table in tables.items():
            versions, captured = versions_of(state, table), state.tables[table.source]
            if table.kind == "changes" or not versions:
                continue
            is_rekeyed = newest_generation(versions) != versions[0].version
            has_lost_records = any(state.starts[table.topic].values())
            if not table.begins:
                is_rekeyed = has_other_key(versions, table.applied_version)
            elif table.lacks != "nothing" or (captured.cleanup == "delete" and has_lost_records):
                continue  # the records that end rows may be gone with them
            if is_rekeyed and not begins_read(versions, table.ends):
                errors[name] = SinkError(
                    f"the key of {table.source} has changed, and the log has no new read of it",
                    where=f"table {name}",
                    remedy=f"millrace snapshot --reset {shlex.quote(table.source)}",
                )
        return errors

    @contextmanager
    def changes(
        self,
        spark: SparkSession,
        name: str,
        plan: RunPlan,
        state: LogState,
        archived: DataFrame | None = None,
    ) -> Iterator[MillraceChanges]:
        """Yield changes, read by the schema versions in the log."""
        table = plan.tables[name]
        early = self._early.pop(name, None)
        rows = early.rows if early is not None and not table.ends else None
        versions = versions_of(state, table)
        if not versions:
            raise SinkError("the log no longer has the table", where=f"table {name}")
        try:
            yield MillraceChanges(
                spark, self._records, plan, table, versions, early=rows, archived=archived
            )
        finally:
            if early is not None:
                release(early.rows)

    def forget(self) -> None:
        """Free the kept records and the state. They are read again if a table needs them."""
        self._state = None
        self._records.forget()
        # Swapped first, as other tables' threads read the mapping.
        unused, self._early = self._early, {}
        for early in unused.values():
            release(early.rows)


def ended_at(state: LogState, position: Position) -> LogState:
    """Return a state as if no transaction after a position had been committed yet."""
    cut = min(state.progress.cut, position)
    return replace(state, progress=state.progress.model_copy(update={"cut": cut}))


def _reaches(state: LogState, plan: RunPlan | None) -> bool:
    """Whether a state has everything of a plan. Another process may have merged since."""
    if plan is None:
        return True
    return plan.cut <= state.progress.cut and all(
        end <= state.ends.get(table.topic, table.end).get(number, end)
        for table in plan.all_tables.values()
        for number, end in table.end.items()
    )


def versions_of(state: LogState, table: TablePlan) -> list[TableSchema]:
    """Return a table's schema versions up to its plan's."""
    versions = state.schemas.get(table.source, ())
    return [schema for schema in versions if schema.version <= table.schema_version]

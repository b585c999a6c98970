"""Topics of a real Debezium → a run's state, its plans, and the records that it applies.

Millrace's own log has state records for this. Here the topics' names define the tables, and their
ends define the end of a run. An inspection of the new records finds the columns before there is a
plan. The plan keeps them, so an interrupted run is finished or repeated with the same records, read
in the same way. docs/decisions/0012-debezium-topics.md.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cdc.errors import (
    LogForgottenError,
    LogMissingError,
    MillraceError,
    TopicMismatchError,
)
from cdc.log.offsets import LogState, Offsets
from cdc.records.position import FIRST_EPOCH, Lsn, Position
from cdc.records.schema import Column, TableName
from cdc.records.state import Phase, Progress, TableState
from cdc.records.topics import data_topic
from cdc.settings import LakehouseSettings
from cdc.settings.lakehouse import TopicWriter
from sinks.debezium.described import RecordSource, connector_options, declared_columns
from sinks.debezium.log import UNKNOWN_TOPIC, BrokerTopic, TopicLog, bounded_ends, topic_of
from sinks.run.debezium_topic import DebeziumTopic
from sinks.run.options import RunContext
from sinks.run.plan import RunPlan, TablePlan, proposed, to_read
from sinks.run.topics import Examination, ExaminedTables, require_offsets_kept
from sinks.run.wanted import WantedTable
from sinks.spark.session import tune

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sinks.debezium.changes import DebeziumChanges
    from sinks.debezium.records import RecordGroup

NOWHERE: Final = Position(FIRST_EPOCH, Lsn(0), 0)
"""Used instead of a cut, as no position describes the progress of all tables."""


class DebeziumTopics:
    """Topics of one connector, as the configuration with its preset describes them."""

    written_by: TopicWriter = "debezium"
    can_mark_gaps = False

    def __init__(self, context: RunContext, lakehouse: LakehouseSettings) -> None:
        settings = context.settings
        self._settings = settings
        self._session = context.session
        self._report = context.report
        self._options = context.options
        self._source = RecordSource(
            settings.kafka, connector_options(settings), context.options.schema_of
        )
        self._declared = {
            table: declared_columns(types) for table, types in lakehouse.types.items()
        }
        self._topics: dict[str, BrokerTopic] = {}
        self._failed: dict[str, MillraceError] = {}
        self._ends: Offsets = {}
        self._groups: dict[str, list[RecordGroup]] = {}
        self._log = TopicLog(settings.kafka, context.while_waiting)

    def state(self, last: RunPlan | None) -> LogState:
        """Return the topics, and how far they can be read now."""
        del last
        capture = self._settings.capture
        tables = self._log.tables(capture.topic_prefix, capture.captures)
        if not tables:
            raise LogMissingError(
                f"topic.prefix {capture.topic_prefix} has no topic of a captured table",
                where=f"bootstrap.servers {self._settings.kafka.get('bootstrap.servers', '')}",
                remedy="start Debezium first, or correct topic.prefix, table.include.list or"
                " bootstrap.servers",
            )
        failed: dict[str, MillraceError] = {}
        topics = self._log.describe(list(tables.values()), failed)
        starts, self._ends = self._log.bounds(topics, failed)
        if len(failed) == len(tables):
            raise next(iter(failed.values()))
        names = {topic: str(name) for name, topic in tables.items()}
        self._failed = {names[topic]: error for topic, error in failed.items()}
        self._topics = {names[name]: topic for name, topic in topics.items() if name not in failed}
        cluster = self._log.cluster()
        states = {
            str(name): _state(name, topic, topics.get(topic, UNKNOWN_TOPIC))
            for name, topic in tables.items()
        }
        return LogState(_progress(cluster), states, dict.fromkeys(states, ()), starts, self._ends)

    def refused(
        self, before: Mapping[str, TablePlan], wanted: Mapping[str, WantedTable], state: LogState
    ) -> dict[str, MillraceError]:
        """Return tables whose topics can't be read, or were replaced since the last read."""
        errors = {
            name: self._refused(table.source, state, before.get(name))
            for name, table in wanted.items()
        }
        return {name: error for name, error in errors.items() if error is not None}

    def unread(self, tables: Mapping[str, TablePlan], state: LogState) -> dict[str, MillraceError]:
        """Return nothing, as a table whose key has changed is refused."""
        del tables, state
        return {}

    def _refused(
        self, source: str, state: LogState, last: TablePlan | None
    ) -> MillraceError | None:
        if source in self._failed:
            return self._failed[source]
        name, topic = state.tables[source].topic, self._topics[source]
        if last is None or not last.base:
            return None
        if topic_of(last).topic_id != topic.id:
            return _made_anew(name)
        if len(last.start) != topic.partitions:
            return TopicMismatchError(
                f"the topic had {len(last.start)} partitions and now has {topic.partitions}: keys"
                " have moved, and their events have lost their order",
                where=f"topic {name}",
                remedy="have Debezium write to a new topic; then remove the Delta table",
            )
        return _shortened(name) if _falls_short(self._ends[name], last.start) else None

    def proposed(
        self, before: dict[str, TablePlan], state: LogState, wanted: Mapping[str, WantedTable]
    ) -> dict[str, TablePlan]:
        """Return the wanted tables with everything new for them, and their schemas so far.

        A topic that never had a record makes no table. No table can be made of an archive, whose
        records aren't Millrace's.
        """
        without_archives = {name: table._replace(is_whole=False) for name, table in wanted.items()}
        standing = {name: table for name, table in before.items() if table.base}
        tables = proposed(standing, state, without_archives)
        for name in wanted:
            table, last = tables[name], before.get(name)
            topic_id = self._topics[table.source].id
            debezium = (last and last.debezium) or DebeziumTopic(topic_id=topic_id)
            if not table.base:
                debezium = debezium.begun_again()
            debezium = debezium.model_copy(update={"topic_id": topic_id})
            version = debezium.schemas[-1].version if debezium.schemas else 0
            update = {"debezium": debezium, "schema_version": version}
            tables[name] = table.model_copy(update=update)
        return {name: table for name, table in tables.items() if table.base or table.pending}

    def bounded(
        self, state: LogState, tables: dict[str, TablePlan], records_max: int, last: RunPlan | None
    ) -> LogState:
        """Return the same fraction of each topic, as tables have no common instant anyway."""
        del last
        ends = bounded_ends(tables.values(), _compacted(state), records_max)
        self._report(f"reading only about {records_max:,} records; later runs continue")
        return replace(state, ends={**state.ends, **ends})

    def require_retained(
        self, name: str, table: TablePlan, state: LogState, *, fresh: bool
    ) -> None:
        """Check the topics' first offsets, and what compacted ones promise.

        Raise TopicMismatchError if compaction may remove records that a table hasn't applied yet.
        """
        if table.source in self._failed:
            return
        keep = self._settings.log.keep
        promised = self._topics[table.source].compacted_after
        if promised is not None and promised < keep:
            raise _unpromised(table, promised, keep)
        first = table.start if table.base else dict.fromkeys(table.start, 0)
        start = {table.topic: first}
        try:
            require_offsets_kept(start, state.starts, name, keep)
            if promised is None or not table.base:
                return
            if not table.fresh_ms:
                require_offsets_kept(start, {table.topic: table.end}, name, keep)
            if not fresh:
                require_offsets_kept(start, self._log.forgotten(start, keep), name, keep)
        except LogForgottenError as error:
            raise _forgotten(name, table, error.where) from None

    def from_start(self, table: TablePlan, state: LogState) -> TablePlan:
        """Return the table's plan, from the first record of the topic to the last."""
        ends = self._ends[table.topic]
        return table.model_copy(
            update={"start": state.starts[table.topic], "end": ends, "next": ends}
        )

    def examined(
        self, tables: dict[str, TablePlan], state: LogState, examination: Examination
    ) -> ExaminedTables:
        """Examine the schemas of all new records, and the TRUNCATEs among them."""
        del examination
        from sinks.debezium.inspection import plan_tables

        pending = {name: table for name, table in tables.items() if table.pending}
        if not pending:
            return ExaminedTables(tables, {})
        records = to_read(pending)
        spark = self._session(records).newSession()
        tune(spark, records)
        planned = plan_tables(spark, self._source, self._types(), _compacted(state), pending)
        self._groups = planned.groups
        others = {name: table for name, table in tables.items() if name not in pending}
        return ExaminedTables({**others, **planned.tables}, planned.refused)

    def _types(self) -> dict[str, Mapping[str, Column]]:
        """Return types by topic and column: the configuration's, then the source's catalog's."""
        types: dict[str, Mapping[str, Column]] = {}
        if self._options.types_of is not None:
            types |= self._options.types_of()
        prefix = self._settings.capture.topic_prefix
        for table, columns in self._declared.items():
            topic = data_topic(prefix, TableName.parse(table))
            types[topic] = {**types.get(topic, {}), **columns}
        return types

    @contextmanager
    def changes(
        self,
        spark: "SparkSession",
        name: str,
        plan: RunPlan,
        state: LogState,
        archived: "DataFrame | None" = None,
    ) -> Iterator["DebeziumChanges"]:
        """Yield changes, read by the schemas in the plan and in the records."""
        del state, archived
        from sinks.debezium.changes import DebeziumChanges

        table = plan.tables[name]
        if table.source in self._failed:
            raise self._failed[table.source]
        topic = self._topics.get(table.source)
        # The topic was created again since an interrupted run made the plan.
        if topic is None or topic.id != topic_of(table).topic_id:
            raise _made_anew(table.topic)
        if _falls_short(self._ends[table.topic], table.end):
            raise _shortened(table.topic)
        yield DebeziumChanges(spark, self._source, table, self._groups.get(name))

    def forget(self) -> None:
        """Do nothing, as each table reads its own records."""


def _compacted(state: LogState) -> set[str]:
    return {table.topic for table in state.tables.values() if table.cleanup == "compact"}


def _made_anew(topic: str) -> LogForgottenError:
    return LogForgottenError(
        "the topic was created again since the last run",
        where=f"topic {topic}",
        remedy="remove the Delta table: the next run begins with the new topic",
    )


def _falls_short(ends: Mapping[int, int], offsets: Mapping[int, int]) -> bool:
    return any(ends[number] < offset for number, offset in offsets.items())


def _shortened(topic: str) -> LogForgottenError:
    return LogForgottenError(
        "the topic ends before the last record that was read: the brokers have lost records",
        where=f"topic {topic}",
        remedy="have Debezium take a new snapshot of the table (a signal), and remove the Delta"
        " table: the next run begins with the records that the topic has",
    )


def _progress(cluster: str) -> Progress:
    """Return a progress record for topics that have none."""
    return Progress(
        log=f"topics of cluster {cluster}",
        slot="",
        system_identifier="",
        timeline=0,
        database="",
        phase=Phase.STREAMING,
        position=NOWHERE,
        cut=NOWHERE,
        flush_lsn=Lsn(0),
    )


def _state(name: TableName, topic: str, broker_topic: BrokerTopic) -> TableState:
    """Return a table's state.

    Its rows are shown at once, as no record marks a complete snapshot.
    """
    return TableState(
        namespace=name.namespace,
        table=name.name,
        topic=topic,
        partitions=broker_topic.partitions,
        cleanup="delete" if broker_topic.compacted_after is None else "compact",
        epoch=FIRST_EPOCH,
        phase=Phase.STREAMING,
        snapshot_lsn=Lsn(0),
    )


def _unpromised(table: TablePlan, promised: timedelta, keep: timedelta) -> TopicMismatchError:
    return TopicMismatchError(
        f"the topic is compacted, and keeps every record for {promised} only"
        f" (min.compaction.lag.ms), less than log.keep = {keep}: runs can miss changes",
        where=f"topic {table.topic}",
        remedy=f"set its min.compaction.lag.ms to {int(keep.total_seconds() * 1000)}, or"
        " cleanup.policy to delete; or lower log.keep, and merge as often. The next run then"
        " rebuilds the table, since compaction may have removed changes",
    )


def _forgotten(name: str, table: TablePlan, where: str) -> LogForgottenError:
    """Return the error of a table that doesn't exist yet, or of one that is too late."""
    what = "the topic no longer has its first records, so rows may be missing permanently"
    if table.base:
        what = f"{name} is too late: the topic no longer has records that weren't applied"
    return LogForgottenError(
        what,
        where=where,
        remedy=f"{('remove its Delta table, ' if table.base else '')}have Debezium take a new"
        " snapshot of the table (a signal); then `millrace merge lakehouse --accept-gap"
        f" {shlex.quote(name)}` begins with the records that the topic has",
    )

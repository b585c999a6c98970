"""A table's plan → its documents at the server, then its progress record.

A crash between the two repeats the plan: the same documents at the same versions, into the same
index. A first load goes on behind the last of its steps that was recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opensearchpy import OpenSearch

from cdc.errors import MillraceError, SinkUnreachableError
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableSchema
from cdc.settings import SearchSettings, Settings
from sinks.changes.latest import latest, within
from sinks.changes.names import OWN
from sinks.changes.shape import TableShape, plain_shape
from sinks.delta.apply import explained
from sinks.delta.newest import newest_of_contenders
from sinks.log.counts import PartitionCensus
from sinks.log.early import FACTS, census_of, observe_census
from sinks.log.parse import parse
from sinks.log.records import read_raw, with_values
from sinks.run.options import Report, RunOptions
from sinks.run.plan import RunPlan, TablePlan
from sinks.search.bulk import Counts
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.documents import mapping
from sinks.search.executors import write_documents
from sinks.search.indexes import MisfitError, TableIndex
from sinks.search.progress import Ledger
from sinks.search.progress_records import FirstLoad, TableLoading, TableRecord, now_ms, serving
from sinks.search.rows import documents
from sinks.search.snapshot import WrittenRows, mark_snapshot_rows, write_remaining, write_rows
from sinks.spark.session import SparkProvider

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_RECORDS: Final = 500_000
"""So many of the log's records are loaded between two notes of how far it is."""


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The configuration, the server, the progress there, Spark, and what the user asks for."""

    settings: Settings
    search: SearchSettings
    client: OpenSearch
    ledger: Ledger
    session: SparkProvider
    report: Report
    options: RunOptions

    def publish(self, target: TableIndex, index: str, settings: Mapping[str, Any]) -> None:
        """Let a loaded index serve; dead letters about the ones before it go with them."""
        target.publish(index, settings)
        DocumentDeadLetters(self.client, self.search.index_prefix, target.alias).forget(
            but_of=index
        )


class EarlyLoad(NamedTuple):
    """A first load that was begun before there is a plan: ``into`` has the rows of snapshots.

    ``census`` is what the plan has to know of each partition's records; None: the run counts them.
    """

    into: TableLoading
    rows: WrittenRows
    census: Mapping[int, PartitionCensus] | None


class TableIndexer:
    """Applies plans to the indexes of tables."""

    def __init__(self, spark: "SparkSession", context: SearchContext) -> None:
        self._spark = spark
        self._settings = context.settings
        self._search = context.search
        self._context = context
        self._ledger = context.ledger
        self._report = context.report

    def apply(
        self,
        target: TableIndex,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        early: "DataFrame | None" = None,
        loaded: EarlyLoad | None = None,
    ) -> Counts:
        """Write what the plan says to the table's index, unless this run has recorded it.

        ``early`` are the table's contenders, if they were read already; ``loaded`` is what there
        already is of its first load.
        """
        newest = versions[-1]
        before = self._ledger.tables([newest.name]).get(newest.name)
        is_there = before is not None and target.uuid(before.index) == before.uuid
        if before is not None and is_there and _is_recorded(before, table, plan):
            return Counts()
        if not table.base:
            return self._load_first(target, before, table, plan, versions, loaded)
        if before is None or not is_there:
            raise target.lost(before.index if before else target.alias)
        before = self._fitting(target, before, newest)
        counts = Counts()
        if table.events:
            counts = self._write(before.index, table, plan, versions, early)
        # What a TRUNCATE leaves is written first, so that the index is never empty in between.
        if table.truncated is not None:
            counts += Counts(deleted=target.truncate(before.index, table.truncated))
        if target.uuid(before.index) != before.uuid:
            raise target.lost(before.index)
        target.refresh(before.index)
        self._record(plan, table, newest, before)
        return counts

    def write(
        self,
        index: str,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        only: frozenset[str] | None = None,
    ) -> Counts:
        """Write to an index what the plan's records leave; ``only`` documents with such an id."""
        shape = shape_of(versions, self._search)
        with explained(str(versions[-1].name), self._settings.log.keep):
            rows = latest(self._changes(table, plan, shape), shape)
            return write_documents(documents(rows, shape), self._search, index, only)

    def load(
        self,
        index: str,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        rows: WrittenRows | None = None,
    ) -> Counts:
        """Write the same to an index that is being loaded, which may have the ``rows`` already."""
        shape = shape_of(versions, self._search)
        with explained(str(versions[-1].name), self._settings.log.keep):
            changes = mark_snapshot_rows(self._changes(table, plan, shape, snapshot=True))
            if rows is None:
                rows = write_rows(changes, shape, self._search, index)
            return rows.counts + write_remaining(
                changes, rows.remaining, shape, self._search, index
            )

    def load_early(
        self, target: TableIndex, table: TablePlan, cut: Position, versions: Sequence[TableSchema]
    ) -> EarlyLoad | None:
        """Begin a first load before there is a plan: one read of the log instead of two.

        None: it takes the ordinary way, which also tells why.
        """
        name, history, kafka = versions[-1].name, history_of(table), self._settings.kafka
        before = self._ledger.tables([name]).get(name)
        raw = read_raw(self._spark, kafka, {table.topic: table.start}, {table.topic: table.end})
        records = within(observe_census(raw, table, cut), table.after, cut, history, keyed=True)
        try:
            shape = shape_of(versions, self._search)
            into = self._made(target, versions[-1], before.generation + 1 if before else 1)
            with explained(str(name), self._settings.log.keep):
                changes = mark_snapshot_rows(parse(records, shape, snapshot=True))
                rows = write_rows(changes, shape, self._search, into.index)
        except SinkUnreachableError:
            raise
        except MillraceError:
            return None
        facts = rows.observed(FACTS)
        if facts is None or facts.getAs("claims"):  # whose rows have other values
            return None
        return EarlyLoad(into, rows, census_of(facts, table))

    def _changes(
        self, table: TablePlan, plan: RunPlan, shape: TableShape, *, snapshot: bool = False
    ) -> "DataFrame":
        """What a plan's records say, with all of their values."""
        history = history_of(table)
        floor = max(table.truncated or history, history)
        kafka = self._settings.kafka
        raw = read_raw(self._spark, kafka, {table.topic: table.start}, {table.topic: table.end})
        records = within(raw, table.after, plan.cut, floor, keyed=True)
        return parse(with_values(records, kafka, table, plan), shape, snapshot=snapshot)

    def _write(
        self,
        index: str,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        early: "DataFrame | None",
    ) -> Counts:
        if early is None:
            return self.write(index, table, plan, versions)
        shape = shape_of(versions, self._search)
        with (
            explained(str(versions[-1].name), self._settings.log.keep),
            newest_of_contenders(early, shape) as newest,
        ):
            return write_documents(documents(newest.all(), shape), self._search, index)

    def begin_load(
        self, target: TableIndex, before: TableRecord, newest: TableSchema
    ) -> TableRecord:
        """Make another index, to be loaded beside the one that serves; the record of both."""
        loading = self._made(target, newest, before.generation + 1)
        record = before.model_copy(update={"loading": loading})
        self._ledger.write_table(newest.name, record)
        return record

    def _load_first(
        self,
        target: TableIndex,
        before: TableRecord | None,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        loaded: EarlyLoad | None,
    ) -> Counts:
        """Load an index that nobody sees before it is complete."""
        name = versions[-1].name
        if loaded is not None:
            made = FirstLoad(run=plan.run, **loaded.into.model_dump())
            self._ledger.write_first_load(name, made)
            counts = self.load(made.index, table, plan, versions, loaded.rows)
            made = made.model_copy(update={"loaded": table.end, "ts_ms": now_ms()})
            self._ledger.write_first_load(name, made)
        else:
            made, counts = self._load_in_steps(target, before, table, plan, versions)
        if table.truncated is not None:
            counts += Counts(deleted=target.truncate(made.index, table.truncated))
        if target.uuid(made.index) != made.uuid:
            raise target.lost(made.index)
        self._context.publish(target, made.index, self._search.index_of(str(name)).settings)
        self._record(plan, table, versions[-1], served_by(made))
        # What was written on the way, and is another one or gone by now, counts for nothing.
        return replace(counts, inserted=counts.inserted - counts.deleted, updated=0, deleted=0)

    def _load_in_steps(
        self,
        target: TableIndex,
        before: TableRecord | None,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
    ) -> tuple[FirstLoad, Counts]:
        """Load the records step by step, behind those that this plan's run has loaded before."""
        name = versions[-1].name
        first = self._ledger.first_load(name)
        kept_ms = self._settings.log.keep.total_seconds() * 1_000
        if (
            first is None
            or first.run != plan.run
            or target.uuid(first.index) != first.uuid
            or now_ms() - first.ts_ms > kept_ms  # the log may have forgotten changes
        ):
            made = self._made(target, versions[-1], before.generation + 1 if before else 1)
            first = FirstLoad(run=plan.run, **made.model_dump())
            self._ledger.write_first_load(name, first)
        counts = Counts()
        for step in steps(table, first.loaded) if table.events else ():
            counts += self.load(first.index, step, plan, versions)
            first = first.model_copy(update={"loaded": step.end, "ts_ms": now_ms()})
            self._ledger.write_first_load(name, first)
            if step.end != table.end:
                self._report(f"{name}: {loaded_text(table.start, first.loaded, table.end)}")
        return first, counts

    def _record(
        self, plan: RunPlan, table: TablePlan, newest: TableSchema, served: TableRecord
    ) -> None:
        changes: dict[str, object] = {
            "run": plan.run,
            "epoch": table.snapshot.epoch,
            "cut": str(plan.cut),
            "offsets": table.next,
            "schema_version": newest.version,
            "ts_ms": now_ms(),
        }
        self._ledger.write_table(newest.name, served.model_copy(update=changes))

    def _fitting(self, target: TableIndex, before: TableRecord, newest: TableSchema) -> TableRecord:
        """The record of an index that the table's columns fit, or beside which one is loaded."""
        loading = before.loading
        if loading is not None and target.uuid(loading.index) != loading.uuid:
            before = before.model_copy(update={"loading": None})
        if before.schema_version == newest.version:
            return before
        wanted = mapping(newest, self._search.index_of(str(newest.name)).mapping)
        if before.loading is not None:
            try:
                target.extend(before.loading.index, wanted)
            except MisfitError:
                before = before.model_copy(update={"loading": None})
        try:
            target.extend(before.index, wanted)
        except MisfitError:
            has_other = before.loading is not None
            return before if has_other else self.begin_load(target, before, newest)
        return before

    def _made(self, target: TableIndex, newest: TableSchema, generation: int) -> TableLoading:
        indexed = self._search.index_of(str(newest.name))
        index = target.make(mapping(newest, indexed.mapping), generation, indexed.settings)
        uuid = target.uuid(index)
        if uuid is None:
            raise target.lost(index)
        return TableLoading(index=index, uuid=uuid, overrides=indexed.overrides, ts_ms=now_ms())


def _is_recorded(record: TableRecord, table: TablePlan, plan: RunPlan) -> bool:
    """Whether the plan is applied; a run number alone doesn't tell, a new capture starts again."""
    recorded = (record.run, record.cut, record.offsets)
    return recorded == (plan.run, str(plan.cut), table.next)


def shape_of(versions: Sequence[TableSchema], search: SearchSettings) -> TableShape:
    """The columns of a table's documents; raises SinkError where there can't be such."""
    unfit = search.index_of(str(versions[-1].name)).unfit
    return plain_shape(versions, OWN, [name for name, what in unfit.items() if what == "null"])


def history_of(table: TablePlan) -> Position:
    """Where it begins: a load must not see what the log still has of an older one of the source."""
    return Position(table.snapshot.epoch, Lsn(0), 0)


def served_by(loading: TableLoading) -> TableRecord:
    """The record of a table whose index is loaded, short of what it was loaded with."""
    return TableRecord(run=0, epoch=0, cut="", offsets={}, schema_version=0, **serving(loading))


def steps(table: TablePlan, loaded: Mapping[int, int]) -> Iterator[TablePlan]:
    """A plan's records behind those that are ``loaded``, step by step, in all partitions at once.

    A key has its partition, so that what is older comes first.
    """
    start = {partition: loaded.get(partition, first) for partition, first in table.start.items()}
    while (unread := sum(table.end[partition] - offset for partition, offset in start.items())) > 0:
        records = min(unread, STEP_RECORDS)
        end = {
            partition: offset + -(-(table.end[partition] - offset) * records // unread)
            for partition, offset in start.items()
        }
        yield table.model_copy(update={"start": start, "end": end})
        start = end


def loaded_text(start: Mapping[int, int], at: Mapping[int, int], end: Mapping[int, int]) -> str:
    """How far a load is, for people."""
    total = sum(end[partition] - offset for partition, offset in start.items())
    done = sum(at.get(partition, offset) - offset for partition, offset in start.items())
    return f"{done:,} of {total:,} records are loaded ({100 * done // max(total, 1)} %)"

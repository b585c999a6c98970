"""A table's plan → its documents at the server, then its progress record.

A crash between the two repeats the plan: the same documents at the same versions, into the same
index. A first load is recorded before it begins, and continues after the last of its steps.

A load writes the rows of snapshots first, in any order. They are most of it, and their order
doesn't matter: each has its version, and none is a delete. The later changes follow, only the
newest of each key, so that no delete comes too early.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from opensearchpy import OpenSearch

from cdc.errors import MillraceError, SinkError, SinkUnreachableError
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableSchema
from cdc.settings import SearchSettings
from sinks.changes.generations import keeps_rows, of_newest
from sinks.changes.newest import within
from sinks.changes.shape import TableShape, drops_since, plain_shape
from sinks.log.changes import MillraceChanges
from sinks.log.counts import FACTS, census_of, observe_census
from sinks.log.parse import parse
from sinks.log.records import Records, read_raw
from sinks.run.options import RunContext
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.topics import PartitionCensus, ReadChanges, TableChanges
from sinks.search.bulk import Counts
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.documents import mapping
from sinks.search.ended import delete_ended
from sinks.search.executors import WrittenDocuments
from sinks.search.indexes import Generation, TableIndex
from sinks.search.progress import Ledger, TableGeneration, TableLoad, TableRecord, now_ms
from sinks.search.rows import RESERVED
from sinks.search.steps import is_one_step
from sinks.search.writing import marked, write_newest, write_remaining, write_snapshot_rows
from sinks.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SearchContext:
    """A run's context, the server, and the progress there."""

    run: RunContext
    search: SearchSettings
    client: OpenSearch
    ledger: Ledger

    def publish(
        self,
        target: TableIndex,
        index: str,
        settings: Mapping[str, Any],
        former: Generation | None = None,
    ) -> None:
        """Let a loaded index serve. Dead letters about earlier indexes are removed with them."""
        target.publish(index, settings, former)
        dead_letters = DocumentDeadLetters(self.client, self.search.index_prefix, target.alias)
        dead_letters.forget(but_of=index)


class EarlyLoad(NamedTuple):
    """A first load begun before there is a plan. ``into`` has the rows of snapshots.

    ``census`` has the plan's numbers about each partition's records. None: the run counts them.
    """

    into: TableGeneration
    rows: WrittenDocuments
    census: Mapping[int, PartitionCensus] | None


class TableIndexer:
    """Applies plans to the indexes of tables."""

    def __init__(self, spark: "SparkSession", context: SearchContext) -> None:
        self._spark = spark
        self._settings = context.run.settings
        self._search = context.search
        self._context = context
        self._ledger = context.ledger

    def apply(
        self,
        target: TableIndex,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        read: ReadChanges,
        loaded: EarlyLoad | None = None,
        *,
        removes: bool = False,
    ) -> Counts | None:
        """Write the plan's changes to the table's index, unless this run has recorded that.

        ``loaded`` is the existing part of its first load. A new index ``removes`` dropped columns.
        None: a load of several steps has begun (``IndexTarget.load_next`` continues it).
        """
        newest, table = versions[-1], plan.tables[str(versions[-1].name)]
        before = self._ledger.tables([str(newest.name)]).get(str(newest.name))
        is_there = before is not None and target.is_there(before.newest)
        # A run number isn't enough, as a new capture starts again.
        done = (plan.run, str(plan.cut), table.next)
        if before is not None and is_there and (before.run, before.cut, before.offsets) == done:
            return Counts()
        if not table.base:
            return self._load_first(target, before, table, plan, versions, loaded)
        if before is None or before.newest is None:
            raise SinkError("the index no longer has a progress record", where=target.what)
        before, counts = self._fitting(target, before, versions, removes=removes), Counts()
        if (serves := before.serves) is not None:
            target.require(serves)
            counts = self._keep_up(target, serves.index, table, versions, read)
            target.require(serves)
        self._record(plan, table, newest, serves=serves, loading=before.loading)
        return counts

    def _keep_up(
        self,
        target: TableIndex,
        index: str,
        table: TablePlan,
        versions: Sequence[TableSchema],
        read: ReadChanges,
    ) -> Counts:
        """Write the changes to the index that serves."""
        counts = Counts()
        if table.events:
            with read() as changes:
                counts += self.write(index, changes)
        # New rows after a TRUNCATE are written first, so that the index is never empty in between.
        counts += self._end_rows(target, index, table, versions)
        target.refresh(index)
        return counts

    def _end_rows(
        self, target: TableIndex, index: str, table: TablePlan, versions: Sequence[TableSchema]
    ) -> Counts:
        """Delete documents of rows that ended at once, if the plan has such ends."""
        counts = Counts()
        if table.truncated is not None:
            counts += Counts(deleted=target.truncate(index, table.truncated))
        if table.ended:
            target.refresh(index)
            counts += delete_ended(
                self._spark,
                self._context.client,
                index,
                table.ended,
                shape_of(versions, self._search),
                bulk_bytes=self._search.bulk_bytes,
            )
        return counts

    def write(
        self, index: str, changes: TableChanges, only: frozenset[str] | None = None
    ) -> Counts:
        """Write the result of changes to an index. ``only``: documents with such an id."""
        shape = shape_of(changes.versions, self._search)
        name, keep = str(shape.table), self._settings.log.keep
        with explained(name, keep), changes.contenders(shape) as rows:
            return write_newest(rows, shape, self._search, index, only)

    def load(
        self,
        target: TableIndex,
        index: str,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        early: EarlyLoad | None = None,
    ) -> Counts:
        """Write the same to an index that is being loaded, which may have an ``early`` part.

        An end of rows deletes the documents of earlier steps of the load.
        """
        counts = Counts()
        if table.events:
            shape = shape_of(versions, self._search)
            with explained(str(versions[-1].name), self._settings.log.keep):
                parsed = self.changes(table, plan, versions).parsed(shape, snapshot=True)
                changes = marked(parsed)
                rows = (
                    write_snapshot_rows(changes, shape, self._search, index)
                    if early is None
                    else early.rows
                )
                counts = write_remaining(changes, rows, shape, self._search, index)
        return counts + self._end_rows(target, index, table, versions)

    def load_early(
        self, target: TableIndex, table: TablePlan, cut: Position, versions: Sequence[TableSchema]
    ) -> EarlyLoad | None:
        """Begin a first load before there is a plan: one read of the log instead of two.

        None: it takes the ordinary way, which also reports why.
        """
        name, history, kafka = table.source, history_of(cut), self._settings.kafka
        before = self._ledger.tables([name]).get(name)
        raw = read_raw(self._spark, kafka, {table.topic: table.start}, {table.topic: table.end})
        observed = observe_census(raw, [table], cut)
        records = of_newest(within(observed, table.after, cut, history, keyed=True), versions)
        try:
            shape = shape_of(versions, self._search)
            into = self._made(target, versions, before)
            with explained(name, self._settings.log.keep):
                changes = marked(parse(records, shape, snapshot=True))
                rows = write_snapshot_rows(changes, shape, self._search, into.index)
        except SinkUnreachableError:
            raise
        except MillraceError:
            return None
        facts = rows.observed(FACTS)
        if facts is None or facts.getAs("claims"):  # the values of such rows differ
            return None
        counted = census_of(facts, [table])
        return EarlyLoad(into, rows, None if counted is None else counted[table.topic])

    def changes(
        self, table: TablePlan, plan: RunPlan, versions: Sequence[TableSchema]
    ) -> MillraceChanges:
        """Return a plan's changes, from the source's current history."""
        records, floor = Records(self._settings.kafka), history_of(plan.cut)
        return MillraceChanges(self._spark, records, plan, table, versions, floor=floor)

    def begin_load(
        self, target: TableIndex, before: TableRecord, versions: Sequence[TableSchema]
    ) -> TableRecord:
        """Create another index, to be loaded next to the serving one. Return the record of both."""
        into = self._made(target, versions, before)
        record = before.model_copy(update={"loading": TableLoad(into=into, ts_ms=now_ms())})
        self._ledger.write_table(str(versions[-1].name), record)
        return record

    def finish_load(
        self, target: TableIndex, table: str, record: TableRecord, loaded: TableGeneration
    ) -> None:
        """Let the loaded index serve, and record only it."""
        target.require(loaded)
        settings = self._search.index_of(table).settings
        self._context.publish(target, loaded.index, settings, former=record.serves)
        served = record.model_copy(update={"serves": loaded, "loading": None})
        self._ledger.write_table(table, served)

    def _load_first(
        self,
        target: TableIndex,
        before: TableRecord | None,
        table: TablePlan,
        plan: RunPlan,
        versions: Sequence[TableSchema],
        loaded: EarlyLoad | None,
    ) -> Counts | None:
        """Begin an index that is hidden until complete.

        With a single step, it is loaded at once.
        """
        newest = versions[-1]
        into = loaded.into if loaded is not None else self._made(target, versions, before)
        loading = TableLoad(into=into, ts_ms=now_ms())
        record = self._record(plan, table, newest, serves=None, loading=loading)
        if loaded is None and not is_one_step(table):
            return None
        counts = self.load(target, into.index, table, plan, versions, loaded)
        self.finish_load(target, table.source, record, into)
        # Documents written in between that have changed or are gone don't count.
        return replace(counts, inserted=counts.inserted - counts.deleted, updated=0, deleted=0)

    def _record(
        self,
        plan: RunPlan,
        table: TablePlan,
        newest: TableSchema,
        *,
        serves: TableGeneration | None,
        loading: TableLoad | None,
    ) -> TableRecord:
        record = TableRecord(
            run=plan.run,
            serves=serves,
            loading=loading,
            cut=str(plan.cut),
            offsets=table.next,
            schema_version=newest.version,
            emptied=table.emptied,
        )
        self._ledger.write_table(table.source, record)
        return record

    def _fitting(
        self,
        target: TableIndex,
        before: TableRecord,
        versions: Sequence[TableSchema],
        *,
        removes: bool,
    ) -> TableRecord:
        """Return the record of an index that fits the table's columns, or of a new load.

        Documents have ids by the key, and fields by column name. Earlier ones would keep another's.
        """
        serves, loading = before.serves, before.loading
        loading = loading if loading and target.is_there(loading.into) else None
        if before.schema_version == versions[-1].version:
            return before.model_copy(update={"loading": loading})
        drops = drops_since(versions, before.schema_version)
        keeps = keeps_rows(versions, before.schema_version, RESERVED) and not (drops and removes)
        wanted = self._mapping(versions)

        def fitting(into: TableGeneration) -> TableGeneration | None:
            if not (keeps and target.extend(into.index, wanted)):
                return None
            return into.model_copy(update={"has_dropped": into.has_dropped or drops})

        into = fitting(loading.into) if loading else None
        loading = loading.model_copy(update={"into": into}) if loading and into else None
        still = fitting(serves) if serves else None
        if still is None and loading is None:
            return self.begin_load(target, before, versions)
        return before.model_copy(update={"serves": still or serves, "loading": loading})

    def _made(
        self, target: TableIndex, versions: Sequence[TableSchema], before: TableRecord | None
    ) -> TableGeneration:
        indexed = self._search.index_of(str(versions[-1].name))
        after = before.newest if before is not None else None
        made = target.make(self._mapping(versions), after, indexed.settings)
        return TableGeneration(**made.model_dump(), overrides=indexed.overrides)

    def _mapping(self, versions: Sequence[TableSchema]) -> dict[str, Any]:
        overrides = self._search.index_of(str(versions[-1].name)).mapping
        return mapping(versions[-1], overrides, [c.name for v in versions for c in v.columns])


def shape_of(versions: Sequence[TableSchema], search: SearchSettings) -> TableShape:
    """Return the columns of a table's documents. Raise SinkError if it can't have any."""
    unfit = search.index_of(str(versions[-1].name)).unfit
    return plain_shape(versions, RESERVED, [name for name, what in unfit.items() if what == "null"])


def history_of(cut: Position) -> Position:
    """Return its begin: a load must not see records of an older history in the log."""
    return Position(cut.epoch, Lsn(0), 0)

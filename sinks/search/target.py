"""Search indexes, as a target of runs: one for each table with a key.

A plan is finished or repeated, and since every document has its version, a repetition changes
nothing. Some tables are loaded from the log's start into a new index, next to the serving one, if
there is any: a table without an index, one that begins a new epoch, or one so late that the log may
have lost changes. Such a load follows the log like any other reader, step by step. Once it has
reached the table's position, it takes the alias. If a run dies in between, the next run continues.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from cdc.errors import BusyError, ConfigError, MillraceError, SinkError, SinkUnreachableError
from cdc.log.offsets import LogState
from cdc.records.position import Position
from cdc.records.schema import TableSchema
from cdc.settings.drops import COLUMN_POLICY
from sinks.changes.generations import ends_under
from sinks.log.changes import is_read_early
from sinks.log.counts import census, with_census
from sinks.log.records import Records
from sinks.log.topics import versions_of
from sinks.run.plan import RunPlan, TablePlan, ready
from sinks.run.summary import Rows, TableResult, attempted
from sinks.run.target import Forgotten, Target, Wanted
from sinks.run.topics import Examination, ReadChanges, Topics
from sinks.run.wanted import CapturedTables, wanted_in_search
from sinks.search.apply import (
    EarlyLoad,
    SearchContext,
    TableIndexer,
    shape_of,
)
from sinks.search.bulk import Counts
from sinks.search.dead_letters import DocumentDeadLetters, replayed
from sinks.search.documents import aliases
from sinks.search.indexes import TableIndex, alias_of
from sinks.search.progress import (
    RunClaim,
    TableGeneration,
    TableLoad,
    TableRecord,
    now_ms,
)
from sinks.search.steps import is_one_step, next_step, require_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.changes.shape import TableShape


class IndexTarget(Target):
    """The indexes of the captured tables, while the claim is held."""

    sink: ClassVar[str] = "search"
    ends_run: ClassVar[tuple[type[MillraceError], ...]] = (BusyError, SinkUnreachableError)

    plans: RunClaim
    _state: LogState
    _aliases: Mapping[str, str]
    _refused: Mapping[str, SinkError]

    def __init__(self, context: SearchContext, claim: RunClaim) -> None:
        self.plans = claim
        self._context = context
        self._search = context.search
        self._report = context.run.report
        self._records: dict[str, TableRecord] | None = None
        self._loaded: dict[str, EarlyLoad] = {}

    def wanted(self, state: LogState, begun: Collection[str]) -> Wanted:
        """Return the tables in [search], or all of them, without those that have no key."""
        del begun
        search, captured = self._search, state.tables.keys()
        tables = CapturedTables.of(captured, state.newest_schemas)
        keyed = wanted_in_search(search, tables)
        wanted = captured if search.tables is None else set(search.tables)
        for name in sorted(wanted - captured):
            self._report(f"[search] tables: {name} isn't captured (yet)")
        for index in search.indexes:
            if index.table not in captured:
                self._report(f"[[search.indexes]]: {index.table} isn't captured (yet)")
        self._aliases, refused = aliases(search, [state.tables[name].name for name in keyed])
        self._refused = refused
        indexed = {name: table for name, table in keyed.items() if name not in refused}
        self._state = replace(state, tables={name: state.tables[name] for name in indexed})
        self._records = None
        options = self._context.run.options
        indexes = indexed.keys() | {document.name for document in search.documents}
        if strange := sorted((options.rebuilt | options.replayed) - indexes - refused.keys()):
            raise ConfigError(
                f"unknown index: {', '.join(strange)}",
                where="rebuild",
                remedy=f"the indexes are: {', '.join(sorted(indexes))}",
            )
        keyless = sorted(wanted & captured - keyed.keys())
        remarks = [f"{name}: not indexed: it has no key" for name in keyless]
        return Wanted(indexed, remarks, refused)

    def is_standing(self, name: str, table: TablePlan, state: LogState) -> bool:
        """Whether the table still has its index, of the source's current history."""
        del table
        if self._records is None:
            self._records = self._context.ledger.tables(self._state.tables)
        captured, record = self._state.tables[name], self._records.get(name)
        record = self._adopted(record, name) if record is not None else None
        index = record.serves or record.newest if record is not None else None
        if record is None or not self._index(name).is_there(index):
            self._report(f"{name}: its index is missing: loading it again from the log")
            return False
        epoch = Position.parse(record.cut).epoch
        if epoch != captured.epoch and ready(captured, state.progress.cut):
            self._report(f"{name}: a new history begins: loading a new index from the log")
            return False
        return True

    def behind_gap(self, name: str, table: TablePlan, forgotten: Forgotten) -> TablePlan | None:
        """Load the table again if the log keeps every key. Otherwise it stays unchanged."""
        again = super().behind_gap(name, table, forgotten)
        if again is not None:
            self._report(f"{name}: {forgotten.error.what}: loading it again from the log")
        return again

    def examination(self, tables: Mapping[str, TablePlan], state: LogState) -> Examination:
        """Begin first loads of a single step here: one read of the log instead of two."""
        self._loaded = {}
        for name, table in tables.items():
            is_small = table.pending and is_one_step(table) and not self._lacks_records(name)
            if table.base or not is_small or not is_read_early(table):
                continue
            versions, target = versions_of(state, table), self._index(name)
            self.plans.renew()  # another run's load would look abandoned
            self._report(f"{name}: about {table.unread:,} records to load")
            early = self._indexer().load_early(target, table, state.progress.cut, versions)
            if early is not None:
                self._loaded[name] = early

        def shape(name: str, table: TablePlan, versions: list[TableSchema]) -> "TableShape | None":
            del name
            return shape_of(versions, self._search) if table.base else None

        censuses = {name: load.census for name, load in self._loaded.items() if load.census}
        return Examination(shape, censuses, {})

    def apply(
        self, spark: "SparkSession", name: str, plan: RunPlan, read: ReadChanges
    ) -> Rows | None:
        """Write the documents, then the table's progress record. Skip it if that exists."""
        self._records = None
        if name in self._refused:
            raise self._refused[name]
        if name not in self._state.tables:
            raise SinkError("the log no longer has the table", where=f"table {name}")
        versions = versions_of(self._state, plan.tables[name])
        loaded = self._loaded.pop(name, None)
        counts = self._indexer(spark).apply(
            self._index(name), plan, versions, read, loaded, removes=self._removes_columns(name)
        )
        self._report_kept_columns(name)
        if counts is not None and counts.incomplete:
            self._report(
                f"{name}: {counts.incomplete:,} documents lack values that the log no longer has:"
                " search for _exists_:_millrace_absent"
            )
        if counts is None:
            return None
        return Rows(counts.inserted, counts.updated, counts.deleted)

    def rows(self, name: str) -> int | None:
        """Return how many documents the table's index has."""
        return self._index(name).count()

    def replayed(self) -> list[TableResult]:
        """Write refused documents of tables again, if that is asked for."""
        names = sorted(self._context.run.options.replayed & self._state.tables.keys())
        results: list[TableResult] = []
        for name, record in self._context.ledger.tables(names).items():
            if record.serves is None:
                continue
            dead_letters = DocumentDeadLetters(
                self._context.client,
                self._search.index_prefix,
                self._aliases[name],
                record.serves.index,
            )
            again = partial(self._again, name, record)
            results.append(attempted(name, partial(replayed, name, dead_letters, again)))
        return results

    def begin_loads(self, names: Collection[str], topics: Topics) -> list[TableResult]:
        """Create new indexes for tables, unless they are being loaded. Report where that fails.

        Includes tables with changed options, whose load can't continue.
        """
        results = []
        for name, record in self._context.ledger.tables(self._state.tables).items():
            reason = self._reason_to_rebuild(name, record)
            if reason is not None:
                self._report(f"{name}: {reason}: a new index")
            if reason is not None or (name in names and record.loading is None):
                results.append(attempted(name, partial(self._begun, name, record, topics)))
        return [result for result in results if result.error is not None]

    def load_next(self, failed: Collection[str]) -> TableResult | None:
        """Load the next step of a table that is being loaded, except those that have ``failed``.

        After the last step, the new index replaces the serving one. None: no table needs a load.
        """
        for name, record in self._context.ledger.tables(self._state.tables).items():
            loading = record.loading
            if loading is None or name in failed:
                continue
            started = time.monotonic()
            result = attempted(name, partial(self._stepped, name, record, loading))
            result = replace(result, seconds=time.monotonic() - started)
            if result.error is not None:
                self._report(str(result))
            return result
        return None

    def _again(self, name: str, record: TableRecord, documents: Collection[str]) -> None:
        """Write some documents of the serving index again."""
        assert record.serves is not None  # noqa: S101 (the caller has checked it)
        index, whole = record.serves.index, self._plan(name, record)
        table = self._examined(whole, whole.tables[name])
        indexer = self._indexer()
        changes = indexer.changes(table, whole, versions_of(self._state, table))
        counts = indexer.write(index, changes, frozenset(documents))
        if counts.incomplete:
            self._report(f"{name}: {counts.incomplete:,} documents lack values")
        self._index(name).refresh(index)

    def _adopted(self, record: TableRecord, table: str) -> TableRecord:
        """Return the record of a table whose new index serves, which a run has not recorded."""
        loading = record.loading
        if loading is None or not self._index(table).has_taken_over(loading.into):
            return record
        record = record.model_copy(update={"serves": loading.into, "loading": None})
        self._context.ledger.write_table(table, record)
        return record

    def _reason_to_rebuild(self, name: str, record: TableRecord) -> str | None:
        """Return why the index of a table, or the one being loaded, must be replaced."""
        if (reason := self._outgrown(name, record.newest)) is not None:
            return reason
        if (loading := record.loading) is None:
            return None
        index = loading.into.index
        if not self._index(name).is_there(loading.into):
            return f"{index}, which was being loaded, is missing"
        if now_ms() - loading.ts_ms > self._context.run.settings.log.keep.total_seconds() * 1_000:
            return (
                f"{index} was loaded so long ago that the log may no longer have all changes since"
            )
        return None

    def _outgrown(self, name: str, newest: TableGeneration | None) -> str | None:
        """Return why the newest index doesn't match the user's configuration."""
        overrides = newest.overrides if newest is not None else ""
        if overrides != self._search.index_of(name).overrides:
            return "its options in [[search.indexes]] have changed"
        if newest is not None and alias_of(newest.index) != self._aliases[name]:
            return f"its index is now {self._aliases[name]}"
        if newest is not None and newest.has_dropped and self._removes_columns(name):
            return "columns were dropped"
        return None

    def _removes_columns(self, name: str) -> bool:
        """Whether a dropped column causes the load of a new index, without its values.

        It doesn't if the log lacks records that the new one would need.
        """
        wanted = self._search.removes_columns(self._search.index_of(name))
        return wanted and not self._lacks_records(name)

    def _lacks_records(self, name: str) -> bool:
        """Whether the log has lost a record that the table needs."""
        captured = self._state.tables[name]
        return captured.cleanup == "delete" and any(self._state.starts[captured.topic].values())

    def _report_kept_columns(self, name: str) -> None:
        """Report that an index still has values of dropped columns."""
        wanted = self._search.removes_columns(self._search.index_of(name))
        if not (wanted and self._lacks_records(name)):
            return
        record = self._context.ledger.tables([name]).get(name)
        newest = record.newest if record is not None else None
        if newest is not None and newest.has_dropped:
            self._report(
                f"{name}: documents keep the values of dropped columns until rows change, since"
                " the log no longer has all rows for a new index; to accept this, set"
                f' "{COLUMN_POLICY}" = "keep" in [[search.indexes]]'
            )

    def _begun(self, name: str, record: TableRecord, topics: Topics) -> TableResult:
        whole = self._plan(name, record)
        plan = whole.tables[name]
        if self._lacks_records(name):
            require_rows(self._context.run, self._examined(whole, plan), self._state)
        else:
            topics.require_retained(name, plan, self._state, fresh=True)
        versions = versions_of(self._state, plan)
        self._indexer().begin_load(self._index(name), record, versions)
        return TableResult(name)

    def _stepped(self, name: str, record: TableRecord, loading: TableLoad) -> TableResult:
        index = self._index(name)
        index.require(loading.into)
        whole = self._plan(name, record)
        planned = whole.tables[name]
        if not loading.loaded and self._lacks_records(name):
            require_rows(self._context.run, self._examined(whole, planned), self._state)
        step, events, counts = next_step(planned, loading.loaded), 0, Counts()
        if step is not None:
            step = self._examined(whole, step)
            versions, into = versions_of(self._state, step), loading.into.index
            events, counts = step.events, self._indexer().load(index, into, step, whole, versions)
            progress = _loaded_text(planned.start, step.end, planned.end)
            self._report(f"{name}: {into}: {progress}")
            loading = loading.model_copy(update={"loaded": step.end, "ts_ms": now_ms()})
        record = record.model_copy(update={"loading": loading})
        if step is None or step.end == planned.end:
            self._indexer().finish_load(index, name, record, loading.into)
        else:
            self._context.ledger.write_table(name, record)
        return TableResult(name, events, counts.inserted, counts.updated, counts.deleted)

    def _examined(self, whole: RunPlan, step: TablePlan) -> TablePlan:
        """Add the census of a step's records: TRUNCATEs, and claims."""
        records, name = Records(self._context.run.settings.kafka), step.source
        by_table = census(self._context.run.session(), records, {name: step}, whole.cut)
        captured = self._state.tables[name]
        table = with_census(step, by_table.get(name, {}), whole.cut, captured, keyed=True)
        ends = ends_under(versions_of(self._state, step), table.ends)
        table = table.model_copy(update={"ends": tuple(ends)})
        if step.emptied is None:
            return table
        # The log still has the rows that the index was emptied of.
        return table.model_copy(update={"ends": (*table.ends, step.emptied)})

    def _plan(self, name: str, record: TableRecord) -> RunPlan:
        """Return a table's progress as a plan."""
        topic = self._state.tables[name].topic
        starts = self._state.starts[topic]
        offsets = {number: max(starts[number], end) for number, end in record.offsets.items()}
        table = TablePlan(
            topic=topic,
            start={number: starts[number] for number in offsets},
            end=offsets,
            next=record.offsets,
            after=None,
            schema_version=record.schema_version,
            emptied=record.emptied,
            base=0,
            events=0,
            fresh_ms=0,
            source=name,
        )
        return RunPlan(
            run=record.run,
            prefix=self._context.run.settings.capture.topic_prefix,
            log=self._state.progress.log,
            cut=Position.parse(record.cut),
            cut_ts_us=0,
            ts_ms=now_ms(),
            tables={name: table},
        )

    def _index(self, table: str) -> TableIndex:
        log = self._context.run.settings.capture.topic_prefix
        return TableIndex(self._context.client, self._aliases[table], log, table)

    def _indexer(self, spark: "SparkSession | None" = None) -> TableIndexer:
        return TableIndexer(spark or self._context.run.session(), self._context)


def _loaded_text(start: Mapping[int, int], at: Mapping[int, int], end: Mapping[int, int]) -> str:
    """Return a load's progress, for people."""
    total = sum(end[partition] - offset for partition, offset in start.items())
    done = sum(at.get(partition, offset) - offset for partition, offset in start.items())
    return f"{done:,} of {total:,} records are loaded ({100 * done // max(total, 1)} %)"

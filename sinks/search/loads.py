"""A table's new index: the log's records, step by step, beside the one that serves, if any does.

It follows the log like any other reader. Once it has come to where the table is, it takes the
alias. So whoever dies in between leaves the rest to the next run.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from cdc.errors import LogForgottenError
from cdc.log.offsets import LogState
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName, TableSchema
from sinks.log.counts import with_census
from sinks.log.records import Records
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.summary import TableResult, attempted
from sinks.run.topics import require_retained
from sinks.search.apply import SearchContext
from sinks.search.bulk import Counts
from sinks.search.indexes import TableIndex
from sinks.search.progress_records import TableLoad, TableRecord, now_ms

if TYPE_CHECKING:
    from sinks.search.apply import TableIndexer


class Loads:
    """The loads of all tables' indexes, against one state of the log."""

    def __init__(
        self, context: SearchContext, state: LogState, index: Callable[[TableName], TableIndex]
    ) -> None:
        self._context = context
        self._settings = context.run.settings
        self._search = context.search
        self._ledger = context.ledger
        self._state = state
        self._names = [table.name for table in state.tables.values()]
        self._index = index
        self._session = context.run.session
        self._report = context.run.report

    def begin(self, names: Collection[str]) -> list[TableResult]:
        """Make new indexes for tables, unless they are being loaded; and say where that can't be.

        Also for those that the user now wants otherwise, and whose load can't go on.
        """
        records = {str(name): record for name, record in self._ledger.tables(self._names).items()}
        begun = {}
        for name, record in records.items():
            reason = self._reason_to_rebuild(name, record)
            if reason is not None:
                self._report(f"{name}: {reason}: a new index")
            if reason is not None or (name in names and record.loading is None):
                begun[name] = record
        plans = {name: self._plan(name, record).tables[name] for name, record in begun.items()}
        refused = unloadable_tables(plans, self._state, self._settings.log.keep)
        results = [TableResult(name, error=error) for name, error in refused.items()]
        for name, record in begun.items():
            if name not in refused:
                schema = versions_of(self._state, name, record.schema_version)[-1]
                result = attempted(name, partial(self._begun, record, schema))
                results += [result] if result.error is not None else []
        return results

    def next(self, failed: Collection[str]) -> TableResult | None:
        """Load the next step of a table that is being loaded, but of those that have ``failed``.

        Behind the last one, the new index takes the place of the one that serves. None: there is
        nothing to load.
        """
        for table, record in self._ledger.tables(self._names).items():
            loading = record.loading
            if loading is None or str(table) in failed:
                continue
            started = time.monotonic()
            result = attempted(str(table), partial(self._stepped, table, record, loading))
            result = replace(result, seconds=time.monotonic() - started)
            if result.error is not None:
                self._report(str(result))
            return result
        return None

    def again(self, name: str, record: TableRecord, documents: Collection[str]) -> None:
        """Write some documents of the index that serves once more."""
        assert record.serves is not None  # noqa: S101 (the caller has looked)
        index, whole = record.serves.index, self._plan(name, record)
        table = self._examined(name, whole, whole.tables[name])
        versions = versions_of(self._state, name, record.schema_version)
        chosen = frozenset(documents)
        counts = self._indexer().write(index, table, whole, versions, chosen)
        if counts.incomplete:
            self._report(f"{name}: {counts.incomplete:,} documents lack values")
        self._index(versions[-1].name).refresh(index)

    def adopted(self, record: TableRecord, table: TableName) -> TableRecord:
        """The record of a table whose new index serves already: who let it died before the note."""
        loading = record.loading
        if loading is None or not self._index(table).has_taken_over(loading.into):
            return record
        record = record.model_copy(update={"serves": loading.into, "loading": None})
        self._ledger.write_table(table, record)
        return record

    def _reason_to_rebuild(self, name: str, record: TableRecord) -> str | None:
        """Why the index of a table, or the one that is being loaded, isn't the one to have."""
        loading, newest = record.loading, record.newest
        overrides = newest.overrides if newest is not None else ""
        if overrides != self._search.index_of(name).overrides:
            return "[[search.indexes]] says something else"
        if loading is None:
            return None
        table = self._state.tables[name].name
        index = loading.into.index
        if not self._index(table).is_there(loading.into):
            return f"{index}, which was being loaded, is gone"
        if now_ms() - loading.ts_ms > self._settings.log.keep.total_seconds() * 1_000:
            return f"{index} was loaded so long ago that the log may have forgotten changes"
        return None

    def _begun(self, record: TableRecord, schema: TableSchema) -> TableResult:
        self._indexer().begin_load(self._index(schema.name), record, schema)
        return TableResult(str(schema.name))

    def _stepped(self, table: TableName, record: TableRecord, loading: TableLoad) -> TableResult:
        from sinks.search.apply import loaded_text, steps

        name, index = str(table), self._index(table)
        index.require(loading.into)
        whole = self._plan(name, record)
        planned = whole.tables[name]
        step, events, counts = next(steps(planned, loading.loaded), None), 0, Counts()
        if step is not None:
            step = self._examined(name, whole, step)
            events, counts = step.events, self._load(name, index, loading.into.index, whole, step)
            progress = loaded_text(planned.start, step.end, planned.end)
            self._report(f"{name}: {loading.into.index}: {progress}")
            loading = loading.model_copy(update={"loaded": step.end, "ts_ms": now_ms()})
        record = record.model_copy(update={"loading": loading})
        if step is None or step.end == planned.end:
            self._indexer().finish_load(index, table, record)
        else:
            self._ledger.write_table(table, record)
        return TableResult(name, events, counts.inserted, counts.updated, counts.deleted)

    def _load(
        self, name: str, target: TableIndex, index: str, whole: RunPlan, step: TablePlan
    ) -> Counts:
        counts = Counts()
        if step.events:
            versions = versions_of(self._state, name, step.schema_version)
            counts += self._indexer().load(index, step, whole, versions)
        if step.truncated is not None:
            counts += Counts(deleted=target.truncate(index, step.truncated))
        return counts

    def _examined(self, name: str, whole: RunPlan, step: TablePlan) -> TablePlan:
        """A step with what the census of its records tells: TRUNCATEs, and claims."""
        from sinks.log.counts import census

        records = Records(self._settings.kafka)
        by_table = census(self._session(), records, {name: step}, whole.cut)
        return with_census(step, by_table.get(name, {}), whole.cut, keyed=True)

    def _plan(self, name: str, record: TableRecord) -> RunPlan:
        """What a table's index has been given, as a plan."""
        topic = self._state.tables[name].topic
        starts = self._state.starts[topic]
        offsets = {number: max(starts[number], end) for number, end in record.offsets.items()}
        table = TablePlan(
            topic=topic,
            start={number: starts[number] for number in offsets},
            end=offsets,
            next=record.offsets,
            after=None,
            snapshot=Position(record.epoch, Lsn(0), 0),
            shown=None,
            schema_version=record.schema_version,
            base=0,
            events=0,
            fresh_ms=0,
            source=name,
        )
        return RunPlan(
            run=record.run,
            prefix=self._settings.capture.topic_prefix,
            log=self._state.progress.log,
            cut=Position.parse(record.cut),
            cut_ts_us=0,
            ts_ms=now_ms(),
            tables={name: table},
        )

    def _indexer(self) -> "TableIndexer":
        from sinks.search.apply import TableIndexer

        return TableIndexer(self._session(), self._context)


def versions_of(state: LogState, name: str, newest: int) -> list[TableSchema]:
    """A table's schema versions up to the newest of a plan or a record."""
    return [schema for schema in state.schemas[name] if schema.version <= newest]


def unloadable_tables(
    tables: Mapping[str, TablePlan], state: LogState, keep: timedelta
) -> dict[str, LogForgottenError]:
    """Errors of tables to be loaded from topics that aren't compacted and have lost their start."""
    errors = {}
    for name, table in tables.items():
        if table.base or state.tables[name].cleanup == "compact":
            continue
        first = {table.topic: dict.fromkeys(table.start, 0)}
        try:
            require_retained(first, state.starts, name, keep)
        except LogForgottenError as error:
            errors[name] = error
    return errors

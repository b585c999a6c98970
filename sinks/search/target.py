"""Search indexes, as a target of runs: one for each table with a key.

What is planned is finished or repeated, and since every document carries its version, repeating it
changes nothing. A table that has no index yet (or lost it, or begins a new epoch, or comes so late
that the log may have forgotten changes) is loaded from the log's start into a new index, which
takes over the alias when it is complete.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from cdc.errors import BusyError, ConfigError, MillraceError, SinkError, SinkUnreachableError
from cdc.log.offsets import LogState
from cdc.records.schema import TableName, TableSchema
from sinks.log.changes import is_read_early
from sinks.log.topics import versions_of
from sinks.run.plan import RunPlan, TablePlan, WantedTable, ready
from sinks.run.summary import Rows, TableResult, attempted
from sinks.run.target import Forgotten, Target, Wanted
from sinks.run.topics import Examination, ReadChanges
from sinks.search.apply import STEP_RECORDS, EarlyLoad, SearchContext, TableIndexer, shape_of
from sinks.search.dead_letters import DocumentDeadLetters, replayed
from sinks.search.documents import aliases
from sinks.search.indexes import TableIndex
from sinks.search.loads import Loads
from sinks.search.progress import RunClaim
from sinks.search.progress_records import TableRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.changes.shape import TableShape


class TableIndexes(Target):
    """The indexes of the captured tables, while the claim is held."""

    sink: ClassVar[str] = "search"
    ends_run: ClassVar[tuple[type[MillraceError], ...]] = (BusyError, SinkUnreachableError)

    def __init__(self, context: SearchContext, claim: RunClaim) -> None:
        self.plans = self._claim = claim
        self.loads: Loads
        self._context = context
        self._search = context.search
        self._report = context.run.report
        self._options = context.run.options
        self._state: LogState
        self._aliases: Mapping[str, str] = {}
        self._records: dict[TableName, TableRecord] | None = None
        self._loaded: dict[str, EarlyLoad] = {}

    def wanted(self, state: LogState, begun: Collection[str]) -> Wanted:
        """The tables that [search] names, or all of them, but for those without a key."""
        del begun
        keyed = {name for name, versions in state.schemas.items() if versions[-1].key}
        search, captured = self._search, state.tables.keys()
        wanted = captured if search.tables is None else set(search.tables)
        for name in sorted(wanted - captured):
            self._report(f"[search] tables: {name} isn't captured (yet)")
        for index in search.indexes:
            if index.table not in captured:
                self._report(f"[[search.indexes]]: {index.table} isn't captured (yet)")
        indexed = keyed & wanted
        tables = {name: table for name, table in state.tables.items() if name in indexed}
        self._state = replace(state, tables=tables)
        self._aliases = aliases(search, (table.name for table in tables.values()))
        self._records = None
        self.loads = Loads(self._context, self._state, self._index)
        self._require_indexes(self._options.rebuilt | self._options.replayed)
        keyless = sorted(wanted & captured - keyed)
        return Wanted(
            {name: WantedTable(name) for name in tables},
            [f"{name}: not indexed, since it has no key" for name in keyless],
        )

    def _require_indexes(self, names: Collection[str]) -> None:
        """Raise ConfigError for a name that no index has."""
        indexes = self._state.tables.keys() | {document.name for document in self._search.documents}
        if strange := sorted(set(names) - indexes):
            raise ConfigError(
                f"there is no index {', '.join(strange)}",
                where="rebuild",
                remedy=f"there are: {', '.join(sorted(indexes))}",
            )

    def is_standing(self, name: str, table: TablePlan, state: LogState) -> bool:
        """Whether the table has the index that it had, of the source's history of now."""
        del table
        if self._records is None:
            names = [table.name for table in self._state.tables.values()]
            self._records = self._context.ledger.tables(names)
        captured = self._state.tables[name]
        record = self._records.get(captured.name)
        record = self.loads.adopted(record, captured.name) if record is not None else None
        index = record.serves or record.newest if record is not None else None
        if record is None or not self._index(captured.name).is_there(index):
            self._report(f"{name}: its index is gone: loading it again from the log")
            return False
        if record.epoch != captured.epoch and ready(captured, state.progress.cut):
            self._report(f"{name}: a new history begins: loading a new index from the log")
            return False
        return True

    def behind_gap(self, name: str, table: TablePlan, forgotten: Forgotten) -> TablePlan | None:
        """Where the log keeps every key, the table is loaded again; else it stays as it is."""
        if not (table.base and forgotten.is_compacted):
            return None
        self._report(f"{name}: {forgotten.error.what}: loading it again from the log")
        return forgotten.again.begun_again(forgotten.again.start)

    def examination(self, tables: Mapping[str, TablePlan], state: LogState) -> Examination:
        """First loads of a single step begin here: by one read of the log instead of two."""
        pending = {name: table for name, table in tables.items() if table.pending}
        self._loaded = self._load_early(pending, state)

        def shape(name: str, table: TablePlan, versions: list[TableSchema]) -> "TableShape | None":
            del name
            return shape_of(versions, self._search) if table.base else None

        censuses = {name: load.census for name, load in self._loaded.items() if load.census}
        return Examination(shape, censuses, {})

    def _load_early(self, tables: dict[str, TablePlan], state: LogState) -> dict[str, EarlyLoad]:
        loads = {}
        for name, table in tables.items():
            if table.base or table.unread > STEP_RECORDS or not is_read_early(table):
                continue
            versions = versions_of(state, table)
            target = self._index(versions[-1].name)
            self._claim.renew()  # what another run is loading would be taken for left behind
            self._report(f"{name}: about {table.unread:,} records to load")
            indexer = TableIndexer(self._context.run.session(), self._context)
            load = indexer.load_early(target, table, state.progress.cut, versions)
            if load is not None:
                loads[name] = load
        return loads

    def apply(
        self, spark: "SparkSession", name: str, plan: RunPlan, read: ReadChanges
    ) -> Rows | None:
        """Write the documents, then the table's progress record; nothing, if that is there."""
        self._records = None
        if name not in self._state.tables:
            raise SinkError("the log doesn't have the table any more", where=f"table {name}")
        indexer = TableIndexer(spark, self._context)
        versions = versions_of(self._state, plan.tables[name])
        target = self._index(versions[-1].name)
        counts = indexer.apply(target, plan, versions, read, self._loaded.pop(name, None))
        if counts is not None and counts.incomplete:
            self._report(
                f"{name}: {counts.incomplete:,} documents lack values that the log doesn't have"
                " any more: search for _exists_:_millrace_absent"
            )
        if counts is None:
            return None
        return Rows(counts.inserted, counts.updated, counts.deleted)

    def replayed(self) -> list[TableResult]:
        """Make documents of tables again that were refused, where that is asked for."""
        records = self._context.ledger.tables(table.name for table in self._state.tables.values())
        results: list[TableResult] = []
        for table, record in records.items():
            if (name := str(table)) not in self._options.replayed or record.serves is None:
                continue
            alias = self._aliases[name]
            dead_letters = DocumentDeadLetters(
                self._context.client, self._search.index_prefix, alias, record.serves.index
            )
            again = partial(self.loads.again, name, record)
            results.append(attempted(name, partial(replayed, name, dead_letters, again)))
        return results

    def _index(self, table: TableName) -> TableIndex:
        log = self._context.run.settings.capture.topic_prefix
        return TableIndex(self._context.client, self._aliases[str(table)], log, str(table))

"""The log → every table's search index, up to one cut: one bounded run.

The same plans as the lakehouse's, kept in the progress index: what is planned is finished or
repeated, and since every document carries its version, repeating it changes nothing. A table that
has no index yet (or lost it, or begins a new epoch, or comes so late that the log may have
forgotten changes) is loaded from the log's start into a new index, which takes over the alias when
it is complete. A table without a key has nothing to name its documents by, and is left out.
"""

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cdc.errors import (
    BusyError,
    ConfigError,
    LogForgottenError,
    MillraceError,
    SinkError,
    SinkUnreachableError,
)
from cdc.log.offsets import LogReader, LogState
from cdc.records.schema import TableName
from cdc.settings import Settings
from sinks.log.counts import with_census
from sinks.log.records import Records
from sinks.run.options import TABLES_AT_ONCE, Report, RunOptions
from sinks.run.plan import (
    RunOutcome,
    RunPlan,
    TablePlan,
    WantedTable,
    goes_on,
    has_work,
    parse_run_state,
    proposed,
    ready,
    require_same_log,
    to_read,
)
from sinks.run.retention import require_retained
from sinks.run.summary import RunSummary, TableResult, attempted
from sinks.search.apply import SearchContext
from sinks.search.client import check, connect
from sinks.search.dead_letters import DocumentDeadLetters, replayed
from sinks.search.documents import aliases
from sinks.search.indexes import TableIndex
from sinks.search.joined.run import run_documents
from sinks.search.loads import Loads, unloadable_tables, versions_of
from sinks.search.progress import PROGRESS_INDEX, Ledger, RunClaim
from sinks.spark.session import SparkProvider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sinks.log.early import EarlyRead
    from sinks.search.apply import EarlyLoad


def run_search(
    settings: Settings,
    session: SparkProvider,
    report: Report = print,
    options: RunOptions = RunOptions(),  # noqa: B008 (frozen)
) -> RunSummary:
    """Apply what the log has to the search indexes; tables that fail are in the summary.

    ``session`` is called once there is something for Spark to do. Indexes go by the names of tables
    and of joined documents. Raises MillraceError where no table could be applied at all (the log or
    the server can't be reached, another run).
    """
    if settings.search is None:
        raise ConfigError(
            "there is no search server to merge into",
            where="[search]",
            remedy='add a section [search] with url = "…"',
        )
    started = time.monotonic()
    client = connect(settings.search)
    check(client, settings.search)
    ledger = Ledger(client, settings.search.index_prefix, settings.capture.topic_prefix)
    ledger.create()
    dead_letters = DocumentDeadLetters(client, settings.search.index_prefix, None)
    dead_letters.create()
    log = LogReader(settings.kafka)
    with ledger.claim() as claim:
        prefix, slot = settings.capture.topic_prefix, settings.capture.slot_name
        state = log.state(prefix, slot, report)
        if state is None:
            note = "the log is empty: has `millrace run` been started?"
            return RunSummary("search", 0, "", time.monotonic() - started, note=note)
        context = SearchContext(settings, settings.search, client, ledger, session, report, options)
        run = _SearchRun(context, state)
        run.require_indexes(options.rebuilt | options.replayed)
        plan, results = run.once(log, claim)
        results += run.loads.begin(options.rebuilt)
        results += run.replayed()
        if settings.search.documents:
            first = state
            results += run_documents(
                context, first, lambda: log.state(prefix, slot, report) or first
            )
        # The index that serves keeps up meanwhile, and the one that is loaded follows.
        failed: set[str] = set()
        while (step := run.loads.next(failed)) is not None:
            results.append(step)
            failed |= {step.name} if step.error is not None else set()
            if options.records_max is not None:
                break  # the rest is later runs'
            state = log.state(prefix, slot, report) or state
            run = _SearchRun(context, state)
            later, more = run.once(log, claim)
            plan, results = later or plan, results + more
    for alias, count in dead_letters.counts().items() if results else ():
        report(f"{alias}: {count:,} documents are refused: `millrace dead-letters search`")
    seconds = time.monotonic() - started
    if plan is None:
        return RunSummary("search", 0, "", seconds, results)
    return RunSummary("search", plan.run, str(plan.cut.commit_lsn), seconds, results)


class _SearchRun:
    """One run against one state of the log."""

    def __init__(self, context: SearchContext, state: LogState) -> None:
        search, report = context.search, context.report
        keyed = {name for name, versions in state.schemas.items() if versions[-1].key}
        wanted = state.tables.keys() if search.tables is None else set(search.tables)
        for name in sorted(wanted & state.tables.keys() - keyed):
            report(f"{name}: not indexed, since it has no key")
        for name in sorted(wanted - state.tables.keys()):
            report(f"[search] tables: {name} isn't captured (yet)")
        for index in search.indexes:
            if index.table not in state.tables:
                report(f"[[search.indexes]]: {index.table} isn't captured (yet)")
        indexed = keyed & wanted
        self._context = context
        self._settings = context.settings
        self._search = search
        self._client = context.client
        self._ledger = context.ledger
        self._state = replace(
            state, tables={name: table for name, table in state.tables.items() if name in indexed}
        )
        self._aliases = aliases(search, (table.name for table in self._state.tables.values()))
        self._session = context.session
        self._report = report
        self._options = context.options
        self._early: dict[str, EarlyRead] = {}
        self._loaded: dict[str, EarlyLoad] = {}
        self.loads = Loads(context, self._state, self._index)

    def once(self, log: LogReader, claim: RunClaim) -> tuple[RunPlan | None, list[TableResult]]:
        """Finish the plan that is under way, then plan and apply what is new."""
        results: list[TableResult] = []
        last = (
            parse_run_state(RunPlan, claim.record.plan, PROGRESS_INDEX)
            if claim.record.plan
            else None
        )
        if last is not None:
            require_same_log(last, self._state)
        if last is not None and claim.unfinished is not None:
            self._report(f"finishing run {last.run}, which was interrupted")
            results = self._finish(last, claim)
        before: dict[str, TablePlan] = {}
        if last is not None:
            outcome = parse_run_state(RunOutcome, claim.record.outcome, PROGRESS_INDEX)
            before = self._standing(goes_on(last, outcome))
        before, forgotten = self._retained(log, before, claim.record.checked_ms)
        tables = self._proposed(before)
        forgotten |= unloadable_tables(tables, self._state, self._settings.log.keep)
        # A table that may lack changes stays as it is, and the run says so each time.
        for name in forgotten:
            tables.pop(name)
            if name in before:
                tables[name] = before[name]
        results += [TableResult(name, error=error) for name, error in forgotten.items()]
        if not has_work(tables):
            claim.check()
            return last, results
        plan = RunPlan(
            run=claim.record.run + 1,
            prefix=self._settings.capture.topic_prefix,
            log=self._state.progress.log,
            cut=self._state.progress.cut,
            cut_ts_us=self._state.progress.cut_ts_us,
            ts_ms=int(time.time() * 1000),
            tables=self._examined(tables, claim),
        )
        claim.start(plan.model_dump_json())
        return plan, results + self._finish(plan, claim)

    def _proposed(self, before: dict[str, TablePlan]) -> dict[str, TablePlan]:
        wanted = {name: WantedTable(name) for name in self._state.tables}
        tables = proposed(before, self._state, wanted)
        records_max = self._options.records_max
        if records_max is None or to_read(tables) <= records_max:
            return tables
        from sinks.log.counts import bounded

        cuts = [table.after for table in before.values() if table.after is not None]
        spark, kafka = self._session(records_max), self._settings.kafka
        cut = max(cuts, default=None)
        self._state = bounded(spark, kafka, self._state, tables, records_max, cut, self._report)
        return proposed(before, self._state, wanted)

    def replayed(self) -> list[TableResult]:
        """Make documents of tables again that were refused, where that is asked for."""
        records = self._ledger.tables(table.name for table in self._state.tables.values())
        results: list[TableResult] = []
        for table, record in records.items():
            if (name := str(table)) not in self._options.replayed:
                continue
            alias = self._aliases[name]
            dead_letters = DocumentDeadLetters(
                self._client, self._search.index_prefix, alias, record.index
            )
            again = partial(self.loads.again, name, record)
            results.append(attempted(name, partial(replayed, name, dead_letters, again)))
        return results

    def require_indexes(self, names: Collection[str]) -> None:
        """Raise ConfigError for a name that no index has."""
        indexes = self._state.tables.keys() | {document.name for document in self._search.documents}
        if strange := sorted(set(names) - indexes):
            raise ConfigError(
                f"there is no index {', '.join(strange)}",
                where="rebuild",
                remedy=f"there are: {', '.join(sorted(indexes))}",
            )

    def _finish(self, plan: RunPlan, claim: RunClaim) -> list[TableResult]:
        results = self._apply(plan)
        failed = {table.name: str(table.error) for table in results if table.error is not None}
        outcome = RunOutcome(run=plan.run, ts_ms=int(time.time() * 1000), failed=failed)
        claim.finish(outcome.model_dump_json())
        return results

    def _standing(self, tables: dict[str, TablePlan]) -> dict[str, TablePlan]:
        """The tables that have an index to go on with; the others are loaded anew."""
        records = self._ledger.tables(table.name for table in self._state.tables.values())
        standing: dict[str, TablePlan] = {}
        for name, table in tables.items():
            state = self._state.tables.get(name)
            if state is None or not table.base:
                continue
            record = records.get(state.name)
            record = self.loads.adopted(record, state.name) if record is not None else None
            if record is None or record.uuid != self._index(state.name).uuid(record.index):
                self._report(f"{name}: its index is gone: loading it again from the log")
            elif record.epoch != state.epoch and ready(state, self._state.progress.cut):
                self._report(f"{name}: a new history begins: loading a new index from the log")
            else:
                standing[name] = table
        return standing

    def _retained(
        self, log: LogReader, tables: dict[str, TablePlan], checked_ms: int
    ) -> tuple[dict[str, TablePlan], dict[str, LogForgottenError]]:
        """The tables that may go on, and of those what the log may have forgotten changes of.

        Where the log keeps every key, such a table is loaded again instead.
        """
        keep = self._settings.log.keep
        fresh_since = (time.time() - keep.total_seconds()) * 1000
        kept: dict[str, TablePlan] = {}
        forgotten: dict[str, LogForgottenError] = {}
        for name, table in tables.items():
            start = {table.topic: table.start}
            try:
                require_retained(start, self._state.starts, name, keep)
                if max(table.fresh_ms, checked_ms) < fresh_since:
                    require_retained(start, log.forgotten(start, keep), name, keep)
            except LogForgottenError as error:
                if self._state.tables[name].cleanup == "compact":
                    self._report(f"{name}: {error.what}: loading it again from the log")
                    continue
                forgotten[name] = error
            kept[name] = table
        return kept, forgotten

    def _examined(self, tables: dict[str, TablePlan], claim: RunClaim) -> dict[str, TablePlan]:
        from sinks.log.counts import census

        pending = {name: table for name, table in tables.items() if table.pending}
        cut = self._state.progress.cut
        records = Records(self._settings.kafka)
        spark = self._session(to_read(pending))
        self._loaded = self._load_early(pending, claim)
        self._early = self._read_early(spark, records, pending)
        by_table = {name: dict(early.census) for name, early in self._early.items()}
        by_table |= {name: dict(load.census) for name, load in self._loaded.items() if load.census}
        uncounted = {name: table for name, table in pending.items() if name not in by_table}
        by_table |= census(spark, records, uncounted, cut)
        return {
            name: with_census(table, by_table.get(name, {}), cut, keyed=True)
            if table.pending or not table.base
            else table
            for name, table in tables.items()
        }

    def _load_early(self, tables: dict[str, TablePlan], claim: RunClaim) -> dict[str, "EarlyLoad"]:
        """Begin first loads of a single step: by one read of the log instead of two."""
        from sinks.log.early import is_read_early
        from sinks.search.apply import STEP_RECORDS, TableIndexer

        loads = {}
        for name, table in tables.items():
            if table.base or table.unread > STEP_RECORDS or not is_read_early(table):
                continue
            versions = versions_of(self._state, name, table.schema_version)
            target, cut = self._index(versions[-1].name), self._state.progress.cut
            claim.renew()  # what another run is loading would be taken for left behind
            self._report(f"{name}: about {table.unread:,} records to load")
            indexer = TableIndexer(self._session(), self._context)
            load = indexer.load_early(target, table, cut, versions)
            if load is not None:
                loads[name] = load
        return loads

    def _read_early(
        self, spark: "SparkSession", records: Records, tables: dict[str, TablePlan]
    ) -> dict[str, "EarlyRead"]:
        """The table with most records, if it may be, and can be: by one read instead of two."""
        from sinks.log.early import is_read_early, read_early
        from sinks.search.apply import history_of, shape_of

        standing = ((name, table) for name, table in tables.items() if table.base)
        name, table = max(standing, key=lambda item: item[1].unread, default=("", None))
        if table is None or not is_read_early(table):
            return {}
        try:
            columns = shape_of(versions_of(self._state, name, table.schema_version), self._search)
        except SinkError:
            return {}  # the error is raised again where the table is applied
        cut, floor = self._state.progress.cut, history_of(table)
        early = read_early(spark, records, table, cut, columns, floor)
        return {} if early is None else {name: early}

    def _apply(self, plan: RunPlan) -> list[TableResult]:
        """Apply the plan to its tables, some of them side by side."""
        waiting = [name for name, table in plan.tables.items() if table.pending or not table.base]
        if waiting:
            self._session()  # started here, once, and not by two threads

        def apply(name: str) -> TableResult:
            table = plan.tables[name]
            started = time.monotonic()
            if table.commits:
                self._report(f"{name}: {table.events:,} events")
            result = self._applied(name, table, plan)
            result = replace(result, seconds=time.monotonic() - started)
            if table.commits:
                self._report(str(result))
            return result

        with ThreadPoolExecutor(TABLES_AT_ONCE) as executor:
            results = list(executor.map(apply, waiting))
        return [result for result in results if plan.tables[result.name].commits]

    def _applied(self, name: str, table: TablePlan, plan: RunPlan) -> TableResult:
        """The result of one table; a server that is away ends the run, which is then repeated."""
        from sinks.search.apply import TableIndexer

        if name not in self._state.tables:
            error = SinkError("the log doesn't have the table any more", where=f"table {name}")
            return TableResult(name, table.events, error=error)
        versions = versions_of(self._state, name, table.schema_version)
        early, loaded = self._early.pop(name, None), self._loaded.pop(name, None)
        try:
            indexer = TableIndexer(self._session(), self._context)
            rows = early.rows if early is not None and table.truncated is None else None
            target = self._index(versions[-1].name)
            counts = indexer.apply(target, table, plan, versions, rows, loaded)
        except (BusyError, SinkUnreachableError):
            raise
        except MillraceError as error:
            return TableResult(name, table.events, error=error)
        finally:
            if early is not None:
                early.release()
        if counts.incomplete:
            self._report(
                f"{name}: {counts.incomplete:,} documents lack values that the log doesn't have"
                " any more: search for _exists_:_millrace_absent"
            )
        return TableResult(name, table.events, counts.inserted, counts.updated, counts.deleted)

    def _index(self, table: TableName) -> TableIndex:
        log = self._settings.capture.topic_prefix
        return TableIndex(self._client, self._aliases[str(table)], log, str(table))

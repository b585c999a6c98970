"""Configuration → the progress of the lakehouse and the search indexes."""

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from cdc.kafka.admin import LogAdmin
from cdc.log.offsets import LogState, log_missing
from cdc.log.state import read_all
from cdc.records.position import Lsn, Position
from cdc.records.reports import RunReport
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import Gap, Progress, TableState
from cdc.records.topics import progress_topic, schema_topic, table_topic
from cdc.settings import CaptureSettings, SearchSettings, Settings
from cdc.settings.drops import DropPolicy
from deploy.status.lag import Lag
from deploy.status.tables import time_text
from sinks.changes.derived import local_path
from sinks.run.doubts import doubts
from sinks.run.drops import find_drops, is_emptied
from sinks.run.plan import RunPlan, TablePlan, goes_on
from sinks.run.summary import LastCheck, RunOutcome, SinkName, TableCounts
from sinks.run.wanted import (
    CapturedTables,
    WantedTable,
    expected_tables,
    lakehouse_tables,
    names_in_log,
    newest_schemas,
    wanted_in_lakehouse,
    wanted_in_search,
)

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from sinks.delta.cuts import Cut
    from sinks.search.progress import DocumentRecord, Ledger, TableRecord

RUNS_SHOWN = 5


def table_states(settings: Settings) -> list[TableState]:
    """Return the state of every table that the log has, or had."""
    return read_all(settings.kafka, table_topic(settings.capture.topic_prefix), TableState)


def require_log(settings: Settings) -> None:
    """Raise LogMissingError if no daemon has begun to write a log."""
    prefix = settings.capture.topic_prefix
    admin = LogAdmin(settings.kafka)
    if progress_topic(prefix) not in admin.partitions():
        raise log_missing(prefix, settings.capture.slot_name, admin.servers)


def keyed_tables(settings: Settings, states: Iterable[TableState]) -> list[TableName]:
    """Return the log's tables with keys, whose rows can be documents."""
    schemas = read_all(settings.kafka, schema_topic(settings.capture.topic_prefix), TableSchema)
    return CapturedTables.of(names_in_log(states), newest_schemas(schemas)).with_key


def all_aliases(settings: Settings) -> dict[str, str]:
    """Return all aliases, by the names of tables and documents. ConfigError: there are none."""
    from sinks.search.documents import aliases

    keyed = keyed_tables(settings, table_states(settings))
    return aliases(settings.require_search(), keyed).by_name


class RunStatus(TableCounts):
    """One of a sink's last runs: its cut (an LSN), and its changes and tables."""

    run: int
    cut: str
    ended_ms: int
    tables: int
    failed: int


class IndexStatus(BaseModel):
    """A search index, by the name of its table or documents: its progress, and missing documents.

    ``index`` serves. ``loading`` will replace it, and ``loaded_percent`` of it is done. ``refused``
    documents have dead letters.
    """

    name: str
    index: str | None
    cut: str | None
    loading: str | None = None
    loaded_percent: float | None = None
    refused: int = 0


class ViewStatus(BaseModel):
    """A view: its cut, whether it ``loads`` from the beginning, and why it ``failed``."""

    name: str
    cut: str | None
    loads: bool = False
    failed: str = ""


class DropStatus(BaseModel):
    """A derived table whose captured ``table`` no longer exists at the source.

    Its rows are removed from ``due_ms`` on, by the daemon's clock (None: they stay), unless
    something ``held`` that up.
    """

    name: str
    table: str
    policy: DropPolicy
    due_ms: int | None
    held: str = ""
    needs_word: bool = False
    """Whether ``--accept-drop`` is required, as too many tables are missing."""
    emptied: bool = False


class SinkStatus(BaseModel):
    """A sink's progress. ``keep_left_s``: time until the log may lose changes not applied yet.

    ``sink_lag`` is its lag behind the log, ``lag`` that behind the source.
    """

    sink: SinkName
    run: int = 0
    cut: str | None = None
    sink_lag: Lag = Lag(unknown="no run has reported")
    lag: Lag = Lag(unknown="no run has reported")
    table_lags: dict[str, Lag] = {}
    is_read: bool = True
    """Whether its own state was read. With a JVM, only its reports are known."""
    running: RunReport | None = None
    last_run: RunReport | None = None
    verified: RunReport | None = None
    tables: int = 0
    expected: dict[str, frozenset[str]] | None = {}
    """The expected derived tables, and their sources. None: the log is late."""
    failed: dict[str, str] = {}
    finished: bool = True
    keep_left_s: float | None = None
    runs: list[RunStatus] = []
    gaps: dict[str, list[Gap]] = {}
    """What histories and archives lack, the newest gaps of each."""
    doubts: dict[str, str] = {}
    """Why rows of tables may be wrong, with a real Debezium; and the remedy."""
    indexes: list[IndexStatus] = []
    views: list[ViewStatus] = []
    drops: list[DropStatus] = []

    def gap_texts(self) -> list[str]:
        """Return a line about the newest gap of each table that has one."""
        return [
            f"{self.sink}, {table}: changes may be missing between {gaps[-1].start.commit_lsn} and"
            f" {gaps[-1].end.commit_lsn}: {gaps[-1].reason}"
            + (f" ({len(gaps) - 1} older gaps)" if gaps[1:] else "")
            for table, gaps in self.gaps.items()
        ]

    def doubt_texts(self) -> list[str]:
        """Return a line for each table with rows that may be wrong."""
        return [f"{self.sink}, {table}: {why}" for table, why in self.doubts.items()]

    def drop_texts(self) -> Iterator[str]:
        """Yield a line for each derived table of a dropped one: its rows' fate, and the remedy."""
        for drop in self.drops:
            text = (
                f"{self.sink}, {drop.name}: {drop.table} no longer exists at the source; its rows "
            )
            if drop.emptied:
                text += "were deleted"
            elif drop.due_ms is None:
                text += 'stay; table.drop.policy = "delete" deletes them'
            else:
                text += f"are deleted by the first merge after {time_text(drop.due_ms)} UTC"
                if drop.needs_word:
                    text += f" with --accept-drop {shlex.quote(drop.table)}: {drop.held}"
                elif drop.held:
                    text += f", but not while this holds: {drop.held}"
            yield text


def _status(
    settings: Settings,
    plan: RunPlan | None,
    outcome: RunOutcome | None,
    checked: LastCheck,
    **shown: Any,
) -> SinkStatus:
    """Return the status by a sink's last plan."""
    if plan is None:
        return SinkStatus(**shown)
    fresh_s = max(plan.ts_ms, checked.ts_ms) / 1e3
    return SinkStatus(
        run=plan.run,
        cut=plan.where,
        tables=len(plan.all_tables),
        failed=outcome.failed if outcome else {},
        finished=outcome is not None,
        keep_left_s=settings.log.keep.total_seconds() - (time.time() - fresh_s),
        **shown,
    )


def lakehouse_status(
    settings: Settings,
    progress: Progress | None,
    states: Sequence[TableState],
    captured: CapturedTables,
    reported: Iterable[str] = (),
) -> SinkStatus | None:
    """Return the progress of the lakehouse's tables. Runs have reported some of them."""
    lakehouse = settings.lakehouse
    if lakehouse is None:
        return None
    if local_path(lakehouse.path) is None:  # only a JVM can read it
        expected = expected_tables(settings, "lakehouse", captured, [*reported])
        return SinkStatus(sink="lakehouse", expected=expected, is_read=False)
    from sinks.delta.cuts import cuts
    from sinks.run.plans import lakehouse_plans
    from sinks.spark.session import open_session

    plans = lakehouse_plans(lakehouse.path, lambda: open_session(settings.spark))
    last = plans.last()
    outcome = plans.outcome(last) if last else None
    runs = [_run(cut) for cut in cuts(plans, RUNS_SHOWN)]
    tables = left_tables(last, outcome)
    begun = [name for name, table in tables.items() if table.base]
    derived, _ = lakehouse_tables(settings, captured, begun)
    wanted = wanted_in_lakehouse(lakehouse, derived)
    drops = _drops(wanted, last, outcome, progress, states, settings.capture)
    checked = plans.checked()
    gaps = {name: list(table.gaps) for name, table in sorted(tables.items()) if table.gaps}
    shown = {
        "expected": expected_tables(settings, "lakehouse", captured, [*begun, *reported]),
        "sink": "lakehouse",
        "runs": runs,
        "drops": drops,
        "gaps": gaps,
        "doubts": dict(doubts(tables, settings.capture.signal_data_collection)),
    }
    return _status(settings, last, outcome, checked, **shown)


def _drops(
    wanted: Mapping[str, WantedTable],
    plan: RunPlan | None,
    outcome: RunOutcome | None,
    progress: Progress | None,
    states: Sequence[TableState],
    capture: CaptureSettings,
) -> list[DropStatus]:
    """Return the fate of derived tables in the last plan whose captured tables are gone."""
    if plan is None or progress is None:
        return []
    state = LogState(progress, {str(each.name): each for each in states}, {}, {}, {})
    last = goes_on(plan, outcome) if outcome is not None else {}
    return [
        DropStatus(
            name=name,
            table=wanted[name].source,
            policy=wanted[name].drop.policy,
            due_ms=drop.due_ms,
            held=drop.held,
            needs_word=bool(drop.missing),
            emptied=name in last and is_emptied(last[name], drop.gone_ms),
        )
        for name, drop in find_drops(wanted, last, state, capture).items()
        if name in plan.all_tables
    ]


def left_tables(plan: RunPlan | None, outcome: RunOutcome | None) -> dict[str, TablePlan]:
    """Return the derived tables as the last plan has left them, or will."""
    if plan is None:
        return {}
    return goes_on(plan, outcome) if outcome else plan.all_tables


def _run(cut: "Cut") -> RunStatus:
    counts = cut.tables.values()
    return RunStatus(
        run=cut.run,
        cut=cut.where,
        ended_ms=cut.applied_ms,
        seconds=cut.seconds,
        tables=len(counts),
        failed=len(cut.missing),
        events=sum(table.events for table in counts),
        inserted=sum(table.inserted for table in counts),
        updated=sum(table.updated for table in counts),
        deleted=sum(table.deleted for table in counts),
    )


def search_status(
    settings: Settings,
    progress: Progress | None,
    states: Sequence[TableState],
    captured: CapturedTables,
) -> SinkStatus | None:
    """Return the progress of search indexes, of tables with keys and of joined documents."""
    search = settings.search
    if search is None:
        return None
    from sinks.search.client import check
    from sinks.search.client import connect as connect_search
    from sinks.search.progress import DocumentRecord, Ledger

    client = connect_search(search)
    check(client, search)  # doesn't wait for an unavailable one, as a merge would
    ledger = Ledger(client, search.index_prefix, settings.capture.topic_prefix)
    record = ledger.run()
    documents = {
        document.name: ledger.read(ledger.record_id("document", document.name), DocumentRecord)[0]
        or DocumentRecord()
        for document in search.documents
    }
    indexes = _indexes(client, search, ledger, captured.with_key, documents)
    plan, outcome, checked = record.plan, record.outcome, record.checked
    wanted = wanted_in_search(search, captured)
    drops = _drops(wanted, plan, outcome, progress, states, settings.capture)
    expected = expected_tables(settings, "search", captured)
    shown = {"sink": "search", "expected": expected, "indexes": indexes, "drops": drops}
    status = _status(settings, plan, outcome, checked, **shown)
    return with_documents(status, documents.values())


def with_documents(status: SinkStatus, documents: Iterable["DocumentRecord"]) -> SinkStatus:
    """Return the status of a sink whose joined documents are behind its other indexes.

    It is as far as the last of them, and has finished once all of them have.
    """
    serving = [each for each in documents if each.serves is not None and not each.frozen]
    reached = [each.at.cut.commit_lsn for each in serving if each.at is not None]
    if status.cut is not None:
        reached.append(Lsn.parse(status.cut))
    finished = status.finished and all(each.to is None for each in serving)
    cut = str(min(reached)) if reached else None
    return status.model_copy(update={"cut": cut, "finished": finished})


def _indexes(
    client: "OpenSearch",
    search: SearchSettings,
    ledger: "Ledger",
    names: Sequence[TableName],
    documents: Mapping[str, "DocumentRecord"],
) -> list[IndexStatus]:
    """Return the existing and future indexes."""
    from sinks.search.dead_letters import DocumentDeadLetters
    from sinks.search.documents import aliases

    refused = DocumentDeadLetters(client, search.index_prefix, None).counts()
    tables = {str(name) for name in names}
    of_tables = ledger.tables(tables)
    by_name, without = aliases(search, names)
    missing = [_of_table(name, None, 0) for name in without]
    return missing + [
        (
            _of_table(name, of_tables.get(name), refused.get(alias, 0))
            if name in tables
            else _of_documents(name, documents[name], refused.get(alias, 0))
        )
        for name, alias in by_name.items()
    ]


def _of_table(name: str, record: "TableRecord | None", refused: int) -> IndexStatus:
    if record is None:
        return IndexStatus(name=name, index=None, cut=None, refused=refused)
    loading, total = record.loading, sum(record.offsets.values())
    return IndexStatus(
        name=name,
        index=record.serves.index if record.serves else None,
        cut=str(Position.parse(record.cut).commit_lsn) if record.serves else None,
        loading=loading.into.index if loading else None,
        loaded_percent=100 * sum(loading.loaded.values()) / max(total, 1) if loading else None,
        refused=refused,
    )


def _of_documents(name: str, record: "DocumentRecord", refused: int) -> IndexStatus:
    loading = record.loading
    return IndexStatus(
        name=name,
        index=record.serves.index if record.serves else None,
        cut=str(record.at.cut.commit_lsn)
        if record.serves and record.at and not record.frozen
        else None,
        loading=loading.into.index if loading else None,
        loaded_percent=100 * loading.done / loading.slices if loading else None,
        refused=refused,
    )

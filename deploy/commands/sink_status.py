"""Configuration → how far the lakehouse and the search indexes are."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel

from cdc.log.state import read_all
from cdc.records.position import Position
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import Progress, TableState
from cdc.records.topics import schema_topic, table_topic
from cdc.settings import SearchSettings, Settings

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from sinks.delta.cuts import Cut
    from sinks.search.progress import Ledger, TableRecord


RUNS_SHOWN = 5


def table_states(settings: Settings) -> list[TableState]:
    """The state of every table that the log has, or had."""
    return read_all(settings.kafka, table_topic(settings.capture.topic_prefix), TableState)


def keyed_tables(settings: Settings) -> list[TableName]:
    """The captured tables whose rows have keys, and so can be documents."""
    topic = schema_topic(settings.capture.topic_prefix)
    schemas = read_all(settings.kafka, topic, TableSchema)
    newest = {schema.name: schema for schema in sorted(schemas, key=lambda each: each.version)}
    names = [state.name for state in table_states(settings)]
    return [name for name in names if name in newest and newest[name].key]


def all_aliases(settings: Settings) -> dict[str, str]:
    """The aliases of all indexes, by the names of tables and documents."""
    from sinks.search.documents import aliases

    if settings.search is None:
        return {}
    return aliases(settings.search, keyed_tables(settings))


class RunStatus(BaseModel):
    """One of a sink's last runs: its cut (an LSN), and what it did to how many tables."""

    run: int
    cut: str
    ended_ms: int
    seconds: float
    tables: int
    failed: int
    events: int
    inserted: int
    updated: int
    deleted: int


class IndexStatus(BaseModel):
    """A search index, by the name of its table or documents: how far it is, and what it lacks.

    ``index`` serves; ``loading`` is to take its place, ``loaded_percent`` of it are there. Of
    ``refused`` documents there are dead letters.
    """

    name: str
    index: str | None
    cut: str | None
    loading: str | None = None
    loaded_percent: float | None = None
    refused: int = 0


class SinkStatus(BaseModel):
    """How far a sink is; ``keep_left_s``: time until the log may forget what it hasn't applied."""

    sink: str
    run: int
    cut: str | None
    lag_s: float | None
    tables: int
    failed: dict[str, str]
    finished: bool
    keep_left_s: float | None
    runs: list[RunStatus] = []
    indexes: list[IndexStatus] = []


def _cut_lag_s(cut: Position, cut_ts_us: int, progress: Progress | None) -> float | None:
    """How much older the sink's cut is than the log's, in seconds of commit time."""
    if progress is None or not cut_ts_us:
        return None
    return max(0.0, (progress.cut_ts_us - cut_ts_us) / 1e6) if cut < progress.cut else 0.0


def lakehouse_status(settings: Settings, progress: Progress | None) -> SinkStatus | None:
    """How far the lakehouse's tables are."""
    if settings.lakehouse is None:
        return None
    from sinks.delta.cuts import cuts
    from sinks.run.plans import lakehouse_plans
    from sinks.spark.session import open_session

    plans = lakehouse_plans(settings.lakehouse.path, lambda: open_session(settings.spark))
    last = plans.last()
    if last is None:
        return _never("lakehouse")
    outcome = plans.outcome(last)
    fresh_ms = max(plans.checked().ts_ms, last.ts_ms)
    return SinkStatus(
        sink="lakehouse",
        run=last.run,
        cut=str(last.cut) if last.written_by == "millrace" else last.where,
        lag_s=_cut_lag_s(last.cut, last.cut_ts_us, progress),
        tables=len(last.tables),
        failed=outcome.failed if outcome else {},
        finished=outcome is not None,
        keep_left_s=settings.log.keep.total_seconds() - (time.time() - fresh_ms / 1e3),
        runs=[_run(cut) for cut in cuts(plans, RUNS_SHOWN)],
    )


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
    settings: Settings, progress: Progress | None, names: Sequence[TableName]
) -> SinkStatus | None:
    """How far search indexes are, those of these tables and of joined documents."""
    if settings.search is None:
        return None
    from sinks.search.client import check
    from sinks.search.client import connect as connect_search
    from sinks.search.progress import Ledger

    client = connect_search(settings.search)
    check(client, settings.search)  # one that is away is not waited for, as a merge would
    ledger = Ledger(client, settings.search.index_prefix, settings.capture.topic_prefix)
    record = ledger.run()
    indexes = _indexes(client, settings.search, ledger, names)
    plan, outcome = record.plan, record.outcome
    if plan is None:
        return _never("search").model_copy(update={"indexes": indexes})
    fresh_ms = max(plan.ts_ms, record.checked.ts_ms)
    return SinkStatus(
        sink="search",
        run=plan.run,
        cut=str(plan.cut),
        lag_s=_cut_lag_s(plan.cut, plan.cut_ts_us, progress),
        tables=len(plan.tables),
        failed=outcome.failed if outcome else {},
        finished=outcome is not None,
        keep_left_s=settings.log.keep.total_seconds() - (time.time() - fresh_ms / 1e3),
        indexes=indexes,
    )


def _indexes(
    client: "OpenSearch", search: SearchSettings, ledger: "Ledger", names: Sequence[TableName]
) -> list[IndexStatus]:
    """Those that there are, or are going to be."""
    from sinks.search.dead_letters import DocumentDeadLetters
    from sinks.search.documents import aliases

    refused = DocumentDeadLetters(client, search.index_prefix, None).counts()
    tables = {str(name) for name in names}
    of_tables = ledger.tables(tables)
    statuses = []
    for name, alias in aliases(search, names).items():
        if name not in tables:
            status = _of_documents(name, ledger)
        else:
            status = _of_table(name, of_tables.get(name))
        statuses.append(status.model_copy(update={"refused": refused.get(alias, 0)}))
    return statuses


def _of_table(name: str, record: "TableRecord | None") -> IndexStatus:
    if record is None:
        return IndexStatus(name=name, index=None, cut=None)
    loading, total = record.loading, sum(record.offsets.values())
    return IndexStatus(
        name=name,
        index=record.serves.index if record.serves else None,
        cut=record.cut if record.serves else None,
        loading=loading.into.index if loading else None,
        loaded_percent=100 * sum(loading.loaded.values()) / max(total, 1) if loading else None,
    )


def _of_documents(name: str, ledger: "Ledger") -> IndexStatus:
    from sinks.search.progress import DocumentRecord

    record = ledger.read(ledger.record_id("document", name), DocumentRecord)[0] or DocumentRecord()
    loading = record.loading
    return IndexStatus(
        name=name,
        index=record.serves.index if record.serves else None,
        cut=str(record.at.cut) if record.serves and record.at and not record.frozen else None,
        loading=loading.into.index if loading else None,
        loaded_percent=100 * loading.done / loading.slices if loading else None,
    )


def _never(sink: str) -> SinkStatus:
    return SinkStatus(
        sink=sink,
        run=0,
        cut=None,
        lag_s=None,
        tables=0,
        failed={},
        finished=True,
        keep_left_s=None,
    )

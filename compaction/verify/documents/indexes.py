"""The search indexes, and an instant of the source → the documents of each table at the instant.

An index has only its current state. Its record is read first, which has the cut up to which it has
the log at least. Then a point in time is opened, and the source's instant is taken last: no
document is after it. The log's changes between the cut and the instant are applied to documents as
they are read. Documents that are newer than the cut meet the same changes again.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from opensearchpy import OpenSearch

from cdc.errors import MillraceError
from cdc.log.offsets import LogReader, LogState
from cdc.records.position import Lsn, Position
from compaction.verify.documents.document_rules import ComparedDocuments, compared_documents
from compaction.verify.documents.joined import (
    DocumentOpener,
    JoinedSide,
    OpenDocuments,
    about_documents,
)
from compaction.verify.documents.lines import CopyLines, RowsOfLines, batched
from compaction.verify.documents.newer import NewerDocuments, NewerTarget
from compaction.verify.documents.point_in_time import Hit, PointInTime, kept, open_alias, pages
from compaction.verify.hashed import ROWS_OF_GROUPS
from compaction.verify.report import VerifiedTable
from compaction.verify.sides import Brought, DerivedRows, ExpectedTable, not_compared
from compaction.verify.slices import Slice, sliced_keys
from sinks.changes.generations import keeps_rows
from sinks.log.topics import MillraceTopics
from sinks.run.engine import Run
from sinks.run.options import RunContext, RunOptions
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.rekeyed import versions_at
from sinks.run.summary import SinkName
from sinks.run.wanted import CapturedTables, wanted_in_search
from sinks.search.apply import shape_of
from sinks.search.client import connect
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.documents import aliases
from sinks.search.indexes import TableIndex, alias_of
from sinks.search.progress import Ledger, RunRecord, TableRecord
from sinks.search.rows import RESERVED

if TYPE_CHECKING:
    from cdc.records.schema import TableSchema
    from sinks.changes.shape import TableShape

_OTHER_COLUMNS: Final = "its columns are about to change, and no run has changed them yet"
_WAITS: Final = "its rows are being read again"


class OpenIndex(NamedTuple):
    """An index at a moment, and the record of its minimum state."""

    record: TableRecord
    point: PointInTime


class OpenIndexes(NamedTuple):
    """The indexes of tables at a moment, by table. ``missing`` says why others can't be compared.

    ``joined`` are documents, by their names.
    """

    client: OpenSearch
    run: RunRecord
    indexes: Mapping[str, OpenIndex]
    joined: Mapping[str, OpenDocuments]
    missing: Mapping[str, str]
    names: Collection[str]


@contextmanager
def open_indexes(
    context: RunContext, names: Collection[str] | None, timeout_s: float
) -> Iterator[OpenIndexes]:
    """Yield the open indexes of all tables and documents, or of those with these names.

    They stay open while the context lasts. It waits up to ``timeout_s`` for a run that writes
    joined documents.
    """
    settings = context.settings
    search, capture = settings.require_search(), settings.capture
    log = LogReader(settings.kafka, context.while_waiting)
    state = log.state(capture.topic_prefix, capture.slot_name, context.report)
    client = connect(search)
    wanted = wanted_in_search(search, CapturedTables.of(state.tables.keys(), state.newest_schemas))
    alias_by_name, refused = aliases(search, [state.tables[name].name for name in wanted])
    documents = {document.name: document for document in search.documents}
    all_names = [*wanted, *documents]
    chosen = [name for name in all_names if names is None or name in names]
    missing = {name: str(refused[name]) for name in chosen if name in refused}
    ledger = Ledger(client, search.index_prefix, capture.topic_prefix)
    deadline = time.monotonic() + timeout_s
    opener = DocumentOpener(client, ledger, capture.topic_prefix, deadline)
    points, joined = dict[str, PointInTime](), dict[str, OpenDocuments]()
    # A run that ends after this may have written what the points in time don't show.
    run, before = ledger.run(), ledger.tables(chosen)
    with kept(client) as opened_points:
        for name in [name for name in chosen if name not in missing]:
            alias, document = alias_by_name[name], documents.get(name)
            opened = opener.opened(document, alias) if document else open_alias(client, alias)
            if isinstance(opened, str):
                missing[name] = opened
            elif isinstance(opened, OpenDocuments):
                joined[name] = opened
                opened_points.append(opened.point)
            else:
                points[name] = opened
                opened_points.append(opened)
        after, indexes = ledger.tables([*points]), dict[str, OpenIndex]()
        for name, point in points.items():
            index = TableIndex(client, alias_by_name[name], capture.topic_prefix, name)
            record = before.get(name)
            why = _why_not(index, record, point) or _why_not(index, after.get(name), point)
            if why or record is None:
                missing[name] = why
            else:
                indexes[name] = OpenIndex(record, point)
        yield OpenIndexes(client, run, indexes, joined, missing, all_names)


def _why_not(index: TableIndex, record: TableRecord | None, point: PointInTime) -> str:
    """Return why the index that searches see can't be compared. Empty: it can."""
    if record is None:
        return "no run has recorded what its index has"
    if record.loading is not None:
        return f"a new index is being loaded: {record.loading.into}"
    if record.serves is None or record.serves.index != point.name:
        return f"{index.alias} points to {point.name}, which no run has loaded"
    if not index.is_there(record.serves):
        return f"{point.name} isn't the index that runs have loaded"
    return ""


class IndexSide:
    """The indexes of tables, as they will be at the instant."""

    sink: SinkName = "search"

    def __init__(
        self,
        context: RunContext,
        opened: OpenIndexes,
        instant: Position,
        folder: Path,
        slice_: Slice | None = None,
    ) -> None:
        self._context = context
        self._search = context.settings.require_search()
        self._opened = opened
        self._instant = instant
        self._folder = folder
        self._slice = slice_
        self._topics = MillraceTopics(context, until=instant)
        self._state: LogState = self._topics.state(None)
        self._missing = dict(opened.missing)
        self.joined = (
            JoinedSide(context, opened.client, opened.joined, folder, slice_)
            if opened.joined
            else None
        )
        self._rules = dict[str, ComparedDocuments]()
        self.names = opened.names
        self.expected = dict[str, ExpectedTable]()
        for name, index in opened.indexes.items():
            if why := self._expect(name, index.record):
                self._missing[name] = why

    def _expect(self, name: str, record: TableRecord) -> str:
        """Record how documents are compared. Return why they can't be, or an empty text."""
        schemas, captured = self._state.schemas.get(name, ()), self._state.tables.get(name)
        versions: Sequence[TableSchema] = versions_at(schemas, self._instant)
        if captured is None or not versions:
            return "the log no longer has the table"
        if captured.is_set_aside or captured.is_being_completed:
            return _WAITS
        if Position.parse(record.cut).epoch != self._instant.epoch:
            return "a new history of the source has begun, and no run has loaded it yet"
        if not keeps_rows(versions, record.schema_version, RESERVED):
            return _OTHER_COLUMNS
        try:
            shape = shape_of(versions, self._search)
        except MillraceError as error:
            return error.what
        return self._compare_as(name, shape)

    def _compare_as(self, name: str, shape: "TableShape") -> str:
        """Record the comparison of the columns. Return why it can't be made, or an empty text."""
        sliced = None if self._slice is None else sliced_keys(self._slice, shape)
        if isinstance(sliced, str):
            return sliced
        rules = compared_documents(shape, not_compared(self._context.settings, shape), self._slice)
        self._rules[name], self.expected[name] = rules, ExpectedTable(shape, rules.source, sliced)
        return ""

    def about(self, name: str) -> VerifiedTable:
        """Return the report of the captured table, or of the table of joined documents."""
        for document in self._search.documents:
            if document.name == name:
                return about_documents(document)
        cut, cut_ms, run = "", 0, self._opened.run
        if (index := self._opened.indexes.get(name)) is not None:
            checked_ms = run.checked.ts_ms if name in run.checked.tables else 0
            cut, cut_ms = index.record.cut, max(run.plan.ts_ms if run.plan else 0, checked_ms)
        return VerifiedTable(
            sink=self.sink, name=name, source=name, kind="index", cut=cut, cut_ms=cut_ms
        )

    def brought(self) -> Brought:
        """Return the indexes' documents at the instant, with the log's changes since their cuts."""
        newer = {name: self._newer(name) for name in self._rules}
        failed = self._applied(newer) if newer else {}
        rows = dict[str, DerivedRows]()
        for name in self._rules.keys() - failed.keys():
            point, rules = self._opened.indexes[name].point, self._rules[name]
            lsn, client = self._instant.commit_lsn, self._opened.client
            lines = _documents(client, point, rules, newer[name], lsn)
            files = self._folder / f"documents-{name}"
            is_large = point.documents >= ROWS_OF_GROUPS
            rows[name] = RowsOfLines(rules.documents, lines, files, is_large=is_large)
        return Brought(rows, self._missing | failed)

    def close(self) -> None:
        """Release the records that were read from the log."""
        self._topics.forget()

    def _newer(self, name: str) -> NewerDocuments:
        point = self._opened.indexes[name].point
        newer = NewerDocuments(self._folder / f"newer-{name}")
        dead_letters = DocumentDeadLetters(
            self._opened.client, self._search.index_prefix, alias_of(point.name), point.name
        )
        newer.refuse(dead_letters.all())
        return newer

    def _applied(self, newer: Mapping[str, NewerDocuments]) -> dict[str, str]:
        """Read the log up to the instant. Return why some tables failed."""
        context = replace(self._context, options=RunOptions())
        checked = self._opened.run.checked
        target = NewerTarget(self._search, self._standing(), checked, newer)
        end = Run(context, self._topics, target).once()
        failed = {name: why for name, why in end.failed.items() if name in newer}
        return failed | {
            name: _WAITS for name in end.waiting if name in newer and name not in failed
        }

    def _standing(self) -> RunPlan:
        """Return the indexes' state as the plan of a last run."""
        indexes = {name: self._opened.indexes[name] for name in self._rules}
        last = self._opened.run.plan.all_tables if self._opened.run.plan is not None else {}
        return RunPlan(
            run=max(index.record.run for index in indexes.values()),
            prefix=self._context.settings.capture.topic_prefix,
            log=self._state.progress.log,
            cut=min(Position.parse(index.record.cut) for index in indexes.values()),
            cut_ts_us=0,
            ts_ms=0,
            tables={},
            waiting={
                name: TablePlan(
                    source=name,
                    topic=self._state.tables[name].topic,
                    start=index.record.offsets,
                    end=index.record.offsets,
                    next=index.record.offsets,
                    after=Position.parse(index.record.cut),
                    base=index.record.run,
                    schema_version=index.record.schema_version,
                    applied_version=index.record.schema_version,
                    emptied=index.record.emptied,
                    events=0,
                    fresh_ms=last[name].fresh_ms if name in last else 0,
                )
                for name, index in indexes.items()
            },
        )


def _documents(
    client: OpenSearch,
    point: PointInTime,
    rules: ComparedDocuments,
    newer: NewerDocuments,
    instant: Lsn,
) -> CopyLines:
    """Return the documents of an index at the instant."""

    def lines(hits: Iterable[Hit]) -> Sequence[bytes]:
        return [
            rules.line(hit["_source"], hit["_id"], hit["_version"], instant)
            for hit in hits
            if rules.is_within(hit["_source"])
        ]

    def shard(number: int) -> Iterator[Sequence[bytes]]:
        return (lines(newer.applied(hits)) for hits in pages(client, point, number))

    def others() -> Iterator[Sequence[bytes]]:
        return map(lines, batched(newer.others(), point.page))

    def refused() -> Iterator[Sequence[bytes]]:
        return map(lines, batched(newer.refused(), point.page))

    return CopyLines([partial(shard, number) for number in range(point.shards)], others, refused)

"""The search indexes, and an instant of the source → the documents of each table as they are there.

An index is only what it is now. So a point in time of each is opened first, then its record says up
to which cut it has the log, and only then the source's instant is taken: no document is of behind
it. What the log has between the two is applied to documents as they are read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Final, NamedTuple

from opensearchpy import NotFoundError, OpenSearch

from cdc.compiled.digests import Digests
from cdc.errors import MillraceError
from cdc.log.offsets import LogReader, LogState
from cdc.records.position import Position
from compaction.verify.confirm import RowsByKey
from compaction.verify.differences import HashedSide
from compaction.verify.document_rules import ComparedDocuments, compared_documents
from compaction.verify.hashed import PENDING_BYTES, ROWS_OF_GROUPS, KeyTexts, RowHashes
from compaction.verify.newer import NewerDocuments, NewerTarget
from compaction.verify.point_in_time import Hit, PointInTime, kept, open_point_in_time, pages
from compaction.verify.report import VerifiedTable
from compaction.verify.sides import Brought, DerivedRows, ExpectedTable, not_compared
from sinks.changes.generations import keeps_rows
from sinks.log.topics import MillraceTopics
from sinks.run.engine import Run
from sinks.run.options import RunContext, RunOptions
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.rekeyed import versions_at
from sinks.run.summary import SinkName
from sinks.run.wanted import CapturedTables, wanted_in_search
from sinks.search.apply import shape_of
from sinks.search.client import connect, insist
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.documents import aliases
from sinks.search.indexes import TableIndex, alias_of
from sinks.search.progress import Ledger, RunRecord, TableRecord
from sinks.search.rows import RESERVED

if TYPE_CHECKING:
    from cdc.records.schema import TableSchema

_JOINED: Final = "joined documents aren't compared yet"
_OTHER_COLUMNS: Final = "its columns change, and no run has changed them yet"
_WAITS: Final = "its rows are being read again"
_SHARDS_AT_ONCE: Final = 2
"""So many are read at once."""


class OpenIndex(NamedTuple):
    """An index at a moment, and what it has been given at least."""

    record: TableRecord
    point: PointInTime


class OpenIndexes(NamedTuple):
    """The indexes of tables at a moment, by table; of others ``missing`` says why they aren't."""

    client: OpenSearch
    run: RunRecord
    indexes: Mapping[str, OpenIndex]
    missing: Mapping[str, str]
    names: Collection[str]


@contextmanager
def open_indexes(context: RunContext, names: Collection[str] | None) -> Iterator[OpenIndexes]:
    """Open the indexes of all tables, or of those with such names, while the context lasts."""
    settings = context.settings
    search, capture = settings.require_search(), settings.capture
    log = LogReader(settings.kafka, context.while_waiting)
    state = log.state(capture.topic_prefix, capture.slot_name, context.report)
    client = connect(search)
    wanted = wanted_in_search(search, CapturedTables.of(state.tables.keys(), state.newest_schemas))
    of_tables, refused = aliases(search, [state.tables[name].name for name in wanted])
    joined = [document.name for document in search.documents]
    missing = {name: _JOINED for name in joined if names is None or name in names}
    missing |= {name: str(why) for name, why in refused.items() if names is None or name in names}
    points = dict[str, PointInTime]()
    with ExitStack() as stack:
        for name in wanted.keys() - missing.keys():
            if names is not None and name not in names:
                continue
            opened = _opened(client, of_tables[name])
            if isinstance(opened, str):
                missing[name] = opened
            else:
                points[name] = opened
        stack.enter_context(kept(client, [*points.values()]))
        ledger = Ledger(client, search.index_prefix, capture.topic_prefix)
        run, records = ledger.run(), ledger.tables([*points])
        indexes = dict[str, OpenIndex]()
        for name, point in points.items():
            index = TableIndex(client, of_tables[name], capture.topic_prefix, name)
            record = records.get(name)
            if (why := _why_not(index, record, point)) or record is None:
                missing[name] = why
            else:
                indexes[name] = OpenIndex(record, point)
        yield OpenIndexes(client, run, indexes, missing, [*wanted, *joined])


def _opened(client: OpenSearch, alias: str) -> PointInTime | str:
    """The index that searches see by an alias, or why there is none to compare."""

    def behind() -> list[str]:
        try:
            return list(client.indices.get_alias(name=alias))
        except NotFoundError:
            return []

    indexes = insist(behind, f"index {alias}")
    if not indexes:
        return "its index isn't there yet, or is being loaded"
    if len(indexes) > 1:
        return f"{alias} is the alias of several indexes: {', '.join(sorted(indexes))}"
    try:
        return open_point_in_time(client, indexes[0])
    except MillraceError as error:
        return str(error)


def _why_not(index: TableIndex, record: TableRecord | None, point: PointInTime) -> str:
    """Why what searches see of a table can't be compared; empty: it can."""
    if record is None:
        return "no run has recorded what its index has"
    if record.loading is not None:
        return f"a new index is being loaded: {record.loading.into}"
    if record.serves is None or record.serves.index != point.name:
        return f"{index.alias} is the alias of {point.name}, which no run has loaded"
    if not index.is_there(record.serves):
        return f"{point.name} isn't the index that runs have loaded"
    return ""


class IndexSide:
    """The indexes of tables, as they will be at the instant."""

    sink: SinkName = "search"

    def __init__(
        self, context: RunContext, opened: OpenIndexes, instant: Position, folder: Path
    ) -> None:
        self._context = context
        self._search = context.settings.require_search()
        self._opened = opened
        self._instant = instant
        self._folder = folder
        self._topics = MillraceTopics(context, until=instant)
        self._state: LogState = self._topics.state(None)
        self._missing = dict(opened.missing)
        self._rules = dict[str, ComparedDocuments]()
        self.names = opened.names
        self.expected = dict[str, ExpectedTable]()
        for name, index in opened.indexes.items():
            if why := self._expect(name, index.record):
                self._missing[name] = why

    def _expect(self, name: str, record: TableRecord) -> str:
        """Take note of how documents are compared; why they can't be, if so."""
        schemas, captured = self._state.schemas.get(name, ()), self._state.tables.get(name)
        versions: Sequence[TableSchema] = versions_at(schemas, self._instant)
        if captured is None or not versions:
            return "the log doesn't have the table any more"
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
        rules = compared_documents(shape, not_compared(self._context.settings, shape))
        self._rules[name], self.expected[name] = rules, ExpectedTable(shape, rules.source)
        return ""

    def about(self, name: str) -> VerifiedTable:
        """The captured table."""
        return VerifiedTable(sink=self.sink, name=name, source=name, kind="index")

    def brought(self) -> Brought:
        """What the log has between the indexes' cuts and the instant, beside the indexes."""
        newer = {name: self._newer(name) for name in self._rules}
        failed = self._applied(newer) if newer else {}
        rows = dict[str, DerivedRows]()
        for name in self._rules.keys() - failed.keys():
            point = self._opened.indexes[name].point
            files = self._folder / f"documents-{name}"
            rules, client = self._rules[name], self._opened.client
            rows[name] = Documents(client, point, rules, newer[name], self._instant, files)
        return Brought(rows, self._missing | failed)

    def close(self) -> None:
        """Let go of what was read of the log."""
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
        """Read the log up to the instant; why that can't be done for some tables."""
        context = replace(self._context, options=RunOptions())
        checked = self._opened.run.checked
        target = NewerTarget(self._search, self._standing(), checked, newer)
        end = Run(context, self._topics, target).once()
        failed = {name: why for name, why in end.failed.items() if name in newer}
        return failed | {
            name: _WAITS for name in end.waiting if name in newer and name not in failed
        }

    def _standing(self) -> RunPlan:
        """Where the indexes go on, as if a run had left them so."""
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


class Documents:
    """The documents of an index at the instant."""

    def __init__(
        self,
        client: OpenSearch,
        point: PointInTime,
        rules: ComparedDocuments,
        newer: NewerDocuments,
        instant: Position,
        folder: Path,
    ) -> None:
        self._client = client
        self._point = point
        self._rules = rules
        self._newer = newer
        self._instant = instant.commit_lsn
        self._folder = folder
        self.refused: frozenset[int] = frozenset()

    def hashes(self) -> HashedSide:
        """Those of all documents, several shards at once."""
        is_large = self._point.documents >= ROWS_OF_GROUPS
        hashes = RowHashes(self._rules.documents, self._folder, is_large=is_large)

        def take(hits_of: Iterable[Sequence[Hit]]) -> None:
            digests = hashes.digests()
            for hits in hits_of:
                self._feed(digests, hits)
                if digests.pending_bytes > PENDING_BYTES:
                    hashes.write(digests)
            hashes.write(digests)

        with ThreadPoolExecutor(_SHARDS_AT_ONCE) as executor:
            shards = range(self._point.shards)
            for each in [executor.submit(take, self._shard(number)) for number in shards]:
                each.result()
        take(self._others())
        hashes.sum_up()
        self.refused = self._refused()
        return hashes.table()

    def key_texts(self, keys: Sequence[int]) -> Mapping[int, KeyTexts]:
        """The records have them all."""
        del keys
        return {}

    def by_key(self, keys: Sequence[int]) -> RowsByKey:
        """All documents are read for it."""
        wanted, found = frozenset(keys), RowsByKey()
        digests = self._rules.documents.digests(keeps_columns=True)
        shards = (self._shard(number) for number in range(self._point.shards))
        for hits in chain(chain.from_iterable(shards), self._others()):
            self._feed(digests, hits)
            digests.take()
            for key, hashes in digests.take_columns():
                if key in wanted:
                    found.setdefault(key, []).append(tuple(hashes))
        self.refused = self._refused()
        return found

    def _shard(self, number: int) -> Iterator[Sequence[Hit]]:
        """A shard's documents at the instant."""
        for hits in pages(self._client, self._point, number):
            yield [*self._newer.applied(hits)]

    def _others(self) -> Iterator[Sequence[Hit]]:
        """Documents that the index doesn't have yet."""
        return batched(self._newer.others(), self._point.page)

    def _refused(self) -> frozenset[int]:
        digests = self._rules.documents.digests(keeps_columns=True)
        for hits in batched(self._newer.refused(), self._point.page):
            self._feed(digests, hits)
            digests.take()
        return frozenset(key for key, _ in digests.take_columns())

    def _feed(self, digests: Digests, hits: Sequence[Hit]) -> None:
        """Have documents hashed as lines of COPY."""
        lines = bytearray()
        for hit in hits:
            line = self._rules.line(hit["_source"], hit["_id"], hit["_version"], self._instant)
            lines += b"d" + pack(">I", len(line) + 4) + line
        digests.feed(lines, 0, len(lines))


def batched(hits: Iterator[Hit], size: int) -> Iterator[Sequence[Hit]]:
    """So many at once."""
    while some := [*islice(hits, size)]:
        yield some

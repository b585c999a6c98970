"""Joined documents at a moment → their stored state, and their definition's result at their cut.

An index of joined documents has exactly one cut of the lakehouse while no run writes to it. Its
record is read before a point in time is opened, and after that. If both have the same cut, the
point in time is of that cut. The definition is evaluated over the lakehouse's tables there.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from opensearchpy import OpenSearch

from cdc.errors import SinkError
from cdc.records.position import Lsn
from cdc.settings.search import Document
from compaction.verify.confirm import ConfirmedRow, confirmed
from compaction.verify.differences import DifferingRow, TableComparison, compare
from compaction.verify.documents.document_rules import above
from compaction.verify.documents.lines import CopyLines, RowsOfLines, batched, line_of
from compaction.verify.documents.point_in_time import PointInTime, closed, open_alias, pages
from compaction.verify.hashed import ROWS_OF_GROUPS
from compaction.verify.report import VerifiedTable
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule
from compaction.verify.slices import Slice
from sinks.delta.cuts import LakehouseCuts
from sinks.log.topics import MillraceTopics
from sinks.run.cuts import Instant
from sinks.run.options import RunContext
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.documents import document_id
from sinks.search.indexes import TableIndex, alias_of
from sinks.search.joined.assemble import documents, explained
from sinks.search.joined.tree import Node, tree
from sinks.search.joined.variable import variable_fields
from sinks.search.progress import DocumentRecord, JoinedIndex, Ledger

_AGAIN_S: Final = 0.2
_ROWS_AT_ONCE: Final = 1_000
_RECORDS_OF_A_DOCUMENT: Final = 5
_FROZEN: Final = "its index stays unchanged until a new one is loaded"
_OTHER: Final = "its definition was changed, and no run has loaded documents for it yet"
_MOVES: Final = (
    "a run is bringing it to another cut, or has died while it did: `millrace merge search`"
    " finishes this"
)
_VARIABLE: Final = "it depends on the time, or on chance"


class OpenDocuments(NamedTuple):
    """Documents of one definition at a cut."""

    generation: JoinedIndex
    at: Instant
    point: PointInTime


class DocumentOpener:
    """Opens the indexes of joined documents, each at a moment when no run writes to it."""

    def __init__(self, client: OpenSearch, ledger: Ledger, log: str, deadline: float) -> None:
        self._client = client
        self._ledger = ledger
        self._log = log
        self._deadline = deadline

    def opened(self, document: Document, alias: str) -> OpenDocuments | str:
        """Return the documents that searches see, or why they can't be compared."""
        index = TableIndex(self._client, alias, self._log, document.name, "document")
        before = self._resting(document)
        while not isinstance(before, str):
            serves, at = before
            point = open_alias(self._client, alias)
            if isinstance(point, str):
                return point
            if self._resting(document) == before:
                if point.name == serves.index and index.is_there(serves):
                    return OpenDocuments(serves, at, point)
                before = f"{point.name} isn't the index that runs have loaded"
            else:
                before = self._resting(document)
            closed(self._client, [point])
        return before

    def _resting(self, document: Document) -> tuple[JoinedIndex, Instant] | str:
        """Return the index and its cut once no run is moving it to another cut, or why not."""
        while True:
            record = self._record(document)
            if record.serves is None or record.at is None:
                return "its index doesn't exist yet, or is being loaded"
            if record.frozen:
                return _FROZEN
            if record.serves.definition != document:
                return _OTHER
            if record.to is None:
                return record.serves, record.at
            if time.monotonic() > self._deadline:
                return _MOVES
            time.sleep(_AGAIN_S)

    def _record(self, document: Document) -> DocumentRecord:
        record_id = self._ledger.record_id("document", document.name)
        return self._ledger.read(record_id, DocumentRecord)[0] or DocumentRecord()


class MadeAndStored(NamedTuple):
    """The documents that a definition makes, and the stored ones."""

    expected: RowsOfLines
    there: RowsOfLines
    compared: ComparedTable


class JoinedSide:
    """Joined documents, each with the result of its definition at its own cut."""

    def __init__(
        self,
        context: RunContext,
        client: OpenSearch,
        opened: Mapping[str, OpenDocuments],
        folder: Path,
        slice_: Slice | None = None,
    ) -> None:
        settings = context.settings
        self.names = opened.keys()
        self._client = client
        self._prefix = settings.require_search().index_prefix
        self._opened = opened
        self._folder = folder
        self._slice = slice_
        topics = MillraceTopics(context)
        self._cuts = LakehouseCuts(
            settings.require_lakehouse(),
            settings.capture.topic_prefix,
            topics.state(None),
            topics.state,
            context.session,
        )

    def about(self, name: str) -> VerifiedTable:
        """Return the report of the documents, with the table of their rows."""
        return about_documents(self._opened[name].generation.definition)

    def compare(self, name: str) -> tuple[VerifiedTable, TableComparison]:
        """Compare the documents of a definition. Raise MillraceError if they can't be compared."""
        started, rows = time.monotonic(), self._rows(name)
        expected, there = rows.expected.hashes(), rows.there.hashes()
        found = compare(expected, there, rows.there.refused)
        return self.about(name).model_copy(
            update={
                "rows": found.source_rows,
                "derived_rows": found.derived_rows,
                "left_out": rows.compared.left_out,
                "seconds": round(time.monotonic() - started, 3),
            }
        ), found

    def confirmed(
        self, name: str, rows: Sequence[DifferingRow]
    ) -> tuple[list[ConfirmedRow], MadeAndStored]:
        """Return the documents that still differ, and both sides of them."""
        both, keys = self._rows(name), sorted({row.key for row in rows})
        expected, there = both.expected.by_key(keys), both.there.by_key(keys)
        still = confirmed(rows, expected, there, both.compared, both.there.refused)
        return [*still], both

    def _rows(self, name: str) -> MadeAndStored:
        generation, at, point = self._opened[name]
        if not self._cuts.has(at):
            raise SinkError(
                "the lakehouse no longer has its cut",
                where=f"index {point.name}",
                remedy="run `millrace merge all`, then verify again",
            )
        where = f"[[search.documents]] {name}"
        with explained(where):
            root = tree(generation.definition, self._cuts.shapes(at))
            records = point.documents * _RECORDS_OF_A_DOCUMENT
            tables = self._cuts.reader(at, records=records).at(at)
            left_out = dict.fromkeys(variable_fields(root, tables), _VARIABLE)
            made = documents(root, tables[root.table].rows(), tables, at.cut, some=False)
        shown = ShownDocuments.of(root, left_out, at.cut.commit_lsn)

        def is_within(id_: str) -> bool:
            return self._slice is None or self._slice.holds([id_])

        def expected() -> Iterator[Sequence[bytes]]:
            with explained(where):
                for some in batched(made.toLocalIterator(prefetchPartitions=True), _ROWS_AT_ONCE):
                    yield [
                        shown.line(id_, 0, json.loads(row["source"]))
                        for row in some
                        if is_within(id_ := document_id(row["key"]))
                    ]

        def shard(number: int) -> Iterator[Sequence[bytes]]:
            for hits in pages(self._client, point, number):
                yield [
                    shown.line(hit["_id"], hit["_version"], hit["_source"])
                    for hit in hits
                    if is_within(hit["_id"])
                ]

        def refused() -> Iterator[Sequence[bytes]]:
            about = DocumentDeadLetters(
                self._client, self._prefix, alias_of(point.name), point.name
            )
            for some in batched(about.all(), _ROWS_AT_ONCE):
                yield [
                    shown.line(each["document"], 0, json.loads(each["source"]))
                    for each in some
                    if is_within(each["document"])
                ]

        is_large = point.documents >= ROWS_OF_GROUPS
        shards = [partial(shard, number) for number in range(point.shards)]

        def rows(lines: CopyLines, side: str) -> RowsOfLines:
            folder = self._folder / f"{side}-{name}"
            return RowsOfLines(shown.compared, lines, folder, is_large=is_large)

        there = rows(CopyLines(shards, refused=refused), "joined")
        return MadeAndStored(rows(CopyLines([expected]), "made"), there, shown.compared)


def about_documents(document: Document) -> VerifiedTable:
    """Return the report of joined documents that aren't compared yet."""
    return VerifiedTable(sink="search", name=document.name, source=document.table, kind="documents")


class ShownDocuments(NamedTuple):
    """How documents are compared: by their outermost fields, each as JSON text."""

    root: Node
    fields: tuple[str, ...]
    compared: ComparedTable
    cut: Lsn

    @classmethod
    def of(cls, root: Node, left_out: dict[str, str], cut: Lsn) -> Self:
        """Return all fields of the definition, except some."""
        fields = tuple(
            name
            for name in (
                *root.fields,
                *(name for name, _ in root.computed),
                *(inner.field for inner in root.embeds),
            )
            if name not in left_out
        )
        rule = Rule(Kind.TEXT, lambda value: value)
        columns = tuple(ComparedColumn(name, name, rule) for name in ("_id", *fields, "_version"))
        return cls(root, fields, ComparedTable(columns, (0,), left_out), cut)

    def line(self, id_: str, version: int, document: Mapping[str, Any]) -> bytes:
        """Return a document as a line of COPY. Its ``version`` is null if it is right."""
        shown = _shown(self.root, document)
        values = (shown.get(name) for name in self.fields)
        texts = (None if value is None else json.dumps(value, sort_keys=True) for value in values)
        return line_of([id_, *texts, above(version, self.cut)])


def _shown(node: Node, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's compared values, without nulls and columns that the source has dropped."""
    inner = {embedded.field: embedded.shown for embedded in node.embeds}
    return {
        name: _embedded(inner[name], value) if name in inner else value
        for name, value in row.items()
        if value is not None and name not in node.gone
    }


def _embedded(node: Node, value: Any) -> Any:
    if isinstance(value, list):
        return [_embedded(node, each) for each in value]
    return _shown(node, value) if isinstance(value, dict) else value

"""Joined documents, as a target of cuts: one document's indexes, made of the lakehouse's tables.

Documents have their cut's commit LSN as version, so a second write changes nothing.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, StructType

from cdc.errors import ConfigError
from cdc.settings.search import Document
from sinks.run.cut_run import CutLoad, CutTarget
from sinks.run.cuts import Cuts, Instant
from sinks.run.summary import Standing, TableResult
from sinks.search.apply import SearchContext
from sinks.search.bulk import Counts
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.documents import (
    document_index,
    field_mapping,
    mapping_of,
    override,
    type_mapping,
    type_of,
)
from sinks.search.executors import write_documents
from sinks.search.indexes import TableIndex
from sinks.search.joined.affected import affected
from sinks.search.joined.assemble import documents, explained, slice_of, types, with_ids
from sinks.search.joined.tree import Links, Node, tree
from sinks.search.progress import DocumentRecord, JoinedIndex, now_ms
from sinks.spark.jvm import in_session
from sinks.spark.session import RECORDS_FEW

SLICE_ROWS: Final = 500_000
_SLICES_MAX: Final = 64
_RECORDS_OF_A_DOCUMENT: Final = 5
"""A join costs about as much as this many records."""


class JoinedDocuments(CutTarget[JoinedIndex]):
    """One document's indexes."""

    what = "index"

    def __init__(self, context: SearchContext, cuts: Cuts, document: Document) -> None:
        self.name = document.name
        self.where = f"[[search.documents]] {document.name}"
        self.report = context.run.report
        self._counts = Counts()
        self._context = context
        self._cuts = cuts
        self._document = document
        alias = document_index(context.search.index_prefix, document.name)
        log = context.run.settings.capture.topic_prefix
        self._index = TableIndex(context.client, alias, log, document.name, "document")
        self._id = context.ledger.record_id("document", document.name)
        record, self._version = context.ledger.read(self._id, DocumentRecord)
        self.record = record or DocumentRecord()

    def write(self, record: DocumentRecord) -> None:
        """Write the record to the progress index."""
        record = record.model_copy(update={"ts_ms": now_ms()})
        self._version = self._context.ledger.write(self._id, record, self._version)
        self.record = record

    def standing(self) -> Standing:
        """Return the position of the serving index in its sources."""
        at = self.record.at
        return Standing(
            made_of=tuple(sorted(self.tables(self.record.serves))),
            run=at.run if at is not None else 0,
            cut=at.cut if at is not None else None,
            cut_ts_us=at.committed_us if at is not None else 0,
            shown=self.record.serves is not None and not self.record.frozen,
        )

    def tables(self, generation: JoinedIndex | None) -> set[str]:
        """Return the tables of an index."""
        return set((self._document if generation is None else generation.definition).tables())

    def is_there(self, generation: JoinedIndex) -> bool:
        """Whether the index exists, and wasn't replaced by another one of its name."""
        return self._index.is_there(generation)

    def is_shown(self, generation: JoinedIndex) -> bool:
        """Whether it already has the alias."""
        return self._index.has_taken_over(generation)

    def suits(self, generation: JoinedIndex, at: Instant) -> bool:
        """Whether a definition still fits the tables. The current one's errors are reported."""
        try:
            self._root(generation.definition, at)
        except ConfigError:
            return generation.definition == self._document
        return True

    def unfit(self, generation: JoinedIndex, at: Instant, newest: Instant) -> str | None:
        """Return why the identifying or joining columns differ between the two cuts.

        None: they don't.
        """
        try:
            before, now = (self._linking(generation.definition, cut) for cut in (at, newest))
        except ConfigError:
            return None  # reported elsewhere, or the serving one is frozen
        if before == now:
            return None
        names = [
            {table: {name for name, _ in links.columns} for table, links in of.items()}
            for of in (before, now)
        ]
        what = "changed" if names[0] == names[1] else "have other names"
        return f"columns of keys or joins {what}"

    def _linking(self, definition: Document, at: Instant) -> dict[str, Links[tuple[str, str]]]:
        """Return the columns that identify or join rows of each table: by name and identity.

        A key of the same name may be another column, whose values don't compare with earlier ones.
        """
        shapes = self._cuts.shapes(at)
        ids = {name: {field.name: field.id for field in of.fields} for name, of in shapes.items()}
        return {
            table: Links(
                tuple((name, ids[table][name]) for name in links.key),
                {(name, ids[table][name]) for name in links.joins},
            )
            for table, links in tree(definition, shapes).linking().items()
        }

    def adapted(self, generation: JoinedIndex, newest: Instant) -> JoinedIndex | str:
        """Extend the mapping for additional columns of the tables, if that is enough.

        Documents keep the values of dropped columns until they are made again, if that is wanted.
        """
        if generation.definition != self._document:
            return "its definition has changed"
        removes = self._context.search.removes_columns(self._document)
        if removes and generation.has_dropped:
            return "columns were dropped"
        columns, before = self._columns(newest), generation.columns
        gone = {name: before[name][0] for name in before.keys() - columns.keys()}
        drops = bool(gone) and not removes and self._are_dropped(gone, newest)
        columns = before | columns if drops else columns
        if columns == before:
            return generation
        mapping = self._mapping(self._root(self._document, newest), newest)
        mapping = merged(generation.mapping, mapping) if drops else mapping
        names = sorted(columns.keys() & before.keys())
        if others := [name for name in names if columns[name][0] != before[name][0]]:
            return f"{', '.join(others)}: another column has this name"
        fits = extends(mapping, generation.mapping)
        if not (fits and self._index.extend(generation.index, mapping)):
            return "its fields have changed"
        update = {"columns": columns, "mapping": mapping, "has_dropped": drops}
        return generation.model_copy(update=update)

    def begin(self, at: Instant, after: JoinedIndex | None) -> CutLoad[JoinedIndex]:
        """Create an index, and choose slices of about the same size."""
        root = self._root(self._document, at)
        mapping = self._mapping(root, at)
        made = self._index.make(mapping, after, self._document.settings)
        into = JoinedIndex(
            **made.model_dump(),
            definition=self._document,
            columns=self._columns(at),
            mapping=mapping,
        )
        rows = self._cuts.reader(at).at(at)[root.table].rows().count()
        slices = max(1, min(_SLICES_MAX, -(-rows // SLICE_ROWS)))
        return CutLoad[JoinedIndex](into=into, slices=slices, rows=rows // slices)

    def load(self, loading: CutLoad[JoinedIndex], at: Instant) -> None:
        """Write the documents of a slice."""
        some = loading.slices > 1
        if some:
            percent = 100 * loading.done // loading.slices
            progress = f"part {loading.done + 1} of {loading.slices} ({percent} %)"
            self.say(f"loading {loading.into.index}, {progress}")
        root = self._root(loading.into.definition, at)
        with explained(self.where):
            records = loading.rows * _RECORDS_OF_A_DOCUMENT
            tables = self._cuts.reader(at, records=records).at(at)
            rows = slice_of(root, tables[root.table].rows(), loading.done, loading.slices)
            made = documents(root, rows, tables, at.cut, some=some)
            done = write_documents(made, self._context.search, loading.into.index)
        self._counts += done.counts

    def write_changed(self, generation: JoinedIndex, at: Instant, to: Instant) -> None:
        """Write the changed documents, and let searches see them."""
        shapes = self._cuts.shapes(to)
        root = tree(generation.definition, shapes)
        own = {key: key for key in root.keys}
        with explained(self.where):
            reader = self._cuts.reader(at, to)
            if (keys_and_count := affected(root, reader, shapes, at, to)) is None:
                return
            # Few changes can concern many documents.
            keys, count = keys_and_count
            if (records := count * _RECORDS_OF_A_DOCUMENT) >= RECORDS_FEW:
                reader = self._cuts.reader(to, records=records)
                keys = in_session(reader.spark, keys)
            tables = reader.at(to)
            near = tables[root.table].rows_with(keys, own).join(keys, list(own), "left_semi")
            changed = documents(root, near, tables, to.cut, keys=keys)
            done = write_documents(changed, self._context.search, generation.index)
        if generation.index == (self.record.serves or generation).index:
            self._counts += done.counts
        self._index.refresh(generation.index)

    def publish(self, generation: JoinedIndex) -> None:
        """Put the index behind the alias."""
        self._index.require(generation)
        self._context.publish(self._index, generation.index, generation.definition.settings)

    def result(self, seconds: float) -> TableResult:
        """Return the changes of the serving index."""
        counts = self._counts
        changed = counts.inserted, counts.updated, counts.deleted
        return TableResult(self.name, sum(changed) + counts.stale, *changed, seconds=seconds)

    def dead_letters(self) -> DocumentDeadLetters:
        """Return the dead letters of the serving index."""
        index = self.record.serves.index if self.record.serves is not None else "none"
        prefix = self._context.search.index_prefix
        return DocumentDeadLetters(self._context.client, prefix, self._index.alias, index)

    def again(self, ids: Collection[str]) -> None:
        """Write some documents of the serving index again."""
        at, serves = self.record.at, self.record.serves
        if at is None or serves is None:
            return
        root = self._root(serves.definition, at)
        with explained(self.where):
            tables = self._cuts.reader(at).at(at)
            refused = with_ids(root, tables[root.table].rows(), frozenset(ids))
            made = documents(root, refused, tables, at.cut)
            write_documents(made, self._context.search, serves.index)
        self._index.refresh(serves.index)

    def _root(self, definition: Document, at: Instant) -> Node:
        return tree(definition, self._cuts.shapes(at))

    def _columns(self, at: Instant) -> dict[str, tuple[str, str]]:
        """Return each column's identity, whatever its name, and the type of its values."""
        shapes = self._cuts.shapes(at)
        return {
            f"{name}.{field.name}": (field.id, f"{field.hashed} {field.type} {field.column.type}")
            for name in sorted(self.tables(None))
            for field in shapes[name].fields
        }

    def _are_dropped(self, columns: Mapping[str, str], at: Instant) -> bool:
        """Whether columns, by their identities, don't exist under any name."""
        shapes = self._cuts.shapes(at)
        return all(
            id_ in shapes[table].dropped
            for column, id_ in columns.items()
            for table in self.tables(None)
            if column.startswith(f"{table}.")
        )

    def _mapping(self, root: Node, at: Instant) -> dict[str, Any]:
        """Return the mapping of the document's index, from its fields' types in Spark.

        Raise ConfigError if the user refers to a field that doesn't exist.
        """
        with explained(self.where):
            properties = _properties(root, types(root, self._cuts.reader(at).at(at)))
        gone = {*root.gone_paths()}
        overrides = {
            path: about for path, about in self._document.mapping.items() if path not in gone
        }
        override(properties, overrides, self.where)
        return mapping_of(properties)


def _properties(node: Node, types: StructType) -> dict[str, Any]:
    properties = {name: field_mapping(field.column) for name, field in node.fields.items()}
    for name, _ in node.computed:
        properties[name] = _computed(types[name].dataType)
    for embedded in node.embeds:
        kind = types[embedded.field].dataType
        inner = kind.elementType if isinstance(kind, ArrayType) else kind
        assert isinstance(inner, StructType)  # noqa: S101 (assemble makes one)
        mapping = {"properties": _properties(embedded.shown, inner)}
        properties[embedded.field] = {"type": "nested", **mapping} if embedded.many else mapping
    return properties


def _computed(kind: DataType) -> dict[str, Any]:
    if isinstance(kind, ArrayType):
        return _computed(kind.elementType)
    if isinstance(kind, StructType):
        return {"properties": {field.name: _computed(field.dataType) for field in kind.fields}}
    return type_mapping(type_of(kind.simpleString()))


def merged(before: Mapping[str, Any], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Add the parts that only an earlier mapping has, also within objects."""
    both = {
        name: merged(before[name], value)
        if isinstance(value, dict) and isinstance(before.get(name), dict)
        else value
        for name, value in mapping.items()
    }
    return {**before, **both}


def extends(mapping: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a mapping has everything that another one has, unchanged."""
    return all(
        name in mapping
        and (
            extends(mapping[name], value)
            if isinstance(value, dict) and isinstance(mapping[name], dict)
            else mapping[name] == value
        )
        for name, value in before.items()
    )

"""Joined documents → their indexes, brought to the lakehouse's newest cut.

What is started is recorded first, and finished or repeated: between two cuts a row may have come
and gone again, which the second one alone wouldn't tell. Documents carry their cut's commit LSN as
version, so that repeating changes nothing.

An index that can't go on as it is (another definition, a type that doesn't fit, a new history) is
loaded anew beside the one that serves, slice by slice, each slice as of the cut reached by then.
Between two slices both are brought to the newest cut; with the last slice the alias moves on.
"""

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import BusyError, ConfigError, MillraceError, SinkUnreachableError
from cdc.log.offsets import LogState
from cdc.settings.search import Document
from sinks.changes.names import quoted
from sinks.run.summary import TableResult
from sinks.search.apply import SearchContext
from sinks.search.bulk import Counts
from sinks.search.dead_letters import DocumentDeadLetters, replayed
from sinks.search.documents import document_index
from sinks.search.indexes import TableIndex
from sinks.search.joined.index import identities, outgrown, unfit
from sinks.search.joined.source import Lakehouse
from sinks.search.joined.tree import tree
from sinks.search.progress_records import (
    DocumentLoad,
    DocumentRecord,
    Instant,
    JoinedIndex,
    now_ms,
)
from sinks.spark.jvm import in_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICE_ROWS: Final = 500_000
_SLICES_MAX: Final = 64


def run_documents(
    context: SearchContext, state: LogState, log: Callable[[], LogState]
) -> list[TableResult]:
    """Bring each index to the newest cut; those that nothing has changed for aren't told of.

    ``log`` tells what the log has by now.
    """
    lakehouse = Lakehouse(context.run.settings, state, log, context.run.session)
    results: list[TableResult] = []
    for document in context.search.documents:
        started = time.monotonic()
        try:
            indexes = _Documents(context, lakehouse, document)
            counts = indexes.bring(is_rebuilt=document.name in context.run.options.rebuilt)
            again = indexes.replayed() if document.name in context.run.options.replayed else None
        except (BusyError, SinkUnreachableError):
            raise
        except MillraceError as error:
            results.append(TableResult(document.name, error=error))
            context.run.report(str(results[-1]))
            continue
        if again is not None:
            results.append(again)
        if counts is not None:
            seconds = time.monotonic() - started
            written = counts.indexed + counts.deleted + counts.stale
            result = TableResult(
                document.name,
                written,
                counts.inserted,
                counts.updated,
                counts.deleted,
                seconds=seconds,
            )
            results.append(result)
            context.run.report(str(results[-1]))
    return results


class _Documents:
    """One document's indexes."""

    def __init__(self, context: SearchContext, lakehouse: Lakehouse, document: Document) -> None:
        self._context = context
        self._lakehouse = lakehouse
        self._document = document
        alias = document_index(context.search.index_prefix, document.name)
        log = context.run.settings.capture.topic_prefix
        self._index = TableIndex(context.client, alias, log, document.name, "document")
        self._id = context.ledger.document_id(document.name)
        record, self._version = context.ledger.read(self._id, DocumentRecord)
        self._record = record or DocumentRecord()

    def bring(self, *, is_rebuilt: bool) -> Counts | None:
        """Do all that is to be done; None: nothing was."""
        before = self._record
        counts = self._follow(is_rebuilt=is_rebuilt)
        while (loading := self._record.loading) is not None:
            counts += self._load(loading)
            counts += self._follow()
        was, now = before.at, self._record.at
        quiet = was is not None and now is not None and was.versions == now.versions
        return None if quiet and before.serves == self._record.serves else counts

    def _follow(self, *, is_rebuilt: bool = False) -> Counts:
        """Bring what there is to the newest cut, or begin a new index there."""
        self._adopt()
        newest = self._newest()
        if self._must_begin(newest) or (is_rebuilt and self._record.loading is None):
            self._begin(newest)
        return self._advance(newest)

    def _adopt(self) -> None:
        """Take note of an index that serves already: who let it died before that."""
        loading = self._record.loading
        if loading is not None and self._index.has_taken_over(loading.into):
            self._write(serves=loading.into, loading=None, frozen=False)

    def replayed(self) -> TableResult:
        """Make those documents again that were refused."""
        serves, prefix = self._record.serves, self._context.search.index_prefix
        index = serves.index if serves is not None else "none"
        dead_letters = DocumentDeadLetters(self._context.client, prefix, self._index.alias, index)
        return replayed(self._document.name, dead_letters, self._again)

    def _again(self, ids: Collection[str]) -> None:
        from sinks.search.joined.assemble import actions, chosen, documents, with_ids

        at, target = self._record.at, self._record.serves
        if at is None or target is None:
            return
        root = tree(target.definition, self._lakehouse.shapes(at))
        with self._explained():
            tables = self._lakehouse.reader(at).at(at)
            refused = with_ids(root, tables.rows(root.table), frozenset(ids))
            rows = chosen(root, refused, some=True)
            made = documents(root, rows, tables, str(at.cut), some=True)
            self._written(actions(root, made, at.cut), target)
        self._index.refresh(target.index)

    def _newest(self) -> Instant:
        """The newest cut that all tables have, those of the index that serves among them."""
        tables = set(self._document.tables())
        serves = self._record.serves
        if serves is not None and not self._record.frozen:
            both = self._lakehouse.newest(tables | set(serves.definition.tables()))
            if both is not None and self._is_possible(serves.definition, both):
                return both
        newest = self._lakehouse.newest(tables)
        at = self._record.at
        if (
            newest is not None
            and at is not None
            and at.cut > newest.cut
            and self._lakehouse.has(at)
        ):
            raise ConfigError(
                f"not all of {', '.join(sorted(tables))} have the cut that the index has",
                where=f"[[search.documents]] {self._document.name}",
                remedy="`millrace status` tells which tables fail; the index stays as it is",
            )
        if newest is None:
            raise ConfigError(
                f"no cut of the lakehouse has all of {', '.join(sorted(tables))}",
                where=f"[[search.documents]] {self._document.name}",
                remedy="run `millrace merge lakehouse`; `millrace status` tells which tables fail",
            )
        if serves is not None and not self._record.frozen:
            self._write(frozen=True)
        return newest

    def _is_possible(self, definition: Document, at: Instant) -> bool:
        """Whether a definition still fits the tables."""
        try:
            tree(definition, self._lakehouse.shapes(at))
        except ConfigError:
            return definition == self._document  # which is told
        return True

    def _must_begin(self, newest: Instant) -> bool:
        """Whether an index is to be loaded from the beginning, and none is on its way."""
        reason = unfit(self._lakehouse, self._record, newest)
        if reason is not None:
            self._say(reason)
            self._write(frozen=True, to=None, loading=None)
            return True
        record = self._record
        for target in record.targets:
            if not self._index.is_there(target):
                self._say(f"its index {target.index} is gone: loading a new one")
                return True
        if record.frozen and record.loading is None:
            return True
        wanted = record.loading.into if record.loading is not None else record.serves
        if wanted is None:
            return True
        if wanted.definition != self._document:
            self._say("its definition is another one: loading a new index")
            return True
        return self._is_outgrown(wanted, newest)

    def _is_outgrown(self, wanted: JoinedIndex, newest: Instant) -> bool:
        """Extend the mapping where the tables have more columns; whether that isn't enough."""
        shapes = self._lakehouse.shapes(newest)
        columns = dict(tree(self._document, shapes).columns())
        now = {"columns": columns, "identities": identities(self._document, shapes)}
        if (columns, now["identities"]) == (wanted.columns, wanted.identities):
            return False
        grown = wanted.model_copy(update={**now, "mapping": self._mapping(newest)})
        if (reason := outgrown(wanted, grown)) is not None:
            self._say(reason)
            return True
        self._index.extend(wanted.index, grown.mapping)
        if self._record.loading is not None:
            self._write(loading=self._record.loading.model_copy(update={"into": grown}))
        else:
            self._write(serves=grown)
        return False

    def _begin(self, newest: Instant) -> None:
        """Make a new index, empty, and note that it is to be loaded as of this cut."""
        serves, after = self._record.serves, self._record.newest
        if not self._index.is_there(serves):
            serves = None
        self._write(serves=serves, loading=None)
        if self._record.targets:
            self._bring_on(newest)
        shapes = self._lakehouse.shapes(newest)
        mapping = self._mapping(newest)
        root = tree(self._document, shapes)
        settings = self._document.settings
        made = self._index.make(mapping, after, settings)
        target = JoinedIndex(
            **made.model_dump(),
            definition=self._document,
            columns=dict(root.columns()),
            identities=identities(self._document, shapes),
            mapping=mapping,
        )
        rows = self._lakehouse.reader(newest).at(newest).rows(root.table).count()
        slices = max(1, min(_SLICES_MAX, -(-rows // SLICE_ROWS)))
        self._write(
            loading=DocumentLoad(into=target, slices=slices, rows=rows // slices),
            at=newest,
            to=None,
        )

    def _bring_on(self, newest: Instant) -> None:
        """Bring the index that serves to a cut; one that can't be stays as it is from now on.

        The one that is to take its place may well be the mend.
        """
        try:
            self._advance(newest)
        except (BusyError, SinkUnreachableError):
            raise
        except MillraceError as error:
            self._say(f"what serves stays as it is until the new index is loaded: {error}")
            self._write(frozen=True, to=None)

    def _advance(self, newest: Instant) -> Counts:
        """Write the documents that have changed since the cut that is reached."""
        counts = Counts()
        if self._record.to is not None:
            counts += self._apply(self._record.to)
        at = self._record.at
        if at is None or at.run == newest.run:
            return counts
        if all(at.versions.get(name) == version for name, version in newest.versions.items()):
            self._write(at=newest)
            return counts
        self._write(to=newest)
        return counts + self._apply(newest)

    def _apply(self, to: Instant) -> Counts:
        at = self._record.at
        assert at is not None  # noqa: S101 (who goes on has begun)
        counts = Counts()
        for target in self._record.targets:
            changed = self._changed(target.definition, at, to)
            if changed is not None:
                done = self._written(changed, target)
                serves = self._record.serves or target
                counts += done if target.index == serves.index else Counts()
        for target in self._record.targets:
            self._index.refresh(target.index)
        self._write(at=to, to=None)
        return counts

    def _changed(self, definition: Document, at: Instant, to: Instant) -> "DataFrame | None":
        """The documents that are others now, as actions."""
        from sinks.search.joined.affected import affected
        from sinks.search.joined.assemble import actions, chosen, deletions, documents
        from sinks.search.joined.reading import are_many

        shapes = self._lakehouse.shapes(to)
        root = tree(definition, shapes)
        linking = root.linking()
        with self._explained():
            reader = self._lakehouse.reader(at, to)
            newer = reader.at(to)
            keys_and_count = affected(
                root,
                lambda name: reader.change(name, at, to, shapes[name], linking[name]),
                reader.at(at),
                newer,
            )
            if keys_and_count is None:
                return None
            # What changed may be little, and the documents that have it many.
            keys, count = keys_and_count
            if are_many(count):
                reader = self._lakehouse.reader(to, documents=count)
                keys, newer = in_session(reader.spark, keys), reader.at(to)
            own = {key: key for key in root.keys}
            near = newer.near(root.table, keys, own).join(keys, list(own), "left_semi")
            rows = chosen(root, near, some=True)
            gone = keys.join(rows.select(*map(quoted, own)), list(own), "left_anti")
            shown = documents(root, rows, newer, str(to.cut), some=True)
            return actions(root, shown.unionByName(deletions(gone)), to.cut)

    def _load(self, loading: DocumentLoad) -> Counts:
        """Load the next slice, as of the cut that is reached; with the last one, publish."""
        from sinks.search.joined.assemble import actions, chosen, documents, slice_of

        at, target = self._record.at, loading.into
        assert at is not None  # noqa: S101 (a load begins at a cut)
        counts = Counts()
        if loading.done < loading.slices:
            if loading.slices > 1:
                percent = 100 * loading.done // loading.slices
                progress = f"part {loading.done + 1} of {loading.slices} ({percent} %)"
                self._say(f"loading {target.index}, {progress}")
            root = tree(target.definition, self._lakehouse.shapes(at))
            with self._explained():
                tables = self._lakehouse.reader(at, documents=loading.rows).at(at)
                of_slice = slice_of(root, tables.rows(root.table), loading.done, loading.slices)
                some = loading.slices > 1
                rows = chosen(root, of_slice, some=some)
                made = documents(root, rows, tables, str(at.cut), some=some)
                counts = self._written(actions(root, made, at.cut), target)
            loading = loading.model_copy(update={"done": loading.done + 1})
            self._write(loading=loading)
        if loading.done == loading.slices:
            self._index.require(target)
            self._context.publish(self._index, target.index, target.definition.settings)
            self._write(serves=target, loading=None, frozen=False)
        return counts

    def _written(self, documents: "DataFrame", target: JoinedIndex) -> Counts:
        from sinks.search.executors import write_documents

        with self._explained():
            return write_documents(documents, self._context.search, target.index)

    def _mapping(self, at: Instant) -> dict[str, Any]:
        from sinks.search.joined.assemble import types
        from sinks.search.joined.index import mapping

        root = tree(self._document, self._lakehouse.shapes(at))
        with self._explained():
            field_types = types(root, self._lakehouse.reader(at).at(at))
        return mapping(root, field_types, self._document)

    def _explained(self) -> Any:
        from sinks.search.joined.assemble import explained

        return explained(self._document.name)

    def _write(self, **changes: Any) -> None:
        changes["ts_ms"] = now_ms()
        self._record = self._record.model_copy(update=changes)
        self._version = self._context.ledger.write(self._id, self._record, self._version)

    def _say(self, text: str) -> None:
        self._context.run.report(f"{self._document.name}: {text}")

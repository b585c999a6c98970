"""A table's documents → bulk requests from Spark's executors, and their counts back.

An executor needs this package and opensearch-py. It doesn't raise what a user can mend, but
returns it as a value: Spark would wrap it into a traceback, and try again what was retried enough.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from opensearchpy import OpenSearch
from pyspark.sql import DataFrame, Row

from cdc.errors import SinkError
from cdc.settings import SearchSettings
from sinks.search.absent import Completion
from sinks.search.bulk import Action, Counts, Judge, write
from sinks.search.client import connect
from sinks.search.documents import document_id
from sinks.search.indexes import alias_of, write_alias
from sinks.search.letters import Letters


@dataclass(frozen=True, slots=True)
class Writer:
    """What an executor needs to know; its settings hold the password, and are never printed."""

    settings: SearchSettings = field(repr=False)
    index: str
    known: Mapping[str, int]
    only: frozenset[str] | None
    is_load: bool

    def __call__(self, rows: Iterable[Row]) -> Iterator[Counts | SinkError]:
        """Write one partition's rows."""
        client = connect(self.settings)
        size, alias = self.settings.bulk_bytes, write_alias(self.index)
        letters = _letters(client, self.settings, self.index)
        refused = letters.sources if letters is not None and self.known else None
        completion = Completion(client, alias, size, refused=refused, is_load=self.is_load)
        actions: Iterable[Action] = map(_action, rows)
        if (only := self.only) is not None:
            actions = (action for action in actions if action.id in only)
        try:
            filled = completion.fill(actions)
            judge = Judge(letters, self.known)
            counts = write(client, alias, filled, bulk_bytes=size, judge=judge)
        except SinkError as failure:
            yield failure
            return
        finally:
            client.close()
        yield counts + Counts(incomplete=completion.incomplete)


def write_documents(
    documents: DataFrame,
    settings: SearchSettings,
    index: str,
    only: frozenset[str] | None = None,
    *,
    is_load: bool = False,
) -> Counts:
    """Write documents (``only`` those with such an id); raises the first SinkError of any executor.

    What the server refuses becomes a dead letter, if the user wants that. ``is_load``: the log is
    read from its start on, in several steps.
    """
    letters = _letters(connect(settings), settings, index)
    known = letters.known() if letters is not None else {}
    versions = {document: letter.version for document, letter in known.items()}
    writer = Writer(settings, index, versions, only, is_load)
    results = documents.rdd.mapPartitions(writer).collect()
    for result in results:
        if isinstance(result, SinkError):
            raise result
    return reduce(add, results, Counts())


def _letters(client: OpenSearch, settings: SearchSettings, index: str) -> Letters | None:
    """The letters about an index's documents."""
    if settings.refused_documents == "fail":
        return None
    return Letters(client, settings.index_prefix, alias_of(index), index)


def _action(row: Row) -> Action:
    key, version, source, absent, filled = row
    return Action(document_id(key), version, source, tuple(absent), tuple(filled))

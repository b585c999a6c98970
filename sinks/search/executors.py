"""A table's documents → bulk requests from Spark's executors, and their counts back.

An executor needs this package and opensearch-py. It gets a line of text for each document, as a row
takes Spark longer to pass, and Python longer to read. It returns user errors as values: Spark would
wrap an exception in a traceback, and repeat requests that were retried enough.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.settings import SearchSettings
from sinks.search.bulk import Action, Counts, RefusalHandler, write
from sinks.search.client import connect, fetch
from sinks.search.dead_letters import DocumentDeadLetters
from sinks.search.documents import ABSENT_FIELD, document_id
from sinks.search.indexes import alias_of, write_alias
from sinks.spark.jvm import observed

RefusedSources = Callable[[Sequence[str]], dict[str, tuple[int, dict[str, Any]]]]
"""Ids → version and fields of documents that were refused."""
_FIRST_FETCH: Final = 16
_FETCH_MAX: Final = 500


class WrittenDocuments(NamedTuple):
    """The results of documents, and the ``observed`` facts of their rows, by observation."""

    counts: Counts
    observed: Callable[[str], Any]


class DocumentCompletion:
    """Fills absent fields of passing actions. Afterwards, ``incomplete`` counts the failures."""

    def __init__(
        self,
        client: OpenSearch,
        index: str,
        bytes_max: int,
        *,
        refused: RefusedSources | None = None,
        is_load: bool = False,
    ) -> None:
        self.incomplete = 0
        self._client = client
        self._index = index
        self._bytes_max = bytes_max
        self._refused = refused
        self._is_load = is_load
        self._fetch = _FIRST_FETCH

    def fill(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield the same actions, completed as far as the index allows. Their order may change."""
        lacking: list[Action] = []
        for action in actions:
            lacks = action.absent or (action.filled and not self._is_load)
            if not lacks or action.source is None:
                yield action
                continue
            lacking.append(action)
            if len(lacking) >= self._fetch:
                yield from self._filled(lacking)
                lacking = []
        if lacking:
            yield from self._filled(lacking)

    def _filled(self, lacking: list[Action]) -> Iterator[Action]:
        """Complete as many at a time as keep the answer below bytes_max, judged by the last one."""
        docs = [
            {"_id": action.id, "_source": [*action.absent, *action.filled, ABSENT_FIELD]}
            for action in lacking
        ]
        answer = fetch(self._client, self._index, {"docs": docs})
        refused_sources = self._refused([action.id for action in lacking]) if self._refused else {}
        size = 0
        for action, hit in zip(lacking, answer, strict=True):
            stored = hit.get("_source") if hit.get("found") else None
            version, refused = refused_sources.get(action.id, (0, None))
            is_newer = refused is not None and version <= action.version
            filled = self._merge(action, refused if is_newer else stored)
            size += len(filled.source or b"")
            yield filled
        self._fetch = max(1, min(_FETCH_MAX, self._bytes_max * len(lacking) // max(size, 1)))

    def _merge(self, action: Action, stored: dict[str, Any] | None) -> Action:
        document, is_complete = completed(action, stored, is_load=self._is_load)
        self.incomplete += not is_complete
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return Action(action.id, action.version, text.encode())


def completed(
    action: Action, stored: dict[str, Any] | None, *, is_load: bool = False
) -> tuple[dict[str, Any], bool]:
    """Complete an action's document from the ``stored`` one. Return whether it is complete."""
    unknown = action.absent if stored is None else tuple(stored.get(ABSENT_FIELD, ()))
    missing = tuple(field for field in action.absent if field in unknown)
    document: dict[str, Any] = json.loads(action.source or b"{}")
    kept = action.absent if is_load else (*action.absent, *action.filled)
    for name in kept:
        if stored is not None and name not in unknown and stored.get(name) is not None:
            document[name] = stored[name]
    if missing:
        document[ABSENT_FIELD] = list(missing)
    return document, not missing


@dataclass(frozen=True, slots=True)
class DocumentWriter:
    """The executor's parameters. Its settings have the password, and are never printed."""

    settings: SearchSettings = field(repr=False)
    index: str
    refused_versions: Mapping[str, int]
    only: frozenset[str] | None
    is_load: bool
    is_final: bool

    def __call__(self, lines: Iterable[bytes]) -> Iterator[Counts | SinkError]:
        """Write one partition's documents."""
        client = connect(self.settings)
        size, alias = self.settings.bulk_bytes, write_alias(self.index)
        dead_letters = _dead_letters(client, self.settings, self.index)
        refused = dead_letters.sources if dead_letters and self.refused_versions else None
        completion = DocumentCompletion(client, alias, size, refused=refused, is_load=self.is_load)
        only = self.only
        actions = (action for action in map(_action, lines) if only is None or action.id in only)
        try:
            filled = completion.fill(actions)
            refusals = RefusalHandler(dead_letters, self.refused_versions, is_final=self.is_final)
            counts = write(client, alias, filled, bulk_bytes=size, refusals=refusals)
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
    is_final: bool = True,
) -> WrittenDocuments:
    """Write documents (``only`` those with such an id). Raise the first SinkError of any executor.

    A refused document becomes a dead letter, if the user wants that. Unless it ``is_final``, it is
    only counted. ``is_load``: the log is read from its start on, in several steps.
    """
    dead_letters = _dead_letters(connect(settings), settings, index)
    refused = dead_letters.by_document().items() if dead_letters is not None else ()
    versions = {document: dead_letter.version for document, dead_letter in refused}
    writer = DocumentWriter(settings, index, versions, only, is_load, is_final)
    texts = documents.select(_line().alias("line"))
    results = _lines(texts).mapPartitions(writer).collect()
    for result in results:
        if isinstance(result, SinkError):
            raise result
    return WrittenDocuments(reduce(add, results, Counts()), partial(observed, texts))


def _dead_letters(
    client: OpenSearch, settings: SearchSettings, index: str
) -> DocumentDeadLetters | None:
    """Return the dead letters of an index's documents. None: a refused document stops the run."""
    if settings.refused_documents == "fail":
        return None
    return DocumentDeadLetters(client, settings.index_prefix, alias_of(index), index)


def _line() -> Column:
    """Return the input of ``_action``. Only a source's own text may contain a tab."""
    lists = (F.when(F.size(name) > 0, F.to_json(name)) for name in ("absent", "filled"))
    columns = (F.col("version").cast("string"), F.to_json("key"), *lists, F.col("source"))
    return F.concat_ws("\t", *(F.coalesce(column, F.lit("")) for column in columns))


def _lines(texts: DataFrame) -> "RDD[bytes]":
    spark = texts.sparkSession
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    lines = jvm.millrace.sinks.Texts.of(texts._jdf)  # noqa: SLF001
    return RDD(lines, spark.sparkContext, NoOpSerializer())


def _action(line: bytes) -> Action:
    version, key, absent, filled, source = line.split(b"\t", 4)
    return Action(
        document_id(json.loads(key)),
        int(version),
        source or None,
        tuple(json.loads(absent)) if absent else (),
        tuple(json.loads(filled)) if filled else (),
    )

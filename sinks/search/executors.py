"""A table's documents → bulk requests from Spark's executors, and their counts back.

An executor needs this package and opensearch-py. It gets a line of text for each document: a row
takes Spark longer to hand over, and Python longer to read. It doesn't raise what a user can mend,
but returns it as a value: Spark would wrap it into a traceback, and try again what was retried
enough.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any

from opensearchpy import OpenSearch
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.errors import SinkError
from cdc.settings import SearchSettings
from sinks.search.absent import Completion
from sinks.search.bulk import Action, Counts, Judge, write
from sinks.search.client import connect
from sinks.search.dead_letters import Letters
from sinks.search.documents import document_id
from sinks.search.indexes import alias_of, write_alias
from sinks.spark.observed import observed

Observed = Callable[[str], Any]
"""An observation's name → what ``observed`` tells of it."""


@dataclass(frozen=True, slots=True)
class Writer:
    """What an executor needs to know; its settings hold the password, and are never printed."""

    settings: SearchSettings = field(repr=False)
    index: str
    known: Mapping[str, int]
    only: frozenset[str] | None
    is_load: bool
    is_final: bool

    def __call__(self, lines: Iterable[bytes]) -> Iterator[Counts | SinkError]:
        """Write one partition's documents."""
        client = connect(self.settings)
        size, alias = self.settings.bulk_bytes, write_alias(self.index)
        letters = _letters(client, self.settings, self.index)
        refused = letters.sources if letters is not None and self.known else None
        completion = Completion(client, alias, size, refused=refused, is_load=self.is_load)
        actions: Iterable[Action] = map(_action, lines)
        if (only := self.only) is not None:
            actions = (action for action in actions if action.id in only)
        try:
            filled = completion.fill(actions)
            judge = Judge(letters, self.known, is_final=self.is_final)
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
    return write_observed(documents, settings, index, only, is_load=is_load)[0]


def write_observed(
    documents: DataFrame,
    settings: SearchSettings,
    index: str,
    only: frozenset[str] | None = None,
    *,
    is_load: bool = False,
    is_final: bool = True,
) -> tuple[Counts, Observed]:
    """The same, and what was observed of the documents' rows.

    Where it isn't ``is_final``, what the server refuses is only counted.
    """
    letters = _letters(connect(settings), settings, index)
    known = letters.known() if letters is not None else {}
    versions = {document: letter.version for document, letter in known.items()}
    writer = Writer(settings, index, versions, only, is_load, is_final)
    texts = documents.select(_line().alias("line"))
    results = _lines(texts).mapPartitions(writer).collect()
    for result in results:
        if isinstance(result, SinkError):
            raise result
    return reduce(add, results, Counts()), partial(observed, texts)


def _letters(client: OpenSearch, settings: SearchSettings, index: str) -> Letters | None:
    """The letters about an index's documents."""
    if settings.refused_documents == "fail":
        return None
    return Letters(client, settings.index_prefix, alias_of(index), index)


def _line() -> Column:
    """What ``_action`` reads: nothing but a source's own text may have a tab in it."""
    lists = (F.when(F.size(name) > 0, F.to_json(name)) for name in ("absent", "filled"))
    parts = (F.col("version").cast("string"), F.to_json("key"), *lists, F.col("source"))
    return F.concat_ws("\t", *(F.coalesce(part, F.lit("")) for part in parts))


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

"""A table's documents → bulk requests from Spark's executors, and their counts back.

An executor needs this package and opensearch-py. It doesn't raise what a user can mend, but
returns it as a value: Spark would wrap it into a traceback, and try again what was retried enough.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from pyspark.sql import DataFrame, Row

from cdc.errors import SinkError
from cdc.settings import SearchSettings
from sinks.search.absent import Completion
from sinks.search.bulk import Action, Counts, write
from sinks.search.client import connect
from sinks.search.documents import document_id


@dataclass(frozen=True, slots=True)
class Writer:
    """What an executor needs to know; its settings hold the password, and are never printed."""

    settings: SearchSettings = field(repr=False)
    alias: str

    def __call__(self, rows: Iterable[Row]) -> Iterator[Counts | SinkError]:
        """Write one partition's rows."""
        client = connect(self.settings)
        size = self.settings.bulk_bytes
        completion = Completion(client, self.alias, size)
        try:
            filled = completion.fill(map(_action, rows))
            counts = write(client, self.alias, filled, bulk_bytes=size)
        except SinkError as failure:
            yield failure
            return
        finally:
            client.close()
        yield counts + Counts(incomplete=completion.incomplete)


def write_documents(documents: DataFrame, settings: SearchSettings, alias: str) -> Counts:
    """Write documents; raises the first SinkError of any executor."""
    results = documents.rdd.mapPartitions(Writer(settings, alias)).collect()
    for result in results:
        if isinstance(result, SinkError):
            raise result
    return reduce(add, results, Counts())


def _action(row: Row) -> Action:
    key, version, source, absent, filled = row
    return Action(document_id(key), version, source, tuple(absent), tuple(filled))

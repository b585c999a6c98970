"""A table's log, and joined tables -> their first loads, next to the official client's own helper.

The helper, ``opensearchpy.helpers.parallel_bulk`` with its defaults, gets the documents that the
index has in the end, as dictionaries in memory: it reads no log, and makes nothing of anything.
"""

import argparse
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from opensearchpy import OpenSearch as Client
from opensearchpy.helpers import parallel_bulk

from benchmarks import shapes
from benchmarks.indexed import Indexed, documents_of, turn_of
from benchmarks.lakehouse import Turn, captured, figures_of, ratio, rotated, settle
from benchmarks.scene import Scene, say
from cdc.records.schema import TableName
from deploy.demo.proof import connect, index_differences
from deploy.local.opensearch import OpenSearch
from sinks.search.indexes import TableIndex

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Figures = dict[str, object]
_SAMPLE: Final = 1_000


def table_bulk(
    made: Scene, spark: "SparkSession", server: OpenSearch, options: argparse.Namespace
) -> Figures:
    """One table of ten columns, from the log."""
    table = TableName("public", shapes.NAME)
    say(f"bulk: a table of {options.rows:,} rows, and its log")
    made.create(shapes.MIXED, options.rows)
    made.write(shapes.MIXED, options.rows, 100_000)
    lake, daemon = captured(made, spark, "bulk", str(table))
    daemon.stop()
    settle(made)
    load = Indexed(lake, server)
    ready = first_load(load, str(table))
    with connect(made.source) as connection:
        index, folder = f"{load.prefix}{table}", made.pipeline.folder
        indexed, differing, examples = index_differences(
            load.client(), connection, table, index, folder
        )
    if indexed != options.rows or differing:
        raise RuntimeError(f"{differing} of {indexed} documents differ from their rows: {examples}")
    load.forget()
    took = in_turns(options.rounds, load, ready)
    return {
        "rows_bulk": options.rows,
        **figures_of(took, "_bulk"),
        **rates(took, options.rows, "_bulk"),
        "ratio_to_parallel_bulk": ratio(took, "parallel_bulk", "millrace"),
    }


def joined_bulk(load: Indexed, options: argparse.Namespace) -> Figures:
    """Joined documents, from the lakehouse."""
    ready = first_load(load, "flights")
    if len(ready.documents) != options.flights:
        raise RuntimeError(f"{len(ready.documents)} documents of {options.flights} flights")
    load.forget()
    took = in_turns(options.rounds, load, ready)
    return {
        "flights_joined": options.flights,
        **figures_of(took, "_joined"),
        **rates(took, options.flights, "_joined"),
        "ratio_joined_to_parallel_bulk": ratio(took, "parallel_bulk", "millrace"),
    }


def rates(took: Mapping[str, Sequence[Turn]], documents: int, suffix: str) -> Figures:
    """Documents a second of each, by the median turn."""
    return {
        f"{name}{suffix}_documents_per_s": round(documents / median(turn.seconds for turn in turns))
        for name, turns in took.items()
    }


@dataclass(frozen=True, slots=True)
class Ready:
    """Documents that lie ready, and the mapping that their index has."""

    name: str
    documents: list[dict[str, Any]]
    mapping: dict[str, Any]

    def load(self, client: Client, prefix: str, log: str) -> None:
        """Load them by the client's own helper."""
        target = TableIndex(client, f"{prefix}{self.name}", log, self.name)
        index = target.make(self.mapping, None).index
        done = 0
        for ok, _ in parallel_bulk(client, self.documents, index=index):
            done += ok
        target.publish(index)


def first_load(load: Indexed, name: str) -> Ready:
    """Load once, which compiles what everybody runs, and keep the documents."""
    load.merge()
    client, index = load.client(), f"{load.prefix}{name}"
    (about,) = client.indices.get_mapping(index=index).values()
    mapping = {key: value for key, value in about["mappings"].items() if key != "_meta"}
    ready = Ready(name, documents_of(client, index), mapping)
    gc.collect()
    gc.freeze()
    return ready


def in_turns(rounds: int, load: Indexed, ready: Ready) -> dict[str, list[Turn]]:
    """Loads of both, in turns; raises where they end with other documents."""
    peer = replace(load, prefix="peer.")
    ids = [document["_id"] for document in ready.documents[:: len(ready.documents) // _SAMPLE]]
    log = load.lake.settings.capture.topic_prefix

    def ours() -> Turn:
        return turn_of(load, ready.name, ids, load.merge)

    def theirs() -> Turn:
        return turn_of(peer, ready.name, ids, lambda: ready.load(peer.client(), peer.prefix, log))

    took = rotated(rounds, {"millrace": ours, "parallel_bulk": theirs})
    contents = {turn.content for turns in took.values() for turn in turns}
    if len(contents) > 1:
        raise RuntimeError(f"the indexes differ: {contents}")
    return took

"""Sizes -> one JSON line: what search indexes take, next to other ways to fill them.

`make bench NAME=search`; README.md says what each figure means.
"""

import argparse
import json
import os
import sys
from collections.abc import Collection, Sequence
from typing import Final

from benchmarks import joined
from benchmarks.indexed import Indexed, warm_up
from benchmarks.lakehouse import HEAP, captured, jvm_pid, open_spark, settle
from benchmarks.scene import Scene, load, own_peak_rss_mb, peak_rss_of, say, scene
from benchmarks.search_bulk import joined_bulk, table_bulk
from benchmarks.search_fanout import fanout
from benchmarks.search_freshness import freshness
from benchmarks.search_pgsync import pgsync
from deploy.demo.flights import FLIGHTS_ROWS
from deploy.local.opensearch import OpenSearch

Figures = dict[str, object]

STAGES: Final = ("bulk", "joined", "fanout", "pgsync", "freshness")
_OF_FLIGHTS: Final = {"joined", "fanout"}


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.search")
    parser.add_argument("--rows", type=int, default=300_000, help="bulk: of the table")
    parser.add_argument("--flights", type=int, default=FLIGHTS_ROWS)
    parser.add_argument("--fresh-flights", type=int, default=20_000, help="freshness: of them")
    parser.add_argument("--rate", type=int, default=20, help="freshness: commits a second")
    parser.add_argument("--warm-up", type=int, default=30, help="seconds before what is measured")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default=HEAP, help="Spark's driver's")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of them")
    options = parser.parse_args(arguments)
    stages = options.stages.split(",")
    if unknown := [stage for stage in stages if stage not in STAGES]:
        parser.error(f"no stage {', '.join(unknown)}")
    figures: Figures = {"cores": os.cpu_count() or 0, "heap": options.heap, "load_before": load()}
    with scene() as made:
        server = OpenSearch(made.pipeline.folder, lasting=True)
        try:
            server.start()
            warm_up(server)
            if {"bulk", *_OF_FLIGHTS} & set(stages):
                figures |= _in_one_jvm(made, server, stages, options)
            if "pgsync" in stages:
                figures |= pgsync(made, server, options)
            if "freshness" in stages:
                figures |= freshness(made, server, options)
        finally:
            server.stop()
    print(json.dumps({"benchmark": "search", "figures": figures}))
    return 0


def _in_one_jvm(
    made: Scene, server: OpenSearch, stages: Collection[str], options: argparse.Namespace
) -> Figures:
    """What is measured in a session that is warm."""
    figures: Figures = {}
    spark = open_spark(options.heap)
    try:
        if "bulk" in stages:
            figures |= table_bulk(made, spark, server, options)
        if _OF_FLIGHTS & set(stages):
            say(f"joined: {options.flights:,} flights with all that belongs to them")
            joined.load(made.source, options.flights)
            lake, daemon = captured(made, spark, "flights", joined.TABLES)
            lake.merge()
            settle(made)
            documents = Indexed(lake, server, tables=(), documents=(joined.DOCUMENT,))
            if "joined" in stages:
                figures |= joined_bulk(documents, options)
            if "fanout" in stages:
                figures |= fanout(made, documents, daemon, options)
            daemon.stop()
        figures["jvm_rss_mb"] = peak_rss_of(jvm_pid(spark))
        figures["python_rss_mb"] = own_peak_rss_mb()
    finally:
        spark.stop()
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

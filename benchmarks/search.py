"""Sizes -> one JSON line: what search indexes take, next to other ways to fill them.

`make bench NAME=search`; README.md says what each figure means.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.lakehouse import HEAP, jvm_pid, open_spark
from benchmarks.scene import Scene, load, own_peak_rss_mb, peak_rss_of, say, scene
from benchmarks.search_bulk import bulk
from deploy.local.opensearch import OpenSearch

Figures = dict[str, object]
STAGES = {"bulk": bulk}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.search")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", default=HEAP, help="Spark's driver's")
    parser.add_argument("--stages", default=",".join(STAGES))
    options = parser.parse_args(arguments)
    figures: Figures = {"cores": os.cpu_count() or 0, "heap": options.heap, "load_before": load()}
    with scene() as made:
        server = OpenSearch(made.pipeline.folder, lasting=True).start()
        spark = open_spark(options.heap)
        try:
            for stage in options.stages.split(","):
                figures |= STAGES[stage](made, spark, server, options)
            figures["jvm_rss_mb"] = peak_rss_of(jvm_pid(spark))
        finally:
            spark.stop()
            server.stop()
    print(json.dumps({"benchmark": "search", "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

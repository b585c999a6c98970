"""Small tables -> what a merge by cron takes, whose JVM begins with an archive of its classes.

Next to one that begins without. `make bench NAME=cold`; README.md says what each figure means.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from benchmarks.scene import load, say, scene
from deploy.demo import flights
from deploy.local.pipeline import Pipeline

_TABLES: Final = r"public\.(airlines|airports|planes|flights)"
_WITHOUT: Final = {"spark.driver.defaultJavaOptions": "-Xshare:auto"}
"""What a user says counts, and this, Java's default, names no archive."""


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.cold")
    parser.add_argument("--flights", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    figures: dict[str, object] = {"cores": os.cpu_count() or 0, "load_before": load()}
    took: dict[str, list[float]] = {"with": [], "without": []}
    with scene() as made:
        flights.load(made.source, flights_limit=options.flights)

        def pipeline(name: str, spark: Mapping[str, str]) -> Pipeline:
            folder = made.pipeline.folder / name
            folder.mkdir()
            capture = {"table.include.list": _TABLES}
            sections = {"spark": spark}
            return Pipeline(
                folder, made.source, made.kafka, prefix="cold", capture=capture, sections=sections
            )

        pipeline("log", {}).catch_up().stop()
        for number in range(options.rounds):
            for kind, spark in (("with", {}), ("without", _WITHOUT)):
                started = time.monotonic()
                done = pipeline(f"{kind}{number}", spark).millrace("merge", "lakehouse")
                took[kind].append(round(time.monotonic() - started, 2))
                if done.returncode:
                    raise RuntimeError(done.stdout + done.stderr)
                say(f"  {kind} the archive: {took[kind][-1]:.1f} s")
    figures |= {f"runs_{kind}_s": runs for kind, runs in took.items()}
    figures["ratio_to_none"] = round(median(took["without"]) / median(took["with"]), 2)
    print(json.dumps({"benchmark": "cold", "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

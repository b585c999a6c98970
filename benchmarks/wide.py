"""Tables of 5, 700 and 1,600 columns -> what a merge of one changed row takes, by their width.

`make bench NAME=wide`: each run is one of `millrace merge --follow`, in a session that is warm.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from benchmarks.scene import Scene, load, say, scene
from cdc.errors import ExitCode
from deploy.local.opensearch import OpenSearch
from deploy.local.pipeline import Pipeline
from sinks.job import Jobs
from sinks.run.options import RunOptions

SINKS: Final = ("search", "lakehouse")
_CREATE: Final = "CREATE TABLE {name} (id int PRIMARY KEY, {columns})"
_FILL: Final = "INSERT INTO {name} SELECT i, {values} FROM generate_series(1, 100) i"
_UPDATE: Final = "UPDATE {name} SET c1 = c1 || '.', c2 = c2 || '.' WHERE id = 1"


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.wide")
    parser.add_argument("--columns", default="5,700,1600", help="of each table, the first few")
    parser.add_argument("--warm-up", type=int, default=3, help="runs that don't count")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    widths = [int(width) for width in options.columns.split(",")]
    before = load()
    with scene() as made:
        server = OpenSearch(made.pipeline.folder, lasting=True)
        try:
            server.start()
            seconds = measure(made, server, widths, options)
        finally:
            server.stop()
    figures = {sink: _figures(by_width) for sink, by_width in seconds.items()}
    print(json.dumps({"benchmark": "wide", "figures": {**figures, "load_before": before}}))
    return 0


def measure(
    made: Scene, server: OpenSearch, widths: Sequence[int], options: argparse.Namespace
) -> dict[str, dict[int, list[float]]]:
    """Seconds of runs, by sink and width."""
    folder = made.pipeline.folder / "wide"
    folder.mkdir()
    with made.connect() as connection:
        for width in widths:
            columns = ", ".join(f"c{number} text" for number in range(1, width))
            for statement in (_CREATE, _FILL):
                values = ", ".join(["'v'"] * (width - 1))
                text = statement.format(name=_name(width), columns=columns, values=values)
                connection.execute(text.encode())
    pipeline = Pipeline(folder, made.source, made.kafka, prefix="wide", search_url=server.url)
    daemon = pipeline.catch_up()
    seconds: dict[str, dict[int, list[float]]] = {}
    for sink in SINKS:
        with Jobs(pipeline.settings, sink, RunOptions(), lasting=True) as jobs:
            say(f"{sink}: loaded in {_run_s(jobs):.1f} s")
            seconds[sink] = {}
            for width in widths:
                runs = []
                for _ in range(options.warm_up + options.rounds):
                    with made.connect() as connection:
                        connection.execute(_UPDATE.format(name=_name(width)).encode())
                    pipeline.wait_until_logged(pipeline.wal_end(), daemon)
                    runs.append(_run_s(jobs))
                    say(f"{sink}: {width} columns, one changed row: {runs[-1]:.1f} s")
                seconds[sink][width] = runs[options.warm_up :]
    daemon.stop()
    return seconds


def _name(width: int) -> str:
    return f"wide_{width}"


def _run_s(jobs: Jobs) -> float:
    """Seconds of a run; raises RuntimeError where it fails, or has nothing to do."""
    lines: list[str] = []
    began = time.monotonic()
    code = jobs.run(lines.append)
    if code != ExitCode.OK:
        raise RuntimeError("\n".join(lines))
    return time.monotonic() - began


def _figures(seconds: dict[int, list[float]]) -> dict[str, Any]:
    run_s = {width: median(runs) for width, runs in seconds.items()}
    least = min(run_s)
    return {
        "run_s": {width: round(run, 2) for width, run in run_s.items()},
        "ratio": {width: round(run / run_s[least], 2) for width, run in run_s.items()},
        "runs": {width: [round(run, 2) for run in runs] for width, runs in seconds.items()},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

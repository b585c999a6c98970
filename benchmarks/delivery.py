"""Rows -> one JSON line: what exactly-once costs, next to at-least-once on the same rows.

`make bench NAME=delivery`; README.md says what each figure means.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import median

from benchmarks import stream
from benchmarks.scene import load, say, scene
from benchmarks.shapes import SHAPES

_VARIABLE = "MILLRACE_LOG__DELIVERY"
_WAYS = ("exactly_once", "at_least_once")
_WARM_UP = 2
"""Rounds until the broker's code is compiled; they don't count."""


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.delivery")
    parser.add_argument("--rows", type=int, default=1_000_000, help="per round")
    parser.add_argument("--rounds", type=int, default=8, help="of both ways, after a warm-up")
    parser.add_argument("--shape", choices=SHAPES, default="mixed")
    options = parser.parse_args(arguments)
    shape, before = SHAPES[options.shape], load()
    runs: list[tuple[float, float]] = []
    work: dict[str, list[float]] = {way: [] for way in _WAYS}
    say("starting PostgreSQL and Kafka")
    with scene() as made:
        made.create(shape, options.rows)
        stream.snapshot(made)
        for number in range(options.rounds + _WARM_UP):
            found = {}
            for way in _WAYS if number % 2 else reversed(_WAYS):
                say(f"{way}, round {number + 1} of {options.rounds + _WARM_UP}")
                made.write(shape, options.rows)
                events, seconds, cpu, _ = stream.daemon_rate(made, options.rows, {_VARIABLE: way})
                found[way] = events / seconds
                say(f"  {found[way]:,.0f} events/s, {cpu}")
                if number >= _WARM_UP:
                    work[way].append((cpu.daemon + cpu.broker) / cpu.walsender)
            if number >= _WARM_UP:
                runs.append((round(found[_WAYS[0]]), round(found[_WAYS[1]])))
    ratio = median(exactly / least for exactly, least in runs)
    figures = {
        "shape": options.shape,
        "rows": options.rows,
        "runs": runs,
        "ratio_to_at_least_once": round(ratio, 3),
        "cost_percent": round(100 * (1 - ratio), 1),
        "cpu_ratio_to_walsender": {way: round(median(work[way]), 3) for way in _WAYS},
        "load_before": before,
    }
    print(json.dumps({"benchmark": "delivery", "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

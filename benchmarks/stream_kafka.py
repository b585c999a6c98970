"""Sizes -> one JSON line: how fast changes reach Kafka, next to pg_recvlogical and Debezium Server.

`make bench NAME=stream-kafka`; README.md says what each figure means. Debezium takes part where
`make bench-peers` has fetched it.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from statistics import median

from benchmarks import debezium, stream
from benchmarks.scene import PRESETS, TLS, Scene, load, say, scene
from benchmarks.shapes import SHAPES, Shape
from benchmarks.stream import Cpu, Round

Figures = dict[str, object]


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.stream_kafka")
    parser.add_argument("--rows", type=int, default=500_000, help="rows per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=SHAPES, default="mixed")
    parser.add_argument("--preset", choices=PRESETS, default=PRESETS[0])
    parser.add_argument("--tls", choices=TLS, default=TLS[0], help="to PostgreSQL, and to Kafka")
    parser.add_argument("--transaction-rows", type=int, default=0, help="0: as the shape has it")
    parser.add_argument("--no-peers", action="store_true", help="leave Debezium Server out")
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    figures: Figures = {
        "shape": options.shape,
        "preset": options.preset,
        "tls": options.tls,
        "cores": os.cpu_count() or 0,
        "load_before": load(),
    }
    say("starting PostgreSQL and Kafka")
    with scene(preset=options.preset, tls=options.tls) as made:
        made.create(shape, options.rows)
        stream.snapshot(made.pipeline)
        rounds = stream.measure(made, shape, options.rows, options.rounds, options.transaction_rows)
        figures |= _figures(made, shape, rounds)
        if debezium.is_there() and options.tls == TLS[0] and not options.no_peers:
            peers = debezium.measure(made, shape, options.rounds)
            theirs = median(peer.rate for peer in peers)
            figures |= {
                "debezium_events_per_s": round(theirs),
                "debezium_rss_mb": max(peer.rss_mb for peer in peers),
                "ratio_to_debezium": round(median(one.rate for one in rounds) / theirs, 2),
            }
    print(json.dumps({"benchmark": "stream-kafka", "figures": figures}))
    return 0


def _figures(made: Scene, shape: Shape, rounds: list[Round]) -> Figures:
    say("counting what is in the log")
    found = stream.volume(made, shape.create.split()[2])
    event_bytes = found.record_bytes / found.records
    rate = median(one.rate for one in rounds)
    cpu = Cpu(*(median(values) for values in zip(*(one.cpu for one in rounds), strict=True)))
    return {
        "runs": [(round(one.seconds, 3), round(one.pg_recvlogical_s, 3)) for one in rounds],
        "events": [one.events for one in rounds],
        "rows": rounds[0].rows,
        "bytes": round(rounds[0].rows * event_bytes),
        "rss_mb": max(one.rss_mb for one in rounds),
        "events_per_s": round(rate),
        "bytes_per_s": round(rate * event_bytes),
        "pg_recvlogical_rows_per_s": round(
            median(one.rows / one.pg_recvlogical_s for one in rounds)
        ),
        "ratio_to_pg_recvlogical": round(median(one.ratio for one in rounds), 3),
        "ratios": [round(one.ratio, 3) for one in rounds],
        "cpu_us_per_event": cpu._asdict() | {"all": round(sum(cpu), 2)},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

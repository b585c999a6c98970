"""Sizes -> one JSON line: how fast changes, rows and merges are, next to PostgreSQL's own tools.

`make bench NAME=stream-kafka`; README.md says what each figure means.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from statistics import median
from typing import Final

from benchmarks import latency, merges, snapshot, stream
from benchmarks.scene import Scene, say, scene

STAGES: Final = ("snapshot", "latency", "stream", "merge")
Figures = dict[str, float | list[float]]


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    options = _parse(arguments)
    say("starting PostgreSQL and Kafka")
    with scene() as made:
        figures = _measure(made, options)
    print(json.dumps({"benchmark": "stream-kafka", "figures": figures}))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.stream_kafka")
    parser.add_argument("--rows", type=int, default=200_000, help="rows per round of the stream")
    parser.add_argument("--transaction-rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--snapshot-rows", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=500, help="transactions/s of the latency test")
    parser.add_argument("--seconds", type=int, default=20, help="length of the latency test")
    parser.add_argument(
        "--skip", choices=STAGES[1:], nargs="*", default=[], help="stages to leave out"
    )
    return parser.parse_args(arguments)


def _measure(made: Scene, options: argparse.Namespace) -> Figures:
    figures: Figures = {"cores": os.cpu_count() or 0, "load_before": round(os.getloadavg()[0], 1)}
    of_snapshot, daemon = snapshot.measure(made, options.snapshot_rows)
    figures |= {
        "snapshot_rows_per_s": round(of_snapshot.daemon),
        "copy_rows_per_s": round(of_snapshot.copy),
        "snapshot_to_copy": round(of_snapshot.daemon / of_snapshot.copy, 3),
        "snapshot_cpu_us_per_row": round(of_snapshot.cpu_us, 2),
        "snapshot_peak_rss_mb": of_snapshot.rss_mb,
    }
    if "latency" not in options.skip:
        figures |= _latency(made, options)
    made.pipeline.wait_until_logged(made.pipeline.wal_end(), daemon)
    daemon.stop()
    rows = options.snapshot_rows
    if "stream" not in options.skip:
        rows += options.rows * options.rounds
        figures |= _stream(made, options, rows)
    if "merge" not in options.skip:
        daemon = made.pipeline.start()
        of_merges = merges.measure(made, daemon, rows)
        daemon.stop()
        figures |= {
            "merge_first_rows": of_merges.rows,
            "merge_first_s": round(of_merges.first_s, 1),
            "merge_second_changes": of_merges.changes,
            "merge_second_s": round(of_merges.second_s, 1),
        }
    return figures


def _latency(made: Scene, options: argparse.Namespace) -> Figures:
    found = latency.measure(made, options.rate, options.seconds)
    return {
        "latency_transactions_per_s": round(found.transactions_per_s),
        "latency_p50_ms": round(found.p50_ms, 1),
        "latency_p99_ms": round(found.p99_ms, 1),
        "latency_max_ms": round(found.max_ms, 1),
        "latency_events": found.events,
    }


def _stream(made: Scene, options: argparse.Namespace, rows: int) -> Figures:
    rounds = stream.measure(made, options.rows, options.transaction_rows, options.rounds)
    say("stream: counting what is in the log")
    found = stream.volume(made, rows)
    event_bytes = found.record_bytes / found.records
    rate = median(one.daemon for one in rounds)
    return {
        "stream_events_per_s": round(rate),
        "stream_bytes_per_s": round(rate * event_bytes),
        "stream_bytes_per_event": round(event_bytes),
        "pg_recvlogical_rows_per_s": round(median(one.pg_recvlogical for one in rounds)),
        "stream_to_pg_recvlogical": round(median(one.ratio for one in rounds), 3),
        "stream_ratios": [round(one.ratio, 3) for one in rounds],
        "stream_cpu_us_per_event": round(median(one.cpu_us for one in rounds), 2),
        "stream_peak_rss_mb": max(one.rss_mb for one in rounds),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

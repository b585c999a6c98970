"""A backlog of WAL -> rows a second that become records which nobody keeps, next to pg_recvlogical.

`make bench NAME=stream-null`. Each round writes rows while nobody reads; then Millrace's reader and
pg_recvlogical take turns, each with a slot of its own from the same place; who is first alternates.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.captured import DRAIN, Captured, backlog, translated
from benchmarks.scene import Scene, load, own_peak_rss_mb, say, scene
from benchmarks.shapes import SHAPES, Shape
from cdc.records.position import Lsn

_OURS = "ours"


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.stream_null")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--shape", choices=SHAPES, default="mixed")
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    before = load()
    with scene() as made:
        made.create(shape, options.rows)
        captured = Captured(made)
        runs = []
        for number in range(options.rounds):
            ours, theirs, size = _round(made, captured, shape, options.rows, bool(number % 2))
            runs.append((round(ours, 3), round(theirs, 3)))
    figures = {
        "shape": options.shape,
        "runs": runs,
        "rows": options.rows,
        "bytes": size,
        "rss_mb": own_peak_rss_mb(),
        "rows_per_s": round(options.rows / median(ours for ours, _ in runs)),
        "ratio_to_pg_recvlogical": round(median(theirs / ours for ours, theirs in runs), 3),
        "load_before": before,
    }
    print(json.dumps({"benchmark": "stream-null", "figures": figures}))
    return 0


def _round(
    made: Scene, captured: Captured, shape: Shape, rows: int, first: bool
) -> tuple[float, float, int]:
    for name in (_OURS, DRAIN):
        captured.make_slot(name)
    end = backlog(made, shape, rows)
    if first:
        (ours, size), theirs = _read(captured, end, rows), captured.drain_s(DRAIN, end)
    else:
        theirs, (ours, size) = captured.drain_s(DRAIN, end), _read(captured, end, rows)
    say(f"  {rows / ours:,.0f} rows/s, pg_recvlogical {rows / theirs:,.0f}: {theirs / ours:.2f}")
    return ours, theirs, size


def _read(captured: Captured, end: Lsn, rows: int) -> tuple[float, int]:
    translation = captured.translation()
    events = size = 0
    started = time.monotonic()
    with captured.stream(_OURS) as stream:
        while translation.cursor.flush_lsn < end:
            size += stream.read(1.0)
            wire, start = stream.wire, stream.wire.start
            for made, used in translated(translation, wire.buffer, start, wire.end):
                events, start = events + made, used
            stream.used(start, translation.received)
            stream.keep_alive()
        seconds = time.monotonic() - started
    if events < rows:
        raise RuntimeError(f"{events} events of {rows} rows")
    return seconds, size


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

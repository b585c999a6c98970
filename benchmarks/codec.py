"""A captured stream -> rows a CPU second that become records.

`make bench NAME=codec`; no I/O is timed. `benchmarks.encoding` measures other kinds of changes.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.captured import DRAIN, Captured, backlog, translated
from benchmarks.scene import PRESETS, load, own_peak_rss_mb, say, scene
from benchmarks.shapes import SHAPES
from cdc.records.position import Lsn


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.codec")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", choices=SHAPES, default="mixed")
    parser.add_argument("--preset", choices=PRESETS, default=PRESETS[0])
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    before = load()
    with scene(preset=options.preset) as made:
        made.create(shape, options.rows)
        captured = Captured(made)
        captured.make_slot(DRAIN)
        end = backlog(made, shape, options.rows)
        data = _capture(captured, end)
        say(f"{len(data):,} bytes captured")
        runs = [_seconds(captured, data, options.rows) for _ in range(options.rounds)]
    figures = {
        "shape": options.shape,
        "preset": options.preset,
        "runs": runs,
        "rows": options.rows,
        "bytes": len(data),
        "rss_mb": own_peak_rss_mb(),
        "rows_per_core_second": round(options.rows / median(runs)),
        "load_before": before,
    }
    print(json.dumps({"benchmark": "codec", "figures": figures}))
    return 0


def _capture(captured: Captured, end: Lsn) -> bytearray:
    """The stream's bytes up to there."""
    data = bytearray()
    translation = captured.translation()
    with captured.stream(DRAIN) as stream:
        while translation.cursor.cut.commit_lsn < end - 64 or not data:
            stream.read(1.0)
            wire, start, stop = stream.wire, stream.wire.start, stream.wire.end
            data += wire.buffer[start:stop]
            for _, used in translated(translation, wire.buffer, start, stop):
                start = used
            del data[len(data) - (stop - start) :]
            stream.used(start, translation.received)
            if translation.cursor.flush_lsn >= end:
                break
    return data


def _seconds(captured: Captured, data: bytearray, rows: int) -> float:
    translation = captured.translation()
    started = time.process_time()
    made = sum(events for events, _ in translated(translation, data, 0, len(data)))
    seconds = time.process_time() - started
    if made < rows:
        raise RuntimeError(f"{made} events of {rows} rows")
    say(f"  {rows / seconds:,.0f} rows/CPU-s")
    return round(seconds, 4)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

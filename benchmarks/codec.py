"""A captured stream -> rows a CPU second that become records, compiled and in pure Python.

`make bench NAME=codec`; no I/O is timed. The two ways take turns, and each turn's seconds count.
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
        runs = [_round(captured, data, options.rows) for _ in range(options.rounds)]
    fast, pure = (median(times) for times in zip(*runs, strict=True))
    figures = {
        "shape": options.shape,
        "preset": options.preset,
        "runs": runs,
        "rows": options.rows,
        "bytes": len(data),
        "rss_mb": own_peak_rss_mb(),
        "rows_per_core_second": round(options.rows / fast),
        "fallback_rows_per_core_second": round(options.rows / pure),
        "ratio_to_fallback": round(median(slow / quick for quick, slow in runs), 1),
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
            start, stop = stream.filled
            data += stream.buffer[start:stop]
            for _, used in translated(translation, stream.buffer, start, stop):
                start = used
            del data[len(data) - (stop - start) :]
            stream.used(start, translation.received)
            if translation.cursor.flush_lsn >= end:
                break
    return data


def _round(captured: Captured, data: bytearray, rows: int) -> tuple[float, float]:
    fast, pure = _seconds(captured, data, rows, True), _seconds(captured, data, rows, False)
    say(f"  {rows / fast:,.0f} rows/CPU-s compiled, {rows / pure:,.0f} in pure Python")
    return round(fast, 4), round(pure, 4)


def _seconds(captured: Captured, data: bytearray, rows: int, compiled: bool) -> float:
    translation = captured.translation(compiled=compiled)
    started = time.process_time()
    made = sum(events for events, _ in translated(translation, data, 0, len(data)))
    seconds = time.process_time() - started
    if made < rows:
        raise RuntimeError(f"{made} events of {rows} rows")
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

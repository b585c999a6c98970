"""Rows -> one JSON line: what exactly-once costs, next to at-least-once on the same rows.

Two daemons stream the same WAL at the same time, one each way, so that whatever else the machine
does meets both alike; what counts is the time in which both have work.
`make bench NAME=delivery`; README.md says what each figure means.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Final, NamedTuple

from benchmarks.scene import PREFIX, Scene, cpu_s, load, say, scene
from benchmarks.shapes import SHAPES
from benchmarks.stream import snapshot
from benchmarks.visible import Reader
from cdc.records.state import Progress
from cdc.records.topics import progress_topic
from deploy.local.pipeline import Pipeline

_WAYS: Final = ("exactly_once", "at_least_once")
_WARM_UP: Final = 2
"""Rounds until the broker's code is compiled; they don't count."""


class Mark(NamedTuple):
    """So many events were committed at that time (seconds since 1970)."""

    at: float
    events: float


class Run(NamedTuple):
    """What one daemon has done in a round: every commit, and its CPU time per event in µs."""

    marks: list[Mark]
    cpu_us: float


def main(arguments: Sequence[str]) -> int:
    """Measure, and end with the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.delivery")
    parser.add_argument("--rows", type=int, default=500_000, help="per round")
    parser.add_argument("--rounds", type=int, default=10, help="after those that warm up")
    parser.add_argument("--shape", choices=SHAPES, default="mixed")
    options = parser.parse_args(arguments)
    shape, before = SHAPES[options.shape], load()
    ratios, cpu_us = [], []
    say("starting PostgreSQL and Kafka")
    with scene() as made:
        made.create(shape, options.rows)
        pipelines = {way: _pipeline(made, way) for way in _WAYS}
        for one in pipelines.values():
            snapshot(one)
        for number in range(options.rounds + _WARM_UP):
            made.write(shape, options.rows)
            runs = _stream(pipelines, options.rows)
            exactly, least = _rates(runs["exactly_once"].marks, runs["at_least_once"].marks)
            used = [round(runs[way].cpu_us, 2) for way in _WAYS]
            say(f"  {exactly:,.0f} and {least:,.0f} events/s, {used} µs of CPU per event")
            if number >= _WARM_UP:
                ratios.append(round(exactly / least, 3))
                cpu_us.append(used)
    figures = {
        "shape": options.shape,
        "rows": options.rows,
        "runs": ratios,
        "ratio_to_at_least_once": round(median(ratios), 3),
        "cost_percent": round(100 * (1 - median(ratios)), 1),
        "cpu_us_per_event": {
            way: median(used[number] for used in cpu_us) for number, way in enumerate(_WAYS)
        },
        "load_before": before,
    }
    print(json.dumps({"benchmark": "delivery", "figures": figures}))
    return 0


def _pipeline(made: Scene, way: str) -> Pipeline:
    folder = made.pipeline.folder / way
    folder.mkdir()
    return Pipeline(
        folder,
        made.source,
        made.kafka,
        prefix=f"{PREFIX}-{way.replace('_', '-')}",
        sections={"log": {"delivery": way}},
    )


def _stream(pipelines: Mapping[str, Pipeline], rows: int) -> dict[str, Run]:
    """Let both daemons stream what is there, until each has made so many events."""
    with ThreadPoolExecutor(len(pipelines)) as executor:
        started = {way: executor.submit(_run, one, rows) for way, one in pipelines.items()}
        return {way: run.result() for way, run in started.items()}


def _run(pipeline: Pipeline, rows: int) -> Run:
    marks: list[Mark] = []
    before = pipeline.progress()
    assert before is not None  # noqa: S101 (the snapshot has left one)
    reader = Reader(pipeline.settings.kafka, progress_topic(pipeline.settings.capture.topic_prefix))
    reader.from_end()
    daemon = pipeline.start()
    used = 0.0
    for progress, seen in reader.states(Progress):
        if not (events := progress.events - before.events):
            continue
        if not marks:
            used = cpu_s(daemon.pid)
        marks.append(Mark(seen.at, events))
        if events >= rows:
            break
    used = cpu_s(daemon.pid) - used
    reader.close()
    pipeline.wait_until_logged(pipeline.wal_end(), daemon)
    daemon.stop()
    return Run(marks, used / (events - marks[0].events) * 1e6)


def _rates(*runs: list[Mark]) -> list[float]:
    """Events a second of each run, in the time in which all had work."""
    begin = max(run[0].at for run in runs)
    end = min(run[-1].at for run in runs)
    return [(_events(run, end) - _events(run, begin)) / (end - begin) for run in runs]


def _events(run: list[Mark], at: float) -> float:
    """How many events a run had at a time, as if they came one by one."""
    earlier = [mark for mark in run if mark.at <= at]
    later = next((mark for mark in run if mark.at > at), None)
    last = earlier[-1]
    if later is None:
        return last.events
    share = (at - last.at) / (later.at - last.at)
    return last.events + share * (later.events - last.events)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

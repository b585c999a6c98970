"""A sink's run with and without reports to the log -> what they add to it, beside the same run.

The run is a pause; its tables have all moved, or none has. A process reports one run, as cron's do.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.scene import PREFIX, load, say
from cdc.kafka.topics import LogTopics
from cdc.log.reports import ReportReader, ReportWriter
from cdc.records.position import Lsn, Position
from cdc.settings import Settings
from deploy.local.kafka import Kafka
from deploy.local.processes import run_folder
from sinks.run.reported import ReportedRun
from sinks.run.summary import RunSummary, Standing, TableResult

_PARTITIONS: Final = 3


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--run-ms", type=int, default=200)
    given = parser.parse_args()
    load_before = load()
    kafka = Kafka(run_folder("millrace-bench-"))
    try:
        kafka.start()
        settings = Settings(
            source={}, capture={"topic.prefix": PREFIX}, kafka=kafka.client_options()
        )
        LogTopics(settings).ensure_report_topics()
        figures = _measured(settings, given.tables, given.rounds, given.run_ms / 1_000)
    finally:
        kafka.stop()
    figures |= {"tables": given.tables, "run_ms": given.run_ms, "load": [load_before, load()]}
    print(json.dumps({"benchmark": "run-reports", "figures": figures}))


def _measured(
    settings: Settings, tables: int, rounds: int, run_s: float
) -> dict[str, float | list[float]]:
    """Medians of what a run takes in turns: reported with all tables moved, with none, and not."""
    moved, idle, bare = list[float](), list[float](), list[float]()
    for number in range(1, rounds + 1):
        reported = partial(_reported, settings, _summary(tables, number), run_s)
        bare.append(_timed(partial(time.sleep, run_s)))
        moved.append(_timed(reported))
        idle.append(_timed(reported))
        say(f"round {number}: {moved[-1] * 1e3:.0f} ms, {idle[-1] * 1e3:.0f} ms")
    reports = ReportReader(settings.kafka, PREFIX).read()
    assert len(reports.tables) == tables  # noqa: S101 (what isn't written costs nothing)
    alone = statistics.median(bare)
    return {
        "added_ms_all_moved": round(1e3 * (statistics.median(moved) - alone), 1),
        "added_ms_none_moved": round(1e3 * (statistics.median(idle) - alone), 1),
        "ratio_all_moved": round(statistics.median(moved) / alone, 3),
    }


def _timed(act: Callable[[], None]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


def _reported(settings: Settings, summary: RunSummary, run_s: float) -> None:
    with (
        ReportWriter(settings, say) as reports,
        ReportedRun(reports, "lakehouse", "merge") as reported,
    ):
        time.sleep(run_s)
        reported.end(summary)


def _summary(tables: int, run: int) -> RunSummary:
    names = [f"public.table_{number}" for number in range(tables)]
    cut = Position(1, Lsn(run), 0)
    standing = {
        name: Standing(
            source=name,
            offsets={f"{PREFIX}.{name}": dict.fromkeys(range(_PARTITIONS), run)},
            run=run,
            cut=cut,
        )
        for name in names
    }
    results = [TableResult(name, 1) for name in names]
    return RunSummary("lakehouse", run, "", 0.0, results, standing, cut, 0, run)


if __name__ == "__main__":
    main()

"""Updates that leave large values unchanged -> events a second: read again, and left absent.

The same backlog under ``toast.unavailable`` = ``absent`` and = ``reselect``, each with a slot of
its own: what completing rows costs the daemon, and what all of its sessions cost the source.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Final

from benchmarks.scene import Scene, peak_rss_mb, say, scene
from benchmarks.visible import Reader
from cdc.records.state import Progress
from cdc.records.topics import progress_topic
from deploy.local.pipeline import Pipeline

_SCHEMA: Final = """
    CREATE TABLE large (id integer PRIMARY KEY, n integer, big text);
    ALTER TABLE large ALTER big SET STORAGE EXTERNAL;
"""
_FILL: Final = "INSERT INTO large SELECT i, 0, rpad(i::text, %s, 'x') FROM generate_series(1, %s) i"
_UPDATE: Final = "UPDATE large SET n = n + 1 WHERE id > %s AND id <= %s"
_SESSIONS: Final = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'millrace%'"
_ROWS_PER_TRANSACTION: Final = 100
_WAYS: Final = ("absent", "reselect")


def main() -> None:
    """Measure both ways, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=9_000)
    given = parser.parse_args()
    figures: dict[str, float] = {"rows": given.rows, "bytes": given.bytes}
    with scene() as made:
        pipelines = {way: _backlog_begins(made, way, given) for way in _WAYS}
        with made.connect() as connection:
            for start in range(0, given.updates, _ROWS_PER_TRANSACTION):
                first = start % given.rows
                connection.execute(_UPDATE, (first, first + _ROWS_PER_TRANSACTION))
        for way, pipeline in pipelines.items():
            for name, figure in _measured(made, pipeline, given.updates).items():
                figures[f"{way}_{name}"] = round(figure, 1)
            say(f"{way}: {figures}")
    print(json.dumps({"benchmark": "unchanged", "figures": figures}))


def _backlog_begins(made: Scene, way: str, given: argparse.Namespace) -> Pipeline:
    """A pipeline whose snapshot is done, and whose daemon is stopped."""
    folder = made.pipeline.folder / way
    folder.mkdir()
    capture = {"toast.unavailable": way, "table.include.list": "public.large"}
    pipeline = Pipeline(folder, made.source, made.kafka, prefix=way, capture=capture)
    if way == _WAYS[0]:
        with made.connect() as connection:
            connection.execute(_SCHEMA)
            connection.execute(_FILL, (given.bytes, given.rows))
    daemon = pipeline.catch_up()
    daemon.stop()
    return pipeline


def _measured(made: Scene, pipeline: Pipeline, updates: int) -> dict[str, float]:
    """Let a daemon stream the updates; timed from its first Kafka transaction to its last."""
    with made.connect() as connection:
        found = connection.execute("SHOW data_directory").fetchone()
    progress = pipeline.progress()
    assert found is not None  # noqa: S101 (SHOW has a row)
    assert progress is not None  # noqa: S101 (the snapshot has left one)
    events, source_s = progress.events, _ended_sessions_cpu_s(found[0])
    reader = Reader(made.kafka, progress_topic(pipeline.settings.capture.topic_prefix))
    reader.from_end()
    daemon = pipeline.start()
    first: tuple[int, float, float] | None = None
    for state, seen in reader.states(Progress):
        done = state.events - events
        if done and first is None:
            first = done, seen.at, _cpu_s(daemon.pid, 11)
        if done >= updates:
            break
    reader.close()
    assert first is not None  # noqa: S101 (the loop ends after an event)
    timed = done - first[0]
    figures = {
        "events_per_s": timed / (seen.at - first[1]),
        "cpu_us_per_event": (_cpu_s(daemon.pid, 11) - first[2]) / timed * 1e6,
        "peak_rss_mb": peak_rss_mb(daemon),
    }
    daemon.stop()
    with made.connect() as connection:
        while connection.execute(_SESSIONS).fetchone() != (0,):
            time.sleep(0.1)
    used_s = _ended_sessions_cpu_s(found[0]) - source_s
    return {**figures, "source_cpu_us_per_event": used_s / updates * 1e6}


def _ended_sessions_cpu_s(data_directory: str) -> float:
    """Processor time of the server's processes that have ended, a stopped daemon's among them."""
    pid = Path(data_directory, "postmaster.pid").read_text(encoding="ascii").split()[0]
    return _cpu_s(int(pid), 13)


def _cpu_s(pid: int, field: int) -> float:
    """User and system time: a process's own (field 11), or that of its children (13)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[field]) + int(fields[field + 1])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

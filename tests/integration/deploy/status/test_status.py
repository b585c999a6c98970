"""Stacks that are broken in many ways → a prompt, true status: never a lag of 0."""

import signal
import time
from collections.abc import Mapping
from io import StringIO
from subprocess import CompletedProcess
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo
from rich.console import Console

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from cdc.log.offsets import LogReader
from cdc.log.reports import ReportWriter
from cdc.records.reports import RunReport, TableReport
from cdc.records.topics import data_topic, status_topic
from cdc.settings import Settings
from deploy.local.postgres import Postgres
from deploy.local.processes import reserve_port
from deploy.status.collect import collect
from deploy.status.model import Status
from deploy.status.patience import PATIENCE_S
from deploy.status.screen import render
from tests.faults.test_killed_daemon import SMALL
from tests.fixtures.command_line import CommandLine
from tests.fixtures.pipeline import RunningPipeline, is_delayed
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

TABLE = "public.orders"
LATE_S = 1.0
"""What a busy machine may add to two seconds."""


def asked(settings: Settings, **sections: Mapping[str, Any]) -> Status:
    """The status by other options, within its time."""
    changed = {
        name: values
        if isinstance(section := getattr(settings, name), dict | type(None))
        else section.model_copy(update=values)
        for name, values in sections.items()
    }
    for name, values in sections.items():
        if isinstance(section := getattr(settings, name), dict):
            changed[name] = {**section, **values}
    began = time.monotonic()
    shown = collect(settings.model_copy(update=changed))
    assert time.monotonic() - began < PATIENCE_S + LATE_S
    return shown


def answered(settings: Settings, **sections: Mapping[str, Any]) -> Status:
    """The status once no part is unknown for the reason that the machine is busy."""
    shown = asked(settings, **sections)
    deadline = time.monotonic() + 30
    while is_delayed(problems(shown)) and time.monotonic() < deadline:
        shown = asked(settings, **sections)
    return shown


def checked(made: RunningPipeline, typed: CommandLine) -> CompletedProcess[str]:
    """What ``status --check`` says and ends with, once no part is delayed by a busy machine."""
    deadline = time.monotonic() + 30
    while is_delayed((ended := typed(made.config, "status", "--check")).stdout):
        assert time.monotonic() < deadline, ended.stdout
    return ended


def problems(status: Status) -> str:
    """All problems, one a line."""
    return "\n".join(map(str, status.problems))


def no_lag(status: Status) -> bool:
    """Whether anything says that nothing is missing."""
    return any(sink.lag.seconds == 0 for sink in status.sinks)


@pytest.fixture
def made(pipeline: Any, database: dict[str, str]) -> RunningPipeline:
    """A daemon that streams one table, and a lakehouse that nobody has merged into."""
    run(database, "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    running: RunningPipeline = pipeline(**{"heartbeat.source.interval.ms": 1_000})
    return running


def merged(made: RunningPipeline, *, reaches: bool, error: str = "", exit_code: int = 0) -> None:
    """Report a run as merges do: one that has all of the log, or nothing."""
    progress = made.progress()
    assert progress is not None
    capture = made.settings.capture
    topic = data_topic(capture.topic_prefix, made.tables()[0].name)
    ends = LogReader(made.settings.kafka).state(capture.topic_prefix, capture.slot_name).ends[topic]
    now_ms = time.time_ns() // 1_000_000
    with ReportWriter(made.settings, pytest.fail) as reports:
        table = TableReport(
            sink="lakehouse",
            table=TABLE,
            source=TABLE,
            offsets={topic: ends if reaches else dict.fromkeys(ends, 0)},
            log=progress.log,
            cut=progress.cut,
            cut_ts_us=progress.cut_ts_us,
            error=error,
        )
        ended = RunReport(
            sink="lakehouse",
            log=progress.log,
            started_ms=now_ms,
            ended_ms=now_ms,
            cut=progress.cut,
            cut_ts_us=progress.cut_ts_us,
            exit_code=exit_code,
            error=error,
        )
        reports.put(ended, [table], listed=True)


def test_a_stack_that_is_broken_says_how_and_never_that_nothing_is_missing(
    made: RunningPipeline, typed: CommandLine
) -> None:
    daemon, settings = made.catch_up(), made.settings
    daemon.wait_until(lambda: answered(settings).capture_lag.seconds is not None)
    nowhere = f"127.0.0.1:{reserve_port()}"

    unmerged = answered(settings)
    assert "lakehouse: its lag is unknown, because no run has reported" in problems(unmerged)
    assert not no_lag(unmerged)

    merged(made, reaches=True)
    whole = answered(settings)
    assert whole.problems == []
    assert whole.sinks[0].sink_lag.seconds == 0
    assert whole.capture_lag.seconds is not None
    ended = checked(made, typed)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (ExitCode.OK, "no problems")
    assert "lakehouse" in typed(made.config, "runs").stdout

    no_kafka = asked(settings, kafka={"bootstrap.servers": nowhere})
    assert "the log: unknown, because" in problems(no_kafka)
    assert (no_kafka.events, no_kafka.tables) == (None, [])
    assert no_kafka.slot is not None
    assert [sink.sink for sink in no_kafka.sinks] == ["lakehouse"]
    assert not no_lag(no_kafka)

    no_source = answered(settings, source={"port": nowhere.partition(":")[2]})
    assert "the source: unknown, because" in problems(no_source)
    assert no_source.slot is None
    assert no_source.is_captured is None

    refused = answered(settings, source={"password": "not-this-one"})
    assert "the source: unknown, because" in problems(refused)
    assert "not-this-one" not in problems(refused)

    other = answered(settings, capture={"topic_prefix": "nobody"})
    assert "topic.prefix nobody has no log" in problems(other)
    assert not no_lag(other)

    no_search = settings.model_validate(
        {**_sections(settings), "search": {"url": f"http://{nowhere}"}}
    )
    silent = answered(no_search)
    assert "search: unknown, because the search server doesn't answer" in problems(silent)
    assert silent.sinks[0].sink == "lakehouse"

    merged(made, reaches=False, error="the lakehouse is full\n  → free some space", exit_code=35)
    failing = answered(settings)
    assert "the last run failed (exit code 35): the lakehouse is full" in problems(failing)
    assert failing.sinks[0].sink_lag.seconds is not None
    made.stop(daemon)


def test_a_daemon_that_was_killed_leaves_no_lag_that_anybody_knows(
    made: RunningPipeline,
    database: dict[str, str],
    typed: CommandLine,
    kafka_admin: AdminClient,
) -> None:
    daemon, settings = made.catch_up(), made.settings
    merged(made, reaches=True)
    daemon.wait_until(lambda: answered(settings).capture_lag.seconds is not None)
    daemon.kill()
    killed = answered(settings)
    assert "the daemon: no daemon reads slot" in problems(killed)
    assert not no_lag(killed)
    deadline = time.monotonic() + 30
    dead = answered(settings)
    while (
        "no change or heartbeat has come" not in dead.capture_lag.unknown
        and time.monotonic() < deadline
    ):
        time.sleep(1)
        dead = answered(settings)
    assert "no change or heartbeat has come from the source for" in dead.capture_lag.unknown
    assert dead.sinks[0].lag.seconds is None

    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        name = settings.capture.slot_name
        _drop_when_free(connection, name)
    gone = answered(settings)
    assert f"slot {name} is missing, and the log has a gap" in problems(gone)
    ended = checked(made, typed)
    assert ended.returncode == ExitCode.CHECK_FAILED
    assert ended.stdout.startswith("PROBLEM ")

    topic = status_topic(settings.capture.topic_prefix)
    assert topic not in problems(answered(settings))
    for deleted in kafka_admin.delete_topics([topic]).values():
        deleted.result()
    deadline = time.monotonic() + 30
    while topic not in (told := problems(answered(settings))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert f"the log: no run can report: the topic {topic} is missing" in told
    assert (
        "restart the daemon; if its log says that it lacks the right to create the topic, run"
        in told
    )
    assert "--operation Create" in told
    no_sinks = settings.model_copy(update={"lakehouse": None})
    assert topic not in problems(answered(no_sinks))


def _sections(settings: Settings) -> dict[str, Any]:
    return {
        "source": settings.source,
        "kafka": settings.kafka,
        "capture": settings.capture.model_dump(by_alias=True, exclude_unset=True),
        "lakehouse": settings.require_lakehouse().model_dump(by_alias=True, exclude_unset=True),
    }


def _drop_when_free(connection: psycopg.Connection, name: str) -> None:
    """The server takes a moment to see that its reader was killed."""
    for _ in range(100):
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        except psycopg.errors.ObjectInUse:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the slot stays in use")


def test_a_first_snapshot_is_no_daemon_that_has_ended(
    pipeline: Any, database: dict[str, str]
) -> None:
    """Its slot isn't read yet; the status says that rows are, and that no lag is known."""
    run(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY, t text)",
        "INSERT INTO orders SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i",
    )
    made: RunningPipeline = pipeline(
        **{"snapshot.rows.per.second.max": 1_000, "snapshot.chunk.bytes": 1 << 20}
    )
    made.start()
    deadline = time.monotonic() + 60
    shown = answered(made.settings)
    while not (shown.tables and shown.tables[0].percent) and time.monotonic() < deadline:
        time.sleep(0.2)
        shown = answered(made.settings)
    assert shown.is_captured
    assert "no daemon reads slot" not in problems(shown)
    assert shown.slot is not None
    assert shown.slot.active or "the daemon is reading rows" in _text(shown)
    assert shown.capture_lag.unknown == "the first snapshot isn't complete"
    assert 0 < shown.tables[0].percent < 100


def _text(status: Status) -> str:
    """The status as a terminal of 80 columns shows it."""
    out = StringIO()
    Console(file=out, width=80).print(render(status))
    return " ".join(out.getvalue().split())


def test_a_run_that_stops_saying_that_it_runs_counts_as_gone(made: RunningPipeline) -> None:
    made.catch_up()
    merged(made, reaches=True)
    long_ago_ms = time.time_ns() // 1_000_000 - 120_000
    reports = ReportWriter(made.settings, pytest.fail)
    with reports:
        reports.put(RunReport(sink="lakehouse", started_ms=long_ago_ms))
        time.sleep(0.5)
        assert "ended without a report" not in problems(answered(made.settings))
    running = answered(made.settings).sinks[0].running
    assert running is not None
    assert not running.is_gone(running.deadline_ms)
    assert running.is_gone(running.deadline_ms + 1)


def test_events_of_a_snapshot_that_was_killed_count(
    pipeline: Any, database: dict[str, str]
) -> None:
    run(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY, t text)",
        "INSERT INTO orders SELECT i, repeat('x', 500) FROM generate_series(1, 2000) i",
    )
    made: RunningPipeline = pipeline(**SMALL)
    daemon = made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:3"})
    assert daemon.wait(60) == -signal.SIGKILL
    assert answered(made.settings).events == len(made.log())
    daemon = made.catch_up()
    assert answered(made.settings).events == len(made.log()) >= 2_000
    made.stop(daemon)


def test_a_daemon_that_starts_over_says_why_until_it_streams_again(
    made: RunningPipeline, postgres: Postgres
) -> None:
    daemon = made.catch_up()
    postgres.stop()
    try:
        daemon.wait_until(lambda: "starting over" in daemon.command.log.read_text())
        time.sleep(0.5)
        away = problems(answered(made.settings))
    finally:
        postgres.start()
    assert "the daemon: it has been starting over for " in away
    assert "the source: unknown, because" in away
    daemon.wait_until(lambda: "the daemon:" not in problems(answered(made.settings)))
    made.stop(daemon)

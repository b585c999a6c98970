"""Writes at the source → a wait that ends once sinks show them: never early, never endless."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ConfigError, ExitCode
from cdc.log.offsets import LogReader
from cdc.log.reports import ReportWriter
from cdc.records.reports import RunReport, TableReport
from deploy.commands.wait import NotShownError, wait
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import delta_scan
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
NAME: Final = "public.orders"
SEED: Final = 7


class SmallSink:
    """A sink that keeps the keys of one table in memory, and reports as merges do."""

    def __init__(self, made: RunningPipeline) -> None:
        self._made = made
        self._settings = made.settings
        self._log = LogReader(self._settings.kafka)
        self._run = 0
        self.keys: set[str] = set()

    def merge(self, reports: ReportWriter) -> None:
        """One run."""
        capture = self._settings.capture
        started_ms = time.time_ns() // 1_000_000
        reports.put(RunReport(sink="lakehouse", started_ms=started_ms))
        state = self._log.state(capture.topic_prefix, capture.slot_name)
        topic = state.tables[NAME].topic
        self.keys = {
            str(record.key)
            for record in self._made.log()
            if record.topic == topic and record.offset < state.ends[topic][record.partition]
        }
        self._run += 1
        progress = state.progress
        at = {"cut": progress.cut, "cut_ts_us": progress.cut_ts_us, "log": progress.log}
        at["run"] = self._run
        table = TableReport(
            sink="lakehouse",
            table=NAME,
            source=NAME,
            offsets={topic: state.ends[topic]},
            reported_ms=started_ms,
            **at,
        )
        ended = {"started_ms": started_ms, "ended_ms": started_ms + 1, "exit_code": 0}
        reports.put(RunReport(sink="lakehouse", **ended, **at), [table])

    @contextmanager
    def merging(self) -> Iterator[None]:
        """Runs, one after the other, at random times."""
        stop = threading.Event()
        choose = random.Random(SEED)  # noqa: S311 (repeatable is what it has to be)

        def go_on() -> None:
            with ReportWriter(self._settings, pytest.fail) as reports:
                while not stop.wait(choose.uniform(0, 0.2)):
                    self.merge(reports)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def made(pipeline: Any, database: dict[str, str]) -> Iterator[RunningPipeline]:
    """A daemon that streams one table, and leaves another one out."""
    run(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY, kind text)",
        "CREATE TABLE left_out (id int PRIMARY KEY)",
    )
    running: RunningPipeline = pipeline(
        **{"heartbeat.source.interval.ms": 500, "table.include.list": NAME}
    )
    daemon = running.catch_up()
    yield running
    running.stop(daemon)


def instant_of(connection: psycopg.Connection, statement: str) -> str:
    """Write something, and say until where the WAL has it."""
    connection.execute(statement)
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def test_a_wait_ends_when_the_sink_has_the_write_and_not_before(
    made: RunningPipeline, database: dict[str, str]
) -> None:
    sink = SmallSink(made)
    with ReportWriter(made.settings, pytest.fail) as reports:
        sink.merge(reports)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection, sink.merging():
        for number in range(20):
            if number % 4 == 3:  # which no sink ever sees, and which is shown all the same
                lsn = instant_of(connection, f"INSERT INTO left_out VALUES ({number})")
                wait(made.config, lsn=lsn, timeout="60s")
                continue
            lsn = instant_of(connection, f"INSERT INTO orders VALUES ({number})")
            wait(made.config, lsn=lsn, timeout="60s")
            assert f'{{"id":{number}}}' in sink.keys
        wait(made.config, now=True, timeout="60s")


def test_an_idle_source_shows_what_was_merged_long_ago(made: RunningPipeline) -> None:
    """No run comes any more, as nothing does: each later instant is shown by the log alone."""
    with ReportWriter(made.settings, pytest.fail) as reports:
        SmallSink(made).merge(reports)
    for _ in range(3):
        wait(made.config, now=True, timeout="30s")
        time.sleep(0.3)


def test_a_table_that_the_daemon_has_not_seen_yet_is_not_shown(
    pipeline: Any, database: dict[str, str]
) -> None:
    """It looks for new tables every few seconds, and the log is ahead of that."""
    run(database, "CREATE TABLE orders (id int PRIMARY KEY)")
    running: RunningPipeline = pipeline(**{"heartbeat.source.interval.ms": 500})
    daemon = running.catch_up()
    with ReportWriter(running.settings, pytest.fail) as reports:
        SmallSink(running).merge(reports)
    wait(running.config, now=True, timeout="30s")
    run(database, "CREATE TABLE fresh (id int PRIMARY KEY)", "INSERT INTO fresh VALUES (1)")
    with pytest.raises(NotShownError, match=r"table public\.fresh: |lakehouse, public\.fresh: "):
        wait(running.config, now=True, timeout="1s")
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        lsn = instant_of(connection, "DROP TABLE fresh")
    wait(running.config, lsn=lsn, timeout="30s")

    running.stop(daemon)  # it sees no table any more
    run(database, "CREATE TABLE unseen (id int PRIMARY KEY)")
    dropping = threading.Timer(1, run, [database, "DROP TABLE unseen"])
    dropping.start()
    began = time.monotonic()
    wait(running.config, lsn=lsn, timeout="30s")
    assert 1 < time.monotonic() - began < 10
    dropping.join()


def test_a_wait_that_cannot_end_well_says_why_at_once(
    made: RunningPipeline, database: dict[str, str]
) -> None:
    def said(**options: Any) -> str:
        with pytest.raises(NotShownError) as ended:
            wait(made.config, **{"now": True, "timeout": "60s", **options})
        assert ended.value.exit_code == ExitCode.NOT_SHOWN
        return str(ended.value)

    began = time.monotonic()
    assert "lakehouse: no run has reported its cut" in said()
    with ReportWriter(made.settings, pytest.fail) as reports:
        SmallSink(made).merge(reports)
    assert time.monotonic() - began < 30

    run(database, "INSERT INTO orders VALUES (1)")
    late = said(timeout="1s")
    assert "isn't shown within 1s" in late
    assert f"lakehouse, {NAME}: its cut is" in late
    with pytest.raises(ConfigError, match="belongs to another server"):
        wait(made.config, lsn="FFFFFF/0")
    with pytest.raises(ConfigError, match="no instant is given, or two"):
        wait(made.config)

    run(database, "ALTER TABLE orders DROP CONSTRAINT orders_pkey", "INSERT INTO orders VALUES (2)")
    deadline = time.monotonic() + 30
    while not any(state.doubt for state in made.tables()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert f"table {NAME}: " in said()


@pytest.mark.spark
@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_a_thousand_writes_are_shown_by_merges_when_the_wait_ends(
    made: RunningPipeline, database: dict[str, str]
) -> None:
    merges = made.follow("--interval", "1s")
    lakehouse = made.settings.require_lakehouse()
    try:
        with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
            instant_of(connection, "INSERT INTO orders VALUES (0)")
            # Until a run has reported, a wait ends at once: nobody knows whether one ever will.
            merges.wait_until(lambda: made.status()["sinks"][0]["last_run"] is not None)
            for number in range(1, 1_001):
                lsn = instant_of(connection, f"INSERT INTO orders VALUES ({number})")
                if number % 10:
                    continue
                wait(made.config, lsn=lsn, timeout="120s")
                (row,) = delta_scan(
                    f"{lakehouse.path}/public/orders", "SELECT count(*) AS n, max(id) AS m FROM t"
                )
                assert row == {"n": number + 1, "m": number}
    finally:
        made.stop(merges)

"""A server or the network stops and returns → the daemon continues without help.

Afterwards, nothing is missing and nothing is duplicated: the log equals the source.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo

from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from deploy.local.processes import Process
from tests.faults.test_killed_daemon import SCHEMA, assert_log_is_the_source
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.refusals import Configured

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
WAL_SENDER_TIMEOUT_S = 10
STOP_S_MAX = 20
AT_ONCE_S = 15
TAKE_OVER_S = 25
"""A busy machine's; a quiet one's is two."""
END_THE_STANDBYS_SESSION = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity a
    WHERE application_name = 'millrace lock' AND datname = current_database()
      AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory')
"""
STANDBY = {"slot.max.retries": -1, "slot.retry.delay.ms": 10_000}


class Load:
    """Transactions one after the other; a lost connection is made anew."""

    def __init__(self, database: Mapping[str, str]) -> None:
        self._conninfo = make_conninfo(**database)
        self._stop = threading.Event()
        self._choose = random.Random(3)  # noqa: S311 (repeatable is what it has to be)
        self._ids = itertools.count(100_000)
        self.transactions = 0

    def run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as connection:
                    self._change(connection)
            except psycopg.OperationalError:
                time.sleep(0.1)

    def _change(self, connection: psycopg.Connection) -> None:
        while not self._stop.wait(0.01):
            # Another ID each time: one whose connection was lost may have been committed.
            one, fresh = self._choose.randint(1, 600), next(self._ids)
            with connection.transaction():
                connection.execute("UPDATE item SET n = n + 1 WHERE id = %s", [one])
                connection.execute("INSERT INTO pair VALUES (%s, 'new', 1)", [fresh])
                connection.execute("UPDATE pair SET b = b || 'x' WHERE a = %s", [one])
            self.transactions += 1

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def under_load(database: Mapping[str, str]) -> Iterator[Load]:
    load = Load(database)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join()


def query(database: Mapping[str, str], statement: str, *values: object) -> object:
    """The first column of the first row."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        row = connection.execute(statement.encode(), values).fetchone()
    return row[0] if row else None


def streaming(pipeline: RunningPipeline, daemon: Process) -> None:
    daemon.wait_until(lambda: (p := pipeline.progress()) is not None and p.phase == "streaming")


def reader(pipeline: RunningPipeline, database: Mapping[str, str]) -> object:
    """The server process that reads the slot, while there is one."""
    statement = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    return query(database, statement, pipeline.settings.capture.slot_name)


def create(database: Mapping[str, str]) -> None:
    with psycopg.connect(make_conninfo(**database)) as connection:
        connection.execute(SCHEMA.encode())


def finish(
    pipeline: RunningPipeline, daemon: Process, database: Mapping[str, str], prefix: str
) -> None:
    """What was changed by now arrives, the daemon ends in order, and the log is the source."""
    pipeline.wait_until_logged(pipeline.wal_end(), daemon)
    assert pipeline.stop(daemon) == 0
    assert_log_is_the_source(pipeline, database, prefix)


@pytest.mark.proof
@pytest.mark.stops_kafka
def test_a_hanging_kafka_costs_neither_the_connection_nor_a_change_nor_sigterm(
    configured: Configured, database: dict[str, str], kafka: Kafka, topic_prefix: str
) -> None:
    create(database)
    made = configured()
    daemon = made.start()
    beside = f"{topic_prefix}-beside"
    name = beside.replace("-", "_")
    names = {"topic.prefix": beside, "slot.name": name, "publication.name": name}
    ended = configured(**names)
    ends = ended.start()
    streaming(made, daemon)
    streaming(ended, ends)
    walsender = reader(made, database)
    with under_load(database) as load:
        time.sleep(1)
        kafka.pause()
        try:
            hangs_until = time.monotonic() + WAL_SENDER_TIMEOUT_S + 4
            before = load.transactions
            time.sleep(1)
            assert stopped_within(ended, ends, STOP_S_MAX)
            time.sleep(max(0, hangs_until - time.monotonic()))
            assert load.transactions > before
            assert reader(made, database) == walsender
        finally:
            kafka.resume()
        made.wait_until_logged(made.wal_end(), daemon)
        assert reader(made, database) == walsender
    assert walsender is not None
    finish(made, daemon, database, topic_prefix)
    finish(ended, ended.start(), database, beside)


def test_the_daemon_recovers_from_an_orderly_restart_of_postgresql(
    configured: Configured, database: dict[str, str], postgres: Postgres, topic_prefix: str
) -> None:
    """The server waits for its walsenders; less orderly ends are those of tests/chaos."""
    create(database)
    made = configured(**{"slot.max.retries": 60})
    daemon = made.start()
    streaming(made, daemon)
    with under_load(database) as load:
        time.sleep(0.5)
        postgres.restart()
        transactions = load.transactions
        daemon.wait_until(lambda: load.transactions > transactions + 20)
    finish(made, daemon, database, topic_prefix)


def test_sigterm_in_the_snapshot_and_while_waiting_for_the_slot_ends_at_once(
    configured: Configured, database: dict[str, str], topic_prefix: str
) -> None:
    create(database)
    query(
        database,
        "INSERT INTO item SELECT i, repeat('y', 3000), 0 FROM generate_series(1000, 12000) i"
        " RETURNING 1",
    )
    first = configured(**{"slot.max.retries": 60})
    daemon = first.start({"MILLRACE_CAPTURE__SNAPSHOT__CHUNK__BYTES": "8192"})
    daemon.wait_until(lambda: any(table.rows_sent > 0 for table in first.tables()))
    assert stopped_within(first, daemon, AT_ONCE_S)
    assert any(table.phase == "snapshot" for table in first.tables())
    daemon = first.start()
    streaming(first, daemon)
    standby = configured(**{"slot.max.retries": 60})
    waiting = standby.start()
    waiting.wait_until(lambda: "waiting" in waiting.command.log_end())
    assert stopped_within(standby, waiting, AT_ONCE_S)
    finish(first, daemon, database, topic_prefix)


def stopped_within(pipeline: RunningPipeline, daemon: Process, seconds: float) -> bool:
    started = time.monotonic()
    assert pipeline.stop(daemon) == 0
    return time.monotonic() - started < seconds


def test_a_standby_takes_over_from_a_killed_daemon_in_seconds(
    configured: Configured, database: dict[str, str], topic_prefix: str
) -> None:
    create(database)
    first = configured()
    daemon = first.start()
    streaming(first, daemon)
    standby = configured(**STANDBY)
    waiting = standby.start()
    waiting.wait_until(lambda: "waiting" in waiting.command.log_end())
    query(database, END_THE_STANDBYS_SESSION)
    waiting.wait_until(lambda: waiting.command.log_end().count("waiting") > 1)
    with under_load(database) as load:
        time.sleep(1)
        daemon.kill()
        killed = time.monotonic()
        waiting.wait_until(lambda: "streaming" in waiting.command.log_end())
        assert time.monotonic() - killed < TAKE_OVER_S
        assert load.transactions > 0
    finish(standby, waiting, database, topic_prefix)


@pytest.mark.proof
def test_a_daemon_that_slept_while_another_took_over_stands_by_until_that_one_dies(
    configured: Configured, database: dict[str, str], topic_prefix: str
) -> None:
    """Nothing but silence tells the server: the sleeper's kernel still answers for it."""
    create(database)
    first = configured()
    sleeper = first.start()
    streaming(first, sleeper)
    with under_load(database):
        standby = configured(**STANDBY)
        successor = standby.start()
        successor.wait_until(lambda: "waiting" in successor.command.log_end())
        sleeper.pause()
        slept = time.monotonic()
        successor.wait_until(lambda: "streaming" in successor.command.log_end())
        assert time.monotonic() - slept < WAL_SENDER_TIMEOUT_S + TAKE_OVER_S
        sleeper.resume()
        sleeper.wait_until(lambda: "waiting" in sleeper.command.log_end())
        standby.wait_until_logged(standby.wal_end(), successor)
        successor.kill()
    finish(first, sleeper, database, topic_prefix)


@pytest.mark.proof
def test_a_daemon_whose_slot_is_still_its_own_starts_over_whatever_else_was_taken(
    configured: Configured, database: dict[str, str], topic_prefix: str
) -> None:
    create(database)
    made = configured()
    daemon = made.start()
    streaming(made, daemon)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {} = %s AND datname = %s"
    assert query(database, end.format("application_name"), "millrace lock", database["dbname"])
    daemon.wait_until(lambda: "the daemon lost its lock on slot" in daemon.command.log_end())
    daemon.wait_until(lambda: daemon.command.log_end().count("streaming") > 1)

    name = f"millrace-{topic_prefix}-{made.settings.capture.slot_name}"
    Producer({**made.settings.kafka, "transactional.id": name}).init_transactions(30)
    query(database, "UPDATE item SET n = n + 1 RETURNING 1")
    daemon.wait_until(lambda: "the same transactional.id" in daemon.command.log_end())
    finish(made, daemon, database, topic_prefix)


@pytest.mark.proof
def test_without_a_disk_for_large_transactions_postgresql_keeps_them(
    pipeline: Callable[..., RunningPipeline],
    database: dict[str, str],
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    source = {**database, "options": "-c logical_decoding_work_mem=64kB"}
    spill = tmp_path / "spill"
    spill.mkdir()
    made = pipeline(source=source, **{"spill.memory.bytes": 0, "spill.directory": str(spill)})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        spill.rmdir()
        connection.execute("INSERT INTO loose SELECT i FROM generate_series(1001, 4000) i")
        made.wait_until_logged(made.wal_end(), daemon)
    assert "can't keep a transaction too large for memory on disk" in daemon.command.log_end()
    assert made.stop(daemon) == 0
    assert_log_is_the_source(made, database, topic_prefix)

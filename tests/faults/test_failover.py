"""A standby is promoted → the daemon continues if nothing is lost, and otherwise reports the loss.

If it can't continue alone, `millrace new-epoch` makes the log equal the source again.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from deploy.local.postgres import Postgres
from tests.faults.test_gaps import run
from tests.faults.test_killed_daemon import SCHEMA, assert_log_is_the_source
from tests.faults.test_outages import query, streaming, under_load
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.refusals import Configured, refusal

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
STANDBY = {
    "sync_replication_slots": "on",
    "hot_standby_feedback": "on",
    # As fast as they can be: a test is no place to wait.
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "100ms",
}

LOST = (
    "INSERT INTO item VALUES (7001, 'never replicated', 0)",
    "UPDATE item SET v = 'never replicated' WHERE id = 1",
    "DELETE FROM item WHERE id = 2",
    "INSERT INTO loose VALUES (7001)",
)
MEANWHILE = (
    "UPDATE item SET v = 'changed in the gap' WHERE id = 3",
    "DELETE FROM item WHERE id = 4",
    "DELETE FROM pair WHERE a < 200",
    "DELETE FROM loose WHERE v = 5",
    "INSERT INTO loose VALUES (8001)",
)
AFTERWARDS = (
    "UPDATE item SET v = 'streamed' WHERE id = 5",
    "DELETE FROM item WHERE id = 6",
    "INSERT INTO loose VALUES (9001)",
)


@contextmanager
def two_servers(folder: Path) -> Iterator[tuple[Postgres, Postgres]]:
    """A primary, and a standby of it that follows."""
    primary = Postgres(folder / "one").start()
    standby = primary.standby(folder / "two", "standby", STANDBY)
    try:
        yield primary, standby.start()
    finally:
        standby.stop()
        primary.stop()


def either(primary: Postgres, standby: Postgres) -> dict[str, str]:
    """How a daemon is told of both: libpq finds the one that takes writes."""
    return {
        **primary.conninfo(),
        "host": "127.0.0.1,127.0.0.1",
        "port": f"{primary.port},{standby.port}",
        "target_session_attrs": "read-write",
    }


def assert_goes_on(pipeline: RunningPipeline, source: dict[str, str], prefix: str) -> None:
    """A daemon reads what there is and streams what comes, and the log is the source."""
    daemon = pipeline.catch_up()
    run(source, *AFTERWARDS)
    pipeline.wait_until_logged(pipeline.wal_end(), daemon)
    assert pipeline.stop(daemon) == 0
    assert_log_is_the_source(pipeline, source, prefix)


def log_of(pipeline: RunningPipeline) -> str:
    return (pipeline.folder / "daemon.log").read_text(encoding="utf-8")


def wait_until_synced(primary: Postgres, standby: Postgres, slot: str) -> None:
    """Wait until the standby has a copy of the slot that outlives the primary."""
    statement = (
        "SELECT synced AND NOT temporary AND invalidation_reason IS NULL"
        " FROM pg_replication_slots WHERE slot_name = %s"
    )
    deadline = time.monotonic() + 60
    while query(standby.conninfo(), statement, slot) is not True:
        assert time.monotonic() < deadline, "the slot wasn't copied"
        # It is copied for good once the primary needs nothing older than the standby has.
        query(primary.conninfo(), "SELECT pg_log_standby_snapshot()")
        time.sleep(0.2)


def test_under_load_a_promoted_standby_is_gone_on_with_and_nothing_is_lost_or_repeated(
    server_folder: Path, configured: Configured, topic_prefix: str
) -> None:
    with two_servers(server_folder) as (primary, standby):
        run(
            primary.conninfo(),
            "ALTER SYSTEM SET synchronized_standby_slots = 'standby'",
            "SELECT pg_reload_conf()",
            SCHEMA,
        )
        source = either(primary, standby)
        made = configured(source)
        daemon = made.start()
        streaming(made, daemon)
        slot = made.settings.capture.slot_name
        with under_load(source) as load:
            wait_until_synced(primary, standby, slot)
            time.sleep(1)
            assert "no gap" in made.millrace("new-epoch").stdout
            primary.kill()
            standby.promote()
            promoted = load.transactions
            daemon.wait_until(lambda: load.transactions > promoted + 20)
        made.wait_until_logged(made.wal_end(), daemon)
        progress = made.progress()
        assert progress is not None
        assert (progress.timeline, progress.position.epoch) == (2, 1)
        shown = made.status()
        assert (shown["timeline"], shown["epoch"], shown["slot"]["failover"]) == (2, 1, True)
        assert made.stop(daemon) == 0
        assert_log_is_the_source(made, standby.conninfo(), topic_prefix)


@pytest.mark.proof
def test_a_standby_that_was_behind_is_refused_until_a_new_epoch_makes_the_log_right(
    server_folder: Path, configured: Configured, topic_prefix: str
) -> None:
    with two_servers(server_folder) as (primary, standby):
        run(primary.conninfo(), SCHEMA)
        made = configured(either(primary, standby) | {"target_session_attrs": "any"})
        daemon = made.start()
        streaming(made, daemon)
        assert "synchronized_standby_slots = 'standby'" in log_of(made)
        standby.stop()
        run(primary.conninfo(), *LOST)
        made.wait_until_logged(made.wal_end(), daemon)
        primary.kill()
        standby.start()
        daemon.wait_until(lambda: "isn't promoted yet" in log_of(made))
        standby.promote()
        assert daemon.wait(60) == ExitCode.GAP
        before = made.progress()
        assert "the server has another history" in log_of(made)
        assert "millrace new-epoch" in log_of(made)
        assert before is not None
        assert "the server has another history" in made.millrace("new-epoch").stdout
        assert made.progress() == before

        run(standby.conninfo(), *MEANWHILE)
        killed = made.millrace(
            "new-epoch", "--yes", environment={VARIABLE: FaultPoint.EPOCH_RECORDED}
        )
        assert killed.returncode == -signal.SIGKILL
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        run(standby.conninfo(), *AFTERWARDS)
        progress = made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
        assert (progress.position.epoch, progress.timeline, progress.log) == (2, 2, before.log)
        assert progress.events > before.events
        assert_log_is_the_source(made, standby.conninfo(), topic_prefix)


@pytest.fixture
def forgetful(postgres: Postgres, database: dict[str, str]) -> Iterator[dict[str, str]]:
    """The test's database, at a server that keeps little WAL for slots."""
    setting = "max_slot_wal_keep_size"
    run(postgres.conninfo(), f"ALTER SYSTEM SET {setting} = '1MB'", "SELECT pg_reload_conf()")
    yield database
    run(postgres.conninfo(), f"ALTER SYSTEM RESET {setting}", "SELECT pg_reload_conf()")


@pytest.mark.proof
def test_a_slot_that_was_lost_is_refused_until_a_new_epoch_makes_the_log_right(
    configured: Configured, forgetful: dict[str, str], topic_prefix: str
) -> None:
    run(forgetful, SCHEMA)
    made = configured(**{"slot.max.retries": 60, "slot.retry.delay.ms": 10_000})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    # It never stands by, to strike when the daemon happens to end.
    assert made.millrace("new-epoch", "--yes").returncode == ExitCode.SLOT_IN_USE
    assert made.stop(daemon) == 0
    switch = ["SELECT pg_switch_wal()", "SELECT pg_logical_emit_message(true, 'x', 'x')"]
    run(forgetful, *MEANWHILE, *(3 * switch), "CHECKPOINT")
    refusal(made, ExitCode.GAP, "has lost changes", "millrace new-epoch")
    begun = made.millrace("new-epoch", "--yes")
    assert begun.returncode == 0, begun.stderr
    assert "epoch 2 begins" in begun.stdout
    assert "epoch 2 has begun" in made.millrace("new-epoch").stdout
    assert_goes_on(made, forgetful, topic_prefix)


@pytest.fixture
def one_server(server_folder: Path) -> Iterator[Postgres]:
    """A server of the test's own."""
    server = Postgres(server_folder).start()
    yield server
    server.stop()


@pytest.mark.proof
def test_a_server_that_was_set_back_is_refused_however_much_it_has_written_since(
    one_server: Postgres, server_folder: Path, configured: Configured, topic_prefix: str
) -> None:
    """Nothing else tells: system identifier, timeline and slot are the same, the WAL is longer."""
    source = one_server.conninfo()
    run(source, SCHEMA)
    made = configured(source)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    data, copy = server_folder / "postgres" / "data", server_folder / "copy"
    with stopped(one_server):
        copy_with_owner(data, copy)
    daemon = made.start()
    run(source, *LOST)
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    before = made.progress()
    assert before is not None
    with stopped(one_server):
        data.rename(server_folder / "gone")
        copy.rename(data)
    run(source, *MEANWHILE, "INSERT INTO loose SELECT i FROM generate_series(20000, 30000) i")
    assert made.wal_end() > before.position.commit_lsn
    for _ in range(2):  # the first one acknowledges nothing that would help the second
        refusal(made, ExitCode.GAP, "restore from a copy", "millrace new-epoch --yes")
        assert made.progress() == before

    assert made.millrace("new-epoch", "--yes").returncode == 0
    assert_goes_on(made, source, topic_prefix)


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    server.stop()
    yield
    server.start()


def copy_with_owner(source: Path, target: Path) -> None:
    """As shutil.copytree, for files of the user that the server runs as."""
    shutil.copytree(source, target)
    for found in (source, *source.rglob("*")):
        owner = found.stat()
        os.chown(target / found.relative_to(source), owner.st_uid, owner.st_gid)

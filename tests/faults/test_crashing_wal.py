"""WAL that crashes the server whenever it decodes it: the daemon stops trying, and can skip it."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.postgres import Postgres
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.source import leave_detach_pending

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.fixture
def source(server_folder: Path) -> Iterator[dict[str, str]]:
    """A database on a server of its own."""
    server = Postgres(server_folder).start()
    try:
        yield server.create_database("crashing")
    finally:
        server.stop()


def run(source: Mapping[str, str], *statements: str) -> None:
    """Run statements, once the server takes connections."""
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = psycopg.connect(make_conninfo(**source), autocommit=True)
            break
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    with connection:
        for statement in statements:
            connection.execute(statement.encode())


def crashes(folder: Path) -> int:
    """How many processes of the server have crashed by now."""
    log = (folder / "postgres" / "postgres.log").read_text(encoding="utf-8")
    return log.count("was terminated by signal")


def has_crashed(folder: Path, times: int) -> bool:
    return crashes(folder) == times


@pytest.mark.proof
def test_crashes_at_the_same_place_end_the_daemon_and_a_new_epoch_goes_on(
    pipeline: Callable[..., RunningPipeline], source: dict[str, str], server_folder: Path
) -> None:
    """PostgreSQL 14 to 18: a partition that is being detached, and published via its root."""
    made = pipeline(source=source, **{"publication.autocreate.mode": "disabled"})
    run(
        source,
        "CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)",
        "INSERT INTO part VALUES (1), (11)",
        f"CREATE PUBLICATION {made.settings.capture.publication_name} FOR ALL TABLES"
        " WITH (publish_via_partition_root = true)",
    )
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    leave_detach_pending(source, "part", "part_1")
    finalize = "ALTER TABLE public.part DETACH PARTITION public.part_1 FINALIZE;"
    daemon.wait_until(lambda: finalize in daemon.command.log_end())
    assert crashes(server_folder) == 0

    with suppress(psycopg.OperationalError):  # it has committed by then
        run(source, "INSERT INTO part_1 VALUES (2)")
    assert daemon.wait(60) == ExitCode.GAP
    after = crashes(server_folder)
    assert after in {3, 4}, "three, and one more whose notice was lost, or with progress in between"
    run(source, finalize)  # what was written before is decoded as things were then

    run(source, "SELECT 1")
    begun = made.millrace("new-epoch", "--yes")
    assert begun.returncode == 0, begun.stderr
    run(source, "INSERT INTO part VALUES (12)", "INSERT INTO part_1 VALUES (3)")
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert crashes(server_folder) == after
    rows = [record for record in made.log() if record.topic.endswith(".part")]
    assert sorted(state_of(rows)) == ['{"id":11}', '{"id":12}']


@pytest.mark.proof
def test_crashes_with_changes_in_between_end_nothing(
    pipeline: Callable[..., RunningPipeline], source: dict[str, str], server_folder: Path
) -> None:
    made = pipeline(source=source)
    run(source, "CREATE TABLE item (id int PRIMARY KEY)")
    daemon = made.start()
    for number in range(1, 4):
        run(source, f"INSERT INTO item VALUES ({number})")
        made.wait_until_logged(made.wal_end(), daemon)
        with psycopg.connect(make_conninfo(**source)) as connection:
            os.kill(connection.info.backend_pid, signal.SIGKILL)
        daemon.wait_until(partial(has_crashed, server_folder, number))
    run(source, "INSERT INTO item VALUES (4)")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0

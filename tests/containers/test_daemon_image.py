"""The daemon's image, built from the tree → it captures like the tree, with a locked-down root."""

import signal
import time
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.processes import answers
from tests.containers.engine import client
from tests.containers.servers import ContainerProcess
from tests.faults.test_killed_daemon import SCHEMA, SMALL, assert_log_is_the_source, change
from tests.fixtures.images import BASES, MakeContainers

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.xdist_group("images"),
    pytest.mark.timeout(900),  # the first build on a machine fetches what images are made of
]
MEBIBYTE = 1 << 20


def test_a_killed_and_restarted_container_loses_nothing_and_repeats_nothing(
    daemon_image: str,
    in_containers: MakeContainers,
    database: dict[str, str],
    topic_prefix: str,
) -> None:
    """Snapshot, stream, SIGKILL, changes meanwhile, a new start, SIGTERM; then a comparison."""
    made = in_containers(capture=SMALL)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        change(connection, seed=2, transactions=20)
        assert answers(made.health_port, "/health/live")
        daemon.kill()
        assert daemon.exit_code == 128 + signal.SIGKILL
        change(connection, seed=3, transactions=20)
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert_log_is_the_source(made, database, topic_prefix)


def test_an_image_is_small_and_says_what_it_is(daemon_image: str) -> None:
    image, base = (client().images.get(name) for name in (daemon_image, *BASES["daemon"]))
    assert image.attrs["Size"] - base.attrs["Size"] < 250 * MEBIBYTE
    configuration = image.attrs["Config"]
    assert configuration["User"] == "10001:10001"
    assert configuration["Entrypoint"] == ["tini", "--", "millrace"]
    assert configuration["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.proof
def test_orphans_are_reaped_and_exit_codes_come_through(
    daemon_image: str, in_containers: MakeContainers, database: dict[str, str]
) -> None:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
    made = in_containers()
    daemon = made.start()
    assert isinstance(daemon, ContainerProcess)
    daemon.wait_until(lambda: made.progress() is not None)
    execute = daemon.container.exec_run
    assert execute(["python", "-c", "import os, time; os.fork() or time.sleep(1)"]).exit_code == 0
    time.sleep(2)
    states = "import glob; print(*(open(f).read().split(') ')[1][0] for f in glob.glob(ALL)))"
    (shown,) = execute(["python", "-c", f"ALL = '/proc/[0-9]*/stat'; {states}"]).output.splitlines()
    assert b"Z" not in shown
    assert made.stop(daemon) == 0
    refused = replace(made.commands[daemon_image], words=("run", "--config", "/no"), containers=[])
    try:
        assert refused.start().wait(60) == ExitCode.CONFIG
    finally:
        refused.remove()

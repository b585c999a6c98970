"""A standby is promoted → the daemon goes on where nothing is lost, and says so where something is.

What can't go on by itself goes on by `millrace new-epoch`: then the log is the source again.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from deploy.local.kafka import Kafka
from deploy.local.postgres import Postgres
from deploy.local.processes import Process
from tests.faults.test_gaps import run
from tests.faults.test_killed_daemon import SCHEMA, assert_log_is_the_source
from tests.faults.test_outages import query, streaming, under_load
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.refusals import Configured, refusal

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
STANDBY = {
    "sync_replication_slots": "on",
    "hot_standby_feedback": "on",
    # As fast as they can be: a test is no place to wait.
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "100ms",
}


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


def log_of(pipeline: RunningPipeline) -> str:
    return (pipeline.folder / "daemon.log").read_text(encoding="utf-8")


def is_synced(standby: Postgres, slot: str) -> bool:
    statement = (
        "SELECT synced AND NOT temporary AND invalidation_reason IS NULL"
        " FROM pg_replication_slots WHERE slot_name = %s"
    )
    return query(standby.conninfo(), statement, slot) is True


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
            query(primary.conninfo(), "SELECT pg_log_standby_snapshot()")
            daemon.wait_until(lambda: is_synced(standby, slot))
            time.sleep(1)
            primary.kill()
            standby.promote()
            promoted = load.transactions
            daemon.wait_until(lambda: load.transactions > promoted + 20)
        made.wait_until_logged(made.wal_end(), daemon)
        progress = made.progress()
        assert progress is not None
        assert (progress.timeline, progress.position.epoch) == (2, 1)
        assert made.stop(daemon) == 0
        assert_log_is_the_source(made, standby.conninfo(), topic_prefix)

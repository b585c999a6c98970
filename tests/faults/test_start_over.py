"""The checks of a start: its leftovers at the source, and changes during its wait."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.refusals import Configured, refusal
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]


def connect(database: Mapping[str, str]) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(**database), autocommit=True)


def held_back(connection: psycopg.Connection) -> tuple[int, int]:
    """How many of our sessions hold a snapshot, and how many slots the database has."""
    row = connection.execute(
        """
        SELECT (SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name LIKE 'millrace%'
                  AND backend_xmin IS NOT NULL AND state <> 'active'),
               (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())
        """
    ).fetchone()
    assert row is not None
    return row


def test_nothing_of_a_snapshot_is_held_at_the_source_once_it_is_read(
    pipeline: MakePipeline, database: dict[str, str]
) -> None:
    """An exported snapshot stops vacuum, and a temporary slot keeps WAL, as long as they live."""
    made = pipeline(**{"snapshot.chunk.bytes": 8192, "slot.retry.delay.ms": 500})
    with connect(database) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
        connection.execute("INSERT INTO item SELECT generate_series(1, 2000)")
        daemon = made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:3"})
        assert daemon.wait(60) != 0
        daemon = made.start()  # takes the snapshot up again, with a temporary slot
        made.wait_until_logged(made.wal_end(), daemon)
        # The catalog check looks for an instant, every few seconds.
        daemon.wait_until(lambda: held_back(connection) == (0, 1))
    assert made.stop(daemon) == 0


def test_the_first_snapshot_is_let_go_once_it_is_read(
    pipeline: MakePipeline, database: dict[str, str]
) -> None:
    made = pipeline()
    with connect(database) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        daemon.wait_until(lambda: held_back(connection) == (0, 1))
    assert made.stop(daemon) == 0


def test_what_changes_while_a_new_slot_waits_for_open_transactions_is_read(
    pipeline: MakePipeline, database: dict[str, str], topic_prefix: str
) -> None:
    """Partitions and columns committed before the consistent point are in the snapshot only."""
    made = pipeline()
    with connect(database) as connection, connect(database) as other:
        connection.execute(
            """
            CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id);
            CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
            INSERT INTO part VALUES (1);
            CREATE TABLE item (id int PRIMARY KEY);
            INSERT INTO item VALUES (1);
            """
        )
        other.execute("BEGIN; SELECT pg_current_xact_id()")
        daemon = made.start()
        daemon.wait_until(lambda: "waits for open transactions" in daemon.command.log_end())
        connection.execute("CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)")
        connection.execute("INSERT INTO part VALUES (11)")
        connection.execute("ALTER TABLE item ADD note text")
        connection.execute("UPDATE item SET note = 'written before the consistent point'")
        other.execute("COMMIT")
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    records = made.log()
    parts = [r for r in records if r.topic == f"{topic_prefix}.public.part"]
    assert sorted(state_of(parts)) == ['{"id":11}', '{"id":1}']
    items = [r for r in records if r.topic == f"{topic_prefix}.public.item"]
    assert state_of(items)['{"id":1}']["note"] == "written before the consistent point"


def test_another_slot_under_the_same_prefix_is_a_gap(
    configured: Configured, database: dict[str, str]
) -> None:
    """The tables count as read, but nobody knows what was written between the slots."""
    with connect(database) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
        made = configured()
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
        connection.execute("INSERT INTO item VALUES (1)")
        name = made.settings.capture.slot_name
        text = made.config.read_text(encoding="utf-8")
        made.config.write_text(
            text.replace(f'"slot.name" = "{name}"', f'"slot.name" = "{name}_b"'), encoding="utf-8"
        )
        refusal(made, ExitCode.GAP, "item", "topic.prefix")
        wait_for(lambda: held_back(connection) == (0, 1))  # a session ends after its process


@pytest.mark.proof
def test_a_snapshot_under_way_keeps_its_slot_and_one_that_was_stopped_says_so(
    pipeline: MakePipeline, database: dict[str, str]
) -> None:
    made = pipeline(**{"snapshot.chunk.bytes": 8192})
    with connect(database) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v text)")
        connection.execute(
            "INSERT INTO item SELECT i, repeat('x', 500) FROM generate_series(1, 60000) i"
        )
        words = (sys.executable, "-m", "millrace", "snapshot", "--config", str(made.config))
        with subprocess.Popen(words, stderr=subprocess.PIPE) as reading:
            deadline = time.monotonic() + 60
            while not any(state.pages_done for state in made.tables()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            dropped = made.millrace("drop", "--yes")
            reading.send_signal(signal.SIGTERM)
            reading.communicate(timeout=60)
        assert dropped.returncode == ExitCode.SLOT_IN_USE, dropped.stderr
        assert reading.returncode == ExitCode.INTERRUPTED
        wait_for(lambda: held_back(connection) == (0, 1))
        assert made.millrace("drop", "--yes").returncode == ExitCode.OK
        assert held_back(connection) == (0, 0)


def test_a_missing_publication_is_noticed_where_the_server_keeps_warnings_to_itself(
    pipeline: MakePipeline, database: dict[str, str]
) -> None:
    made = pipeline()
    with connect(database) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
        quiet = f"ALTER DATABASE {database['dbname']} SET client_min_messages = error"
        connection.execute(quiet.encode())
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        statement = f"DROP PUBLICATION {made.settings.capture.publication_name}"
        connection.execute(statement.encode())
        connection.execute("INSERT INTO item VALUES (1)")
    assert daemon.wait(60) == ExitCode.PUBLICATION

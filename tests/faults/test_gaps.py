"""A slot and a log that no longer match → the daemon reports it and moves nothing."""

import json
import subprocess
import time
from collections.abc import Mapping

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.records.state import FORMAT
from cdc.records.topics import progress_topic
from deploy.local.postgres import Postgres
from deploy.local.processes import Process
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.refusals import Configured, refusal

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def run(database: Mapping[str, str], *statements: str) -> None:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def captured(configured: Configured, database: dict[str, str]) -> RunningPipeline:
    """A pipeline whose daemon has captured a table, and was stopped."""
    run(database, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    made = configured()
    daemon = made.start()
    run(database, "INSERT INTO item VALUES (2)")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    return made


def test_a_slot_that_was_moved_or_removed_behind_our_back_is_a_gap(
    captured: RunningPipeline, database: dict[str, str]
) -> None:
    name = captured.settings.capture.slot_name
    run(
        database,
        "INSERT INTO item VALUES (3)",
        f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())",
    )
    before = captured.progress()
    refusal(captured, ExitCode.GAP, f"slot {name} was moved to", "the log lacks")
    run(database, f"SELECT pg_drop_replication_slot('{name}')")
    refusal(captured, ExitCode.GAP, f"slot {name} is missing", "millrace new-epoch")
    run(database, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    refusal(captured, ExitCode.GAP, f"slot {name} was moved to", "the log lacks")
    assert captured.progress() == before


def ids(made: RunningPipeline) -> list[int]:
    """The keys of the rows in the log, once no table is doubtful."""
    return sorted(row["id"] for row in state_of(made.log()).values())


def await_ids(made: RunningPipeline, daemon: Process, *expected: int) -> None:
    deadline = time.monotonic() + 120
    while ids(made) != [*expected] or any(state.doubt for state in made.tables()):
        assert daemon.running
        assert time.monotonic() < deadline, ids(made)
        time.sleep(0.2)


def test_a_new_epoch_makes_the_log_right(
    captured: RunningPipeline, database: dict[str, str]
) -> None:
    slot = captured.settings.capture.slot_name
    run(database, f"SELECT pg_drop_replication_slot('{slot}')", "DELETE FROM item WHERE id = 1")
    begun = captured.millrace("new-epoch", "--yes")
    assert begun.returncode == 0, begun.stderr
    assert "epoch 2 begins" in begun.stdout
    daemon = captured.start()
    await_ids(captured, daemon, 2)
    assert captured.stop(daemon) == 0


@pytest.mark.proof
def test_a_table_that_left_the_publication_and_came_back_is_read_again(
    captured: RunningPipeline, database: dict[str, str]
) -> None:
    publication = f"ALTER PUBLICATION {captured.settings.capture.publication_name}"
    away = (f"{publication} DROP TABLE item", f"{publication} ADD TABLE item")
    run(database, away[0], "DELETE FROM item WHERE id = 1", "INSERT INTO item VALUES (3)", away[1])
    daemon = captured.start()
    await_ids(captured, daemon, 2, 3)
    run(database, away[0], "INSERT INTO item VALUES (5)", away[1], "INSERT INTO item VALUES (6)")
    await_ids(captured, daemon, 2, 3, 5, 6)
    assert captured.stop(daemon) == 0
    run(database, away[0], "INSERT INTO item VALUES (7)", away[1])
    before = {state.table: state.gaps_total for state in captured.tables()}
    assert captured.millrace("snapshot", "public.item").returncode == 0
    after = {state.table: state.gaps_total for state in captured.tables()}
    assert after == before | {"item": before["item"] + 1}, "no check has come in between"


@pytest.mark.proof
def test_so_is_a_table_that_had_a_name_for_a_while_that_is_not_captured(
    configured: Configured, database: dict[str, str]
) -> None:
    made = configured(**{"table.include.list": "public.item"})
    run(database, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run(database, "ALTER TABLE item RENAME TO away", "INSERT INTO away VALUES (2)")
    run(database, "ALTER TABLE away RENAME TO item", "INSERT INTO item VALUES (3)")
    await_ids(made, daemon, 1, 2, 3)
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_so_is_one_that_is_published_with_its_schema(
    configured: Configured, database: dict[str, str]
) -> None:
    made = configured(**{"publication.autocreate.mode": "disabled"})
    publication = made.settings.capture.publication_name
    schema = "TABLES IN SCHEMA public"
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    run(database, f"CREATE PUBLICATION {publication} FOR {schema}")
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    run(database, f"ALTER PUBLICATION {publication} DROP {schema}", "INSERT INTO item VALUES (1)")
    run(database, f"ALTER PUBLICATION {publication} ADD {schema}")
    daemon = made.start()
    await_ids(made, daemon, 1)
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_under_the_preset_a_table_that_left_the_publication_is_a_gap(
    configured: Configured, database: dict[str, str]
) -> None:
    made = configured(lossless="false")
    run(database, "CREATE TABLE item (id int PRIMARY KEY)")
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    publication = f"ALTER PUBLICATION {made.settings.capture.publication_name}"
    run(database, f"{publication} DROP TABLE item", f"{publication} ADD TABLE item")
    refusal(made, ExitCode.GAP, "left the publication", "millrace snapshot public.item")


@pytest.mark.proof
def test_a_table_read_again_is_right_even_when_its_topic_was_compacted(
    captured: RunningPipeline, database: dict[str, str]
) -> None:
    """What the snapshot has seen mustn't come after it, or compaction would keep that."""
    run(database, "DELETE FROM item WHERE id = 1", "INSERT INTO item VALUES (3)")
    assert captured.millrace("snapshot", "public.item").returncode == ExitCode.OK
    daemon = captured.start()
    run(database, "INSERT INTO item VALUES (4)")
    captured.wait_until_logged(captured.wal_end(), daemon)
    log = captured.log()
    compacted = list({(record.partition, record.key): record for record in log}.values())
    for records in (log, compacted):
        assert sorted(row["id"] for row in state_of(records).values()) == [2, 3, 4]


def test_a_slot_without_a_record_is_a_gap(configured: Configured, database: dict[str, str]) -> None:
    made = configured()
    name = made.settings.capture.slot_name
    run(
        database,
        "CREATE TABLE item (id int PRIMARY KEY)",
        f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
    )
    by_hand = f"SELECT pg_drop_replication_slot('{name}');"
    refusal(made, ExitCode.GAP, f"slot {name} exists", by_hand)


def test_a_slot_of_something_else_is_left_to_it(
    configured: Configured, database: dict[str, str]
) -> None:
    made = configured()
    name = made.settings.capture.slot_name
    run(
        database,
        "CREATE TABLE item (id int PRIMARY KEY)",
        f"SELECT pg_create_physical_replication_slot('{name}')",
    )
    refusal(made, ExitCode.CONFIG, f"slot {name} belongs to another program", "slot.name")
    run(database, f"SELECT pg_drop_replication_slot('{name}')")


def test_a_record_of_a_newer_millrace_or_of_another_cluster_is_left_to_it(
    captured: RunningPipeline,
) -> None:
    progress = captured.progress()
    assert progress is not None
    producer = Producer(captured.settings.kafka)
    topic = progress_topic(captured.settings.capture.topic_prefix)
    key = json.dumps({"slot": progress.slot}, separators=(",", ":"))
    for other, code, said in (
        ({"format": FORMAT + 1}, ExitCode.LOG_FORMAT, ("newer", topic)),
        (
            {"system_identifier": "1"},
            ExitCode.GAP,
            ("another PostgreSQL cluster", "topic.prefix"),
        ),
    ):
        record = json.loads(progress.model_dump_json()) | other
        producer.produce(topic, json.dumps(record), key)
        assert producer.flush(60) == 0
        refusal(captured, code, *said)


def test_a_slot_that_somebody_else_reads_is_not_taken_from_him(
    captured: RunningPipeline, postgres: Postgres, database: dict[str, str]
) -> None:
    capture = captured.settings.capture
    reader = subprocess.Popen(
        [
            *(str(postgres.bin("pg_recvlogical")), "--start", "--file", "-"),
            *("--slot", capture.slot_name, "--dbname", make_conninfo(**database)),
            *("--option", "proto_version=4"),
            *("--option", f"publication_names={capture.publication_name}"),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for_slot(database, capture.slot_name)
        refusal(captured, ExitCode.SLOT_IN_USE, f"slot {capture.slot_name}", "slot.name")
        assert reader.poll() is None
    finally:
        reader.kill()
        reader.wait()


def test_a_second_daemon_leaves_the_first_one_alone(
    captured: RunningPipeline, database: dict[str, str]
) -> None:
    first = captured.start()
    wait_for_slot(database, captured.settings.capture.slot_name)
    refusal(captured, ExitCode.SLOT_IN_USE, "another daemon", "slot.max.retries")
    run(database, "INSERT INTO item VALUES (4)")
    captured.wait_until_logged(captured.wal_end(), first)
    assert captured.stop(first) == 0


def wait_for_slot(database: Mapping[str, str], name: str) -> None:
    """Wait until somebody reads the slot."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        wait = """
            DO $$ BEGIN
              FOR attempt IN 1..600 LOOP
                EXIT WHEN (SELECT active FROM pg_replication_slots WHERE slot_name = '{}');
                PERFORM pg_sleep(0.1);
              END LOOP;
            END $$
        """
        connection.execute(wait.format(name).encode())

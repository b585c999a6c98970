"""Rows that are read during the stream: the rest, new tables, and reset ones."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from cdc.records.position import Position
from cdc.records.state import Phase, TableState
from cdc.records.topics import schema_topic, table_topic
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of
from tests.fixtures.source import Conninfo, run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
PAGES = {"snapshot.chunk.bytes": 8 * 8192, "slot.retry.delay.ms": 500, "slot.max.retries": 60}
ITEM = (
    "CREATE TABLE item (id int PRIMARY KEY, v text)",
    "INSERT INTO item SELECT i, repeat('x', 300) FROM generate_series(1, 3000) i",
)


def of(made: RunningPipeline, table: str) -> list[LogRecord]:
    """A table's records."""
    return [record for record in made.log() if record.topic.endswith(f".public.{table}")]


def logged(made: RunningPipeline, table: str) -> list[tuple[Any, ...]]:
    """What the log adds up to."""
    return sorted(tuple(row.values()) for row in state_of(of(made, table)).values())


def rows(source: Conninfo, table: str) -> list[tuple[Any, ...]]:
    """What the source has."""
    with psycopg.connect(make_conninfo(**source)) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


def state(made: RunningPipeline, table: str) -> TableState | None:
    """How far a table is."""
    return next((one for one in made.tables() if one.table == table), None)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.proof
def test_beyond_its_time_a_snapshot_goes_on_without_one(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES, **{"snapshot.transaction.max.ms": 0})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")
    assert {(one.value or {})["source"]["snapshot"] for one in of(made, "item")} == {"true"}
    assert len({one.position for one in of(made, "item")}) > 1
    done = state(made, "item")
    assert done is not None
    assert (done.rows_sent, done.pages_done) == (3000, done.pages_total)


def test_initial_only_goes_on_where_it_was_killed_and_ends_where_all_fits(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES, **{"snapshot.mode": "initial_only"})
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:5"}).wait(60) != 0
    run(database, "UPDATE item SET v = 'changed' WHERE id % 7 = 0", "DELETE FROM item WHERE id = 8")
    before = len(of(made, "item"))
    assert made.start().wait(60) == 0
    assert logged(made, "item") == rows(database, "item")
    progress = made.progress()
    assert progress is not None
    assert progress.events == len(made.log()), "also what the killed one had written"
    read = [one.key for one in of(made, "item") if one.op == "r"]
    assert len(read) < 3000 + before
    with psycopg.connect(make_conninfo(**database)) as connection:
        left = connection.execute(
            "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
        )
        assert left.fetchall() == []


@pytest.mark.proof
def test_initial_only_ends_where_derived_tables_show_all(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """Also where a table without a key was killed in its read, which begins under another cut."""
    run(database, "CREATE TABLE loose AS SELECT generate_series(1, 3000) AS id")
    run(database, "ALTER TABLE loose REPLICA IDENTITY FULL")
    made = pipeline(**PAGES, **{"snapshot.mode": "initial_only"})
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:1"}).wait(60) != 0
    assert made.start().wait(60) == 0
    progress, loose = made.progress(), state(made, "loose")
    assert progress is not None
    assert loose is not None
    assert loose.phase is Phase.STREAMING
    assert progress.cut >= Position(loose.epoch, loose.snapshot_lsn, 0)
    again = made.millrace("snapshot", "public.loose")
    assert again.returncode == ExitCode.CONFIG, again.stderr
    assert "its slot is removed" in again.stderr


@pytest.mark.proof
def test_a_table_that_is_dropped_before_all_of_it_was_read_holds_nobody_up(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM, "CREATE TABLE gone AS SELECT * FROM item")
    run(database, "ALTER TABLE gone ADD PRIMARY KEY (id)")
    made = pipeline(**PAGES, **{"snapshot.max.threads": 1})
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:3"}).wait(60) != 0
    run(database, "DROP TABLE gone")
    daemon = made.catch_up()
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")
    assert "was dropped before" in daemon.command.log.read_text()


@pytest.mark.proof
def test_a_table_that_is_renamed_before_all_of_it_was_read_never_gets_whole(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES, **{"snapshot.max.threads": 1})
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_WRITTEN}:3"}).wait(60) != 0
    run(database, "ALTER TABLE item RENAME TO thing")
    daemon = made.catch_up()
    wait_for(lambda: (one := state(made, "thing")) is not None and one.initial is None)
    assert made.stop(daemon) == 0
    assert logged(made, "thing") == rows(database, "thing")
    left = state(made, "item")
    assert left is not None
    assert (left.phase, left.requests) == (Phase.SNAPSHOT, ())


IDLE = {
    "incremental.snapshot.watermarking.strategy": "read_only",
    "heartbeat.source.interval.ms": 0,
}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="messages"),
        # Nothing moves but what PostgreSQL itself writes every 15 s.
        pytest.param(IDLE, id="read only, and nobody writes", marks=pytest.mark.proof),
    ],
)
def test_a_table_is_reset_by_a_command_beside_the_daemon(
    pipeline: MakePipeline, database: Conninfo, more: dict[str, object]
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES, **more)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    asked = made.millrace("snapshot", "public.item", "--reset")
    assert asked.returncode == 0, asked.stderr
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    records = of(made, "item")
    gone = max(record.position for record in records if record.op == "t")
    assert sum(record.op == "r" and record.position > gone for record in records) == 3000
    assert logged(made, "item") == rows(database, "item")


@pytest.mark.proof
def test_a_command_reads_rows_that_meet_a_condition_where_no_daemon_runs(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES, **{"snapshot.mode": "no_data"})
    assert made.stop(made.catch_up()) == 0
    words = "snapshot", "public.item", "--where", "id > 2990 -- the newest", "--parallel", "3"
    asked = made.millrace(*words)
    assert asked.returncode == 0, asked.stderr
    assert [row[0] for row in logged(made, "item")] == [*range(2991, 3001)]
    wrong = made.millrace("snapshot", "public.item", "--where", "nothing > 1")
    assert wrong.returncode == 2, wrong.stderr
    broken = made.millrace("snapshot", "public.item", "--where", "1 / (id - 5) > 0")
    assert broken.returncode == ExitCode.NOT_DONE, broken.stderr
    assert "division by zero" in broken.stderr


def test_when_needed_a_gap_begins_a_new_epoch_by_itself(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES, **{"snapshot.mode": "when_needed"})
    assert made.stop(made.catch_up()) == 0
    run(database, "DELETE FROM item WHERE id > 10")
    run(database, f"SELECT pg_drop_replication_slot('{made.settings.capture.slot_name}')")
    assert made.stop(made.catch_up()) == 0
    assert logged(made, "item") == rows(database, "item")
    progress = made.progress()
    assert progress is not None
    assert progress.position.epoch == 2
    ((gap,),) = [state.gaps for state in made.tables() if state.table == "item"]
    assert (gap.start.epoch, gap.end.epoch) == (1, 2), "what was deleted meanwhile is nowhere"


def test_when_needed_another_programs_slot_of_the_same_name_stays(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES, **{"snapshot.mode": "when_needed"})
    assert made.stop(made.catch_up()) == 0
    name = made.settings.capture.slot_name
    run(database, f"SELECT pg_drop_replication_slot('{name}')")
    run(database, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    daemon = made.start()
    assert daemon.wait(60) == ExitCode.GAP
    told = daemon.command.log_end()
    asked = made.millrace("new-epoch", "--yes")
    assert asked.returncode == ExitCode.GAP
    for text in (told, asked.stderr):
        assert "it is ahead of the log" in text
        assert f"SELECT pg_drop_replication_slot('{name}');" in text
    progress = made.progress()
    assert progress is not None
    assert progress.position.epoch == 1
    run(database, f"SELECT pg_drop_replication_slot('{name}')")  # it is still there
    assert made.stop(made.catch_up()) == 0


def test_recovery_writes_lost_states_anew_and_reads_no_row(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline(**PAGES)
    assert made.stop(made.catch_up()) == 0
    prefix = made.settings.capture.topic_prefix
    lost = [table_topic(prefix), schema_topic(prefix)]
    admin = AdminClient(dict(made.settings.kafka))
    for done in admin.delete_topics(lost).values():
        done.result(30)
    run(database, "UPDATE item SET v = 'changed' WHERE id = 5")
    text = made.config.read_text(encoding="utf-8")
    made.config.write_text(text.replace("[capture]", '[capture]\n"snapshot.mode" = "recovery"'))
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")
    assert len([one for one in of(made, "item") if one.op == "r"]) == 3000

"""Rows that are read while streaming goes on: what is left over, what is new, what is reset."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from cdc.records.state import Phase, TableState
from cdc.records.topics import schema_topic, table_topic
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of
from tests.integration.source import Conninfo, run
from tests.integration.test_signal_topic import tell

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
PAGES = {"snapshot.chunk.bytes": 8 * 8192, "slot.retry.delay.ms": 500, "slot.max.retries": 60}
ITEM = (
    "CREATE TABLE item (id int PRIMARY KEY, v text)",
    "INSERT INTO item SELECT i, repeat('x', 300) FROM generate_series(1, 3000) i",
)
REPLACED = "INSERT INTO item SELECT i, '{}' FROM generate_series(2000, 4000) i"


def of(made: RunningPipeline, table: str) -> list[LogRecord]:
    """A table's records."""
    return [one for one in made.log() if one.topic.endswith(f".public.{table}")]


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
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
    read = [one.key for one in of(made, "item") if one.op == "r"]
    assert len(read) < 3000 + before
    with psycopg.connect(make_conninfo(**database)) as connection:
        left = connection.execute(
            "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
        )
        assert left.fetchall() == []


def test_a_quiet_table_that_joins_the_publication_is_read_and_nobody_waits(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(
        database,
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION own FOR TABLE other",
    )
    own = {"publication.name": "own", "publication.autocreate.mode": "disabled"}
    made = pipeline(**PAGES, **own)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run(database, *ITEM, "ALTER PUBLICATION own ADD TABLE item")
    wait_for(lambda: state(made, "item"))
    run(database, "INSERT INTO other VALUES (1)", "UPDATE item SET v = 'changed' WHERE id = 5")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")
    assert "starting over" not in daemon.command.log.read_text()


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
    assert "is gone before" in daemon.command.log.read_text()


@pytest.fixture
def own(database: Conninfo) -> dict[str, object]:
    """Settings of a publication of the user's own, which has another table."""
    run(database, "CREATE TABLE other (id int PRIMARY KEY)")
    run(database, *ITEM, "CREATE PUBLICATION own FOR TABLE other")
    return {**PAGES, "publication.name": "own", "publication.autocreate.mode": "disabled"}


def test_what_open_transactions_did_before_a_table_was_published_is_read(
    pipeline: MakePipeline, database: Conninfo, own: dict[str, object]
) -> None:
    """PostgreSQL sends only what they do to it afterwards."""
    made = pipeline(**own)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    with psycopg.connect(make_conninfo(**database)) as open_one:
        open_one.execute("INSERT INTO item VALUES (0, 'before')")
        open_one.execute("UPDATE item SET v = 'before' WHERE id < 10")
        run(database, "ALTER PUBLICATION own ADD TABLE item")
        open_one.execute("INSERT INTO item VALUES (-1, 'after')")
        wait_for(lambda: "transactions are open that may" in daemon.command.log.read_text())
    wait_for(lambda: (one := state(made, "item")) is not None and one.initial is None)
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")


def test_a_table_that_is_made_anew_has_nothing_of_the_old_one(
    pipeline: MakePipeline, database: Conninfo, own: dict[str, object]
) -> None:
    made = pipeline(**own, **{"snapshot.max.threads": 1, "snapshot.rows.per.second.max": 500})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run(database, "ALTER PUBLICATION own ADD TABLE item")
    wait_for(lambda: (one := state(made, "item")) is not None and one.pages_done)
    run(database, "DROP TABLE item")
    wait_for(lambda: "is gone before" in daemon.command.log.read_text())
    run(database, "CREATE TABLE item (id int PRIMARY KEY, v text)")
    run(database, "INSERT INTO item VALUES (9999, 'new')", "ALTER PUBLICATION own ADD TABLE item")
    wait_for(lambda: (one := state(made, "item")) is not None and one.rows_sent == 1)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == [(9999, "new")]


def test_a_table_that_is_replaced_while_it_is_read_is_read_anew(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    everything = {"publication.name": "everything", "publication.autocreate.mode": "disabled"}
    run(database, "CREATE PUBLICATION everything FOR ALL TABLES", "CREATE TABLE other (id int)")
    run(database, "ALTER TABLE other ADD PRIMARY KEY (id)")
    slow = {"snapshot.max.threads": 1, "snapshot.rows.per.second.max": 500}
    made = pipeline(**PAGES, **everything, **slow)
    daemon = made.catch_up()

    def being_read(before: TableState | None = None) -> TableState:
        """The table's state, once some of it was read, if it is another one than before."""
        while not ((found := state(made, "item")) and found.pages_done) or (
            before is not None and found.oid == before.oid
        ):
            assert daemon.running, daemon.command.log_end()
            time.sleep(0.1)
        return found

    run(database, *ITEM)
    first = being_read()
    run(database, "DROP TABLE item", ITEM[0], REPLACED.format("second"))
    second = being_read(first)
    assert made.stop(daemon) == 0
    run(database, "DROP TABLE item", ITEM[0], REPLACED.format("third"))
    daemon = made.start()
    being_read(second)
    wait_for(lambda: (one := state(made, "item")) is not None and one.phase is Phase.STREAMING)
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")


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


@pytest.fixture
def reader(database: Conninfo) -> Iterator[Conninfo]:
    """Another role's way to the database."""
    role = f"reader_{uuid.uuid4().hex}"
    run(database, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    yield {**database, "user": role, "password": "x"}
    run(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_right_that_is_revoked_costs_nobody_else_the_first_snapshot(
    pipeline: MakePipeline, database: Conninfo, reader: Conninfo, own: dict[str, object]
) -> None:
    run(
        database, f"GRANT SELECT ON item, other TO {reader['user']}", "INSERT INTO other VALUES (1)"
    )
    run(database, "ALTER PUBLICATION own ADD TABLE item")
    made = pipeline(source=reader, **own, **{"snapshot.rows.per.second.max": 500})
    daemon = made.start()
    wait_for(lambda: (one := state(made, "item")) is not None and one.pages_done)
    run(database, f"REVOKE SELECT ON item FROM {reader['user']}")
    wait_for(lambda: "can't be read: trying again" in daemon.command.log.read_text())
    run(database, "INSERT INTO other VALUES (2)")
    wait_for(lambda: logged(made, "other") == [(1,), (2,)])
    run(database, f"GRANT SELECT ON item TO {reader['user']}")
    wait_for(lambda: (one := state(made, "item")) is not None and one.initial is None)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")


def test_a_right_that_is_missing_gives_a_blocking_snapshot_up(
    pipeline: MakePipeline, database: Conninfo, reader: Conninfo, own: dict[str, object]
) -> None:
    run(database, f"GRANT SELECT ON item, other TO {reader['user']}")
    run(database, "ALTER PUBLICATION own ADD TABLE item")
    made = pipeline(source=reader, **own)
    daemon = made.catch_up()
    run(database, f"REVOKE SELECT ON item FROM {reader['user']}")
    tell(made, ("execute-snapshot", {"type": "blocking", "data-collections": ["public.item"]}))
    wait_for(lambda: "a blocking snapshot is given up" in daemon.command.log.read_text())
    assert made.stop(daemon) == 0


IDLE = {
    "incremental.snapshot.watermarking.strategy": "read_only",
    "heartbeat.source.interval.ms": 0,
}


@pytest.mark.parametrize("more", [{}, IDLE], ids=["messages", "read only, and nobody writes"])
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
    gone = [one.offset for one in records if one.op == "t"]
    assert gone
    last = [
        one
        for one in records
        if one.op == "r" and one.position > max(r.position for r in records if r.op == "t")
    ]
    assert len(last) == 3000
    assert logged(made, "item") == rows(database, "item")


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

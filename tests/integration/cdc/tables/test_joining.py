"""Tables that join the publication, or are replaced, while others are streamed."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.faults import VARIABLE, FaultPoint
from cdc.log.state import read_all
from cdc.records.schema import TableSchema
from cdc.records.state import Phase, TableState
from cdc.records.topics import schema_topic
from deploy.local.postgres import Postgres
from tests.fixtures.few import few
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.server_settings import set_to, wait_for_hidden_commit
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_signal_topic import tell
from tests.integration.snapshots.test_while_streaming import (
    IDLE,
    ITEM,
    PAGES,
    logged,
    of,
    rows,
    state,
    wait_for,
)

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
REPLACED = "INSERT INTO item SELECT i, '{}' FROM generate_series(2000, 4000) i"


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param(IDLE, marks=pytest.mark.proof)],
    ids=["messages", "read only, and nobody writes"],
)
def test_a_quiet_table_that_joins_the_publication_is_read_and_nobody_waits(
    pipeline: MakePipeline, database: Conninfo, more: dict[str, object]
) -> None:
    run(
        database,
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION own FOR TABLE other",
    )
    own = {"publication.name": "own", "publication.autocreate.mode": "disabled"}
    made = pipeline(**PAGES, **own, **more)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run(database, *ITEM, "ALTER PUBLICATION own ADD TABLE item")
    wait_for(lambda: (one := state(made, "item")) is not None and not (more and one.initial))
    run(database, "INSERT INTO other VALUES (1)", "UPDATE item SET v = 'changed' WHERE id = 5")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")
    assert "starting over" not in daemon.command.log.read_text()


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
        wait_for(lambda: "open transactions may" in daemon.command.log.read_text())
    wait_for(lambda: (one := state(made, "item")) is not None and one.initial is None)
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")


@pytest.mark.proof
def test_a_table_that_is_made_anew_has_nothing_of_the_old_one(
    pipeline: MakePipeline, database: Conninfo, own: dict[str, object]
) -> None:
    made = pipeline(**own, **{"snapshot.max.threads": 1, "snapshot.rows.per.second.max": 500})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run(database, "ALTER PUBLICATION own ADD TABLE item")
    wait_for(lambda: (one := state(made, "item")) is not None and one.pages_done)
    run(database, "DROP TABLE item")
    wait_for(lambda: "was dropped before" in daemon.command.log.read_text())
    run(database, "CREATE TABLE item (id int PRIMARY KEY, v text)")
    run(database, "INSERT INTO item VALUES (9999, 'new')", "ALTER PUBLICATION own ADD TABLE item")
    wait_for(lambda: (one := state(made, "item")) is not None and one.rows_sent == 1)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == [(9999, "new")]


@pytest.mark.proof
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


def killed_in_mid_read(made: RunningPipeline, pages: int) -> int:
    """Start the daemon, and kill it once it has read more pages of item; returns how many."""
    daemon = made.start()
    wait_for(lambda: (one := state(made, "item")) is not None and one.pages_done > pages)
    daemon.kill()
    read = state(made, "item")
    assert read is not None
    assert 0 < read.pages_done < read.pages_total
    return read.pages_done


@pytest.mark.parametrize(
    "chunks",
    [
        {"snapshot.rows.per.second.max": 500},
        pytest.param(
            {"snapshot.rows.per.second.max": 2_000, "snapshot.chunk.bytes": 24 * 8192},
            marks=pytest.mark.proof,
        ),
    ],
    ids=["small chunks", "large chunks"],
)
def test_a_table_that_is_replaced_while_nobody_looks_keeps_no_row_of_the_old_one(
    pipeline: MakePipeline, database: Conninfo, chunks: dict[str, object]
) -> None:
    """Not of the last chunk either, behind which nothing was written, nor of later changes."""
    run(database, *ITEM)
    run(database, "CREATE PUBLICATION everything FOR ALL TABLES")
    quiet = {"snapshot.transaction.max.ms": 0, "heartbeat.source.interval.ms": 0}
    everything = {"publication.name": "everything", "publication.autocreate.mode": "disabled"}
    made = pipeline(**{**PAGES, **chunks}, **quiet, **everything, **{"snapshot.max.threads": 1})
    pages = 0
    while pages := killed_in_mid_read(made, pages):
        last = max(one.position for one in of(made, "item"))
        if (progress := made.progress()) is not None and progress.position <= last:
            break  # nothing is behind the last chunk, as the next one's watermark would be
    run(database, "INSERT INTO item VALUES (99999, 'old')")
    run(database, "DROP TABLE item", ITEM[0], "INSERT INTO item VALUES (9999, 'new')")
    daemon = made.catch_up()
    wait_for(lambda: (one := state(made, "item")) is not None and one.initial is None)
    assert made.stop(daemon) == 0
    gone = max(one.position for one in of(made, "item") if one.op == "t")
    kept = [one for one in of(made, "item") if one.position > gone]
    assert sorted(tuple(row.values()) for row in state_of(kept).values()) == [(9999, "new")]


@pytest.mark.parametrize(
    "unread",
    [
        {"snapshot.mode": "no_data"},
        pytest.param({"snapshot.include.collection.list": "public.other"}, marks=pytest.mark.proof),
    ],
    ids=["no data", "left out by the list"],
)
def test_a_table_that_joins_loses_no_change_where_its_rows_arent_wanted(
    pipeline: MakePipeline, database: Conninfo, own: dict[str, object], unread: dict[str, object]
) -> None:
    made = pipeline(**own, **unread)
    daemon = made.catch_up()
    run(database, "ALTER PUBLICATION own ADD TABLE item", "UPDATE item SET v = 'new' WHERE id = 1")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    run(database, "CREATE TABLE late (id int PRIMARY KEY)", "ALTER PUBLICATION own ADD TABLE late")
    run(database, "INSERT INTO late VALUES (1), (2)", "DELETE FROM late WHERE id = 1")
    assert made.stop(made.catch_up()) == 0
    assert [(one.op, one.key) for one in of(made, "item")] == [("u", '{"id":1}')]
    assert logged(made, "late") == rows(database, "late")
    assert sorted(one.op for one in of(made, "late")) == ["c", "c", "d", "tombstone"]


@pytest.mark.proof
def test_a_table_of_which_nothing_was_read_tells_its_columns_all_the_same(
    pipeline: MakePipeline, database: Conninfo, own: dict[str, object]
) -> None:
    """Without rows, without partitions, or whole by the settings: derived tables can be made."""
    made = pipeline(**own, **{"snapshot.include.collection.list": "public.split"})
    daemon = made.catch_up()
    run(database, "ALTER PUBLICATION own SET (publish_via_partition_root)")
    run(database, "CREATE TABLE split (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    run(database, "ALTER PUBLICATION own ADD TABLE split", "ALTER PUBLICATION own ADD TABLE item")

    def are_whole() -> bool:
        found = {state.table for state in made.tables() if state.phase is Phase.STREAMING}
        return found == {"other", "item", "split"}

    wait_for(are_whole)
    assert made.stop(daemon) == 0
    topic = schema_topic(made.settings.capture.topic_prefix)
    known = read_all(made.settings.kafka, topic, TableSchema)
    assert {one.table for one in known} == {"other", "item", "split"}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("identity", "left_out"),
    [
        ("FULL", {"skip.messages.without.change": "true"}),
        pytest.param("DEFAULT", {"skipped.operations": "u"}, marks=pytest.mark.proof),
    ],
    ids=["without a change", "skipped, with large values"],
)
def test_an_update_that_says_nothing_costs_no_row_that_was_read(
    pipeline: MakePipeline,
    database: Conninfo,
    own: dict[str, object],
    identity: str,
    left_out: dict[str, object],
) -> None:
    """Were the event left out, the log might get nothing: the row moves to where all is read."""
    run(database, "ALTER TABLE item ALTER v SET STORAGE EXTERNAL")
    run(database, "UPDATE item SET v = repeat(v, 30) WHERE id % 50 = 0")
    run(database, f"ALTER TABLE item REPLICA IDENTITY {identity}")
    run(database, "DELETE FROM item WHERE id < 500", "VACUUM item")
    made = pipeline(**own, **left_out)
    daemon = made.start_broken("tests.faults.touched")
    made.wait_until_logged(made.wal_end(), daemon)
    run(database, "ALTER PUBLICATION own ADD TABLE item")
    wait_for(lambda: (one := state(made, "item")) is not None and one.initial is None)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")


@pytest.fixture
def reader(database: Conninfo) -> Iterator[Conninfo]:
    """Another role's way to the database."""
    role = f"reader_{uuid.uuid4().hex}"
    run(database, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    yield {**database, "user": role, "password": "x"}
    run(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.proof
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
    wait_for(lambda: "a blocking snapshot is abandoned" in daemon.command.log.read_text())
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_table_that_left_the_publication_and_came_back_in_mid_read_has_no_ghosts(
    pipeline: MakePipeline, database: Conninfo, own: dict[str, object]
) -> None:
    run(database, "ALTER PUBLICATION own ADD TABLE item")
    made = pipeline(**own, **{"snapshot.transaction.max.ms": 0, "snapshot.max.threads": 1})
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_TAKEN}:2"}).wait(60) != 0
    run(database, "INSERT INTO item VALUES (99999, 'ghost')", "DELETE FROM item WHERE id = 1")
    run(database, "ALTER PUBLICATION own DROP TABLE item", "DELETE FROM item WHERE id > 2990")
    run(database, "ALTER PUBLICATION own ADD TABLE item", "DELETE FROM item WHERE id = 2")
    daemon = made.catch_up()
    wait_for(lambda: (one := state(made, "item")) is not None and one.initial is None)
    assert made.stop(daemon) == 0
    gone = max((one.position for one in of(made, "item") if one.op == "t"), default=None)
    assert gone is not None
    kept = [one for one in of(made, "item") if one.position > gone]
    found = sorted(tuple(row.values()) for row in state_of(kept).values())
    assert found == rows(database, "item") == logged(made, "item")


@pytest.mark.parametrize("mode", ["initial", pytest.param("no_data", marks=pytest.mark.proof)])
@pytest.mark.parametrize(
    "is_up", few([True, False], True), ids=["while streaming", "while nobody looks"]
)
def test_a_table_that_is_filled_before_it_has_its_key_is_read_as_it_is(
    pipeline: MakePipeline, database: Conninfo, is_up: bool, mode: str
) -> None:
    """So pg_restore makes them; rows without a key can't be in its topic."""
    run(database, "CREATE PUBLICATION everything FOR ALL TABLES")
    run(database, "CREATE TABLE other (id int PRIMARY KEY)")
    everything = {"publication.name": "everything", "publication.autocreate.mode": "disabled"}
    made = pipeline(**PAGES, **everything, **{"snapshot.mode": mode})
    daemon = made.catch_up()
    if not is_up:
        assert made.stop(daemon) == 0
    with psycopg.connect(make_conninfo(**database)) as connection:
        connection.execute("CREATE TABLE item AS SELECT i AS id FROM generate_series(1, 500) i")
        connection.execute("ALTER TABLE item ADD PRIMARY KEY (id)")
    daemon = daemon if is_up else made.start()
    wait_for(lambda: len(logged(made, "item")) == 500)
    run(database, "DELETE FROM item WHERE id = 7")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert logged(made, "item") == rows(database, "item")


def test_a_table_whose_commit_nobody_sees_yet_loses_no_change(
    pipeline: MakePipeline, database: Conninfo, postgres: Postgres
) -> None:
    """The stream has a commit while that waits for its synchronous standby."""
    run(database, "CREATE PUBLICATION everything FOR ALL TABLES")
    run(database, "CREATE TABLE other (id int PRIMARY KEY)")
    everything = {"publication.name": "everything", "publication.autocreate.mode": "disabled"}
    made = pipeline(**everything, **{"snapshot.mode": "no_data"})
    daemon = made.catch_up()

    def make() -> None:
        with psycopg.connect(make_conninfo(**database)) as connection:
            connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
            connection.execute("INSERT INTO item VALUES (1)")

    making = threading.Thread(target=make)
    with set_to(postgres, synchronous_standby_names="nobody"):
        making.start()
        wait_for_hidden_commit(database)
        time.sleep(1)  # the stream comes to it
        assert making.is_alive()
    making.join()
    run(database, "INSERT INTO item VALUES (2)")
    wait_for(lambda: logged(made, "item") == [(1,), (2,)])
    assert made.stop(daemon) == 0

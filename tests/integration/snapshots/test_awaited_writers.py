"""DDL while others write or lock: a re-read waits only for sessions that wrote before it."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_catalog_check import CASES, differing, is_settled, make
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]


def test_a_read_waits_for_who_writes_as_it_was_before(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """What was written before the rename is decoded with the old label, whenever it commits."""
    case = CASES["label"]
    make(database, {"label": case})
    made = pipeline()
    daemon = made.catch_up()
    conninfo = make_conninfo(**database)
    with psycopg.connect(conninfo) as writer, psycopg.connect(conninfo) as bystander:
        bystander.execute("CREATE TABLE elsewhere ()")
        writer.execute("INSERT INTO label VALUES (20, 'a')")
        run(database, "ALTER TYPE label_type RENAME VALUE 'a' TO 'z'")
        wait_for(lambda: any(state.requests for state in made.tables()))
        wait_for(lambda: "tables can't be read yet" in daemon.command.log.read_text())
        assert not is_settled(made.tables())
        bystander.execute("INSERT INTO label VALUES (21, 'z')")  # behind the rename
        writer.commit()
        wait_for(lambda: is_settled(made.tables()))
    wait_for(lambda: differing(made, database, ["label"]) == [])
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_read_waits_for_who_began_to_write_after_the_ddl_had_begun(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """The writer's transaction is the younger one, and nobody sees it in a snapshot."""
    make(database, {"label": CASES["label"]})
    made = pipeline()
    daemon = made.catch_up()
    conninfo = make_conninfo(**database)
    with psycopg.connect(conninfo) as renamer, psycopg.connect(conninfo) as writer:
        renamer.execute("ALTER TYPE label_type RENAME VALUE 'a' TO 'z'")
        writer.execute("INSERT INTO label VALUES (20, 'a')")
        renamer.commit()
        wait_for(lambda: any(state.requests for state in made.tables()))
        wait_for(lambda: "tables can't be read yet" in daemon.command.log.read_text())
        assert not is_settled(made.tables())
        writer.commit()
        wait_for(lambda: is_settled(made.tables()))
    assert differing(made, database, ["label"]) == []
    assert made.stop(daemon) == 0


def test_a_locked_table_keeps_no_other_one_from_being_checked(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    cases = {name: CASES[name] for name in ("label", "same_type", "idle")}
    make(database, cases)
    made = pipeline()
    daemon = made.catch_up()
    with psycopg.connect(make_conninfo(**database)) as locker:
        run(database, *(step.replace("{t}", "same_type") for step in CASES["same_type"].steps))
        locker.execute("LOCK TABLE same_type")
        run(database, *(step.replace("{t}", "label") for step in CASES["label"].steps))
        wait_for(lambda: any(state.table == "label" and state.doubt for state in made.tables()))
    wait_for(lambda: differing(made, database, cases) == [])
    assert made.stop(daemon) == 0

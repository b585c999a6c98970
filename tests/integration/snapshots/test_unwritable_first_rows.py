"""An existing row that can't become a record, or whose record brokers refuse.

The first snapshot reads all other tables. Once the row is corrected, the next start brings the
table back, with any snapshot.mode.
"""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from tests.faults.test_dead_letters import text
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.refusals import Configured
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_catalog_check import differing
from tests.integration.snapshots.test_set_aside import aside, wait_until_equal
from tests.integration.snapshots.test_unwritable_rows import (
    ODD,
    PRECISE,
    SENT_MAX,
    mend,
    wait_until_mended,
)
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
REFUSED = "starting over without one record"
ODD_ROW = "INSERT INTO odd VALUES (30, 'NaN')"


def test_a_plain_start_brings_its_table_back_once_the_row_is_mended(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ODD, ODD_ROW)
    made = pipeline(**PRECISE)
    assert made.stop(made.catch_up()) == 0
    assert aside(made) == {"odd"}
    assert not differing(made, database, ["other"])
    mend(database)
    daemon = made.start()
    wait_until_mended(made, database)
    assert made.stop(daemon) == 0


def test_initial_only_is_not_done_without_it(pipeline: MakePipeline, database: Conninfo) -> None:
    run(database, *ODD, ODD_ROW)
    made = pipeline(**PRECISE, **{"snapshot.mode": "initial_only"})
    for _ in range(2):
        daemon = made.start()
        assert daemon.wait(60) == ExitCode.NOT_DONE
        assert "not read: public.odd" in daemon.command.log_end()
        assert aside(made) == {"odd"}
        assert not differing(made, database, ["other"])
    mend(database)
    assert made.start().wait(60) == 0
    wait_until_mended(made, database)
    with psycopg.connect(make_conninfo(**database)) as connection:
        slots = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
        assert connection.execute(slots).fetchall() == []


def test_initial_only_ends_by_naming_a_table_that_lasts_in_what_is_wrong_with_it(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """It has lost its key: only somebody who is told can help."""
    run(database, *ODD)
    made = pipeline(**PRECISE)
    daemon = made.catch_up()
    run(database, "ALTER TABLE odd DROP CONSTRAINT odd_pkey", "INSERT INTO odd VALUES (30, 3)")
    wait_for(lambda: aside(made) == {"odd"})
    assert made.stop(daemon) == 0
    run(database, "INSERT INTO other VALUES (2)", "CREATE TABLE late (id int PRIMARY KEY)")
    run(database, "INSERT INTO late VALUES (1)")
    made = pipeline(**PRECISE, **{"snapshot.mode": "initial_only"})
    daemon = made.start()
    assert daemon.wait(90) == ExitCode.NOT_DONE
    log = daemon.command.log_end()
    assert "not read: public.odd (table public.odd no longer has a key" in log
    assert "add the key again" in log
    assert not differing(made, database, ["other", "late"])
    run(database, "ALTER TABLE odd ADD PRIMARY KEY (id)")
    assert made.start().wait(60) == 0
    wait_until_mended(made, database)


@pytest.mark.proof
def test_a_read_that_brokers_refuse_again_leaves_its_table_set_aside_and_others_streaming(
    configured: Configured, database: dict[str, str]
) -> None:
    run(
        database,
        "CREATE TABLE doc (id int PRIMARY KEY, v text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO other VALUES (1)",
    )
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("INSERT INTO doc VALUES (1, %s)", [text(2 * SENT_MAX)])
    made = configured(None, {"message.max.bytes": str(SENT_MAX)})
    daemon = made.start()
    wait_for(lambda: aside(made) == {"doc"} or not daemon.running)
    assert made.stop(daemon) == 0
    said = daemon.command.log.read_text().count(REFUSED)
    daemon = made.start()  # reads it once more
    wait_for(lambda: daemon.command.log.read_text().count(REFUSED) > said)
    wait_for(lambda: aside(made) == {"doc"})
    run(database, "INSERT INTO other VALUES (2)")
    wait_for(lambda: not differing(made, database, ["other"]))
    asked = made.millrace("snapshot", "--reset", "public.doc")
    assert asked.returncode == ExitCode.NOT_DONE
    assert "too large" in asked.stderr
    run(database, "INSERT INTO other VALUES (3)", "UPDATE doc SET v = 'small'")
    wait_for(lambda: not differing(made, database, ["other"]))
    assert made.millrace("snapshot", "--reset", "public.doc").returncode == 0
    wait_until_equal(made, database, ["doc", "other"])
    assert made.stop(daemon) == 0

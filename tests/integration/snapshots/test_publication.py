"""Tables and the publication that Millrace manages: the ones that it lacks, or has in part.

One table's trouble affects only that table: all others stream, now and after each start.
"""

from collections.abc import Callable, Iterator

import pytest

from cdc.errors import ExitCode
from deploy.local.processes import Process
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run, session
from tests.integration.snapshots.test_while_streaming import logged, of, rows, state, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
ITEM = (
    "CREATE TABLE item (id int PRIMARY KEY, a int, g text)",
    "INSERT INTO item SELECT i, i, 'g' FROM generate_series(1, 5) i",
)
ZZ = ("CREATE TABLE zz (id int PRIMARY KEY)", "INSERT INTO zz VALUES (1), (2)")
END_STREAM = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_replication r JOIN pg_stat_activity a"
    " USING (pid) WHERE a.datname = current_database() AND r.state <> 'startup'"
)
OPTIONS = "WITH (publish_via_partition_root = true)"


def publication(made: RunningPipeline) -> str:
    return made.settings.capture.publication_name


def reasons(made: RunningPipeline) -> dict[str, str]:
    """The tables that are set aside, and why."""
    doubts = {each.table: each.doubt for each in made.tables() if each.is_set_aside}
    return {table: doubt.reason for table, doubt in doubts.items() if doubt}


def is_logged(made: RunningPipeline, database: Conninfo, table: str) -> bool:
    found = state(made, table)
    is_there = found is not None and found.is_in_log and not (found.doubt or found.requests)
    return is_there and logged(made, table) == rows(database, table)


def ends_stream(database: Conninfo) -> bool:
    """End what the daemon reads; whether there was anything."""
    with session(database) as opened:
        return bool(opened.execute(END_STREAM).fetchall())


def start_over(made: RunningPipeline, database: Conninfo, daemon: Process) -> None:
    """End the stream, and see that the daemon goes on with what others write."""
    before = daemon.command.log.read_text().count("starting over")
    wait_for(lambda: ends_stream(database))  # it may have nothing to catch up with, and begin late
    wait_for(lambda: daemon.command.log.read_text().count("starting over") > before)
    run(database, "INSERT INTO item SELECT max(id) + 1, 0, 'over' FROM item")
    wait_for(lambda: is_logged(made, database, "item") or not daemon.running)
    assert daemon.running, daemon.command.log_end()


def test_a_new_table_is_published_and_read_now_and_by_the_next_start(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM)
    made = pipeline()
    daemon = made.catch_up()
    run(database, *ZZ, "CREATE TABLE copied AS SELECT 1 AS id", "UPDATE copied SET id = 2")
    wait_for(lambda: is_logged(made, database, "zz") and "copied" in reasons(made))
    start_over(made, database, daemon)
    run(database, "INSERT INTO zz VALUES (3)", "UPDATE copied SET id = 3")  # it isn't published
    assert made.stop(daemon) == 0
    run(database, "CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    run(database, "DROP TABLE zz", "CREATE TABLE zz (id int PRIMARY KEY, v int)")
    run(database, "INSERT INTO zz VALUES (7, 7)")
    daemon = made.start()
    wait_for(lambda: is_logged(made, database, "late") and is_logged(made, database, "zz"))
    assert "REPLICA IDENTITY FULL" in reasons(made)["copied"]
    run(database, "ALTER TABLE copied ADD PRIMARY KEY (id)")
    wait_for(lambda: is_logged(made, database, "copied"))
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_table_that_ones_own_publication_lacks_is_set_aside_at_every_start(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    made = pipeline()
    run(database, *ITEM, f"CREATE PUBLICATION {publication(made)} FOR TABLE item {OPTIONS}")
    daemon = made.catch_up()
    run(database, *ZZ)
    wait_for(lambda: reasons(made))
    add = f"ALTER PUBLICATION {publication(made)} ADD TABLE ONLY public.zz;"
    assert add in reasons(made)["zz"]
    start_over(made, database, daemon)
    assert made.stop(daemon) == 0
    daemon = made.catch_up()
    start_over(made, database, daemon)
    assert reasons(made).keys() == {"zz"}
    run(database, add)
    wait_for(lambda: is_logged(made, database, "zz"))
    assert made.stop(daemon) == 0


IN_PART: list[object] = [
    ("item WHERE (id > 3)", ["only rows WHERE (id > 3)"], {}),
    pytest.param(
        "item (id, a)",
        ["without g", "column.exclude.list"],
        {"column.exclude.list": "public.item.g"},
        marks=pytest.mark.proof,
    ),
]


@pytest.mark.since(15, "row filters and column lists of publications")
@pytest.mark.parametrize(("listed", "words", "wanted"), IN_PART, ids=["rows", "columns"])
def test_less_than_the_configuration_asks_for_is_refused_unless_it_says_so(
    pipeline: MakePipeline,
    database: Conninfo,
    listed: str,
    words: list[str],
    wanted: dict[str, str],
) -> None:
    made = pipeline()
    run(database, *ITEM, f"CREATE PUBLICATION {publication(made)} FOR TABLE {listed} {OPTIONS}")
    ended = made.millrace("run", timeout_s=120)
    assert ended.returncode == ExitCode.PUBLICATION, ended.stderr
    disabled = {"publication.autocreate.mode": "disabled"}
    for word in ["public.item is published in part", "autocreate.mode = disabled", *words]:
        assert word in ended.stderr
    made = pipeline(**(wanted or disabled))
    assert made.stop(made.catch_up()) == 0
    lines = [line.strip() for line in ended.stderr.splitlines()]
    run(database, *(line for line in lines if line.endswith(";")))
    daemon = made.catch_up()
    if not wanted:
        wait_for(lambda: is_logged(made, database, "item"))
    assert made.stop(daemon) == 0


@pytest.mark.proof
@pytest.mark.since(15, "row filters of publications")
def test_a_table_that_is_published_in_part_meanwhile_is_set_aside_and_comes_back(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM, "CREATE TABLE other (id int PRIMARY KEY)")
    made = pipeline()
    daemon = made.catch_up()
    alter = f"ALTER PUBLICATION {publication(made)}"
    run(database, f"{alter} SET TABLE item WHERE (id > 3), other")
    wait_for(reasons_of(made, "item"))
    assert "only rows WHERE (id > 3)" in reasons(made)["item"]
    before = len(of(made, "item"))
    assert before == 5, "nothing was taken away"
    run(database, "INSERT INTO item VALUES (2000, 1, 'meanwhile')", "DELETE FROM item WHERE id = 1")
    assert made.stop(daemon) == 0
    daemon = made.catch_up()
    run(database, "INSERT INTO other VALUES (1)")
    wait_for(lambda: is_logged(made, database, "other"))
    assert reasons(made).keys() == {"item"}
    run(database, f"{alter} SET TABLE item, other")
    wait_for(lambda: is_logged(made, database, "item"))
    assert made.stop(daemon) == 0


def reasons_of(made: RunningPipeline, table: str) -> Callable[[], bool]:
    return lambda: table in reasons(made)


@pytest.mark.proof
def test_a_table_that_is_renamed_to_what_the_lists_leave_out_ends_no_start(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ITEM, *ZZ)
    made = pipeline(**{"table.exclude.list": "public.away"})
    daemon = made.catch_up()
    run(database, "ALTER TABLE zz RENAME TO away", "INSERT INTO away VALUES (3)")
    wait_for(lambda: (gone := state(made, "zz")) and gone.gone_ms)
    start_over(made, database, daemon)
    assert made.stop(daemon) == 0
    daemon = made.catch_up()
    log = daemon.command.log.read_text()
    assert f"ALTER PUBLICATION {publication(made)} DROP TABLE ONLY public.away;" in log
    assert made.stop(daemon) == 0


@pytest.fixture
def reader(database: Conninfo) -> Iterator[Conninfo]:
    """A role that may replicate, and read what it is granted."""
    role = f"reader_{database['dbname']}"
    run(database, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'reader'")
    yield {**database, "user": role, "password": "reader"}
    run(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.proof
def test_a_table_that_the_role_may_not_read_is_set_aside(
    pipeline: MakePipeline, database: Conninfo, reader: Conninfo
) -> None:
    own = {"publication.autocreate.mode": "disabled", "publication.name": "own"}
    role = reader["user"]
    run(database, *ITEM, "CREATE PUBLICATION own FOR ALL TABLES", f"GRANT SELECT ON item TO {role}")
    made = pipeline(source=reader, **own)
    daemon = made.catch_up()
    run(
        database,
        *ZZ,
        "CREATE TABLE partly (id int PRIMARY KEY, g text)",
        "INSERT INTO partly VALUES (1)",
    )
    run(database, f"GRANT SELECT (id, g) ON partly TO {role}", f"REVOKE SELECT ON item FROM {role}")
    wait_for(lambda: reasons(made).keys() == {"zz", "partly"} or not daemon.running)
    start_over(made, database, daemon)
    assert made.stop(daemon) == 0
    made = pipeline(source=reader, **own, **{"snapshot.mode": "always"})
    daemon = made.catch_up()
    start_over(made, database, daemon)
    aside = reasons(made)
    assert aside.keys() == {"zz", "partly"}, "changes of item need no right"
    assert f"GRANT SELECT ON public.zz TO {role};" in aside["zz"]
    assert "SELECT on columns, as on public.partly, isn't enough" in aside["partly"]
    run(database, f"GRANT SELECT ON zz, partly TO {role}")
    wait_for(lambda: is_logged(made, database, "zz") and is_logged(made, database, "partly"))
    assert made.stop(daemon) == 0


def test_a_publication_that_was_dropped_for_a_while_is_a_gap(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """A slot decodes with the publications of the change's time."""
    run(database, *ITEM, f"CREATE PUBLICATION own FOR TABLE item {OPTIONS}")
    own = {"publication.autocreate.mode": "disabled", "publication.name": "own"}
    made = pipeline(**own)
    assert made.stop(made.catch_up()) == 0
    run(database, "DROP PUBLICATION own", "INSERT INTO item VALUES (6)")
    run(database, f"CREATE PUBLICATION own FOR TABLE item {OPTIONS}")
    ended = made.millrace("run", timeout_s=120)
    assert ended.returncode == ExitCode.GAP, ended.stderr
    for words in ["publication own was dropped and created again", "millrace new-epoch"]:
        assert words in ended.stderr
    by_itself = pipeline(**own, **{"snapshot.mode": "when_needed"})
    daemon = by_itself.start()
    wait_for(lambda: is_logged(by_itself, database, "item") or not daemon.running)
    assert by_itself.stop(daemon) == 0

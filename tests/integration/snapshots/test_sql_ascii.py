"""A SQL_ASCII database takes any bytes as text: one that isn't UTF-8 affects only its table.

The server refuses to send such a byte to a client that wants UTF-8. So texts arrive unchanged, and
a row with one can't become a record.
"""

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.postgres import Postgres
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.source import Conninfo, run, session
from tests.integration.cdc.postgres.test_preflight import refusal
from tests.integration.snapshots.test_catalog_check import differing
from tests.integration.snapshots.test_set_aside import aside, wait_until_equal
from tests.integration.snapshots.test_while_streaming import PAGES, of, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
NOT_UTF8 = r"convert_from('\xe9', 'SQL_ASCII')"
"""What a client of LATIN1 writes for é."""
TABLES = (
    'CREATE TABLE odd (id int PRIMARY KEY, "größe" text)',
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "INSERT INTO odd VALUES (1, 'größer'), (2, 'x')",
    "INSERT INTO other VALUES (1, '日本')",
)
MEND = """
UPDATE odd SET "größe" = convert_from(
    convert(convert_to("größe", 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'SQL_ASCII') WHERE id = 3
"""
"""As docs/guides/postgresql.md has it."""
RENAME = (
    """
    DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE %s RENAME TO cafe', oid::regclass)
        FROM pg_class WHERE relname LIKE 'caf%' AND relkind = 'r'); END $$;
    """,
    """
    DO $$ BEGIN EXECUTE (SELECT
        format('ALTER TABLE %s RENAME COLUMN %I TO groesse', attrelid::regclass, attname)
        FROM pg_attribute WHERE attrelid = 'public.odd'::regclass AND attnum = 2); END $$;
    """,
)
LARGE = f"repeat('é', 4000) || {NOT_UTF8}"


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Conninfo]:
    """A database without an encoding."""
    name = f"ascii_{uuid4().hex[:12]}"
    statement = sql.SQL(
        "CREATE DATABASE {} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    ).format(sql.Identifier(name))
    with psycopg.connect(make_conninfo(**postgres.conninfo()), autocommit=True) as connection:
        connection.execute(statement)
    yield {**postgres.conninfo(name), "client_encoding": "UTF8"}
    postgres.drop_database(name)


def test_its_table_alone_is_set_aside_and_is_whole_once_the_row_is_mended(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *TABLES)
    made = pipeline(**PAGES)
    daemon = made.catch_up()
    wait_until_equal(made, database, ["odd", "other"])
    run(
        database,
        f"INSERT INTO odd VALUES (3, {NOT_UTF8})",
        "UPDATE odd SET \"größe\" = 'größte' WHERE id = 1",
        "INSERT INTO other VALUES (2, 'ä')",
    )
    wait_for(lambda: aside(made) == {"odd"} or not daemon.running)
    wait_for(lambda: not differing(made, database, ["other"]))
    log = daemon.command.log_end()
    assert "column größe isn't a text: it has bytes that aren't UTF-8" in log
    assert "errors.dead.letter.include.list" in log
    run(database, MEND)
    assert made.millrace("snapshot", "--reset", "public.odd").returncode == 0
    wait_until_equal(made, database, ["odd", "other"])
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_first_snapshot_and_a_read_while_streaming_go_on_without_it(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *TABLES, f"INSERT INTO odd VALUES (3, {NOT_UTF8})")
    made = pipeline(**PAGES)
    daemon = made.catch_up()
    assert aside(made) == {"odd"}
    asked = made.millrace("snapshot", "--reset", "public.odd")
    assert asked.returncode == ExitCode.NOT_DONE
    assert "aren't UTF-8" in asked.stderr
    run(database, "DELETE FROM odd WHERE id = 3", "INSERT INTO other VALUES (2, 'ä')")
    assert made.millrace("snapshot", "--reset", "public.odd").returncode == 0
    wait_until_equal(made, database, ["odd", "other"])
    assert made.stop(daemon) == 0


def test_where_dead_letters_are_wanted_it_is_one_and_its_neighbours_go_on(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *TABLES)
    made = pipeline(**{"errors.dead.letter.include.list": "public.odd"})
    daemon = made.catch_up()
    run(
        database,
        f"INSERT INTO odd VALUES (3, {NOT_UTF8}), (4, 'ß')",
        # Its large value, which the update leaves unchanged, is read again.
        f"INSERT INTO odd VALUES (5, {LARGE})",
        "ALTER TABLE odd ADD v int",
        "UPDATE odd SET v = 1 WHERE id = 4",
    )
    wait_for(lambda: letters(made) == 2 or not daemon.running)
    run(database, "UPDATE odd SET \"größe\" = 'é' WHERE id IN (3, 5)")
    wait_until_equal(made, database, ["odd", "other"])
    assert aside(made) == set()
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_names_that_arent_utf8_concern_their_tables_alone(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    name = r"convert_from('\x636166e9', 'SQL_ASCII')"
    create = f"format('CREATE TABLE public.%I (id int PRIMARY KEY)', {name})"
    insert = f"format('INSERT INTO public.%I VALUES (1)', {name})"
    rename = f"format('ALTER TABLE public.odd RENAME COLUMN \"größe\" TO %I', {name})"
    run(database, *TABLES, f"DO $$ BEGIN EXECUTE {create}; END $$")
    made = pipeline(**PAGES)
    daemon = made.catch_up()
    told = "tables with names that aren't UTF-8 aren't captured: public.caf"
    wait_for(lambda: told in daemon.command.log.read_text())
    run(
        database,
        f"DO $$ BEGIN EXECUTE {insert}; END $$",
        f"DO $$ BEGIN EXECUTE {rename}; END $$",
        "INSERT INTO odd VALUES (3, 'ä')",
        "INSERT INTO other VALUES (2, 'ä')",
    )
    wait_for(lambda: aside(made) == {"odd"} or not daemon.running)
    wait_for(lambda: not differing(made, database, ["other"]))
    assert "has a column whose name isn't UTF-8: caf" in daemon.command.log.read_text()
    assert made.stop(daemon) == 0
    daemon = made.start()
    run(database, "INSERT INTO other VALUES (3, 'ä')")
    wait_for(lambda: not differing(made, database, ["other"]) or not daemon.running)
    run(database, *RENAME)
    wait_until_equal(made, database, ["odd", "other", "cafe"])
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_row_whose_key_isnt_utf8_is_read_again_as_its_neighbours_are(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(
        database,
        "CREATE TABLE doc (id text PRIMARY KEY, big text, n int)",
        "ALTER TABLE doc ALTER big SET STORAGE EXTERNAL",
    )
    made = pipeline(**{"errors.dead.letter.include.list": "public.doc"})
    daemon = made.catch_up()
    run(
        database,
        f"INSERT INTO doc SELECT k, repeat('x', 10000) FROM unnest(ARRAY[{NOT_UTF8}, 'é']) k",
        "UPDATE doc SET n = 1",
        f"DELETE FROM doc WHERE id = {NOT_UTF8}",
    )
    wait_for(lambda: letters(made, "doc") == 3 or not daemon.running)
    wait_until_equal(made, database, ["doc"])
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_conditions_and_signal_tables_may_have_any_letter(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    signals = (
        'CREATE TABLE "größen" ("nähe" varchar(64) PRIMARY KEY, type varchar(32),'
        " data varchar(2048))"
    )
    run(database, *TABLES, signals)
    made = pipeline(**{
        "snapshot.mode": "no_data",
        "signal.data.collection": "public.größen",
        "table.include.list": "public.odd",
        "incremental.snapshot.watermarking.strategy": "insert_delete",
    })  # fmt: skip
    daemon = made.catch_up()
    asked = made.millrace("snapshot", "public.odd", "--where", "\"größe\" = 'größer'")
    assert asked.returncode == 0, asked.stderr
    assert [row["größe"] for row in state_of(of(made, "odd")).values()] == ["größer"]
    assert made.stop(daemon) == 0


def test_what_the_catalog_says_of_a_table_has_to_be_utf8(database: Conninfo) -> None:
    run(database, *TABLES, "CREATE TABLE part (id int PRIMARY KEY) PARTITION BY LIST (id)")
    with session(database) as opened:
        has_filters = opened.info.server_version >= 150_000
    whole = "WITH (publish_via_partition_root)"
    where = f"WHERE (v <> %L) {whole}" if has_filters else f"{whole} -- %L"
    name = r"convert_from('\x636166e9', 'SQL_ASCII')"
    for statement in (
        "CREATE TABLE public.%I PARTITION OF part FOR VALUES IN (1)",
        "CREATE TABLE filled (id int PRIMARY KEY, v text DEFAULT %L)",
        f"CREATE PUBLICATION p FOR TABLE part, filled, other {where}",
    ):
        run(database, f"DO $$ BEGIN EXECUTE format('{statement}', {name}); END $$")
    told = str(refusal(database, publication_name="p", publication_autocreate_mode="disabled"))
    assert "table public.part has a partition whose name isn't UTF-8: public.caf" in told
    assert "table public.filled has a column whose type or default isn't UTF-8: v" in told
    assert (
        "table public.other has a row filter in the publication that isn't" in told
    ) == has_filters


def letters(made: RunningPipeline, table: str = "odd") -> int:
    shown = made.status()
    return int(shown["dead_letters"].get(f"public.{table}", 0))

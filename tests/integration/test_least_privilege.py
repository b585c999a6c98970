"""The role of docs/explanation/security.md → a daemon that works, and has no further rights.

The test runs the page's own lines, so users can copy them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from deploy.local.postgres import Postgres
from deploy.status.tables import TableStatus, state_text
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.source import Conninfo, run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
PAGE: Final = Path(__file__).parents[2] / "docs/explanation/security.md"
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PASSWORD: Final = "choose one"
OWNERS: Final = """
    CREATE ROLE shop_owner LOGIN PASSWORD 'owner';
    CREATE ROLE stranger LOGIN PASSWORD 'stranger';
    GRANT CREATE ON DATABASE shop TO shop_owner;
"""
TABLES: Final = """
    CREATE SCHEMA app;
    CREATE TABLE app.orders (id int PRIMARY KEY, name text);
    CREATE TABLE app.items (id int PRIMARY KEY, note text);
    ALTER TABLE app.items ALTER note SET STORAGE EXTERNAL;
    CREATE TABLE app.salaries (id int PRIMARY KEY, amount int);
    INSERT INTO app.orders VALUES (1, 'snapshot');
    INSERT INTO app.items VALUES (1, repeat('x', 10000));
"""
DAY: Final = 20_485
"""2026-02-01, as events have a date: in days since 1970."""
FORBIDDEN: Final = (
    "SELECT * FROM app.salaries",
    "INSERT INTO app.orders VALUES (9, '')",
    "UPDATE app.orders SET name = ''",
    "DELETE FROM app.orders",
    "TRUNCATE app.orders",
    "ALTER TABLE app.orders ADD COLUMN c int",
    "CREATE TABLE app.mine (id int)",
    "CREATE SCHEMA mine",
    "CREATE PUBLICATION mine FOR TABLE app.orders",
    "CREATE ROLE mine",
    "CREATE DATABASE mine",
    "ALTER ROLE millrace SUPERUSER",
    "ALTER ROLE shop_owner PASSWORD 'x'",
    "SET ROLE shop_owner",
    "SELECT rolpassword FROM pg_authid",
    "SELECT pg_read_file('postgresql.conf')",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "ALTER SYSTEM SET wal_level = 'minimal'",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'postgres'",
)


def block(kind: str) -> str:
    """The page's only block of that kind of text."""
    found: list[tuple[str, str]] = BLOCK.findall(PAGE.read_text("utf-8"))
    (text,) = (text for of, text in found if of == kind)
    return text


@dataclass(frozen=True)
class Shop:
    """A server with the page's role, and how each connects to its database."""

    superuser: Conninfo
    owner: Conninfo
    stranger: Conninfo
    millrace: Conninfo


@pytest.fixture
def shop(server_folder: Path) -> Iterator[Shop]:
    server = Postgres(server_folder)
    try:
        server.start()
        superuser = server.create_database("shop")
        owner = {**superuser, "user": "shop_owner", "password": "owner"}
        run(superuser, *OWNERS.strip().splitlines())
        run(owner, *TABLES.strip().splitlines())
        run(superuser, block("sql"))
        hba = server_folder / "postgres/data/pg_hba.conf"
        allowed = block("conf").replace("hostssl", "host").replace("10.0.0.5/32", "127.0.0.1/32")
        hba.write_text(allowed + hba.read_text())
        run(superuser, "SELECT pg_reload_conf()")
        yield Shop(
            superuser,
            owner,
            {**superuser, "user": "stranger", "password": "stranger"},
            {**superuser, "user": "millrace", "password": PASSWORD},
        )
    finally:
        server.stop()


def pipeline_of(
    make: Callable[..., RunningPipeline], shop: Shop, **capture: str | int
) -> RunningPipeline:
    own = {"publication.name": "millrace", "publication.autocreate.mode": "disabled"}
    return make(source=shop.millrace, **own, **capture)


def log_of(made: RunningPipeline) -> str:
    return (made.folder / "daemon.log").read_text("utf-8")


def test_a_daemon_has_all_rights_that_it_needs(
    pipeline: Callable[..., RunningPipeline], shop: Shop
) -> None:
    made = pipeline_of(pipeline, shop)
    daemon = made.catch_up()
    run(
        shop.owner,
        "INSERT INTO app.orders VALUES (2, 'streamed')",
        "UPDATE app.items SET id = 2",
        "DELETE FROM app.orders WHERE id = 1",
        "ALTER TABLE app.orders ADD COLUMN more int DEFAULT 7",
        "INSERT INTO app.orders VALUES (3, 'later', 8)",
    )
    made.wait_until_logged(made.wal_end(), daemon)
    expected = {'{"id":2}': ("streamed", 7), '{"id":3}': ("later", 8)}
    daemon.wait_until(
        lambda: orders_of(made) == expected
    )  # once the daemon has read the table again
    again = made.millrace("snapshot", "app.items")
    assert again.returncode == ExitCode.OK, again.stderr
    shown = made.millrace("status")
    assert shown.returncode == ExitCode.OK, shown.stderr
    assert made.stop(daemon) == ExitCode.OK
    assert "the role" not in log_of(made), "it warns of rights that the page gives"
    assert orders_of(made) == expected
    items = state_of([record for record in made.log() if record.topic.endswith("items")])
    assert items == {'{"id":2}': {"id": 2, "note": "x" * 10_000}}
    assert not any(record.topic.endswith("salaries") for record in made.log())


def test_the_role_can_do_no_more_than_read_what_is_captured(shop: Shop) -> None:
    with psycopg.connect(make_conninfo(**shop.millrace), autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM app.orders").fetchone() == (1,)
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
    for elsewhere in ({"dbname": "postgres"}, {"replication": "true"}):
        with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf|rejects connection"):
            psycopg.connect(make_conninfo(**{**shop.millrace, **elsewhere}))


def test_nobody_else_writes_messages_into_the_wal(shop: Shop) -> None:
    for who in (shop.stranger, shop.owner):
        for content in ("'x'", r"'\x00'::bytea"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                run(who, f"SELECT pg_logical_emit_message(false, 'millrace.ddl', {content})")


def seen(shop: Shop) -> list[tuple[str, ...]]:
    """Whom the owner's code has written down, as whom it ran."""
    with psycopg.connect(make_conninfo(**shop.superuser)) as connection:
        return connection.execute("SELECT who FROM app.seen").fetchall()


def test_code_of_a_captured_tables_owner_changes_nothing_as_the_daemons_role(
    pipeline: Callable[..., RunningPipeline], shop: Shop
) -> None:
    run(
        shop.owner,
        "CREATE TABLE app.seen (who text)",
        "GRANT INSERT ON app.seen TO PUBLIC",
        # What isn't volatile may write nothing, but may call what is.
        """CREATE FUNCTION app.note() RETURNS void LANGUAGE sql VOLATILE AS $$
           INSERT INTO app.seen SELECT current_user WHERE current_user = 'millrace' $$""",
        """CREATE FUNCTION app.spy(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
           BEGIN PERFORM app.note(); RETURN $1; EXCEPTION WHEN OTHERS THEN RETURN $1; END $$""",
        "CREATE INDEX ON app.orders ((id + app.spy(1)))",
        "CREATE INDEX ON app.items ((id + app.spy(1)))",
    )
    run(shop.millrace, "SELECT * FROM app.items")
    assert seen(shop) == [("millrace",)], "planning a SELECT runs it"
    run(shop.owner, "TRUNCATE app.seen")
    made = pipeline_of(pipeline, shop)
    daemon = made.catch_up()
    run(shop.owner, "UPDATE app.items SET id = 2")
    made.wait_until_logged(made.wal_end(), daemon)
    for table in ("app.items", "app.orders"):
        assert made.millrace("snapshot", table).returncode == ExitCode.OK
    assert made.stop(daemon) == ExitCode.OK
    assert seen(shop) == []


@pytest.mark.proof
def test_what_code_of_an_owner_sets_is_over_before_another_table_is_read(
    pipeline: Callable[..., RunningPipeline], shop: Shop
) -> None:
    run(
        shop.owner,
        "ALTER TABLE app.orders ADD COLUMN day date DEFAULT '2026-02-01'",
        "CREATE TABLE app.a (id int PRIMARY KEY)",
        "GRANT SELECT ON app.a TO millrace",
        """CREATE FUNCTION app.upset(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
           BEGIN
             IF current_user = 'millrace' THEN
               PERFORM set_config('DateStyle', 'Postgres, DMY', false);
             END IF;
             RETURN $1;
           END $$""",
        "CREATE INDEX ON app.a ((id + app.upset(1)))",
    )
    run(shop.superuser, "ALTER PUBLICATION millrace ADD TABLE app.a")
    made = pipeline_of(pipeline, shop, **{"snapshot.max.threads": 1})
    daemon = made.catch_up()
    assert made.millrace("snapshot").returncode == ExitCode.OK
    before = days(made)
    assert made.millrace("snapshot", "app.a", "app.orders").returncode == ExitCode.OK
    assert made.stop(daemon) == ExitCode.OK
    assert before == days(made) == {'{"id":1}': DAY}


def days(made: RunningPipeline) -> dict[str, int]:
    rows = state_of([record for record in made.log() if record.topic.endswith("orders")])
    return {key: row["day"] for key, row in rows.items()}


@pytest.mark.proof  # half a minute: the daemon's pauses
def test_a_right_that_is_lost_while_running_shows_with_what_gives_it_back(
    pipeline: Callable[..., RunningPipeline], shop: Shop
) -> None:
    made = pipeline_of(pipeline, shop)
    daemon = made.catch_up()
    run(
        shop.owner,
        "REVOKE SELECT ON app.orders FROM millrace",
        "ALTER TABLE app.orders ADD COLUMN luck int DEFAULT (random() * 9)::int",
    )
    daemon.wait_until(lambda: "the daemon can't read it, and retries" in status_of(made))
    assert "GRANT SELECT ON app.orders TO millrace;" in status_of(made)
    assert "GRANT SELECT ON app.orders TO millrace;" in log_of(made)
    run(shop.owner, "GRANT SELECT ON app.orders TO millrace")
    made.wait_until_logged(made.wal_end(), daemon)
    assert "DOUBTFUL" not in status_of(made)
    assert "can't read it" not in status_of(made)
    assert made.stop(daemon) == ExitCode.OK


def orders_of(made: RunningPipeline) -> dict[str, tuple[str, int | None]]:
    """The rows of orders in the log, by their keys."""
    rows = state_of([record for record in made.log() if record.topic.endswith("orders")])
    return {key: (row["name"], row.get("more")) for key, row in rows.items()}


def status_of(made: RunningPipeline) -> str:
    """What ``millrace status`` says of the tables, unwrapped."""
    shown = made.status()
    return "\n".join(state_text(TableStatus(**table)) for table in shown["tables"])

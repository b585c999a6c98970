"""Possible writers of a table, and how their changes after DDL are decoded."""

from collections.abc import Iterator

import psycopg
import pytest

from cdc.postgres.running import running
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres
TABLES = (
    "CREATE TYPE mood AS ENUM ('old', 'other')",
    "CREATE TABLE t (id int PRIMARY KEY, v mood)",
    "CREATE TABLE elsewhere (id int PRIMARY KEY, v mood)",
    "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10)",
)
SLOT = "SELECT pg_create_logical_replication_slot('running', 'pgoutput')"
STREAM = """
SELECT data FROM pg_logical_slot_get_binary_changes(
    'running', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')
"""


@pytest.fixture
def opened(database: Conninfo) -> Iterator[psycopg.Connection]:
    run(database, *TABLES)
    with session(database) as connection:
        connection.execute("SET search_path = public")
        yield connection


def writers(opened: psycopg.Connection, table: str) -> frozenset[int]:
    row = opened.execute("SELECT %s::regclass::oid", [table]).fetchone()
    assert row is not None
    found = running(opened, row).writers
    assert found is not None
    return found[row[0]]


@pytest.mark.parametrize(
    ("statements", "table", "is_writer"),
    [
        (("INSERT INTO t VALUES (1)",), "t", True),
        (("INSERT INTO t VALUES (1)",), "elsewhere", False),
        (("INSERT INTO parted VALUES (1)",), "parted", True),
        (("INSERT INTO part VALUES (1)",), "parted", True),
        (("SAVEPOINT a", "INSERT INTO t VALUES (1)", "RELEASE a"), "t", True),
        (("SAVEPOINT a", "INSERT INTO t VALUES (1)", "ROLLBACK TO a"), "t", False),
        (("INSERT INTO elsewhere VALUES (1)", "SELECT FROM t"), "t", False),
    ],
)
def test_who_has_written_to_a_table_is_known_until_the_end(
    opened: psycopg.Connection,
    database: Conninfo,
    statements: tuple[str, ...],
    table: str,
    is_writer: bool,
) -> None:
    assert writers(opened, table) == frozenset()
    with session(database) as other:
        other.execute("SET search_path = public")
        with other.transaction():
            for statement in statements:
                other.execute(statement.encode())
            assert bool(writers(opened, table)) == is_writer
        assert writers(opened, table) == frozenset()


def test_a_prepared_transaction_is_the_same_writer(
    opened: psycopg.Connection, database: Conninfo
) -> None:
    with session(database) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO public.t VALUES (1)")
        before = writers(opened, "t")
        other.execute("PREPARE TRANSACTION 'running'")
    assert writers(opened, "t") == before != frozenset()
    opened.execute("COMMIT PREPARED 'running'")
    assert writers(opened, "t") == frozenset()


def test_what_an_open_transaction_writes_behind_ddl_is_decoded_by_the_new_catalog(
    opened: psycopg.Connection, database: Conninfo
) -> None:
    """Though it has used the old label, and the old publication, for another table before."""
    opened.execute("CREATE PUBLICATION p FOR TABLE elsewhere")
    opened.execute(SLOT)
    try:
        with session(database) as other, other.transaction():
            other.execute("INSERT INTO public.elsewhere VALUES (1, 'old')")
            opened.execute("ALTER TYPE mood RENAME VALUE 'old' TO 'new'")
            opened.execute("ALTER PUBLICATION p ADD TABLE t")
            other.execute("INSERT INTO public.t VALUES (1, 'new')")
        inserts = [bytes(data) for (data,) in opened.execute(STREAM) if bytes(data)[:1] == b"I"]
    finally:
        opened.execute("SELECT pg_drop_replication_slot('running')")
    assert [data[-3:] for data in inserts] == [b"old", b"new"]

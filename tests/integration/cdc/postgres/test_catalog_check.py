"""Fingerprints during locks and subtransactions, of dropped tables, and of a thousand tables."""

import time
from collections.abc import Callable

import psycopg
import pytest

from cdc.postgres.connection import query
from cdc.postgres.fingerprints import fingerprints, has_old_row
from cdc.postgres.publications import publication_entries
from cdc.records.schema import TableName
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres

TABLE = ("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
PARTED = (
    "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
)


def oids(opened: psycopg.Connection, *tables: str) -> list[int]:
    names = [f"public.{table}" for table in tables]
    rows = query(opened, "SELECT n::regclass::oid FROM unnest(%s::text[]) AS n", [names])
    return [oid for (oid,) in rows]


def seen(opened: psycopg.Connection) -> str:
    ((text,),) = query(opened, "SELECT pg_current_snapshot()::text")
    return str(text)


def test_a_locked_table_is_waited_for_by_nobody(database: Conninfo) -> None:
    run(database, *TABLE, *PARTED, "CREATE PUBLICATION p FOR TABLE t, parted")
    with session(database) as opened, session(database) as other:
        t, parted, parted_1 = oids(opened, "t", "parted", "parted_1")
        before = fingerprints(opened, [t, parted], "p")
        with other.transaction():
            other.execute("LOCK TABLE public.t, public.parted, public.parted_1")
            query(opened, "SET lock_timeout = 1")
            now = fingerprints(opened, [t, parted], "p")
            assert has_old_row(opened, t, before[t].fingerprint.seen) is None
            assert has_old_row(opened, parted_1, before[t].fingerprint.seen) is None
    assert now.keys() == before.keys()


def test_a_table_that_is_gone_is_missing_and_one_that_is_renamed_is_not(database: Conninfo) -> None:
    run(database, *TABLE, *PARTED)
    with session(database) as opened:
        t, parted = oids(opened, "t", "parted")
        run(database, "DROP TABLE parted", "ALTER TABLE t RENAME TO renamed")
        now = fingerprints(opened, [t, parted], "nobody made it")
    assert {oid: (table.name, table.entry) for oid, table in now.items()} == {
        t: (TableName("public", "renamed"), 0)
    }


OF_ROOT = "SELECT oid FROM pg_publication_rel WHERE prrelid = 'public.parted'::regclass"


@pytest.mark.parametrize(
    ("published", "t", "parted", "parted_1"),
    [
        (
            "TABLE t, parted",
            "SELECT oid FROM pg_publication_rel WHERE prrelid = 'public.t'::regclass",
            OF_ROOT,
            OF_ROOT,
        ),
        ("TABLE parted_1", "SELECT 0", "SELECT 0", "SELECT oid FROM pg_publication_rel"),
        ("ALL TABLES", *["SELECT oid FROM pg_publication"] * 3),
        pytest.param(
            "TABLES IN SCHEMA public",
            *["SELECT oid FROM pg_publication_namespace"] * 3,
            marks=pytest.mark.since(15, "schemas"),
        ),
    ],
)
def test_the_entry_is_what_lets_a_table_be_published(
    database: Conninfo, published: str, t: str, parted: str, parted_1: str
) -> None:
    run(database, *TABLE, *PARTED, f"CREATE PUBLICATION p FOR {published}")
    with session(database) as opened:
        tables = oids(opened, "t", "parted", "parted_1")
        expected = [query(opened, statement)[0][0] for statement in (t, parted, parted_1)]
        entries = publication_entries(opened, "p", tables)
        seen_by_check = fingerprints(opened, tables, "p")
    assert [entries.get(oid, 0) for oid in tables] == expected
    assert [seen_by_check[oid].entry for oid in tables] == expected


def test_the_size_is_that_of_what_holds_rows(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE wide (id int PRIMARY KEY, v text)",
        "ALTER TABLE wide ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT g, repeat('x', 100000) FROM generate_series(1, 10) g",
        *PARTED,
        "INSERT INTO parted VALUES (1)",
        "VACUUM ANALYZE wide, parted",
    )
    with session(database) as opened:
        wide, parted, parted_1 = oids(opened, "wide", "parted", "parted_1")
        tables = fingerprints(opened, [wide, parted], "p")
    assert 1_000_000 < tables[wide].bytes_of([]) < 1_200_000
    assert tables[wide].bytes_of([wide]) == tables[wide].bytes_of([])
    assert tables[parted].bytes_of([]) == tables[parted].bytes_of([parted_1]) == 8192
    assert tables[parted].bytes_of([parted]) == 0, "it has no rows of its own"


def test_a_row_of_a_subtransaction_that_ran_on_is_no_old_row(database: Conninfo) -> None:
    """A snapshot doesn't list it: its transaction counts as ended, by its number."""
    run(database, *TABLE, "CREATE TABLE other (id int)")
    with session(database) as opened, session(database) as rewriting:
        (t,) = oids(opened, "t")
        before = seen(opened)
        with rewriting.transaction():
            rewriting.execute("INSERT INTO public.other VALUES (1)")
            with rewriting.transaction():
                rewriting.execute("ALTER TABLE public.t ALTER id TYPE int USING 1")
            run(database, "INSERT INTO other VALUES (2)", "INSERT INTO other VALUES (3)")
            during = seen(opened)
        assert has_old_row(opened, t, before) is False
        assert has_old_row(opened, t, during) is False
        assert has_old_row(opened, t, seen(opened)) is True


def test_an_old_row_is_looked_for_in_the_first_pages_only(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int, v text)",
        "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 100) g",
    )
    with session(database) as opened:
        (t,) = oids(opened, "t")
        before = seen(opened)
        assert has_old_row(opened, t, before) is True
        run(database, "DELETE FROM t WHERE ctid < '(8,0)'")
        assert has_old_row(opened, t, before) is False
        run(database, "DROP TABLE t")
        assert has_old_row(opened, t, before) is None


def test_one_that_may_not_be_read_proves_nothing(database: Conninfo) -> None:
    run(database, *TABLE, "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    with session(database) as opened:
        (t,) = oids(opened, "t")
        query(opened, "SET ROLE pg_monitor")
        assert has_old_row(opened, t, seen(opened)) is False


@pytest.mark.proof
def test_a_thousand_tables_take_a_moment(
    database: Conninfo, record_property: Callable[[str, object], None]
) -> None:
    columns = ", ".join(f"c{number} text" for number in range(19))
    run(
        database,
        f"""DO $$ BEGIN FOR n IN 1..1000 LOOP
            EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, {columns})', n);
            IF n % 100 = 0 THEN COMMIT; END IF;
        END LOOP; END $$""",
        "CREATE PUBLICATION p FOR ALL TABLES",
        "ANALYZE pg_class, pg_attribute, pg_index, pg_namespace",
    )
    with session(database) as opened:
        tables = oids(opened, *(f"t{number}" for number in range(1, 1001)))
        took_ms = []
        for _ in range(5):
            begun = time.perf_counter()
            assert len(fingerprints(opened, tables, "p")) == len(tables)
            took_ms.append((time.perf_counter() - begun) * 1000)
    record_property("ms", took_ms)
    assert min(took_ms) < 1000

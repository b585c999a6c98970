"""Keys of rows → PostgreSQL's current values of their columns; unknown ones stay absent."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from cdc.errors import SourceUnreachableError
from cdc.events.changes import ABSENT, IdentityKey, RereadRequest, Row
from cdc.postgres import reselect
from cdc.postgres.reselect import Rereading, is_visible
from cdc.wal.messages import Relation, RelationColumn
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres


@contextmanager
def rereading(database: Conninfo) -> Iterator[Rereading]:
    made = Rereading(database, lambda: None)
    try:
        yield made
    finally:
        made.close()


def relation(database: Conninfo, name: str, key: str) -> Relation:
    """The table as a Relation message would tell it; ``key`` names its identity's columns."""
    with session(database) as opened:
        ((oid, table),) = opened.execute(
            "SELECT oid, relname FROM pg_class WHERE oid = %s::regclass", [f"public.{name}"]
        ).fetchall()
        rows = opened.execute(
            "SELECT attname, atttypid, atttypmod FROM pg_attribute"
            " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [oid],
        ).fetchall()
    columns = tuple(RelationColumn(row[0] in key.split(), *row) for row in rows)
    return Relation(oid, "public", table, "d", columns)


def request(
    of: Relation, *keys: IdentityKey, columns: tuple[int, ...], xid: int | None = None
) -> RereadRequest:
    identity = tuple(index for index, column in enumerate(of.columns) if column.key)
    return RereadRequest(
        of, identity, columns, keys, frozenset() if xid is None else frozenset({xid})
    )


def read(database: Conninfo, name: str, key: str, *keys: IdentityKey) -> dict[IdentityKey, Row]:
    """All columns but the key's of some rows."""
    of = relation(database, name, key)
    columns = tuple(index for index, column in enumerate(of.columns) if not column.key)
    with rereading(database) as source:
        return dict(source(request(of, *keys, columns=columns)) or {})


def test_rows_are_found_by_the_text_of_their_keys(database: Conninfo) -> None:
    run(
        database,
        'CREATE TABLE "a%s b" (id int PRIMARY KEY, "v%d" text, w jsonb)',
        """INSERT INTO "a%s b" VALUES (1, '%s', '{}'), (2, NULL, '[1]'), (3, 'x', NULL)""",
    )
    found = read(database, '"a%s b"', "id", (b"1",), (b"2",), (b"9",))
    assert found == {(b"1",): (b"%s", b"{}"), (b"2",): (None, b"[1]")}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("bpchar(5)", "ab   "),
        ("varchar(9)", "it's \\"),
        ("numeric(9,2)", "1.50"),
        ("bytea", r"\x00ff"),
        ("timestamptz", "2026-01-02 03:04:05.678+00"),
        ("interval", "P1DT2H"),
        ("uuid", "6a3f0d64-0d4b-4b8b-9d43-0f4d1f1f8f7e"),
        ("int[]", "{1,NULL,3}"),
        ('"Mood"', "so so"),
        ("positive", "3"),
        ("bit(3)", "101"),
        ('"char"', "c"),
    ],
)
def test_keys_of_many_types(database: Conninfo, kind: str, text: str) -> None:
    run(
        database,
        """CREATE TYPE "Mood" AS ENUM ('so so', 'good')""",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        f"CREATE TABLE t (id {kind}, part int, v text, PRIMARY KEY (id, part))",
        f"INSERT INTO t VALUES ($${text}$$, 7, 'v')",
    )
    key = text.encode(), b"7"
    assert read(database, "t", "id part", key) == {key: (b"v",)}


def test_a_key_whose_type_and_operators_are_an_extensions(database: Conninfo) -> None:
    with session(database) as opened:
        query = "SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"
        if not opened.execute(query).fetchall():
            pytest.skip("citext isn't installed")
    run(
        database,
        "CREATE EXTENSION citext WITH SCHEMA public",
        "CREATE TABLE t (id citext PRIMARY KEY, v text)",
        "INSERT INTO t VALUES ('Abc', 'v')",
    )
    assert read(database, "t", "id", (b"Abc",)) == {(b"Abc",): (b"v",)}


OWNERS: str = """
CREATE FUNCTION writes() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  CREATE TABLE IF NOT EXISTS public.written (i int);
EXCEPTION WHEN read_only_sql_transaction THEN
END $$;
CREATE FUNCTION owners() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF current_setting('application_name') LIKE '%completion%' THEN
    PERFORM set_config('default_transaction_read_only', 'off', false);
    PERFORM public.writes();
  END IF;
  RETURN 1;
END $$"""
"""A function of the table's owner, which writes what it can in a session of the daemon."""


@pytest.mark.parametrize(
    ("kind", "text", "is_read"),
    [
        ("checked", "7", True),
        ("checked_again", "7", True),
        ("checked[]", "{7}", False),
        ("composite", "(7)", False),
        ("span", "[7,7]", False),
        ("harmless", "(7,a)", True),
        ("moods[]", "{glad}", True),
    ],
)
def test_functions_of_a_tables_owner_are_not_run_for_a_key(
    database: Conninfo, kind: str, text: str, *, is_read: bool
) -> None:
    run(
        database,
        OWNERS,
        "CREATE DOMAIN checked AS numeric(9, 0) CHECK (owners() = VALUE - 6)",
        "CREATE DOMAIN checked_again AS checked CHECK (owners() = 1)",
        "CREATE TYPE composite AS (c checked)",
        "CREATE TYPE span AS RANGE (subtype = checked)",
        "CREATE TYPE harmless AS (i int, t text)",
        "CREATE TYPE moods AS ENUM ('glad', 'sad')",
        f"CREATE TABLE t (id {kind} PRIMARY KEY, v text)",
        f"INSERT INTO t VALUES ('{text}', 'x')",
    )
    with capture_logs() as logs:
        found = read(database, "t", "id", (text.encode(),))
    assert found == ({(text.encode(),): (b"x",)} if is_read else {})
    reasons = (
        []
        if is_read
        else ["the key has no unique index, or has a type with checks by functions of its owner"]
    )
    assert [entry["reason"] for entry in logs] == reasons
    assert written(database) is None


def test_an_index_expression_that_planning_evaluates_writes_nothing(database: Conninfo) -> None:
    run(
        database,
        OWNERS,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE INDEX ON t ((owners() + id))",
        "INSERT INTO t VALUES (1, 'x')",
    )
    of = relation(database, "t", "id")
    with rereading(database) as source:
        for _ in range(2):  # what it sets is of one transaction
            assert source(request(of, (b"1",), columns=(1,))) == {(b"1",): (b"x",)}
    assert written(database) is None


def written(database: Conninfo) -> str | None:
    with session(database) as opened:
        ((table,),) = opened.execute("SELECT to_regclass('public.written')::text").fetchall()
    return table if table is None else str(table)


def test_partitions_by_their_root_and_children_not_with_their_parent(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (1, 'one'), (11, 'eleven')",
        "CREATE TABLE parent (id int PRIMARY KEY, v text)",
        "CREATE TABLE child () INHERITS (parent)",
        "INSERT INTO child VALUES (1, 'of the child')",
    )
    found = read(database, "p", "id", (b"1",), (b"11",))
    assert found == {(b"1",): (b"one",), (b"11",): (b"eleven",)}
    assert read(database, "parent", "id", (b"1",)) == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ALTER TABLE t DROP COLUMN a", (ABSENT, b"b")),
        ("ALTER TABLE t RENAME a TO c", (ABSENT, b"b")),
        ("ALTER TABLE t ALTER a TYPE varchar(3)", (ABSENT, b"b")),
        ("ALTER TABLE t RENAME TO u", (b"a", b"b")),
        ("DROP TABLE t", None),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", None),
        ("ALTER TABLE t ALTER id TYPE bigint", None),
    ],
)
def test_what_was_changed_meanwhile_stays_absent(
    database: Conninfo, change: str, expected: Row | None
) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
        "INSERT INTO t VALUES (1, 'a', 'b')",
    )
    of = relation(database, "t", "id")
    run(database, change)
    with rereading(database) as source:
        found = source(request(of, (b"1",), columns=(1, 2)))
    assert (found or {}).get((b"1",)) == expected


def test_columns_with_another_name_by_now_are_told_once_in_a_while(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    run(database, "INSERT INTO t VALUES (1, 'a', 'b')")
    of = request(relation(database, "t", "id"), (b"1",), columns=(1, 2))
    run(database, "ALTER TABLE t RENAME a TO c")
    with rereading(database) as source, capture_logs() as said:
        assert source(of) == {(b"1",): (ABSENT, b"b")}
        assert source(of) == {(b"1",): (ABSENT, b"b")}
    (line,) = said
    assert line["event"] == "unchanged values stay absent"
    assert line["table"] == "public.t"
    assert line["reason"] == "dropped, renamed, or of another type now: a"


def test_a_lock_a_policy_and_a_missing_right_leave_values_absent_and_say_so(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reselect, "PAUSE_S", 0.0)
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'v')",
        "CREATE ROLE reselect_reader LOGIN PASSWORD 'x'",
    )
    of = request(relation(database, "t", "id"), (b"1",), columns=(1,))
    try:
        with rereading(database) as source, session(database) as other, capture_logs() as said:
            with other.transaction():
                other.execute("LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
                assert source(of) is None
            assert "lock timeout" in said[-1]["reason"]
            assert source(of) == {(b"1",): (b"v",)}
        with rereading(database | {"options": "-c role=reselect_reader"}) as source:
            with capture_logs() as said:
                assert source(of) is None
            assert "permission denied" in said[-1]["reason"]
            run(
                database,
                "GRANT SELECT ON t TO reselect_reader",
                "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            )
            with capture_logs() as said:
                assert source(of) is None
            assert "row-level security" in said[-1]["reason"]
    finally:
        run(database, "DROP OWNED BY reselect_reader", "DROP ROLE reselect_reader")


def test_a_table_that_was_looked_at_in_vain_is_left_alone_for_a_while(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v')")
    of = request(relation(database, "t", "id"), (b"1",), columns=(1,))
    run(database, "ALTER TABLE t DROP CONSTRAINT t_pkey")
    with rereading(database) as source, capture_logs() as said:
        assert source(of) is None
        assert source(of) is None
    assert len(said) == 1


def test_a_transaction_that_others_do_not_see_yet_is_waited_for(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is so from its commit record until it leaves the list of running ones."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'old')")
    of = relation(database, "t", "id")
    with session(database) as other:
        other.execute("BEGIN")
        other.execute("UPDATE public.t SET v = 'new'")
        ((xid,),) = other.execute("SELECT pg_current_xact_id()::text::int8 % (1::int8 << 32)")
        waited: list[bool] = []

        def keep_alive() -> None:
            waited.append(True)
            if len(waited) == 3:
                other.execute("COMMIT")

        source = Rereading(database, keep_alive)
        found = source(request(of, (b"1",), columns=(1,), xid=xid))
        source.close()
    assert found == {(b"1",): (b"new",)}
    assert len(waited) == 3
    with session(database) as other, rereading(database) as source, capture_logs() as said:
        monkeypatch.setattr(reselect, "PATIENCE_S", 0.1)
        other.execute("BEGIN")
        ((xid,),) = other.execute("SELECT pg_current_xact_id()::text::int8 % (1::int8 << 32)")
        assert source(request(of, (b"1",), columns=(1,), xid=xid)) is None
        assert "visible" in said[-1]["reason"]


def test_visibility_holds_over_a_wraparound_of_transaction_ids() -> None:
    epoch = 5 << 32
    snapshot = f"{epoch - 9}:{epoch + 4}:{epoch - 9},{epoch + 2}"
    assert is_visible(snapshot, frozenset({0xFFFF_FFF8, 3}))
    for unseen in (0xFFFF_FFF7, 2, 4, 5, 1_000):
        assert not is_visible(snapshot, frozenset({3, unseen}))


def test_a_look_that_somebody_cancels_costs_that_table_only(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v')")
    of = request(relation(database, "t", "id"), (b"1",), columns=(1,), xid=3)
    execute = psycopg.Connection.execute

    def cancelled(self: psycopg.Connection, statement: Any, *more: Any) -> psycopg.Cursor:
        if "pg_current_snapshot" in str(statement):
            raise psycopg.errors.QueryCanceled("canceling statement due to user request")
        return execute(self, statement, *more)

    monkeypatch.setattr(psycopg.Connection, "execute", cancelled)
    with rereading(database) as source, capture_logs() as said:
        assert source(of) is None
    assert "canceling" in said[-1]["reason"]


def test_a_lost_connection_is_an_error(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    of = request(relation(database, "t", "id"), (b"1",), columns=(1,))
    with rereading(database) as source:
        assert source(of) == {}
        with session(database) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'millrace completion' AND datname = current_database()"
            )
        with pytest.raises(SourceUnreachableError):
            source(of)


@pytest.mark.since(15, "pg_stat_force_next_flush, which this test looks by")
def test_rows_are_found_by_the_index_whatever_the_planner_thinks(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5000) i",
    )
    of = relation(database, "t", "id")
    keys = [(str(number).encode(),) for number in range(1, 501)]
    with rereading(database) as source:
        assert len(source(request(of, *keys, columns=(1,))) or ()) == 500
    scans = 0
    with psycopg.connect(**database, autocommit=True) as opened:  # type: ignore[arg-type]
        for _ in range(600):  # its session counts them as it ends
            statement = "SELECT idx_scan FROM pg_stat_user_tables WHERE relname = 't'"
            ((scans,),) = opened.execute(statement)
            if scans:
                break
            time.sleep(0.1)
    assert scans == len(keys)

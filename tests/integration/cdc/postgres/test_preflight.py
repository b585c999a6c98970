"""Preflight: it finds every unmet requirement at once, with the line that corrects it."""

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.errors import (
    ConfigError,
    ExitCode,
    MillraceError,
    SourcePrivilegeError,
    SourceSettingError,
    TableRefusedError,
)
from cdc.postgres.checks import preflight
from cdc.postgres.checks.preflight import PreflightError
from cdc.postgres.failures import alter_identity
from cdc.records.schema import TableName
from deploy.local.postgres import Postgres
from tests.fixtures.source import Conninfo, capture, described, run, session

pytestmark = pytest.mark.postgres

KEYED = "CREATE TABLE keyed (id int PRIMARY KEY)"


def check(database: Conninfo, **more: str) -> None:
    with session(database) as opened:
        settings = capture(database, **more)
        preflight.check(opened, database, settings, described(opened, settings))


def refusal(database: Conninfo, **more: str) -> MillraceError:
    with pytest.raises(MillraceError) as caught:
        check(database, **more)
    return caught.value


def mend(database: Conninfo, error: MillraceError) -> None:
    lines = [line.strip() for line in error.remedy.splitlines()]
    run(database, *(line for line in lines if line.endswith(";")))


def test_a_database_in_order_passes(database: Conninfo) -> None:
    run(database, KEYED, "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    run(database, "CREATE TABLE p1 PARTITION OF p DEFAULT")
    check(database)


def test_nothing_to_capture(database: Conninfo) -> None:
    assert isinstance(refusal(database), ConfigError)


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["CREATE TABLE t (v int)"], ["ALTER TABLE public.t REPLICA IDENTITY FULL;"]),
        (
            ["CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"],
            ["ALTER TABLE public.t REPLICA IDENTITY DEFAULT;"],
        ),
        (
            [
                "CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL UNIQUE)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key",
            ],
            ["without its primary key", "ALTER TABLE public.t REPLICA IDENTITY DEFAULT;"],
        ),
        (
            [
                "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
                'CREATE TABLE "T 1" PARTITION OF t DEFAULT',
                "ALTER TABLE t REPLICA IDENTITY FULL",
            ],
            ['ALTER TABLE public."T 1" REPLICA IDENTITY FULL;'],
        ),
        (
            [
                "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
                "CREATE TABLE t1 PARTITION OF t DEFAULT",
                "ALTER TABLE t REPLICA IDENTITY FULL",
            ],
            ["partitions with another identity", "ALTER TABLE public.t1 REPLICA IDENTITY FULL;"],
        ),
    ],
)
def test_a_table_whose_changes_wouldnt_tell_their_row_is_refused(
    database: Conninfo, statements: list[str], words: list[str]
) -> None:
    run(database, *statements)
    error = refusal(database)
    assert isinstance(error, TableRefusedError)
    for word in [*words, "table.exclude.list"]:
        assert word in str(error)
    mend(database, error)
    check(database)


def test_a_table_without_key_can_be_refused(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (v int)", "ALTER TABLE t REPLICA IDENTITY FULL")
    check(database)
    error = refusal(database, table_without_key="refuse")
    assert isinstance(error, TableRefusedError)
    assert "has no primary key" in str(error)


def test_a_schema_with_a_dot_in_its_name_is_refused(database: Conninfo) -> None:
    run(database, 'CREATE SCHEMA "a.b"', 'CREATE TABLE "a.b".c (id int PRIMARY KEY)')
    assert "table a.b.c is in a schema with a dot" in str(refusal(database))


def test_tables_that_would_share_a_topic_are_refused(database: Conninfo) -> None:
    run(database, 'CREATE TABLE "a b" (id int PRIMARY KEY)')
    run(database, 'CREATE TABLE "a_b" (id int PRIMARY KEY)')
    assert "would share the topic t.public.a_b" in str(refusal(database))


def test_lines_to_paste_name_a_table_whatever_it_is_called(database: Conninfo) -> None:
    odd = TableName("public", "a\nb\"\\ \x1b'é")
    run(database, sql.SQL("CREATE TABLE {} (id int)").format(sql.Identifier(*odd)).as_string())
    run(database, alter_identity([odd], "FULL"))
    with psycopg.connect(make_conninfo(**database)) as connection:
        asked = connection.execute(
            "SELECT relreplident FROM pg_class WHERE relname = %s", [odd.name]
        )
        assert asked.fetchall() == [("f",)]


def test_missing_rights_are_listed_as_grants(database: Conninfo) -> None:
    run(
        database,
        "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.t (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p DEFAULT",
        "CREATE TABLE by_column (id int PRIMARY KEY)",
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'reader'",
        "CREATE PUBLICATION millrace FOR ALL TABLES",
        "GRANT SELECT ON p TO reader",
        "GRANT SELECT (id) ON by_column TO reader",
    )
    reader = {**database, "user": "reader", "password": "reader"}
    try:
        error = refusal(reader)
        assert isinstance(error, SourcePrivilegeError)
        assert "GRANT USAGE ON SCHEMA hidden TO reader;" in error.remedy
        assert "GRANT SELECT ON hidden.t, public.by_column, public.p1 TO reader;" in error.remedy
        assert "SELECT on columns, as on public.by_column, isn't enough" in error.what
        mend(database, error)
        check(reader)
        run(database, "ALTER TABLE hidden.t ENABLE ROW LEVEL SECURITY")
        assert "ALTER ROLE reader BYPASSRLS;" in str(refusal(reader))
    finally:
        run(database, "DROP OWNED BY reader", "DROP ROLE reader")


def test_a_role_that_cannot_start_replication_is_found_by_trying(database: Conninfo) -> None:
    run(
        database,
        KEYED,
        "CREATE ROLE plain LOGIN PASSWORD 'plain'",
        "CREATE PUBLICATION millrace FOR ALL TABLES",
        "GRANT SELECT ON keyed TO plain",
    )
    try:
        error = refusal({**database, "user": "plain", "password": "plain"})
        assert isinstance(error, SourcePrivilegeError)
        assert "ALTER ROLE plain REPLICATION;" in str(error)
    finally:
        run(database, "DROP OWNED BY plain", "DROP ROLE plain")


def test_all_problems_come_at_once_and_the_first_gives_the_exit_code(server_folder: Path) -> None:
    server = Postgres(
        server_folder,
        {"wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "0"},
    ).start()
    try:
        run(server.conninfo(), "CREATE TABLE t (v int)")
        error = refusal(server.conninfo())
        assert isinstance(error, PreflightError)
        assert error.exit_code is ExitCode.SOURCE_SETTING
        assert [type(problem) for problem in error.problems[:3]] == [SourceSettingError] * 3
        assert isinstance(error.problems[-1], TableRefusedError)
        text = str(error)
        for word in (
            "ALTER SYSTEM SET wal_level = 'logical';",
            "ALTER SYSTEM SET max_replication_slots = 2;",
            "ALTER SYSTEM SET max_wal_senders = 2;",
            "REPLICA IDENTITY FULL",
        ):
            assert word in text
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("unique", "key", "passes"),
    [
        ("", "tenant", False),
        ("", "Tenant,id", True),
        ("ALTER TABLE t ADD UNIQUE (tenant)", "tenant", True),
        ("ALTER TABLE t ADD UNIQUE (code)", "code", False),  # of which NULL may stand in many
        ("ALTER TABLE t ADD UNIQUE (tenant) DEFERRABLE", "tenant", False),
        ("CREATE UNIQUE INDEX ON t (tenant) WHERE id > 0", "tenant", False),
    ],
)
def test_a_message_key_has_to_tell_rows_apart(
    database: Conninfo, unique: str, key: str, passes: bool
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, tenant int NOT NULL, code text)")
    run(database, "ALTER TABLE t REPLICA IDENTITY FULL", *filter(None, [unique]))
    if passes:
        check(database, message_key_columns=f"public.t:{key}")
    else:
        error = refusal(database, message_key_columns=f"public.t:{key}")
        assert isinstance(error, TableRefusedError)
        assert "rows may share" in str(error)

"""Partitions that come and go over several checks → whether a new one is a reason to read."""

from collections.abc import Sequence
from typing import Final

import psycopg
import pytest

from cdc.postgres.connection import query
from cdc.postgres.fingerprints import fingerprints, is_empty
from cdc.records.fingerprint import TableFingerprint
from cdc.tables.doubts import Cause, Differences, compare, first
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres

PARTED: Final = (
    "CREATE TABLE parted (id int PRIMARY KEY, d date, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF parted FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id)",
    "CREATE TABLE p2_1 PARTITION OF p2 FOR VALUES IN (10, 11)",
    "INSERT INTO parted SELECT g FROM generate_series(0, 11) g",
    "CREATE TABLE new1 (id int NOT NULL, d date, v text)",
    "CREATE TABLE new2 (LIKE new1) PARTITION BY LIST (id)",
    "CREATE TABLE new2_1 PARTITION OF new2 FOR VALUES IN ( 10,  11 )",
    "INSERT INTO new1 VALUES (1)",
    "CREATE PUBLICATION p FOR TABLE parted WITH (publish_via_partition_root)",
)
DETACH_1 = "ALTER TABLE parted DETACH PARTITION p1"
ATTACH_1 = "ALTER TABLE parted ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)"
ATTACH_NEW_1 = ATTACH_1.replace("p1", "new1")
GROW = "CREATE TABLE p3 PARTITION OF parted FOR VALUES FROM (20) TO (30)"
EXCHANGED: Final = "a partition was exchanged"
UNLOGGED: Final = "a partition is unlogged: its changes aren't in the WAL"
NEW_FILE: Final = "a new partition was truncated or rewritten, before it was attached or since"


def oid_of(opened: psycopg.Connection, table: str) -> int:
    ((oid,),) = query(opened, "SELECT %s::regclass::oid", [f"public.{table}"])
    return int(oid)


def taken(opened: psycopg.Connection, table: str = "parted") -> TableFingerprint:
    oid = oid_of(opened, table)
    return fingerprints(opened, [oid], "p")[oid].fingerprint


def checked(database: Conninfo, *steps: Sequence[str]) -> tuple[Differences, TableFingerprint]:
    """What the last of several checks says, each after DDL."""
    with session(database) as opened:
        now, differences = taken(opened), Differences()
        for ddl in steps:
            before = TableFingerprint.model_validate_json(now.model_dump_json())
            run(database, *ddl)
            now = taken(opened).carrying(before)
            differences = compare(before, now)
        return differences, now


def leaf(database: Conninfo, table: str) -> tuple[int, ...]:
    with session(database) as opened:
        return (oid_of(opened, table),)


@pytest.mark.parametrize(
    "steps",
    [
        ((DETACH_1, ATTACH_NEW_1),),
        ((DETACH_1,), (ATTACH_NEW_1,)),
        ((DETACH_1, "DROP TABLE p1"), (GROW,), (ATTACH_NEW_1,)),
        ((DETACH_1,), ("DELETE FROM p1", "ALTER TABLE p1 RENAME TO new", ATTACH_NEW_1)),
        ((DETACH_1,), ("DROP TABLE new1", "ALTER TABLE p1 RENAME TO new1", ATTACH_NEW_1)),
    ],
)
def test_a_partition_that_takes_the_place_of_another_replaces(
    database: Conninfo, steps: Sequence[Sequence[str]]
) -> None:
    run(database, *PARTED)
    differences, now = checked(database, *steps)
    new = leaf(database, "new1")
    assert differences.causes == (Cause(EXCHANGED, replaces=True, leaves=new, locks=True),)
    assert differences.attached == new
    assert not now.gone_bounds


def test_a_tree_that_takes_the_place_of_another_replaces(database: Conninfo) -> None:
    run(database, *PARTED)
    attach = "ALTER TABLE parted ATTACH PARTITION new2 FOR VALUES FROM (10) TO (20)"
    differences, _ = checked(
        database, ("ALTER TABLE parted DETACH PARTITION p2", "DROP TABLE p2"), (attach,)
    )
    new = leaf(database, "new2_1")
    assert differences.causes == (Cause(EXCHANGED, replaces=True, leaves=new, locks=True),)


def test_bounds_of_their_own_replace_nothing(database: Conninfo) -> None:
    run(database, *PARTED)
    differences, now = checked(
        database,
        (DETACH_1, GROW, "ALTER TABLE parted ATTACH PARTITION new1 FOR VALUES FROM (1) TO (9)"),
    )
    assert (differences.causes, differences.gone) == ((), 1)
    assert differences.attached == (*leaf(database, "new1"), *leaf(database, "p3"))
    assert len(now.gone_bounds) == 1


def test_an_unlogged_partition_is_doubtful_from_the_first_on(database: Conninfo) -> None:
    unlogged = GROW.replace("CREATE", "CREATE UNLOGGED")
    run(database, *PARTED)
    with session(database) as opened:
        assert (first(taken(opened)), taken(opened).unlogged) == (Differences(), False)
    differences, now = checked(database, (unlogged,))
    cause = Cause(UNLOGGED, replaces=True, leaves=leaf(database, "p3"), locks=True)
    assert differences.causes == first(now).causes == (cause,)
    assert now.unlogged


@pytest.mark.parametrize(
    "ddl",
    [
        ("INSERT INTO parted VALUES (20)", "TRUNCATE p3"),
        (
            "INSERT INTO parted VALUES (20)",
            "ALTER TABLE p3 SET UNLOGGED",
            "DELETE FROM p3",
            "ALTER TABLE p3 SET LOGGED",
        ),
    ],
)
def test_a_new_partition_that_was_truncated_replaces(
    database: Conninfo, ddl: Sequence[str]
) -> None:
    run(database, *PARTED)
    differences, _ = checked(database, (GROW, *ddl))
    cause = Cause(NEW_FILE, replaces=True, leaves=leaf(database, "p3"), locks=True)
    assert differences.causes == (cause,)


@pytest.mark.parametrize(
    "ddl",
    [
        (GROW, "INSERT INTO parted VALUES (20)", "DELETE FROM parted WHERE id = 20"),
        (
            "CREATE TABLE p3 (LIKE parted INCLUDING ALL)",
            "ALTER TABLE p3 OWNER TO pg_database_owner",
            "CREATE INDEX ON p3 (d)",
            "VACUUM ANALYZE p3",
            "ALTER TABLE parted ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
        ),
        (
            "CREATE TABLE p3 AS SELECT 20 AS id, now()::date AS d, 'v' AS v",
            "ALTER TABLE p3 ALTER id SET NOT NULL",
            "ALTER TABLE parted ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
        ),
    ],
)
def test_the_rows_of_a_new_partition_are_added(database: Conninfo, ddl: Sequence[str]) -> None:
    run(database, *PARTED)
    differences, _ = checked(database, ddl)
    assert differences == Differences(attached=leaf(database, "p3"))


def test_an_empty_leaf_is_told_from_one_with_rows(database: Conninfo) -> None:
    run(database, *PARTED, GROW, "INSERT INTO parted VALUES (20)", "DELETE FROM p3")
    with session(database) as opened, session(database) as other:
        p1, p3 = oid_of(opened, "p1"), oid_of(opened, "p3")
        assert is_empty(opened, p1) is False
        assert is_empty(opened, p3) is True
        with other.transaction():
            other.execute("LOCK TABLE public.p3")
            assert is_empty(opened, p3) is None
        with other.transaction():
            other.execute("INSERT INTO public.p3 VALUES (21)")
            assert is_empty(opened, p3) is True
        assert is_empty(opened, p3) is False
        run(database, "DROP TABLE p3")
        assert is_empty(opened, p3) is None


def test_an_empty_leaf_without_the_right_to_read_it_may_have_rows(database: Conninfo) -> None:
    run(database, *PARTED, GROW)
    with session(database) as opened:
        p3 = oid_of(opened, "p3")
        query(opened, "SET ROLE pg_monitor")
        assert is_empty(opened, p3) is False


def test_rows_that_a_policy_hides_are_no_empty_leaf(database: Conninfo) -> None:
    run(database, *PARTED, "GRANT SELECT ON p1 TO pg_monitor")
    run(database, "ALTER TABLE p1 ENABLE ROW LEVEL SECURITY")
    with session(database) as opened:
        p1 = oid_of(opened, "p1")
        query(opened, "SET ROLE pg_monitor")
        assert is_empty(opened, p1) is False


@pytest.mark.since(15, "schemas of publications")
@pytest.mark.parametrize("table", ["t", "parted", "p1"])
def test_a_table_that_left_a_published_schema_and_came_back_replaces(
    database: Conninfo, table: str
) -> None:
    """Of a partition by the table above it as well, while that is published instead of it."""
    run(
        database,
        *PARTED,
        "CREATE TABLE t (id int PRIMARY KEY, d date, v text)",
        "CREATE SCHEMA away",
    )
    run(database, "DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLES IN SCHEMA public")
    root = "t" if table == "t" else "parted"
    with session(database) as opened:
        before = taken(opened, table)
        run(
            database,
            f"GRANT SELECT ON {table} TO PUBLIC",
            f"COMMENT ON TABLE {table} IS 'c'",
            f"ALTER TABLE {table} OWNER TO pg_database_owner",
            f"ALTER TABLE {table} OWNER TO CURRENT_USER",
            f"ALTER TABLE {table} RENAME TO renamed",
            f"ALTER TABLE renamed RENAME TO {table}",
            f"ALTER TABLE {table} ADD CHECK (id > -1), ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} REPLICA IDENTITY FULL",
            f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT",
            f"ALTER TABLE {table} ALTER v SET STATISTICS 9, ALTER d SET DEFAULT now()",
            f"ALTER TABLE {root} ADD COLUMN r float8 DEFAULT random()",
            f"ALTER TABLE {root} ALTER v TYPE varchar USING v || '!'",
            f"ALTER TABLE {root} DROP COLUMN r",
            f"CREATE INDEX ON {table} (v)",
            f"CREATE STATISTICS s ON id, v FROM {table}",
            f"ANALYZE {table}",
            f"REINDEX TABLE {table}",
            f"VACUUM (FULL) {table}",
            "ALTER SCHEMA public RENAME TO other",
            "ALTER SCHEMA other RENAME TO public",
        )
        now = taken(opened, table)
        assert now.publication == before.publication
        run(database, f"ALTER TABLE {table} SET SCHEMA away")
        run(database, f"ALTER TABLE away.{table} SET SCHEMA public")
        differences = compare(now, taken(opened, table))
    reason = "how the publication lists the table was changed and changed back"
    assert differences.causes == (Cause(reason, replaces=True),)


def test_another_schema_doesnt_matter_where_the_table_itself_is_published(
    database: Conninfo,
) -> None:
    run(database, *PARTED, "CREATE SCHEMA away")
    with session(database) as opened:
        before = taken(opened)
        run(
            database,
            "ALTER TABLE parted SET SCHEMA away",
            "ALTER TABLE away.parted SET SCHEMA public",
        )
        assert compare(before, taken(opened)) == Differences()

"""DDL on a real server → what two fingerprints, taken before and after it, say is different."""

from typing import NamedTuple

import psycopg
import pytest

from cdc.postgres.connection import query
from cdc.postgres.fingerprints import fingerprints, has_old_row
from cdc.records.fingerprint import TableFingerprint
from cdc.tables.doubts import compare
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres

SCHEMA = (
    "CREATE TYPE mood AS ENUM ('fine', 'bad')",
    "CREATE DOMAIN felt AS mood",
    "CREATE TYPE place AS (x int, y int)",
    "CREATE TYPE outer_place AS (p place, m mood)",
    "CREATE TYPE moods AS RANGE (SUBTYPE = mood, MULTIRANGE_TYPE_NAME = multimoods)",
    "CREATE TYPE unused AS ENUM ('a')",
    "CREATE TABLE wide (id int PRIMARY KEY, v text, n int NOT NULL DEFAULT 1)",
    "CREATE TABLE narrow (id int PRIMARY KEY, n int)",
    "CREATE TABLE keyed (m mood PRIMARY KEY, v text)",
    "CREATE TABLE keyless (m mood)",
    "CREATE TABLE felt_ (id int PRIMARY KEY, m felt)",
    "CREATE TABLE array_ (id int PRIMARY KEY, m felt[])",
    "CREATE TABLE range_ (id int PRIMARY KEY, m moods)",
    "CREATE TABLE multirange_ (id int PRIMARY KEY, m multimoods)",
    "CREATE TABLE nested (id int PRIMARY KEY, p outer_place[])",
    "CREATE TABLE shape (a int, b text)",
    "CREATE TABLE of_rows (id int PRIMARY KEY, s shape)",
    "CREATE TABLE parted (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
    """CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20)
       PARTITION BY RANGE (id)""",
    "CREATE TABLE parted_2_1 PARTITION OF parted_2 FOR VALUES FROM (10) TO (15)",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "INSERT INTO wide SELECT g, 'v' FROM generate_series(1, 9) g",
    "INSERT INTO narrow SELECT g FROM generate_series(1, 9) g",
    "INSERT INTO parted SELECT g FROM generate_series(1, 12) g",
)
TABLES = "wide, narrow, keyed, keyless, felt_, array_, range_, multirange_, nested, of_rows, parted"
ALL = "insert, update, delete, truncate"
PUBLICATION = f"CREATE PUBLICATION p FOR TABLE {TABLES} WITH (publish_via_partition_root)"
NO_TRUNCATE = f"{PUBLICATION[:-1]}, publish = 'insert, update, delete')"
FOR_ALL = "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)"

REWRITTEN = "the table was rewritten by an ALTER TABLE (SET LOGGED, ALTER COLUMN … USING …)"
PARTITION_REWRITTEN = REWRITTEN.replace("the table", "a partition")
UNLOGGED = "the table is unlogged: its changes aren't in the WAL"
NEW_FILE = "the table has a new file without old rows: rewritten or truncated"
TRUNCATED = "the table has a new file without old rows: a TRUNCATE that isn't published"
PARTITION_TRUNCATED = "a partition has a new file without old rows: a TRUNCATE that isn't published"
RENAMED = "labels of enum public.mood were renamed"
BACK = f"{RENAMED} and renamed back"
COMPOSITE = "attributes of composite type public.place were changed"
OPTIONS = "the publication's options were changed"
TOGGLED = "the publication's options were changed and changed back, or its owner was"
LISTED = (
    "how the publication lists the table was changed (row filter, column list, taken out and in)"
)
REATTACHED = "a partition was detached and attached again"
GENERATED = "the expression of a generated column was changed"


class Case(NamedTuple):
    """DDL, and what is said of a table; ``proven`` counts new files that an old row explains."""

    ddl: tuple[str, ...]
    causes: tuple[tuple[bool, str], ...] = ()
    table: str = "wide"
    altered: bool = False
    attached: tuple[str, ...] = ()
    gone: int = 0
    proven: int = 0
    publication: str = PUBLICATION


def adds(reason: str) -> tuple[tuple[bool, str], ...]:
    return ((False, reason),)


def replaces(*reasons: str) -> tuple[tuple[bool, str], ...]:
    return tuple((True, reason) for reason in reasons)


RENAME = "ALTER TYPE mood RENAME VALUE 'fine' TO 'good'"
RENAME_BACK = "ALTER TYPE mood RENAME VALUE 'good' TO 'fine'"
TYPES = {
    "label of a key": Case((RENAME,), replaces(RENAMED), "keyed"),
    "label where nothing is a key": Case((RENAME,), replaces(RENAMED), "keyless"),
    "label behind a domain": Case((RENAME,), adds(RENAMED), "felt_"),
    "label behind an array of a domain": Case((RENAME,), adds(RENAMED), "array_"),
    "label behind a range": Case((RENAME,), adds(RENAMED), "range_"),
    "label behind a multirange": Case((RENAME,), adds(RENAMED), "multirange_"),
    "label behind composites": Case((RENAME,), adds(RENAMED), "nested"),
    "label renamed and back": Case((RENAME, RENAME_BACK), adds(BACK), "felt_"),
    "label of another type": Case(("ALTER TYPE unused RENAME VALUE 'a' TO 'b'",), (), "keyed"),
    "label added": Case(("ALTER TYPE mood ADD VALUE 'so-so'",), (), "keyed"),
    "labels added between, often enough that all are numbered again": Case(
        tuple(f"ALTER TYPE mood ADD VALUE 'l{number}' BEFORE 'bad'" for number in range(30)),
        (),
        "keyed",
    ),
    "attribute renamed": Case(
        ("ALTER TYPE place RENAME ATTRIBUTE x TO z",), adds(COMPOSITE), "nested"
    ),
    "attribute added": Case(("ALTER TYPE place ADD ATTRIBUTE z int",), adds(COMPOSITE), "nested"),
    "attribute dropped": Case(("ALTER TYPE place DROP ATTRIBUTE y",), adds(COMPOSITE), "nested"),
    "attribute renamed and back": Case(
        ("ALTER TYPE place RENAME ATTRIBUTE x TO z", "ALTER TYPE place RENAME ATTRIBUTE z TO x"),
        adds(f"{COMPOSITE} and changed back"),
        "nested",
    ),
    "attribute of a table's rows": Case(
        ("ALTER TABLE shape ADD COLUMN c int",),
        adds("attributes of composite type public.shape were changed"),
        "of_rows",
    ),
    "nothing of a table's rows": Case(
        ("GRANT SELECT (b) ON shape TO PUBLIC", "ALTER TABLE shape ALTER b SET STATISTICS 9"),
        (),
        "of_rows",
    ),
    "type's owner, grants, name": Case(
        (
            "GRANT USAGE ON TYPE mood TO pg_monitor",
            "COMMENT ON TYPE place IS 'c'",
            "COMMENT ON COLUMN place.x IS 'c'",
            "ALTER TYPE place OWNER TO pg_database_owner",
            "ALTER TYPE mood RENAME TO temper",
        ),
        (),
        "nested",
    ),
}
FILES = {
    "unlogged": Case(("ALTER TABLE wide SET UNLOGGED",), replaces(UNLOGGED), publication=FOR_ALL),
    "unlogged, changed and logged": Case(
        ("ALTER TABLE wide SET UNLOGGED", "DELETE FROM wide", "ALTER TABLE wide SET LOGGED"),
        replaces(REWRITTEN),
        publication=FOR_ALL,
    ),
    "unlogged and logged, without TOAST": Case(
        ("ALTER TABLE narrow SET UNLOGGED", "ALTER TABLE narrow SET LOGGED"),
        replaces(NEW_FILE),
        "narrow",
        publication=FOR_ALL,
    ),
    "same type using": Case(
        ("ALTER TABLE wide ALTER v TYPE text USING v || '!'",), replaces(REWRITTEN)
    ),
    "same type using, without TOAST": Case(
        ("ALTER TABLE narrow ALTER n TYPE int USING 7",), replaces(NEW_FILE), "narrow"
    ),
    "volatile default": Case(
        ("ALTER TABLE wide ADD COLUMN r float8 DEFAULT random()",),
        replaces(REWRITTEN),
        altered=True,
    ),
    "serial": Case(("ALTER TABLE wide ADD COLUMN s serial",), replaces(REWRITTEN), altered=True),
    "rewritten, a row deleted in the meantime, and vacuumed": Case(
        (
            "ALTER TABLE narrow ALTER n TYPE int USING 7",
            "DELETE FROM narrow WHERE id = 1",
            "VACUUM FULL narrow",
        ),
        replaces(NEW_FILE),
        "narrow",
    ),
    "VACUUM FULL": Case(("VACUUM FULL wide",)),
    "VACUUM FULL FREEZE": Case(("VACUUM (FULL, FREEZE) wide",)),
    "CLUSTER": Case(("CLUSTER wide USING wide_pkey",)),
    "VACUUM FULL without TOAST": Case(("VACUUM (FULL, FREEZE) narrow",), table="narrow", proven=1),
    "CLUSTER without TOAST": Case(("CLUSTER narrow USING narrow_pkey",), table="narrow", proven=1),
    "VACUUM FULL drops the TOAST table": Case(
        ("ALTER TABLE wide DROP COLUMN v", "VACUUM FULL wide"), altered=True, proven=1
    ),
    "TRUNCATE": Case(("TRUNCATE wide",)),
    "TRUNCATE without TOAST": Case(
        ("TRUNCATE narrow", "INSERT INTO narrow VALUES (1)"), replaces(NEW_FILE), "narrow"
    ),
    "TRUNCATE that isn't published": Case(
        ("TRUNCATE wide", "INSERT INTO wide VALUES (1)"),
        replaces(TRUNCATED),
        publication=NO_TRUNCATE,
    ),
    "VACUUM FULL where TRUNCATE isn't published": Case(
        ("VACUUM FULL wide",), proven=1, publication=NO_TRUNCATE
    ),
    "harmless": Case(
        (
            "REINDEX TABLE wide",
            "VACUUM FREEZE wide",
            "ANALYZE wide",
            "ALTER TABLE wide OWNER TO pg_database_owner",
            "GRANT SELECT ON wide TO PUBLIC",
            "COMMENT ON TABLE wide IS 'c'",
            "ALTER TABLE wide SET (fillfactor = 50)",
            "CREATE INDEX ON wide (v)",
            "ALTER TABLE wide ALTER v SET STATISTICS 7, ALTER v SET NOT NULL",
            "ALTER TABLE wide ALTER v SET STORAGE EXTERNAL, ALTER n SET DEFAULT 5",
            "ALTER TABLE wide ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE wide ADD CHECK (n < 100), ADD UNIQUE (n, id)",
            """CREATE TRIGGER t BEFORE UPDATE ON wide
               EXECUTE FUNCTION suppress_redundant_updates_trigger()""",
            "ALTER TABLE wide RENAME TO renamed",
        )
    ),
}
FULL = "ALTER TABLE wide REPLICA IDENTITY FULL"
REKEYED = "ALTER TABLE wide DROP CONSTRAINT wide_pkey, ADD PRIMARY KEY"
NEW_KEY = replaces("the primary key was dropped and made again")
COLUMNS = {
    "dropped and made again": Case(
        ("ALTER TABLE wide DROP COLUMN n", "ALTER TABLE wide ADD COLUMN n int NOT NULL DEFAULT 1"),
        altered=True,
    ),
    "renamed": Case(("ALTER TABLE wide RENAME v TO w",), altered=True),
    "wider": Case(("ALTER TABLE wide ALTER v TYPE varchar",), altered=True),
    "identity": Case((FULL,), altered=True),
    "identity's index": Case(
        (
            "CREATE UNIQUE INDEX i ON wide (n, id)",
            "ALTER TABLE wide REPLICA IDENTITY USING INDEX i",
        ),
        altered=True,
    ),
    "key": Case((f"{REKEYED} (id, n)",), replaces("the key has other columns"), altered=True),
    "key made again": Case((f"{REKEYED} (id)",)),
    "key made again, whole rows": Case((FULL, f"{REKEYED} (id)"), NEW_KEY, altered=True),
}
PUBLICATIONS = {
    "operations changed": Case(
        ("ALTER PUBLICATION p SET (publish = 'insert')",), replaces(OPTIONS)
    ),
    "operations changed and back": Case(
        (
            "ALTER PUBLICATION p SET (publish = 'insert')",
            f"ALTER PUBLICATION p SET (publish = '{ALL}')",
        ),
        replaces(TOGGLED),
    ),
    "via root": Case(
        ("ALTER PUBLICATION p SET (publish_via_partition_root = false)",), replaces(OPTIONS)
    ),
    "owner": Case(("ALTER PUBLICATION p OWNER TO pg_database_owner",), replaces(TOGGLED)),
    "taken out and in": Case(
        ("ALTER PUBLICATION p DROP TABLE wide", "ALTER PUBLICATION p ADD TABLE wide"),
        replaces(LISTED),
    ),
    "taken out": Case(("ALTER PUBLICATION p DROP TABLE wide",), replaces(LISTED)),
    "another taken out, another taken in": Case(
        ("ALTER PUBLICATION p DROP TABLE narrow", "ALTER PUBLICATION p ADD TABLE other")
    ),
    "dropped": Case(("DROP PUBLICATION p",), replaces("the publication was dropped")),
    "made again": Case(
        ("DROP PUBLICATION p", PUBLICATION),
        replaces("the publication was dropped and created again"),
    ),
    "nothing of all tables": Case(
        ("ALTER TABLE wide SET (fillfactor = 60)", "CREATE TABLE new ()"), publication=FOR_ALL
    ),
}
LISTS = {
    "row filter": Case(("ALTER PUBLICATION p SET TABLE wide WHERE (id > 1)",), replaces(LISTED)),
    "row filter and back": Case(
        ("ALTER PUBLICATION p SET TABLE wide WHERE (id > 1)", "ALTER PUBLICATION p SET TABLE wide"),
        replaces(LISTED),
    ),
    "column list": Case(("ALTER PUBLICATION p SET TABLE wide (id, v)",), replaces(LISTED)),
    "schema": Case(("ALTER PUBLICATION p ADD TABLES IN SCHEMA public",), replaces(LISTED)),
    "schema out and in": Case(
        (
            "ALTER PUBLICATION p DROP TABLES IN SCHEMA public",
            "ALTER PUBLICATION p ADD TABLES IN SCHEMA public",
        ),
        replaces(LISTED),
        publication="CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
    ),
    "another schema": Case(
        ("CREATE SCHEMA more", "ALTER PUBLICATION p ADD TABLES IN SCHEMA more"),
        publication="CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
    ),
}
PARTITIONS = {
    "attached": Case(
        ("CREATE TABLE parted_3 PARTITION OF parted FOR VALUES FROM (20) TO (30)",),
        (),
        "parted",
        attached=("parted_3",),
    ),
    "attached below": Case(
        ("CREATE TABLE parted_2_2 PARTITION OF parted_2 FOR VALUES FROM (15) TO (20)",),
        (),
        "parted",
        attached=("parted_2_2",),
    ),
    "dropped": Case(("DROP TABLE parted_1",), (), "parted", gone=1),
    "detached": Case(("ALTER TABLE parted DETACH PARTITION parted_1",), (), "parted", gone=1),
    "detached concurrently": Case(
        ("ALTER TABLE parted DETACH PARTITION parted_1 CONCURRENTLY",), (), "parted", gone=1
    ),
    "detached with what is below": Case(
        ("ALTER TABLE parted DETACH PARTITION parted_2",), (), "parted", gone=1
    ),
    "detached, changed and attached": Case(
        (
            "ALTER TABLE parted DETACH PARTITION parted_1",
            "DELETE FROM parted_1",
            "ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES FROM (0) TO (10)",
        ),
        replaces(REATTACHED),
        "parted",
    ),
    "detached and attached above": Case(
        (
            "ALTER TABLE parted DETACH PARTITION parted_2",
            "ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (10) TO (20)",
        ),
        replaces(REATTACHED),
        "parted",
    ),
    "truncated": Case(("TRUNCATE parted_1",), replaces(PARTITION_TRUNCATED), "parted"),
    "vacuumed": Case(("VACUUM FULL parted_1",), (), "parted", proven=1),
    "rewritten": Case(
        ("ALTER TABLE parted_1 SET UNLOGGED", "ALTER TABLE parted_1 SET LOGGED"),
        replaces(PARTITION_REWRITTEN),
        "parted",
    ),
    "an attached table of one's own": Case(
        (
            "CREATE TABLE attached (id int NOT NULL, v text)",
            "ALTER TABLE parted ATTACH PARTITION attached FOR VALUES FROM (30) TO (40)",
            "GRANT SELECT ON attached TO PUBLIC",
        ),
        (),
        "parted",
        attached=("attached",),
    ),
    "a partition that is captured itself": Case(
        (
            "ALTER TABLE parted DETACH PARTITION parted_1",
            "ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES FROM (0) TO (10)",
        ),
        replaces("how the publication lists the table was changed and changed back"),
        "parted_1",
        publication="CREATE PUBLICATION p FOR TABLE parted",
    ),
}
ADD_GENERATED = "ALTER TABLE wide ADD COLUMN g int GENERATED ALWAYS AS (n + 1) STORED"
SET_EXPRESSION = "ALTER TABLE wide ALTER g SET EXPRESSION AS (n + 2)"
EXPRESSIONS = {
    "that is published": Case(
        (SET_EXPRESSION,),
        (*replaces(REWRITTEN), *adds(GENERATED)),
        publication=f"{ADD_GENERATED}; {PUBLICATION[:-1]}, publish_generated_columns = stored)",
    ),
    "that isn't published": Case(
        (SET_EXPRESSION,), replaces(REWRITTEN), publication=f"{ADD_GENERATED}; {PUBLICATION}"
    ),
    "switched": Case(
        ("ALTER PUBLICATION p SET (publish_generated_columns = stored)",), replaces(OPTIONS)
    ),
}
SINCE_18 = pytest.mark.since(18, "generated columns in publications, and virtual ones")
SINCE_15 = pytest.mark.since(15, "row filters, column lists and schemas of publications")
MARKS = {id(LISTS): SINCE_15, id(EXPRESSIONS): SINCE_18}
CASES = [
    pytest.param(case, id=name, marks=MARKS.get(id(cases), ()))
    for cases in (TYPES, FILES, COLUMNS, EXPRESSIONS, PUBLICATIONS, LISTS, PARTITIONS)
    for name, case in cases.items()
]


def oid_of(opened: psycopg.Connection, table: str) -> int:
    ((oid,),) = query(opened, "SELECT %s::regclass::oid", [f"public.{table}"])
    return int(oid)


@pytest.mark.parametrize("case", CASES)
def test_ddl_and_what_is_different(database: Conninfo, case: Case) -> None:
    run(database, *SCHEMA, case.publication)
    with session(database) as opened:
        oid = oid_of(opened, case.table)
        before = fingerprints(opened, [oid], "p")[oid].fingerprint
        before = TableFingerprint.model_validate_json(before.model_dump_json())
        run(database, *case.ddl)
        differences = compare(before, fingerprints(opened, [oid], "p")[oid].fingerprint)
        old = {leaf: has_old_row(opened, leaf, before.seen) for leaf in differences.unproven}
        attached = tuple(oid_of(opened, name) for name in case.attached)
    causes = [*differences.causes]
    causes += [differences.unproven[leaf] for leaf, is_old in old.items() if not is_old]
    assert tuple((cause.replaces, cause.reason) for cause in causes) == case.causes
    assert list(old.values()).count(True) == case.proven
    assert differences.altered == case.altered
    assert (differences.attached, differences.gone) == (attached, case.gone)

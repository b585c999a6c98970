"""Partitions → their bounds as the server prints them, and whether it has rows within them."""

from itertools import product
from typing import Final

import psycopg
import pytest
from psycopg import sql

from cdc.errors import SourceError
from cdc.postgres.connection import query
from cdc.postgres.partitions import has_rows, parse_bound, read_levels
from cdc.records.bounds import Bound, RangeEdge
from cdc.records.fingerprint import PartitionLevel
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres

GRID: Final = (
    'CREATE TABLE grid (b int, "a""x" int, PRIMARY KEY ("a""x", b)) PARTITION BY RANGE ("a""x", b)',
    "CREATE TABLE rest PARTITION OF grid DEFAULT",
)
EDGES: Final = (
    ("MINVALUE", "MINVALUE"), ("1", "MINVALUE"), ("1", "1"), ("1", "2"), ("1", "MAXVALUE"),
    ("2", "MINVALUE"), ("2", "1"), ("MAXVALUE", "MAXVALUE"),
)  # fmt: skip
"""In their order."""


def oid_of(opened: psycopg.Connection, table: str) -> int:
    ((oid,),) = query(opened, "SELECT %s::regclass::oid", [f"public.{table}"])
    return int(oid)


def levels_of(
    opened: psycopg.Connection, leaf: str, table: str = "parted"
) -> tuple[PartitionLevel, ...]:
    leaf_oid = oid_of(opened, leaf)
    return read_levels(opened, [(leaf_oid, oid_of(opened, table))])[leaf_oid]


def within(place: tuple[int, int], lower: tuple[str, str], upper: tuple[str, str]) -> bool:
    def at(edge: tuple[str, str]) -> tuple[float, ...]:
        beyond = {"MINVALUE": float("-inf"), "MAXVALUE": float("inf")}
        return tuple(beyond[each] if each in beyond else float(each) for each in edge)

    return at(lower) <= place < at(upper)


def test_rows_are_found_where_bounds_say_they_are(database: Conninfo) -> None:
    """Each row of a grid within each pair of ends; columns are named in another order."""
    run(database, *GRID)
    with session(database) as opened:
        table = oid_of(opened, "grid")
        for a, b in product((0, 1, 2), repeat=2):
            run(database, "TRUNCATE grid", f"INSERT INTO grid VALUES ({b}, {a})")
            for number, lower in enumerate(EDGES[:-1]):
                for upper in EDGES[number + 1 :]:
                    text = f"FOR VALUES FROM ({', '.join(lower)}) TO ({', '.join(upper)})"
                    level = PartitionLevel(1, (2, 1), text)
                    found = has_rows(opened, table, [level])
                    assert found == within((a, b), lower, upper), (a, b, text)


LISTED: Final = (
    "CREATE TABLE parted (v text, id int, w int, UNIQUE (v, id)) PARTITION BY LIST (v)",
    "CREATE TABLE empty PARTITION OF parted FOR VALUES IN (NULL, 'it''s', 'NULL', 'a, b', 'a\\b')",
    "ALTER TABLE parted DROP COLUMN w",
    "CREATE TABLE deep (id int, v text) PARTITION BY RANGE (id)",
    "ALTER TABLE parted ATTACH PARTITION deep FOR VALUES IN ('deep')",
    "CREATE TABLE deepest PARTITION OF deep FOR VALUES FROM ('-3') TO (MAXVALUE)",
    "CREATE TABLE others PARTITION OF parted DEFAULT",
)


def test_bounds_are_read_level_by_level_and_name_the_captured_tables_columns(
    database: Conninfo,
) -> None:
    run(database, *LISTED)
    with session(database) as opened, session(database) as other:
        with other.transaction():  # nobody who has locked a partition is waited for
            other.execute("LOCK TABLE public.parted, public.deep, public.empty")
            (level,) = levels_of(opened, "empty")
            deep = levels_of(opened, "deepest")
        assert level.oid == oid_of(opened, "empty")
        assert parse_bound(("v",), level.bound) == Bound(
            columns=("v",), values=(None, "it's", "NULL", "a, b", "a\\b")
        )
        assert [each.oid for each in deep] == [oid_of(opened, "deep"), oid_of(opened, "deepest")]
        assert [each.columns for each in deep] == [(1,), (2,)]
        assert parse_bound(("id",), deep[1].bound) == Bound(
            columns=("id",), lower=(RangeEdge("value", "-3"),), upper=(RangeEdge("max"),)
        )
        (of_default,) = levels_of(opened, "others")
        assert of_default.bound == "DEFAULT"


def test_only_columns_in_their_usual_order_have_bounds(database: Conninfo) -> None:
    run(
        database,
        "CREATE OPERATOR CLASS backwards FOR TYPE int USING btree AS"
        " OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <,"
        " FUNCTION 1 btint4cmp(int, int)",
        'CREATE COLLATION any_case FROM "C"',
        "SET allow_system_table_mods = on",  # not every build has ICU, which can do without
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'any_case'",
    )
    keys = {
        "RANGE (id)": (1,),
        "LIST (v)": (2,),
        "RANGE (id, v)": (1, 2),
        "RANGE ((id + 1))": (),
        "HASH (id)": (),
        "RANGE (id backwards)": (),
        "LIST (v COLLATE any_case)": (),
    }
    bounds = {"RANGE": "DEFAULT", "LIST": "DEFAULT"}
    with session(database) as opened:
        for number, (key, columns) in enumerate(keys.items()):
            bound = bounds.get(key.split()[0], "FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
            run(
                database,
                f"CREATE TABLE t{number} (id int, v text) PARTITION BY {key}",
                f"CREATE TABLE p{number} PARTITION OF t{number} {bound}",
            )
            (level,) = levels_of(opened, f"p{number}", f"t{number}")
            assert level.columns == columns, key


def test_rows_are_looked_for_on_all_levels_and_nulls_too(database: Conninfo) -> None:
    run(database, *LISTED)
    with session(database) as opened, session(database) as other:
        table = oid_of(opened, "parted")
        empty, deep = levels_of(opened, "empty"), levels_of(opened, "deepest")
        assert (has_rows(opened, table, empty), has_rows(opened, table, deep)) == (False, False)
        with other.transaction():
            other.execute("LOCK TABLE public.empty")
            assert (has_rows(opened, table, empty), has_rows(opened, table, deep)) == (None, False)
        run(database, "INSERT INTO parted VALUES (NULL, 1), ('deep', 1), ('x', 1)")
        assert (has_rows(opened, table, empty), has_rows(opened, table, deep)) == (True, True)
        run(database, "DROP TABLE empty, deep")
        assert (has_rows(opened, table, empty), has_rows(opened, table, deep)) == (False, False)
        run(database, "INSERT INTO parted VALUES ('a, b', 1)")
        assert has_rows(opened, table, empty)


def test_what_cant_be_told_is_an_error(database: Conninfo) -> None:
    run(database, *LISTED)
    with session(database) as opened:
        table = oid_of(opened, "parted")
        levels = levels_of(opened, "empty")
        of_default = levels_of(opened, "others")
        with pytest.raises(SourceError, match="aren't understood"):
            has_rows(opened, table, of_default)
        query(opened, sql.SQL("SET ROLE pg_monitor"))
        with pytest.raises(SourceError, match="permission denied"):
            has_rows(opened, table, levels)
        query(opened, "SELECT 1")

"""Limits of derived tables → errors that name them; many columns → a quick plan."""

import pytest

from cdc.errors import ExitCode
from compaction.lakehouse import compact_lakehouse
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
VALUES = (
    "sm int2, bi int8, r float4, d float8, n numeric, b bool, dt date, ts timestamp, t time,"
    " tz timestamptz, bt bytea, j json, jb jsonb, iv interval, u uuid, c1 text, c2 text, c3 text,"
    " c4 text"
)
ARRAYS = "ia int4, ta text, na numeric, ib int4, tb text, nb numeric, da date, db date"
LONGEST = 255 - len("col-6f1cf55c-2d67-4a7c-9f5c-0f3d8a1d2b3c=")
"""Bytes of a value that partitions."""


@pytest.mark.proof
@pytest.mark.timeout(120)
def test_columns_of_many_types_are_soon_planned(lakehouse: Lakehouse) -> None:
    """Spark used to infer from each value's conditions without an end."""
    lakehouse.configure(kinds=["history"])
    columns = [column("id", "int4", 1)]
    for text, array in (VALUES, False), (ARRAYS, True):
        named = (one.split() for one in text.split(", "))
        columns += [column(name, kind, array=array) for name, kind in named]
    log = lakehouse.log(*columns)
    log.table(10)
    nothing = {one.name: None for one in columns}
    log.row("r", at(10, 0), nothing | {"id": 1, "sm": 1})
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    log.row("u", at(20), nothing | {"id": 1, "sm": 2})
    log.reached(at(20))
    assert lakehouse.merge().exit_code == ExitCode.OK
    found = lakehouse.table("public.t_history").select("sm", "is_current").collect()
    assert sorted(map(tuple, found)) == [(1, False), (2, True)]


@pytest.mark.proof
def test_an_empty_text_does_not_become_null_by_partitioning(lakehouse: Lakehouse) -> None:
    table = {"source": "public.t", "partition": ["p"]}
    lakehouse.configure(tables=[table])
    log = lakehouse.log(column("id", "int4", 1), column("p", "text"))
    for number, text in enumerate(["", None, "a"]):
        log.row("r", at(10, 0), {"id": number, "p": text})
    log.table(10)
    log.reached(at(10, 0))
    (refused,) = lakehouse.merge().tables
    assert "column p (text) has an empty text, which can't partition" in str(refused.error)
    lakehouse.configure(tables=[{**table, "unfit": {"p": "null"}}])
    assert lakehouse.merge().exit_code == ExitCode.OK
    found = [row["p"] for row in lakehouse.rows(log.schema)]
    assert found == [None, None, "a"]


def test_a_value_that_partitions_is_no_path(lakehouse: Lakehouse) -> None:
    hostile = ["../../../up", "/etc/x", "..", "two\nlines", "%2e%2e", "a=b", "\x01", "?" * 71]
    hostile += ["x" * LONGEST, "é" * (LONGEST // 2)]
    table = {"source": "public.t", "partition": ["p"]}
    lakehouse.configure(tables=[table])
    log = lakehouse.log(column("id", "int4", 1), column("p", "text"))
    for number, text in enumerate(hostile):
        log.row("r", at(10, 0), {"id": number, "p": text})
    log.table(10)
    log.reached(at(10, 0))
    done = lakehouse.merge()
    assert [str(each.error) for each in done.tables if each.error] == []
    assert sorted(row["p"] for row in lakehouse.rows(log.schema)) == sorted(hostile)
    assert [path.name for path in lakehouse.folder.parent.iterdir()] == [lakehouse.folder.name]
    log.row("u", at(20), {"id": 0, "p": "x" * (LONGEST + 1)})
    log.reached(at(20))
    (refused,) = lakehouse.merge().tables
    assert "which can't partition" in str(refused.error)


@pytest.mark.proof
def test_a_value_that_can_be_no_folder_is_refused_or_null(lakehouse: Lakehouse) -> None:
    table = {"source": "public.t", "partition": ["p"]}
    lakehouse.configure(tables=[table])
    log = lakehouse.log(column("id", "int4", 1), column("p", "text"))
    for number in range(3):
        log.row("r", at(10, 0), {"id": number, "p": ".."})
    log.table(10)
    log.reached(at(10, 0))
    assert lakehouse.merge().exit_code == ExitCode.OK
    log.row("u", at(20), {"id": 0, "p": "__HIVE_DEFAULT_PARTITION__"})
    log.reached(at(20))
    (refused,) = lakehouse.merge().tables
    assert "column p (text) has the text __HIVE_DEFAULT_PARTITION__" in str(refused.error)
    log.row("u", at(30), {"id": 0, "p": "short"})
    log.row("u", at(30, 1), {"id": 1, "p": "?" * 72})
    log.reached(at(30, 1))
    (refused,) = lakehouse.merge().tables
    assert "which can't partition" in str(refused.error)  # the value that a task comes to first
    log.row("u", at(40), {"id": 0, "p": "x" * (LONGEST + 1)})
    log.row("u", at(40, 1), {"id": 1, "p": "y"})
    log.reached(at(40, 1))
    lakehouse.configure(tables=[{**table, "unfit": {"p": "null"}}])
    assert lakehouse.merge().exit_code == ExitCode.OK
    assert {row["id"]: row["p"] for row in lakehouse.rows(log.schema) if row["id"] < 3} == {
        0: None,
        1: "y",
        2: "..",
    }


@pytest.mark.proof
def test_a_table_without_a_key_has_the_usual_kinds_that_it_can_have(lakehouse: Lakehouse) -> None:
    usual = {"kinds": ["current", "history", "changes"], "deletes": "mark"}
    lakehouse.configure(**usual)
    log = lakehouse.log(column("id", "int4", 1))
    keyless = log.beside(table_schema(lakehouse.prefix, "loose", column("n", "int4")))
    log.row("r", at(10, 0), {"id": 1})
    keyless.row("r", at(10, 0), {"n": 1})
    log.table(10)
    keyless.table(10)
    log.reached(at(10, 0))
    done = lakehouse.merge()
    kinds = ["public.loose", "public.loose_changes"]
    assert [str(table.error) for table in done.tables if table.error] == []
    assert {table.name for table in done.tables if "loose" in table.name} == set(kinds)
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    compacted = compact_lakehouse(lakehouse.settings, lambda: lakehouse.spark, dry_run=True)
    ours = ["public.t", "public.t_changes", "public.t_history"]
    assert sorted(one.name for one in compacted) == sorted([*kinds, *ours])

    keyless.row("c", at(15), {"n": 2})
    log.reached(at(15))
    assert lakehouse.merge().exit_code == ExitCode.OK, "also once it is begun"

    lakehouse.configure(**usual, tables=[{"source": "public.loose", "kind": "history"}])
    log.row("u", at(20), {"id": 1})
    log.reached(at(20))
    (refused,) = (table for table in lakehouse.merge().tables if table.error)
    assert "public.loose has no key" in str(refused.error), "that one was asked for"

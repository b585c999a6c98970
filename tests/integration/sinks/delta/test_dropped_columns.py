"""Columns that the source drops → whether Delta tables, and their files, still have the values."""

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest

from cdc.errors import ExitCode
from compaction.lakehouse import CompactedTable, compact_lakehouse
from sinks.delta.cuts import cuts
from sinks.delta.evolution import PURGED_PROPERTY, set_properties
from sinks.delta.table import DerivedDeltaTable
from sinks.run.plans import lakehouse_plans
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column, table_schema
from tests.integration.compaction.test_lakehouse import forget_all_cuts

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
REMOVE = {"column.drop.policy": "remove"}
SECRET = "a1b2c3d4e5"
ID, N = column("id", "int4", 1, number=1), column("n", "int8", number=3)
A = column("a", "text", number=2)


def begun(lakehouse: Lakehouse, *columns: Any, rows: int = 2) -> HandLog:
    """A table whose snapshot is applied; each ``a`` is a secret."""
    schema = table_schema(lakehouse.prefix, "t", *columns, oid=7)
    log = HandLog(lakehouse.kafka, lakehouse.prefix, schema)
    for number in range(rows):
        log.row("r", at(10, 0), {"id": number, "a": f"{SECRET}{number}", "n": number})
    log.table(10)
    log.reached(at(10, 0))
    merged(lakehouse)
    return log


def merged(lakehouse: Lakehouse) -> None:
    summary = lakehouse.merge()
    assert [str(table.error) for table in summary.tables if table.error] == []
    assert summary.exit_code == ExitCode.OK


def altered(log: HandLog, version: int, lsn: int, *columns: Any) -> None:
    """The table has these columns from a commit on, whether anybody writes to it or not."""
    schema = table_schema(log.prefix, "t", *columns, version=version, oid=7)
    log.add_schema(schema.model_copy(update={"since": str(at(lsn, 0))}))
    log.reached(at(lsn, 0))


def compacted(lakehouse: Lakehouse) -> dict[str, CompactedTable]:
    done = compact_lakehouse(lakehouse.settings, lambda: lakehouse.spark)
    return {table.name: table for table in done}


def dies_at_note(target: DerivedDeltaTable, properties: dict[str, str]) -> None:
    """Set a table's properties, but for the note of what was rewritten."""
    if PURGED_PROPERTY in properties:
        raise ZeroDivisionError
    set_properties(target, properties)


def columns_in_files(lakehouse: Lakehouse, name: str) -> set[int]:
    """How many columns the files have that the table is made of now."""
    paths = (urlsplit(path).path for path in lakehouse.table(name).inputFiles())
    return {len(pl.read_parquet_schema(path)) for path in paths}


def secrets_on_disk(lakehouse: Lakehouse) -> list[Path]:
    """The data files with a secret."""
    files = (path for path in lakehouse.folder.rglob("*.parquet") if "_delta_log" not in path.parts)
    return [path for path in files if SECRET in str(pl.read_parquet(path).rows())]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("current", "public.t"),
        pytest.param("history", "public.t_history", marks=pytest.mark.proof),
    ],
    ids=["current", "history"],
)
def test_removed_columns_are_gone_from_tables_and_then_from_files(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    lakehouse.configure(kinds=[kind], **REMOVE)
    log = begun(lakehouse, ID, A, N)
    altered(log, 2, 20, ID, N)
    merged(lakehouse)
    assert "a" not in lakehouse.table(name).columns
    assert sorted(lakehouse.read(name, "id", "n")) == [(0, 0), (1, 1)]
    before, after = cuts(lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark))
    then = lakehouse.spark.read.format("delta").option("versionAsOf", before.versions[name].version)
    assert "a" in then.load(f"{lakehouse.folder}/{name.replace('.', '/')}").columns, (
        "a cut is what it was"
    )
    assert before.versions[name].version < after.versions[name].version

    (had,) = columns_in_files(lakehouse, name)
    assert all(done.before.purges for done in compacted(lakehouse).values())
    assert columns_in_files(lakehouse, name) == {had - 1}
    assert sorted(lakehouse.read(name, "id", "n")) == [(0, 0), (1, 1)]
    assert secrets_on_disk(lakehouse), "older cuts need them until lakehouse.keep has passed"
    table = table_schema(log.prefix, name[7:], ID)
    version = lakehouse.version(table)
    assert not any(done.before.purges for done in compacted(lakehouse).values())
    assert lakehouse.version(table) - version == 2, "VACUUM's"
    forget_all_cuts(lakehouse, monkeypatch)
    compacted(lakehouse)
    assert secrets_on_disk(lakehouse) == []


@pytest.mark.proof
@pytest.mark.parametrize(
    "dies",
    ["sinks.delta.target.write_nothing", "sinks.run.plans.Plans.finish"],
    ids=["behind Delta's drop", "before the outcome"],
)
def test_a_run_that_dies_behind_a_removed_column_is_finished(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    lakehouse.configure(**REMOVE)
    log = begun(lakehouse, ID, A, N)
    altered(log, 2, 20, ID, N)

    def die(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(dies, die)
        with pytest.raises(ZeroDivisionError):
            lakehouse.merge()
    merged(lakehouse)
    assert columns_in_files(lakehouse, "public.t") == {4}
    with monkeypatch.context() as patch:
        patch.setattr("compaction.lakehouse.set_properties", dies_at_note)
        with pytest.raises(ZeroDivisionError):
            compacted(lakehouse)
    assert columns_in_files(lakehouse, "public.t") == {3}
    assert compacted(lakehouse)["public.t"].before.purges
    assert not compacted(lakehouse)["public.t"].before.purges
    altered(log, 3, 30, ID, N, column("a", "int4", number=4))
    log.row("u", at(40), {"id": 1, "n": 1, "a": 7})
    log.reached(at(40))
    merged(lakehouse)
    assert sorted(lakehouse.read("public.t", "id", "n", "a")) == [(0, 0, None), (1, 1, 7)]
    assert dict(lakehouse.table("public.t").dtypes)["a"] == "int"


@pytest.mark.proof
def test_a_removed_column_leaves_what_names_it_and_an_archive_keeps_it(
    lakehouse: Lakehouse,
) -> None:
    clustered = {"source": "public.t", "cluster": ["a", "n"], "exclude": ["x"]}
    lakehouse.configure(kinds=["current", "changes"], tables=[clustered], **REMOVE)
    x = column("x", "text", number=4)
    log = begun(lakehouse, ID, A, N, x)
    altered(log, 2, 20, ID, N)
    merged(lakehouse)
    assert lakehouse.table("public.t").columns[:2] == ["id", "n"]
    assert "a" not in lakehouse.table("public.t").columns
    assert min(lakehouse.read("public.t_changes", "id", "a")) == (0, f"{SECRET}0")
    detail = lakehouse.spark.sql(f"DESCRIBE DETAIL delta.`{lakehouse.folder}/public/t`").first()
    assert detail is not None
    assert detail["clusteringColumns"] == ["n"]
    log.row("u", at(30), {"id": 1, "n": 9})
    log.reached(at(30))
    merged(lakehouse)
    assert sorted(lakehouse.read("public.t", "id", "n")) == [(0, 0), (1, 9)]


def test_a_column_that_partitions_a_table_fails_it_with_a_remedy_that_works(
    lakehouse: Lakehouse,
) -> None:
    tables = [{"source": "public.t", "partition": ["a"]}]
    lakehouse.configure(tables=tables, **REMOVE)
    log = begun(lakehouse, ID, A, N)
    altered(log, 2, 20, ID, N)
    (failed,) = lakehouse.merge().tables
    assert "column a must be removed, but it partitions the table" in str(failed.error)
    shutil.rmtree(f"{lakehouse.folder}/public/t")
    merged(lakehouse)
    assert sorted(lakehouse.read("public.t", "id", "n")) == [(0, 0), (1, 1)]


@pytest.mark.proof
def test_columns_that_were_kept_go_once_they_are_to_be_removed_though_nobody_writes(
    lakehouse: Lakehouse,
) -> None:
    log = begun(lakehouse, ID, A, N)
    altered(log, 2, 20, ID, N)
    merged(lakehouse)
    assert min(lakehouse.read("public.t", "id", "a")) == (0, f"{SECRET}0")
    log.row("u", at(30), {"id": 0, "n": 5})
    log.reached(at(30))
    merged(lakehouse)
    assert sorted(lakehouse.read("public.t", "id", "a")) == [(0, None), (1, f"{SECRET}1")]
    lakehouse.configure(**REMOVE)
    merged(lakehouse)
    assert "a" not in lakehouse.table("public.t").columns
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    lakehouse.configure(tables=[{"source": "public.t", "exclude": ["n"]}], **REMOVE)
    merged(lakehouse)
    assert "n" not in lakehouse.table("public.t").columns
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO
    lakehouse.configure(**REMOVE)
    merged(lakehouse)
    assert sorted(lakehouse.read("public.t", "id", "n")) == [(0, None), (1, None)]
    assert lakehouse.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_a_column_that_may_have_been_renamed_is_not_removed_but_by_the_users_own_word(
    lakehouse: Lakehouse,
) -> None:
    """The daemon was behind, so that columns go by their names: a history has the values alone."""
    kinds = {"kinds": ["current", "history"]}
    lakehouse.configure(**kinds, **REMOVE)
    log = begun(lakehouse, ID, A, N)
    altered(log, 2, 20, column("id", "int4", 1), column("b", "text"), column("n", "int8"))
    log.row("u", at(30), {"id": 1, "b": f"{SECRET}1", "n": 1})
    log.reached(at(30))
    merged(lakehouse)
    versions = lakehouse.read("public.t_history", "id", "a", "b")
    assert sorted(versions, key=str) == [
        (0, f"{SECRET}0", None),
        (1, f"{SECRET}1", None),
        (1, None, f"{SECRET}1"),
    ]
    excluding = {"source": "public.t", "kind": "history", "exclude": ["a"]}
    lakehouse.configure(tables=[excluding], **kinds, **REMOVE)
    merged(lakehouse)
    assert "a" not in lakehouse.table("public.t_history").columns
    assert "a" in lakehouse.table("public.t").columns

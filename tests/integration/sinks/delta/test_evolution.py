"""Changed columns of the source → those of its Delta tables: all at once, or none."""

import datetime as dt
import shutil
from collections.abc import Collection
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest

from cdc.errors import ExitCode
from cdc.records.schema import Column
from sinks.changes.derived import derived_tables
from sinks.changes.names import POSITION
from sinks.delta.cuts import cuts
from sinks.delta.query import query
from sinks.delta.table import DerivedDeltaTable
from sinks.job import run_lakehouse
from sinks.run.plans import lakehouse_plans
from tests.fixtures.few import few
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.readers import READERS
from tests.fixtures.spark import HandLog, at, column, run_once, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
KINDS = ("current", "history", "changes")
NAMES = ("public.t", "public.t_history", "public.t_changes")
ID = column("id", "int4", 1, number=1)


def lower(name: str = "a") -> Column:
    return column(name, "text", number=2)


def upper(name: str = "A") -> Column:
    return column(name, "text", number=3)


class Died(BaseException):
    """What ends the process, in a test."""


def begun(lakehouse: Lakehouse, *columns: Column, **row: Any) -> HandLog:
    schema = table_schema(lakehouse.prefix, "t", *columns)
    log = HandLog(lakehouse.kafka, lakehouse.prefix, schema)
    log.row("r", at(10, 0), row)
    log.table(10)
    log.reached(at(10, 0))
    merged(lakehouse)
    return log


def altered(log: HandLog, version: int, lsn: int, *columns: Column, **row: Any) -> None:
    """The columns are these now, and another row has come."""
    schema = table_schema(log.prefix, "t", *columns, version=version)
    log.add_schema(schema.model_copy(update={"since": str(at(lsn, 0))}))
    log.row("c", at(lsn), row)
    log.reached(at(lsn))


def merged(lakehouse: Lakehouse) -> None:
    summary = lakehouse.merge()
    assert [str(table.error) for table in summary.tables if table.error] == []
    assert summary.exit_code == ExitCode.OK


def has(
    lakehouse: Lakehouse, *columns: str, kinds: Collection[str] = KINDS
) -> list[tuple[Any, ...]]:
    """What each derived table has in these columns: the same in all of them."""
    current, *others = [
        sorted(tuple(row) for row in lakehouse.table(name).select(*columns).collect())
        for name in NAMES[: len(kinds)]
    ]
    assert others == [current] * (len(kinds) - 1)
    return current


def at_cuts(lakehouse: Lakehouse) -> list[list[dict[str, Any]]]:
    """What ``millrace query`` answers at each cut, without Millrace's own columns."""
    assert lakehouse.settings.lakehouse is not None
    derived = derived_tables(lakehouse.settings.lakehouse, ["public.t"])
    found = []
    for cut in cuts(lakehouse_plans(str(lakehouse.folder), lambda: lakehouse.spark)):
        rows = query(lakehouse.spark, derived, cut, "SELECT * FROM t ORDER BY id").collect()
        found.append(
            [{k: v for k, v in row.asDict().items() if not k.startswith("_")} for row in rows]
        )
    return found


def is_between(lakehouse: Lakehouse) -> bool:
    """Whether the table has other columns than its last run's, so that no cut is like it."""
    applied = derived_target(lakehouse).read_applied()
    assert applied is not None
    return applied.is_between


def derived_target(lakehouse: Lakehouse) -> DerivedDeltaTable:
    assert lakehouse.settings.lakehouse is not None
    derived = derived_tables(lakehouse.settings.lakehouse, ["public.t"])["public.t"]
    return DerivedDeltaTable(lakehouse.spark, lakehouse.prefix, derived)


@pytest.mark.proof
@pytest.mark.parametrize(
    "kinds", [KINDS[:1], pytest.param(KINDS, marks=pytest.mark.proof)], ids=["current", "all"]
)
def test_of_two_columns_that_differ_by_case_only_one_is_dropped(
    lakehouse: Lakehouse, kinds: tuple[str, ...]
) -> None:
    """Dies between the commits of the change; then there is another change."""
    lakehouse.configure(kinds=kinds)
    log = begun(lakehouse, ID, lower(), upper(), id=1, a="small", A="large")
    assert has(lakehouse, "id", "a", "A__2", kinds=kinds) == [(1, "small", "large")]
    altered(log, 2, 20, ID, upper(), id=2, A="second")
    with (
        patch("sinks.delta.evolution.DeltaTransaction", side_effect=Died),
        pytest.raises(Died),
    ):
        lakehouse.merge()
    first = [{"id": 1, "a": "small", "A__2": "large"}]
    assert at_cuts(lakehouse) == [first]
    with patch("sinks.delta.target.write_rows", side_effect=Died), pytest.raises(Died):
        lakehouse.merge()
    assert at_cuts(lakehouse) == [first]
    assert is_between(lakehouse)
    altered(log, 3, 30, ID, upper("b"), column("A", "int8", number=4), id=3, b="third", A=3)
    merged(lakehouse)  # first the run that died
    assert not is_between(lakehouse)
    second = [
        {"id": 1, "a__dropped1": "small", "A": "large"},
        {"id": 2, "a__dropped1": None, "A": "second"},
    ]
    assert at_cuts(lakehouse)[:2] == [first, second]
    assert has(lakehouse, "id", "b", "A", kinds=kinds) == [
        (1, "large", None),
        (2, "second", None),
        (3, "third", 3),
    ]


@pytest.mark.proof
def test_names_that_differ_by_case_only_are_swapped_and_the_type_is_another(
    lakehouse: Lakehouse,
) -> None:
    lakehouse.configure(kinds=KINDS)
    log = begun(lakehouse, ID, lower(), upper(), id=1, a="small", A="large")
    small, large = upper("a"), lower("A")
    wide = column("id", "int8", 1, number=1)
    altered(log, 2, 20, wide, small, large, id=2**40, a="now small", A="now large")
    merged(lakehouse)
    rows = [(1, "large", "small"), (2**40, "now small", "now large")]
    assert has(lakehouse, "id", "a", "A__2") == rows


@pytest.mark.proof
def test_a_change_that_cannot_be_done_whole_is_not_begun(lakehouse: Lakehouse) -> None:
    log = begun(lakehouse, ID, lower(), upper("b"), id=1, a="a", b="b")
    version = lakehouse.version(log.schema)
    lakehouse.configure(tables=[{"source": "public.t", "types": {"b": "int"}}])
    altered(log, 2, 20, ID, lower("c"), upper("b"), id=2, c="c", b="2")
    (failed,) = lakehouse.merge().tables
    assert "column b is string and can't become int as it is" in str(failed.error)
    lakehouse.configure(tables=[{"source": "public.t", "cluster": ["a"]}])
    (failed,) = lakehouse.merge().tables
    assert "cluster names columns that the table doesn't have: a" in str(failed.error)
    assert lakehouse.version(log.schema) == version
    lakehouse.configure(tables=[{"source": "public.t", "cluster": ["c"]}])
    merged(lakehouse)
    assert sorted(lakehouse.read("public.t", "id", "c", "b")) == [(1, "a", "b"), (2, "c", "2")]


def read_by(reader: str, lakehouse: Lakehouse, name: str) -> list[dict[str, Any]]:
    """A derived table's rows without Millrace's own columns, as another reader sees them."""
    rows = READERS[reader](str(lakehouse.folder / name.replace(".", "/")))
    own = ("_millrace", "valid_", "is_current")
    kept = [{k: v for k, v in row.items() if not k.startswith(own)} for row in rows]
    return sorted(kept, key=lambda row: row["id"])


@pytest.mark.parametrize("kinds", few([KINDS[:1], KINDS], KINDS[:1]), ids=["current", "all"])
def test_files_are_rewritten_where_other_readers_are_to_follow(
    lakehouse: Lakehouse, kinds: tuple[str, ...]
) -> None:
    """Renamed, swapped, dropped, made again and widened, with a death after the rewrite.

    One of those that are swapped partitions the table.
    """
    partitioned = [{"source": "public.t", "partition": ["b"]}]
    lakehouse.configure(kinds=kinds, compatibility="readers", tables=partitioned)
    odd, gone = column("odd name", "int4", number=4), column("c", "int4", number=5)
    log = begun(
        lakehouse,
        *(ID, lower(), upper("b"), odd, gone),
        **{"id": 1, "a": "of a", "b": "of b", "odd name": 4, "c": 5},
    )
    wide, again = column("more", "int8", number=4), column("c", "timestamp", number=6)
    row = {"id": 2, "a": "now a", "b": "now b", "more": 2**40, "c": 0}
    altered(log, 2, 20, ID, upper("a"), lower("b"), wide, again, **row)
    said: list[str] = []
    with patch("sinks.delta.target.write_rows", side_effect=Died), pytest.raises(Died):
        lakehouse.merge()
    summary = run_once(run_lakehouse, lakehouse.settings, lakehouse.spark, said.append)
    assert summary.exit_code == ExitCode.OK
    assert not [line for line in said if "can't read" in line]
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001
    for name, reader in product(NAMES[: len(kinds)], READERS):
        first, second = read_by(reader, lakehouse, name)
        old = {"id": 1, "a": "of b", "b": "of a", "more": 4, "c": None}
        assert first == {**old, "c__dropped1": 5}, (name, reader)
        assert second == {**row, "c": epoch, "c__dropped1": None}, (name, reader)
    assert at_cuts(lakehouse)[0] == [{"id": 1, "a": "of a", "b": "of b", "odd_name": 4, "c": 5}]


@pytest.mark.proof
def test_what_other_readers_cannot_follow_is_told_by_the_merge_that_does_it(
    lakehouse: Lakehouse,
) -> None:
    said: list[str] = []

    def told() -> list[str]:
        said.clear()
        run_once(run_lakehouse, lakehouse.settings, lakehouse.spark, said.append)
        return [line.partition(";")[0] for line in said if "can't read" in line]

    log = lakehouse.log(ID, lower())
    log.row("r", at(10, 0), {"id": 1, "a": "a"})
    log.table(10)
    log.reached(at(10, 0))
    mine = "public.t: written with Delta's"
    assert told() == [f"{mine} deletion vectors, which deltalake's to_pyarrow_* can't read"]
    wide = column("id", "int8", 1, number=1)
    altered(log, 2, 20, wide, lower("b"), id=2, b="b")
    assert told() == [
        f"{mine} column mapping, which deltalake's to_pyarrow_* and Polars can't read",
        f"{mine} type widening, which deltalake and Polars can't read",
    ]
    (line, _) = (line for line in said if "can't read" in line)
    assert 'compatibility = "readers" in [lakehouse] rewrites files instead' in line
    altered(log, 3, 30, wide, lower("c"), id=3, c="c")
    assert told() == []
    lakehouse.configure(compatibility="readers")
    altered(log, 4, 40, wide, lower("d"), id=4, d="d")
    (failed,) = lakehouse.merge().tables
    assert (
        "was created without it, and has Delta's deletion vectors, column mapping, type widening"
        in str(failed.error)
    )


@pytest.mark.proof
@pytest.mark.parametrize("compatibility", ["delta", "readers"])
def test_a_column_that_clusters_the_table_can_go(lakehouse: Lakehouse, compatibility: str) -> None:
    def configure(cluster: str, policy: str) -> None:
        table = {"source": "public.t", "cluster": [cluster], "column.drop.policy": policy}
        lakehouse.configure(tables=[table], compatibility=compatibility)

    configure("a", "keep")
    log = begun(lakehouse, ID, lower(), upper("b"), id=1, a="a", b="b")
    configure("b", "remove")
    altered(log, 2, 20, ID, upper("b"), id=2, b="2")
    merged(lakehouse)
    assert lakehouse.table("public.t").columns == ["id", "b", POSITION]
    assert sorted(lakehouse.read("public.t", "id", "b")) == [(1, "b"), (2, "2")]
    assert [sorted(row) for row in at_cuts(lakehouse)[0]] == [["a", "b", "id"]]


def clustered_by(lakehouse: Lakehouse) -> list[str]:
    detail = lakehouse.spark.sql(f"DESCRIBE DETAIL delta.`{lakehouse.folder}/public/t`").first()
    assert detail is not None
    return list(detail["clusteringColumns"])


@pytest.mark.proof
def test_a_column_that_clusters_a_table_for_other_readers_is_renamed_and_another_dropped(
    lakehouse: Lakehouse,
) -> None:
    def configure(*cluster: str) -> None:
        table = {"source": "public.t", "cluster": cluster}
        lakehouse.configure(tables=[table], compatibility="readers")

    configure("the_price", "b")
    price = lower("the price")
    log = begun(lakehouse, ID, price, upper("b"), **{"id": 1, "the price": "9", "b": "b"})
    configure("the_price", "c")
    altered(log, 2, 20, ID, price, upper("c"), **{"id": 2, "the price": "8", "c": "c"})
    with patch("sinks.delta.evolution.cluster", side_effect=Died), pytest.raises(Died):
        lakehouse.merge()
    merged(lakehouse)
    assert clustered_by(lakehouse) == ["the_price", "c"]
    altered(log, 3, 30, ID, upper("c"), id=3, c="d")
    merged(lakehouse)
    rows = [(1, "9", "b"), (2, "8", "c"), (3, None, "d")]
    assert sorted(lakehouse.read("public.t", "id", "the_price", "c")) == rows
    shutil.rmtree(lakehouse.folder / "public" / "t")
    merged(lakehouse)
    assert clustered_by(lakehouse) == ["c"]
    assert sorted(lakehouse.read("public.t", "id", "c")) == [(1, "b"), (2, "c"), (3, "d")]


@pytest.mark.proof
def test_dropped_columns_that_stay_take_no_statistics_from_others(lakehouse: Lakehouse) -> None:
    others = [column(f"c{number}", "text", number=number) for number in range(3, 43)]
    values = {each.name: "x" for each in others}
    left = {each.name: "x" for each in others[20:]}
    log = begun(lakehouse, *others, ID, id=1, **values)
    altered(log, 2, 20, *others[20:], ID, id=2, **left)
    merged(lakehouse)
    lakehouse.configure(tables=[{"source": "public.t", "cluster": ["c42"]}])
    log.row("c", at(30), {"id": 3, **left})
    log.reached(at(30))
    merged(lakehouse)
    assert clustered_by(lakehouse) == ["c42"]
    assert (
        derived_target(lakehouse)
        .properties()["delta.dataSkippingStatsColumns"]
        .startswith(f"`{POSITION}`,`c42`,`id`,")
    )

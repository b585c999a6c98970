"""[[lakehouse.tables]] → derived tables: their kinds, columns and types, and their changes."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from cdc.errors import ExitCode
from cdc.records.schema import Column
from sinks.changes.names import DELETED, END, OP, POSITION
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.readers import query_builder
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def merged(lakehouse: Lakehouse) -> None:
    """One run in which nothing fails."""
    summary = lakehouse.merge()
    assert [str(table.error) for table in summary.tables if table.error] == []
    assert summary.exit_code == ExitCode.OK


def started(lakehouse: Lakehouse, *columns: Column, rows: list[dict[str, Any]]) -> HandLog:
    """A table whose snapshot has these rows, at 10, merged."""
    log = lakehouse.log(*columns)
    for row in rows:
        log.row("r", at(10, 0), row)
    log.table(10)
    log.reached(at(10, 0))
    merged(lakehouse)
    return log


def rows(lakehouse: Lakehouse, name: str, *names: str) -> list[dict[str, Any]]:
    """Some columns of a derived table; all of the source's by default."""
    found = query_builder(str(lakehouse.folder / name.replace(".", "/")))
    chosen = names or [n for n in found[0] if not n.startswith("_millrace")]
    return sorted(({n: row[n] for n in chosen} for row in found), key=str)


def version(lakehouse: Lakehouse, number: int, *columns: Column) -> Any:
    return table_schema(lakehouse.prefix, "t", *columns, version=number, oid=7)


def test_columns_are_kept_renamed_masked_and_of_another_type(lakehouse: Lakehouse) -> None:
    lakehouse.configure(
        salt="pepper",
        tables=[
            {
                "source": "public.t",
                "exclude": ["secret"],
                "rename": {"mail": "e_mail"},
                "mask": {"mail": "hash", "phone": "null"},
                "types": {"amount": "decimal(20,2)"},
                "unfit": {"amount": "null"},
            },
            {"source": "public.t", "name": "public.few", "include": ["id", "phone"]},
        ],
    )
    columns = [
        column("id", "int4", 1),
        *(column(name, "text") for name in ("secret", "mail", "phone")),
        column("amount", "numeric"),
    ]
    row = {"secret": "s", "mail": "a@b", "phone": "1", "amount": "12.50"}
    log = started(lakehouse, *columns, rows=[{"id": 1, **row}])
    (one,) = rows(lakehouse, "public.t")
    assert one.keys() == {"id", "e_mail", "phone", "amount"}
    assert (one["phone"], one["amount"], len(one["e_mail"])) == (None, Decimal("12.50"), 64)
    assert rows(lakehouse, "public.few") == [{"id": 1, "phone": "1"}]

    log.row("u", at(20), {"id": 1, "amount": "1.005"})  # all text is absent; this would be rounded
    log.row("c", at(20, 2), {"id": 2, **row, "amount": "NaN"})
    log.row("c", at(20, 3), {"id": 3, **row, "amount": "100.1000"})
    log.reached(at(20, 3))
    merged(lakehouse)
    found = {row["id"]: row for row in rows(lakehouse, "public.t")}
    assert [found[number]["amount"] for number in (1, 2, 3)] == [None, None, Decimal("100.10")]
    assert {found[number]["e_mail"] for number in found} == {one["e_mail"]}


@pytest.mark.proof
def test_deletes_are_marked_where_that_is_wanted(lakehouse: Lakehouse) -> None:
    lakehouse.configure(deletes="mark")
    log = started(
        lakehouse,
        column("id", "int4", 1),
        column("a", "text"),
        rows=[{"id": number, "a": "old"} for number in range(3)],
    )
    log.row("d", at(20), None, {"id": 1})
    log.tombstone(at(20), {"id": 1})
    log.reached(at(20))
    merged(lakehouse)
    assert rows(lakehouse, "public.t", "id", "a", DELETED) == [
        {"id": 0, "a": "old", DELETED: False},
        {"id": 1, "a": "old", DELETED: True},
        {"id": 2, "a": "old", DELETED: False},
    ]
    log.row("c", at(30), {"id": 1, "a": "new"})
    log.row("u", at(30, 2), {"id": 1, "a": "read"}, filled=["a"])
    log.truncate(at(40))
    log.row("c", at(40, 2), {"id": 2, "a": "after"})
    log.reached(at(40, 2))
    merged(lakehouse)
    assert rows(lakehouse, "public.t", "id", "a", DELETED) == [
        {"id": 0, "a": "old", DELETED: True},
        {"id": 1, "a": "old", DELETED: True},
        {"id": 2, "a": "after", DELETED: False},
    ]


@pytest.mark.proof
def test_a_history_has_what_a_row_was_from_one_commit_to_the_next(lakehouse: Lakehouse) -> None:
    lakehouse.configure(kinds=["history"])
    log = started(
        lakehouse,
        column("id", "int4", 1),
        column("a", "text"),
        column("n", "int4"),
        rows=[{"id": 1, "a": "one", "n": 1}, {"id": 2, "a": "two", "n": 2}],
    )
    log.row("u", at(20), {"id": 1, "n": 2})
    log.row("u", at(20, 2), {"id": 1, "n": 3})  # nobody has seen 2
    log.row("u", at(30), {"id": 1, "a": "one", "n": 3})  # as it was
    log.row("d", at(30, 2), None, {"id": 2})
    log.tombstone(at(30, 2), {"id": 2})
    log.row("c", at(40), {"id": 2, "a": None, "n": 0})
    log.reached(at(40))
    merged(lakehouse)
    names = ("id", "a", "n", POSITION, END, "is_current")
    expected = [
        (1, "one", 1, at(10, 0), at(20, 2), False),
        (1, "one", 3, at(20, 2), None, True),
        (2, None, 0, at(40), None, True),
        (2, "two", 2, at(10, 0), at(30, 2), False),
    ]

    def told(lines: list[Any]) -> list[dict[str, Any]]:
        texts = [(*line[:3], str(line[3]), line[4] and str(line[4]), line[5]) for line in lines]
        return sorted((dict(zip(names, line, strict=True)) for line in texts), key=str)

    assert rows(lakehouse, "public.t_history", *names) == told(expected)

    log.truncate(at(50))
    log.row("c", at(50, 2), {"id": 2, "a": None, "n": 0})  # in the same commit: as it was
    log.row("c", at(60), {"id": 3, "a": "x", "n": 1})
    log.truncate(at(70))
    log.reached(at(70))
    merged(lakehouse)
    expected[1] = (1, "one", 3, at(20, 2), at(50), False)
    expected[2] = (2, None, 0, at(40), at(70), False)
    expected.append((3, "x", 1, at(60), at(70), False))
    assert rows(lakehouse, "public.t_history", *names) == told(expected)


@pytest.mark.proof
def test_a_new_epochs_snapshot_ends_only_what_it_does_not_have(lakehouse: Lakehouse) -> None:
    lakehouse.configure(kinds=["history"])
    log = started(
        lakehouse,
        column("id", "int4", 1),
        column("begins", "text"),  # Spark resolves names: ours have a prefix
        rows=[{"id": 1, "begins": "same"}, {"id": 2, "begins": "old"}, {"id": 3, "begins": "gone"}],
    )
    log.row("u", at(900), {"id": 3, "begins": "of the older history"})
    log.truncate(at(50, 0, epoch=2).just_before())
    log.row("r", at(50, 0, epoch=2), {"id": 1, "begins": "same"})
    log.row("r", at(50, 0, epoch=2), {"id": 2, "begins": "new"})
    log.table(50, epoch=2)
    log.reached(at(50, 0, epoch=2))
    merged(lakehouse)
    assert rows(lakehouse, "public.t_history", "id", "begins", "is_current") == [
        {"id": 1, "begins": "same", "is_current": True},
        {"id": 2, "begins": "new", "is_current": True},
        {"id": 2, "begins": "old", "is_current": False},
        {"id": 3, "begins": "gone", "is_current": False},
        {"id": 3, "begins": "of the older history", "is_current": False},
    ]


def test_an_archive_has_every_event_once(lakehouse: Lakehouse) -> None:
    lakehouse.configure(
        kinds=["changes"],
        tables=[{"source": "public.t", "kind": "changes", "partition": [OP]}],
    )
    log = lakehouse.log(column("id", "int4", 1), column("a", "text"))
    log.row("r", at(10, 0), {"id": 1, "a": "one"})
    log.row("u", at(20), {"id": 1})
    log.row("d", at(20, 2), None, {"id": 1, "a": "one"})
    log.tombstone(at(20, 2), {"id": 1})
    log.row("c", at(30), {"id": 5, "a": "above the cut"})
    log.row("r", at(20, 2), {"id": 6, "a": "a chunk at the cut"})
    log.table(10)
    log.reached(at(20, 2))
    merged(lakehouse)
    log.truncate(at(40))
    log.row("r", at(20, 2), {"id": 7, "a": "another chunk there"})
    log.reached(at(40))
    merged(lakehouse)
    assert rows(lakehouse, "public.t_changes", "id", "a", OP, POSITION) == sorted(
        [
            {"id": 1, "a": "one", OP: "r", POSITION: str(at(10, 0))},
            {"id": 1, "a": None, OP: "u", POSITION: str(at(20))},
            {"id": 1, "a": "one", OP: "d", POSITION: str(at(20, 2))},
            {"id": 5, "a": "above the cut", OP: "c", POSITION: str(at(30))},
            {"id": 6, "a": "a chunk at the cut", OP: "r", POSITION: str(at(20, 2))},
            {"id": 7, "a": "another chunk there", OP: "r", POSITION: str(at(20, 2))},
            {"id": None, "a": None, OP: "t", POSITION: str(at(40))},
        ],
        key=str,
    )


@pytest.mark.proof
def test_a_renamed_column_keeps_its_values_and_one_made_again_does_not(
    lakehouse: Lakehouse,
) -> None:
    id_, a, b = (column("id", "int4", 1, number=1), ("text", 2), ("int4", 3))

    def of(name: str, kind_number: tuple[str, int], kind: str | None = None) -> Column:
        return column(name, kind or kind_number[0], number=kind_number[1])

    log = HandLog(
        lakehouse.kafka, lakehouse.prefix, version(lakehouse, 1, id_, of("a", a), of("b", b))
    )
    for number in (1, 2):
        log.row("r", at(10, 0), {"id": number, "a": f"a{number}", "b": number})
    log.table(10)
    log.reached(at(10, 0))
    merged(lakehouse)
    # Two columns swap their names, in one step as the log sees it.
    log.add_schema(version(lakehouse, 2, id_, of("b", a), of("a", b)))
    log.row("u", at(20), {"id": 1, "b": "new", "a": 11})
    log.reached(at(20))
    merged(lakehouse)
    assert rows(lakehouse, "public.t") == [
        {"id": 1, "a": 11, "b": "new"},
        {"id": 2, "a": 2, "b": "a2"},
    ]
    # One is dropped and made again: it is another column, of another type even. And the user
    # renames the other one.
    lakehouse.configure(tables=[{"source": "public.t", "rename": {"b": "text"}}])
    log.add_schema(version(lakehouse, 3, id_, of("b", a), column("a", "date", number=4)))
    log.row("u", at(30), {"id": 1, "b": "newer", "a": 0})
    log.reached(at(30))
    merged(lakehouse)
    assert rows(lakehouse, "public.t", "id", "a", "text", "a__dropped1") == [
        {"id": 1, "a": dt.date(1970, 1, 1), "text": "newer", "a__dropped1": None},
        {"id": 2, "a": None, "text": "a2", "a__dropped1": 2},
    ]


INCOMPATIBLE: dict[str, list[dict[str, Any]]] = {
    "cast": [{"id": 1, "a": "7"}, {"id": 2, "a": "old"}],
    "new_column": [{"id": 1, "a": None, "a__v2": 7}, {"id": 2, "a": "old", "a__v2": None}],
}


@pytest.mark.proof
@pytest.mark.parametrize("policy", ["cast", "new_column", "fail_table"])
def test_a_type_that_does_not_fit_is_handled_as_the_user_says(
    lakehouse: Lakehouse, policy: str
) -> None:
    lakehouse.configure(incompatible=policy)
    log = started(
        lakehouse,
        column("id", "int4", 1),
        column("a", "text"),
        rows=[{"id": 1, "a": "old"}, {"id": 2, "a": "old"}],
    )
    log.add_schema(
        table_schema(lakehouse.prefix, "t", column("id", "int4", 1), column("a", "int4"), version=2)
    )
    log.row("u", at(20), {"id": 1, "a": 7})
    log.reached(at(20))
    if policy == "fail_table":
        (table,) = lakehouse.merge().tables
        assert "column a was string here, but int4 in the source" in str(table.error)
        lakehouse.configure(incompatible="cast")
    merged(lakehouse)
    assert rows(lakehouse, "public.t") == INCOMPATIBLE.get(policy, INCOMPATIBLE["cast"])


@pytest.mark.proof
def test_a_wish_about_no_column_stops_that_table_only(lakehouse: Lakehouse) -> None:
    lakehouse.configure(
        tables=[{"source": "public.t", "name": "public.odd", "exclude": ["nothing"]}]
    )
    log = lakehouse.log(column("id", "int4", 1))
    log.row("r", at(10, 0), {"id": 1})
    log.table(10)
    log.reached(at(10, 0))
    errors = {table.name: str(table.error or "") for table in lakehouse.merge().tables}
    assert errors["public.t"] == ""
    assert "doesn't have: nothing" in errors["public.odd"]


@pytest.mark.proof
def test_tables_are_partitioned_or_clustered(lakehouse: Lakehouse) -> None:
    lakehouse.configure(
        tables=[
            {"source": "public.t", "partition": ["day"]},
            {"source": "public.t", "name": "public.clustered", "cluster": ["day", "id"]},
        ]
    )
    log = started(
        lakehouse,
        column("id", "int4", 1),
        column("day", "date"),
        rows=[{"id": number, "day": number % 2} for number in range(4)],
    )
    log.row("u", at(20), {"id": 1, "day": 0})
    log.reached(at(20))
    merged(lakehouse)
    for name in ("public.t", "public.clustered"):
        assert [row["day"].day for row in rows(lakehouse, name)] == [1, 1, 1, 2]
    details = {
        name: lakehouse.spark.sql(
            f"DESCRIBE DETAIL delta.`{lakehouse.folder}/public/{name}`"
        ).collect()[0]
        for name in ("t", "clustered")
    }
    assert details["t"]["partitionColumns"] == ["day"]
    assert details["clustered"]["clusteringColumns"] == ["day", "id"]

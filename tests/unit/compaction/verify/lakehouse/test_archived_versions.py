"""A history and an archive → since when both have all versions, and whether they compare at all."""

from dataclasses import replace
from typing import Any, cast

import pytest

from cdc.records.position import Position
from cdc.records.schema import TableSchema
from cdc.settings.lakehouse import DerivedTable
from compaction.verify.lakehouse.archived_versions import WholeSince, shown_since, why_not_compared
from compaction.verify.lakehouse.archives import Archive, why_no_rows
from sinks.changes.shape import TableShape, derive_shape
from tests.fixtures.spark import at, column, table_schema

FIRST = table_schema("t", "t", column("id", "int4", 1), column("a", "text"), column("b", "int4"))


def altered(before: TableSchema, lsn: int, *columns: Any) -> TableSchema:
    update = {"version": before.version + 1, "since": str(at(lsn)), "columns": columns}
    return before.model_copy(update=update)


ADDED = altered(FIRST, 20, *FIRST.columns, column("c", "int4"))
DROPPED = altered(ADDED, 30, *FIRST.columns[:2], column("c", "int4"))
LATER = altered(DROPPED, 40, *DROPPED.columns, column("d", "int4"))


def shape_of(*versions: TableSchema, **options: Any) -> TableShape:
    derived = DerivedTable(source="public.t", kind="changes", **options)
    return derive_shape(versions, 1, derived, (), salt="s", by_key=False)


@pytest.mark.parametrize(
    ("versions", "options", "since"),
    [
        ((FIRST,), {}, None),
        ((FIRST, ADDED), {}, None),
        ((FIRST, ADDED, DROPPED, LATER), {}, at(30)),
        ((FIRST, ADDED), {"exclude": ["a"]}, None),
    ],
)
def test_versions_that_a_dropped_column_has_made_are_not_told_of(
    versions: tuple[TableSchema, ...], options: dict[str, Any], since: Position | None
) -> None:
    assert shown_since(shape_of(*versions, **options)) == since


def test_both_tables_have_everything_since_the_later_one_has() -> None:
    assert WholeSince(5).with_other(WholeSince(7, at(3))) == WholeSince(7, at(3))
    assert WholeSince(5, at(9)).with_other(WholeSince(1, at(3))) == WholeSince(5, at(9))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"rename": {"id": "key", "a": "b", "b": "a"}}, ""),
        ({"mask": {"a": "hash"}}, "it lacks columns, or has them otherwise: a"),
        ({"exclude": ["a", "b"]}, "it lacks columns, or has them otherwise: a, b"),
        ({"types": {"b": "string"}}, "it lacks columns, or has them otherwise: b"),
        ({"exclude": ["id"]}, "columns of the key are hidden: id"),
        ({"mask": {"id": "null"}}, "columns of the key are hidden: id"),
    ],
)
def test_an_archive_that_has_columns_otherwise_tells_nothing_of_versions(
    options: dict[str, Any], why: str
) -> None:
    archive = Archive(cast("Any", None), shape_of(FIRST, **options), cast("Any", None))
    assert why_not_compared(shape_of(FIRST), archive) == why


def test_columns_that_a_history_hides_are_not_asked_for() -> None:
    archive = Archive(cast("Any", None), shape_of(FIRST), cast("Any", None))
    assert why_not_compared(shape_of(FIRST, mask={"a": "null"}), archive) == ""


def test_events_of_a_table_without_a_key_do_not_tell_which_rows_there_are() -> None:
    columns = tuple(replace_key(each) for each in FIRST.columns)
    keyless = shape_of(FIRST.model_copy(update={"columns": columns}))
    assert "no key" in why_no_rows(keyless)
    assert why_no_rows(shape_of(FIRST, mask={"id": "hash"})) == ""
    assert why_no_rows(replace(shape_of(FIRST), fields=())) == "columns of the key are hidden: id"


def replace_key(of: Any) -> Any:
    return of.model_copy(update={"key": None})

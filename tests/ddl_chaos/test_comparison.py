"""Columns of derived tables → the superfluous ones after the source has dropped columns."""

import pytest

from cdc.records.schema import TableSchema
from tests.ddl_chaos.comparison import Form, surplus
from tests.ddl_chaos.replay import Versions
from tests.fixtures.spark import column, table_schema

ID, NUMBER = column("id", "int4", 1, number=1), column("n", "int4", number=2)
OLD_ID = column("old_id", "int4", number=1)
NEW_ID, KEY = column("new_id", "int8", number=3), column("id", "int8", 1, number=3)
OWN = ("_millrace_position", "valid_from", "is_current")


def versions(*schemas: TableSchema) -> Versions:
    numbered = (schema.model_copy(update={"version": n}) for n, schema in enumerate(schemas, 1))
    return Versions(numbered)


MIGRATED = versions(
    table_schema("p", "users", ID, NUMBER, oid=7),
    table_schema("p", "users", ID, NUMBER, NEW_ID, oid=7),
    table_schema("p", "users", OLD_ID, NUMBER, KEY, oid=7),
    table_schema("p", "users", NUMBER, KEY, oid=7),
)


@pytest.mark.parametrize("name", ["id__dropped1", "old_id"], ids=["merged behind", "merged amid"])
@pytest.mark.parametrize(("form", "is_right"), [("history", True), ("current", False)])
def test_a_former_key_stays_in_a_history_alone(name: str, form: Form, is_right: bool) -> None:
    assert surplus([name, *OWN], form, MIGRATED) == ([] if is_right else [name])


@pytest.mark.parametrize("form", ["current", "history"])
@pytest.mark.parametrize(("oid", "is_right"), [(7, False), (8, True)], ids=["same", "another"])
def test_a_column_stays_where_another_table_has_the_name(
    form: Form, oid: int, is_right: bool
) -> None:
    added = column("c1", "int4", number=3)
    told = versions(
        table_schema("p", "users", ID, NUMBER, added, oid=7),
        table_schema("p", "users", ID, NUMBER, oid=oid),
    )
    assert surplus(["c1", *OWN], form, told) == ([] if is_right else ["c1"])
    assert surplus(["c2"], form, told) == ["c2"], "the source never had it"


def test_an_archive_keeps_whatever_the_source_has_dropped() -> None:
    assert surplus(["c1", "old_id"], "changes", MIGRATED) == []

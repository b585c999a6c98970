"""A table with columns by name → whether it can continue with newer ones, and its lost columns."""

import pytest

from cdc.records.position import Lsn, Position
from cdc.records.schema import TableSchema
from cdc.settings.lakehouse import DerivedTable, TableKind
from sinks.changes.names import OWN
from sinks.changes.shape import derive_shape, drops_since, keeps_names, plain_shape
from tests.fixtures.spark import column, table_schema


def version(number: int, **columns: int) -> TableSchema:
    """A version with columns by their numbers at the source."""
    named = (column(name, "int4", number=place) for name, place in columns.items())
    key = column("id", "int4", key=1, number=1)
    return table_schema("p", "t", key, *named, version=number, oid=7)


@pytest.mark.parametrize(
    ("later", "keeps"),
    [
        ([version(2, a=2, b=3)], True),
        ([version(2)], True),
        ([version(2, b=2)], False),
        ([version(2, a=3)], False),
        ([version(2), version(3, a=3)], False),
        ([version(2, b=2), version(3, b=2, a=3)], False),
    ],
    ids=["added", "dropped", "renamed", "made again", "made again later", "name used again"],
)
def test_a_name_that_means_another_column_does_not_go_on(
    later: list[TableSchema], keeps: bool
) -> None:
    versions = [version(1, a=2), *later]
    assert keeps_names(versions, 1, OWN) is keeps
    assert keeps_names(versions, later[-1].version, OWN), "it has come to these columns already"


def test_a_column_that_is_made_again_behind_its_drop_is_another_one() -> None:
    versions = [version(1, a=2), version(2), version(3, a=3), version(4, a=3, b=4)]
    assert not keeps_names(versions, 2, OWN)
    assert keeps_names(versions, 3, OWN)


def test_a_column_is_dropped_where_no_later_one_has_its_number() -> None:
    versions = [version(1, a=2, b=3), version(2, a=2, b=3), version(3, c=2)]
    assert drops_since(versions, 2)
    assert not drops_since(versions, 3)
    assert not drops_since(versions[:2], 1)
    shape = plain_shape(versions, OWN)
    assert shape.dropped == {"1:b", "2:b"}
    assert shape.gone == {"b"}
    assert shape.still(["a", "b", "c"]) == ["a", "c"]


def test_a_name_that_is_used_again_is_not_gone() -> None:
    shape = plain_shape([version(1, a=2), version(2, a=3)], OWN)
    assert shape.dropped == {"1:a"}
    assert shape.gone == set()


def unnumbered(schema: TableSchema) -> TableSchema:
    columns = [column.model_copy(update={"number": None}) for column in schema.columns]
    return schema.model_copy(update={"columns": tuple(columns)})


RENAMED = version(2, b=2)
UNCERTAIN = {
    "no numbers": unnumbered(RENAMED),
    "another table": RENAMED.model_copy(update={"oid": 8}),
    "another epoch": RENAMED.model_copy(update={"since": str(Position(2, Lsn(0), 0))}),
}


@pytest.mark.parametrize("renamed", UNCERTAIN.values(), ids=UNCERTAIN)
@pytest.mark.parametrize("later", [[], [version(3, b=2, c=4)]], ids=["newest", "older"])
def test_a_column_that_may_have_been_renamed_was_not_dropped(
    renamed: TableSchema, later: list[TableSchema]
) -> None:
    versions = [version(1, a=2), renamed, *later]
    shape = plain_shape(versions, OWN)
    assert shape.dropped == set()
    assert shape.gone == {"a"}, "nothing has it by that name"
    assert drops_since(versions, 1), "and an index is loaded again"
    options = DerivedTable(source="public.t", exclude=("a",))
    assert derive_shape(versions, 1, options, OWN).dropped == {"1:a"}, "by the user's own word"


def test_a_column_that_is_captured_no_more_was_dropped_whatever_the_numbers() -> None:
    a = column("a", "int4", number=None).model_copy(update={"left_out": True})
    later = version(2)
    later = later.model_copy(update={"columns": (*later.columns, a)})
    versions = [version(1, a=2), later]
    assert plain_shape(versions, OWN).dropped == {"1:a"}


@pytest.mark.parametrize(("kind", "dropped"), [("current", {"1:a", "2:a"}), ("history", set())])
def test_a_former_key_is_dropped_but_in_a_history(kind: TableKind, dropped: set[str]) -> None:
    versions = [
        table_schema("p", "t", a, column("b", "int4", b_key, number=2), version=number, oid=7)
        for number, a, b_key in (
            (1, column("a", "int4", 1, number=1), None),
            (2, column("a", "int4", number=1), 1),
        )
    ]
    versions.append(table_schema("p", "t", column("b", "int4", 1, number=2), version=3, oid=7))
    options = DerivedTable(source="public.t", kind=kind)
    assert derive_shape(versions, 1, options, OWN).dropped == dropped


def test_what_is_gone_goes_by_the_names_that_the_derived_table_had() -> None:
    key = column("id", "int4", key=1, number=1)
    price, other = column("the price", "int4", number=2), column("b", "int4", number=3)
    versions = [
        table_schema("p", "t", key, price, other, column("B", "int4", number=4)),
        table_schema("p", "t", key, version=2),
    ]
    options = DerivedTable(source="public.t", compatibility="readers", rename={"b": "other one"})
    shape = derive_shape(versions, 1, options, OWN)
    assert shape.gone == {"the_price", "other_one", "B"}
    named = ["id", "the_price", "The_Price", "other_one", "B__2", "B__v2", "the price", "c__2"]
    assert shape.still(named) == ["id", "the price", "c__2"]

"""Whether documents, which have columns by name, can go on as they are with newer columns."""

import pytest

from cdc.records.schema import TableSchema
from sinks.changes.names import OWN
from sinks.changes.shape import drops_since, keeps_names, plain_shape
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
    assert shape.dropped == {"1:b": "b", "2:b": "b"}
    assert shape.gone == {"b"}
    assert shape.still(["a", "b", "c"]) == ["a", "c"]


def test_a_name_that_is_used_again_is_not_gone() -> None:
    shape = plain_shape([version(1, a=2), version(2, a=3)], OWN)
    assert shape.dropped == {"1:a": "a"}
    assert shape.gone == set()

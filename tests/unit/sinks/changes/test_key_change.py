"""A key that was changed stops its table: no row is found by another key."""

import pytest

from cdc.errors import SinkError
from sinks.changes.names import OWN
from sinks.changes.shape import plain_shape
from tests.fixtures.spark import column, table_schema


def test_a_key_of_another_column_is_refused() -> None:
    before = table_schema("p", "t", column("id", "int4", key=1), column("v", "text"))
    after = table_schema("p", "t", column("ident", "int4", key=1), version=2)
    with pytest.raises(SinkError, match="id → ident"):
        plain_shape([before, after], OWN)


def test_a_key_of_another_type_is_the_same_key() -> None:
    before = table_schema("p", "t", column("id", "int4", key=1))
    after = table_schema("p", "t", column("v", "text"), column("id", "int8", key=1), version=2)
    assert plain_shape([before, after], OWN).keys == ["id"]


def test_a_key_whose_column_was_renamed_is_the_same_key() -> None:
    before = table_schema("p", "t", column("id", "int4", key=1, number=1), oid=7)
    after = table_schema("p", "t", column("ident", "int4", key=1, number=1), version=2, oid=7)
    assert plain_shape([before, after], OWN).keys == ["ident"]

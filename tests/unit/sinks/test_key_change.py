"""A key that was renamed or changed stops its table: no row is found by another key."""

import pytest

from cdc.errors import SinkError
from sinks.delta.apply import require_same_key
from tests.fixtures.spark import column, table_schema


def test_a_renamed_key_is_refused() -> None:
    before = table_schema("p", "t", column("id", "int4", key=1), column("v", "text"))
    after = table_schema("p", "t", column("ident", "int4", key=1), version=2)
    with pytest.raises(SinkError, match="id → ident"):
        require_same_key([before, after])


def test_a_key_of_another_type_is_the_same_key() -> None:
    before = table_schema("p", "t", column("id", "int4", key=1))
    after = table_schema("p", "t", column("v", "text"), column("id", "int8", key=1), version=2)
    require_same_key([before, after])

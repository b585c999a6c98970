"""A registry's answers → trouble of one table, of all tables, or only for a short time."""

from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from cdc.convert.registry import Registry
from cdc.errors import ROW_ERRORS, RegistryError


@pytest.mark.parametrize(
    ("status", "is_of_table", "retry"),
    [(409, True, False), (404, True, False), (422, True, False), (401, False, False),
     (403, False, False), (503, False, True)],
)  # fmt: skip
def test_a_refused_schema_is_its_tables_and_refused_credentials_are_everybodys(
    status: int, is_of_table: bool, retry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise SchemaRegistryError(status, status, "no")

    monkeypatch.setattr(SchemaRegistryClient, "register_schema", refuse)
    monkeypatch.setattr(SchemaRegistryClient, "lookup_schema", refuse)
    registry = Registry({"schema.registry.url": "http://registry"})
    with pytest.raises(RegistryError) as error:
        registry.id_of("t-value", '"int"')
    assert isinstance(error.value, ROW_ERRORS) == is_of_table
    assert error.value.retry == retry

"""A configuration and captured tables → the derived tables that everybody wants of it."""

from typing import Any

from cdc.records.position import Lsn, Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import Phase
from cdc.settings import Settings
from sinks.run.wanted import (
    CapturedTables,
    expected_tables,
    lakehouse_tables,
    names_in_log,
    newest_schemas,
)
from tests.fixtures.made_states import table_state


def _settings(**search: Any) -> Settings:
    return Settings(
        source={},
        capture={"topic.prefix": "p"},
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        lakehouse={"path": "/nowhere", "kinds": ["current", "history"]},
        search={"url": "http://127.0.0.1:1", **search},
    )


def _schema(table: str, version: int, key: int | None) -> TableSchema:
    column = Column(name="id", type="int4", type_oid=23, declared="integer", key=key)
    name = TableName.parse(table)
    return TableSchema(
        namespace=name.namespace,
        table=name.name,
        version=version,
        since=str(Position(1, Lsn(version), 0)),
        topic=f"p.{name}",
        signature="",
        columns=(column,),
        replica_identity="d",
    )


def test_what_takes_a_key_is_wanted_of_tables_with_one_and_what_has_begun_stays() -> None:
    schemas = [_schema("public.b", 2, None), _schema("public.b", 1, 1), _schema("public.a", 1, 1)]
    captured = CapturedTables.of(["public.a", "public.b", "public.c"], newest_schemas(schemas))
    assert captured.keyed == {"public.a"}
    assert captured.keyless == {"public.b"}
    lakehouse = expected_tables(_settings(), "lakehouse", captured)
    assert lakehouse.keys() == {
        *("public.a", "public.a_history", "public.b", "public.c", "public.c_history")
    }
    assert lakehouse["public.a_history"] == {"public.a"}
    begun = expected_tables(_settings(), "lakehouse", captured, ["public.b_history"])
    assert begun.keys() - lakehouse.keys() == {"public.b_history"}
    _, left_out = lakehouse_tables(_settings(), captured)
    assert left_out == ["public.b_history"]
    assert expected_tables(_settings(), "search", captured) == {"public.a": {"public.a"}}


def test_joined_documents_are_expected_of_all_that_they_are_made_of() -> None:
    on = {"order_id": "id"}
    embedded = {"table": "public.b", "field": "items", "many": True, "on": on}
    document = {"name": "orders", "table": "public.a", "embed": [embedded]}
    captured = CapturedTables.of(["public.a"], {})
    expected = expected_tables(_settings(tables=[], documents=[document]), "search", captured)
    assert expected == {"orders": {"public.a", "public.b"}}


def test_a_table_that_could_never_be_captured_is_not_in_the_log() -> None:
    never = table_state(TableName("public", "n"), phase=Phase.CREATING)
    assert names_in_log([table_state(TableName("public", "t")), never]) == ["public.t"]

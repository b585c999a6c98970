"""A configuration and captured tables → the derived tables wanted by default."""

from typing import Any

import pytest

from cdc.errors import ConfigError
from cdc.records.position import Lsn, Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import Phase
from cdc.settings import Settings, View
from sinks.job import SINKS
from sinks.run.wanted import (
    CapturedTables,
    configured_sinks,
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


@pytest.mark.parametrize(
    ("table", "more", "is_refused"),
    [
        ("views.totals", {}, True),
        ("Views.totals", {}, True),
        ("views.other", {}, False),
        ("public.t", {"source": "public.t", "path": "/nowhere/views/totals/"}, True),
        ("public.t", {"source": "public.t", "name": "views.totals", "path": "/else"}, True),
    ],
)
def test_a_table_and_a_view_never_share_a_folder_or_a_name(
    table: str, more: dict[str, str], *, is_refused: bool
) -> None:
    settings = Settings(
        source={},
        capture={"topic.prefix": "p"},
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        lakehouse={"path": "/nowhere", "tables": [more] if more else []},
        views=[{"name": "totals", "query": "SELECT 1"}],
    )
    captured = CapturedTables.of([table], {})
    if not is_refused:
        assert len(lakehouse_tables(settings, captured)[0]) == 1
        return
    with pytest.raises(ConfigError, match="and view totals would have the same folder") as refused:
        lakehouse_tables(settings, captured)
    assert refused.value.where == "[[views]]"


def test_sinks_are_those_that_the_configuration_has_in_the_order_of_a_turn() -> None:
    settings = _settings()
    assert configured_sinks(settings) == ("lakehouse", "search")
    views = (View(name="totals", query="SELECT 1"),)
    with_views = settings.model_copy(update={"views": views})
    assert configured_sinks(with_views) == ("lakehouse", "views", "search") == tuple(SINKS)
    captured = CapturedTables.of(["public.a"], {})
    assert expected_tables(with_views, "views", captured) == {"totals": frozenset()}


def test_a_table_that_could_never_be_captured_is_not_in_the_log() -> None:
    never = table_state(TableName("public", "n"), phase=Phase.CREATING)
    assert names_in_log([table_state(TableName("public", "t")), never]) == ["public.t"]

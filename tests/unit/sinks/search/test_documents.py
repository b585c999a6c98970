"""Table schemas -> index names, fields, mappings and document ids."""

import json
import tomllib
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cdc.errors import ConfigError, SinkError
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings import SearchSettings
from sinks.search.client import search
from sinks.search.documents import (
    aliases,
    document_id,
    field_names,
    index_name,
    mapping,
)


def column(name: str, kind: str = "text", **more: object) -> Column:
    return Column.model_validate(
        {"name": name, "type": kind, "type_oid": 25, "declared": kind, **more}
    )


def schema(*columns: Column) -> TableSchema:
    return TableSchema(
        namespace="public",
        table="t",
        version=1,
        since="",
        topic="p.public.t",
        replica_identity="d",
        columns=columns,
        signature="",
    )


@pytest.mark.parametrize(
    ("prefix", "table", "name"),
    [
        ("", TableName("public", "flights"), "public.flights"),
        ("shop-", TableName("public", "Flights"), "shop-public.flights"),
        ("", TableName("_private", "a b/c"), "private.a_b_c"),
        ("", TableName("public", "größe"), "public.größe"),
    ],
)
def test_index_is_named_after_its_table(prefix: str, table: TableName, name: str) -> None:
    assert index_name(prefix, table) == name


def searched(**more: object) -> SearchSettings:
    return SearchSettings.model_validate({"url": "http://search", **more})


@pytest.mark.parametrize("name", ["millrace-progress", "millrace-dead-letters"])
@pytest.mark.parametrize("kind", ["indexes", "documents"])
def test_no_index_takes_the_name_of_one_of_millraces_own(name: str, kind: str) -> None:
    with pytest.raises(ValidationError, match="one of Millrace's own"):
        searched(**{"index.prefix": "shop-", kind: [{"table": "public.t", "name": name}]})


@pytest.mark.parametrize(
    ("prefix", "index", "searches"),
    [
        ("", "millrace-dead-letters", "millrace-dead-letters"),
        ("shop-", "millrace-dead-letters", "shop-millrace-dead-letters"),
        ("shop-", "shop-public.t", "shop-public.t"),
        ("", "public.T,other*", "public.t_other_"),
    ],
)
def test_any_index_is_searched_by_its_name(
    prefix: str, index: str, searches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Mock()
    server.search.return_value = {"hits": {"hits": [], "total": {"value": 0}}}
    server.indices.get_mapping.return_value = {}
    monkeypatch.setattr("sinks.search.client.connect", lambda _: server)
    search(searched(**{"index.prefix": prefix}), index, "words")
    assert server.search.call_args.kwargs["index"] == searches


def test_no_name_is_all_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.search.client.connect", lambda _: Mock())
    with pytest.raises(ConfigError, match="unknown index:"):
        search(searched(), "_", "words")


def tables_of(*names: str) -> list[TableName]:
    return [TableName("public", name) for name in names]


@pytest.mark.parametrize(
    "names",
    [("Users", "users"), ("a b", "a_b"), ("t", "t-1"), ("t", "t-12-write")],
)
def test_tables_that_would_share_an_index_have_none_and_others_keep_theirs(
    names: tuple[str, ...],
) -> None:
    settings, tables = searched(), tables_of(*names, "other")
    by_name, refused = aliases(settings, tables)
    assert refused.keys() == {f"public.{name}" for name in names}
    for name in names:
        assert f'[[search.indexes]] table = "public.{name}"' in refused[f"public.{name}"].remedy
    assert by_name == {"public.other": "public.other"}


def test_any_name_can_be_pasted_from_a_remedy() -> None:
    name = 'Größe 😀\x7f\n\u2028 "it\'s" \\u0041'
    _, refused = aliases(searched(), tables_of(name, name.lower()))
    remedy = refused[f"public.{name}"].remedy
    section = remedy[remedy.index("[[") : remedy.index(", name")]
    (index,) = tomllib.loads(section.replace("]] ", "]]\n"))["search"]["indexes"]
    assert index == {"table": f"public.{name}"}


def test_a_name_of_its_own_keeps_a_tables_index_apart() -> None:
    named = {"table": "public.Users", "name": "people"}
    settings = searched(indexes=[named], **{"index.prefix": "p-"})
    tables = tables_of("Users", "users")
    assert aliases(settings, tables).refused == {}
    assert aliases(settings, tables).by_name == {
        "public.Users": "p-people",
        "public.users": "p-public.users",
    }


def test_of_a_table_and_documents_of_one_name_the_documents_keep_it() -> None:
    document = {"name": "public.users", "table": "public.users"}
    settings = searched(documents=[document])
    assert aliases(settings, tables_of("users")).refused.keys() == {"public.users"}
    assert aliases(settings, tables_of("users")).by_name == {"public.users": "public.users"}


def test_of_a_table_that_no_index_can_be_named_after_the_others_know_nothing() -> None:
    settings, tables = searched(tables=["_._", "public.t"]), [TableName("_", "_"), *tables_of("t")]
    assert aliases(settings, tables).refused.keys() == {"_._"}
    assert aliases(settings, tables).by_name.keys() == {"public.t"}


def test_tables_with_names_of_their_own_are_accepted() -> None:
    tables = tables_of("t", "t-x", "t1", "u-1")
    assert aliases(searched(), tables).refused == {}
    assert len(set(aliases(searched(), tables).by_name.values())) == len(tables)


def test_fields_have_names_that_a_document_can_have() -> None:
    fields = field_names(schema(*map(column, ("id", "a.b", "_id", "_millrace_position", " "))))
    assert list(fields.values()) == ["id", "a_b", "x_id", "x_millrace_position", "x "]


def test_columns_that_would_share_a_field_are_refused() -> None:
    with pytest.raises(SinkError, match="would share the field 'a_b'"):
        field_names(schema(column("a.b"), column("a_b")))


def test_every_type_has_a_field_that_no_value_can_break() -> None:
    kinds = {
        "int2": "short",
        "int4": "integer",
        "int8": "long",
        "float4": "float",
        "float8": "double",
        "numeric": "double",
        "bool": "boolean",
        "date": "date",
        "timestamp": "date",
        "timestamptz": "date",
        "jsonb": "text",
        "text": "text",
        "bytea": "binary",
        "point": "geo_point",
        "uuid": "keyword",
        "interval": "keyword",
        "enum": "keyword",
        "something_new": "keyword",
    }
    made = mapping(schema(*(column(f"c_{kind}", kind) for kind in kinds)))
    assert made["dynamic"] is False
    for kind, expected in kinds.items():
        field = made["properties"][f"c_{kind}"]
        assert field["type"] == expected
        safe = {"boolean", "binary", "text"}
        assert field["type"] in safe or "ignore_malformed" in field or "ignore_above" in field
    assert "_millrace_position" in made["properties"]


def test_id_of_a_single_key_column_is_its_text() -> None:
    assert document_id(["42"]) == "42"
    assert document_id(["größe"]) == "größe"


def test_id_of_several_key_columns_is_their_json_array() -> None:
    assert document_id(["2013", 'a"b', "é"]) == '["2013","a\\"b","é"]'


@pytest.mark.parametrize("key", [[""], ["x" * 513], ["é" * 257], ["sha256:x"], ["x" * 300] * 2])
def test_id_that_the_server_would_not_take_is_hashed(key: list[str]) -> None:
    assert document_id(key).startswith("sha256:")
    assert len(document_id(key)) == len("sha256:") + 64


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=2, max_size=2))
def test_ids_differ_where_keys_differ(keys: list[list[str]]) -> None:
    first, second = keys
    assert (document_id(first) == document_id(second)) == (first == second)
    if not document_id(first).startswith("sha256:"):
        assert json.loads(document_id(first)) == first

"""A run's findings on a topic -> its table, or why there is none."""

import json
from typing import Any

import pytest

from cdc.errors import ConfigError, SinkError
from cdc.records.schema import TableName, TableSchema
from sinks.debezium.described import (
    ConnectorOptions,
    RecordSource,
    TopicLayout,
    declared_column,
    describe,
)
from sinks.debezium.records import RecordGroup, Written
from tests.fixtures.debezium_topics import DEBEZIUM

NAME = TableName("public", "t")
DECLARED = {name: declared_column(name, text) for name, text in {"id": "int", "v": "text"}.items()}


def struct(*fields: tuple[str, str], name: str = "p.public.t.Value") -> dict[str, Any]:
    described = [{"field": field, "type": type_, "optional": True} for field, type_ in fields]
    return {"type": "struct", "fields": described, "optional": True, "name": name}


def envelope(*fields: tuple[str, str]) -> str:
    members = [struct(*fields) | {"field": which} for which in ("before", "after")]
    operation = {"type": "string", "optional": False, "field": "op"}
    return json.dumps({"type": "struct", "fields": [*members, operation], "optional": False})


def key(*fields: tuple[str, str]) -> str:
    return json.dumps(struct(*fields, name="p.public.t.Key"))


def group(last: int, row: str = "", said: str = "", mark: int = 0, **more: Any) -> RecordGroup:
    """Records by schemas; whoever leaves a text out has plain JSON."""
    written = {
        "key": Written("json", 7, said) if said else Written("plain", 0, '{"id":1}'),
        "value": Written("json", mark or last, row) if row else Written("plain", 0, ""),
    }
    return RecordGroup("p.public.t", 1, (last, last), **{**written, **more})


def made(
    *groups: RecordGroup, before: TableSchema | None = None, declared: Any = None
) -> TopicLayout | None:
    source = RecordSource({}, ConnectorOptions(DEBEZIUM), None)
    return describe(NAME, groups, source, declared=declared, before=before)


ID, V = ("id", "int32"), ("v", "string")


def test_columns_never_go_and_the_newest_type_counts() -> None:
    found = made(
        group(2, envelope(ID, ("v", "int64"), ("new", "boolean")), key(ID)),
        group(1, envelope(ID, V, ("gone", "bytes")), key(ID)),
    )
    assert found is not None
    assert [(one.name, one.type, one.key) for one in found.schema.columns] == [
        ("id", "int4", 1),
        ("v", "int8", None),
        ("gone", "bytea", None),
        ("new", "bool", None),
    ]
    assert [layout.mark for layout in found.values] == [1, 2]
    assert len(found.keys) == 1


def test_what_a_column_was_says_nothing_where_schemas_have_names() -> None:
    time = {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp"}
    was = json.loads(envelope(ID, ("at", "int64")))
    for image in was["fields"][:2]:
        image["fields"][1] |= time
    first = made(group(1, json.dumps(was), key(ID)))
    assert first is not None
    altered = group(2, envelope(ID, ("at", "int64")), key(ID))
    found = made(altered, before=first.schema)
    assert found is not None
    assert [[one.type for one in known.schema.columns] for known in (first, found)] == [
        ["int4", "timestamp"],
        ["int4", "int8"],
    ]
    assert found.values[0].members["at"].name is None
    assert altered.value is not None
    nameless = json.loads(altered.value.text)
    for image in nameless["fields"][:2]:
        image["name"] = None
    again = made(group(2, json.dumps(nameless), key(ID)), before=first.schema)
    assert again is not None
    assert again.schema == first.schema, "as of a registry without Connect's names"


def test_a_vector_that_became_an_array_is_one() -> None:
    before = made(group(1), declared=DECLARED | {"v": declared_column("v", "vector")})
    assert before is not None
    now = json.loads(envelope(ID, ("v", "array")))
    for image in now["fields"][:2]:
        image["fields"][1] |= {"items": {"type": "double", "optional": True}}
    found = made(group(2, json.dumps(now)), before=before.schema)
    assert found is not None
    assert [(one.type, one.array) for one in found.schema.columns][1] == ("float8", True)


def test_a_version_is_the_same_until_columns_differ() -> None:
    first = made(group(1, envelope(ID, V), key(ID)))
    assert first is not None
    again = made(group(2, envelope(ID, V), key(ID)), before=first.schema)
    wider = made(
        group(3, envelope(ID, ("v", "string"), ("w", "string")), key(ID)), before=first.schema
    )
    nothing = made(before=first.schema)
    assert again is not None
    assert wider is not None
    assert nothing is not None
    assert [one.schema.version for one in (first, again, wider, nothing)] == [1, 1, 2, 1]
    assert nothing.schema == first.schema


def test_the_order_of_a_key_is_the_keys_own() -> None:
    found = made(
        group(1, envelope(("a", "int32"), ("b", "int32")), key(("b", "int32"), ("a", "int32")))
    )
    assert found is not None
    assert [one.name for one in found.schema.key] == ["b", "a"]
    assert all(not one.optional for one in found.schema.key)


def test_a_key_that_rows_do_not_have_is_a_column() -> None:
    found = made(group(1, envelope(V), key(ID)))
    assert found is not None
    assert [(one.name, one.key) for one in found.schema.columns] == [("v", None), ("id", 1)]


def test_no_key_is_no_key() -> None:
    found = made(group(1, envelope(ID, V), key=None))
    assert found is not None
    assert found.schema.key == ()


def test_tombstones_alone_tell_nothing() -> None:
    assert made(group(1, said=key(ID), value=None)) is None


@pytest.mark.parametrize("other", [key(("ident", "int32")), key(ID, V)])
def test_another_key_is_refused(other: str) -> None:
    first = group(1, envelope(ID, V), key(ID))
    with pytest.raises(SinkError, match="key has changed: id → "):
        made(first, group(2, envelope(ID, V), key=Written("json", 8, other)))
    known = made(first)
    assert known is not None
    with pytest.raises(SinkError, match="key has changed: id → "):
        made(group(2, envelope(ID, V), other), before=known.schema)


def test_a_table_that_gets_a_key_is_refused() -> None:
    keyless = made(group(1, envelope(ID, V), key=None))
    assert keyless is not None
    with pytest.raises(SinkError, match="key has changed: none → id"):
        made(group(2, envelope(ID, V), key(ID)), before=keyless.schema)


def test_flattened_events_are_refused() -> None:
    with pytest.raises(SinkError, match="don't have Debezium's envelope"):
        made(group(1, json.dumps(struct(ID, V)), key(ID)))


def test_json_without_schemas_needs_to_be_told() -> None:
    with pytest.raises(ConfigError, match="nothing says what type its columns have"):
        made(group(1))
    with pytest.raises(ConfigError, match="have: other"):
        made(group(1, key=Written("plain", 0, '{"other":1}')), declared=DECLARED)
    found = made(group(1), declared=DECLARED)
    assert found is not None
    assert [(one.name, one.type, one.key) for one in found.schema.columns] == [
        ("id", "int4", 1),
        ("v", "text", None),
    ]
    later = made(group(2), before=found.schema)
    assert later is not None
    assert later.schema == found.schema, "what was found once is known"


@pytest.mark.parametrize("text", ["1", "no JSON", '"text"'])
def test_a_plain_key_is_an_object(text: str) -> None:
    with pytest.raises(SinkError, match="isn't a JSON object") as error:
        made(group(1, key=Written("plain", 0, text)), declared=DECLARED)
    assert text not in str(error.value)


def test_a_schema_that_nobody_writes_is_told() -> None:
    with pytest.raises(SinkError, match="isn't a Kafka Connect schema"):
        made(group(1, envelope(ID, ("v", "array")), key(ID)))


def test_avro_needs_a_registry() -> None:
    with pytest.raises(ConfigError, match="no schema registry"):
        made(group(1, key=Written("avro", 1, ""), value=Written("avro", 1, "")))

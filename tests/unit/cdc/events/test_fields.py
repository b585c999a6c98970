"""The columns of events: their names and schemas, the key, and masks."""

from dataclasses import replace
from typing import Any

import pytest

from cdc.errors import TableRefusedError
from cdc.events.changes import ABSENT
from cdc.events.rules import EventRules, key_signature, rekeyed
from cdc.records.connect import Schema
from cdc.records.schema import TableSchema
from cdc.settings.modes import ColumnRule, KeyRule
from tests.fixtures.made_changes import (
    NATIVE,
    delete,
    events,
    insert,
    patterns,
    read,
    said,
    table,
    update,
    with_columns,
)
from tests.fixtures.preset import DEBEZIUM

PII = table("id int4!, name varchar(50), n int4, nn text!", name="pii")
BOTH = pytest.mark.parametrize("rules", [NATIVE, DEBEZIUM], ids=["native", "debezium"])


def after(rules: EventRules, *values: str | None, of: TableSchema = PII) -> dict[str, Any]:
    (made,) = events(of, insert(*values), rules=rules)
    shown: dict[str, Any] = made.value["after"]
    return shown


def masked(rules: EventRules, *masks: ColumnRule) -> EventRules:
    return with_columns(rules, rules=masks)


def row_schema(schema: TableSchema, rules: EventRules, image: str = "after") -> dict[str, Schema]:
    values = [None if column.optional else "1" for column in schema.columns]
    (made,) = events(schema, insert(*values), rules=rules)
    assert made.value_schema is not None
    row = made.value_schema.of_field(image)
    assert row is not None
    return {field.name: field.schema for field in row.fields}


@BOTH
def test_column_include_list_leaves_the_key_in_the_key(rules: EventRules) -> None:
    rules = with_columns(rules, include=patterns("PUBLIC.pii.(name|n)"))
    made = events(PII, insert("1", "a", "5", "x"), delete("1", None, None, None), rules=rules)
    assert [record.key for record in made] == [{"id": 1}] * 3
    assert made[0].value["after"] == {"name": "a", "n": 5}


def test_debezium_reads_no_key_that_is_not_in_the_include_list() -> None:
    rules = with_columns(DEBEZIUM, include=patterns(".*name"))
    assert events(PII, read("1", "a", "5", "x"), rules=rules)[0].key == {"id": 0}
    rules = with_columns(NATIVE, include=patterns(".*name"))
    assert events(PII, read("1", "a", "5", "x"), rules=rules)[0].key == {"id": 1}


@BOTH
def test_column_exclude_list(rules: EventRules) -> None:
    rules = with_columns(rules, exclude=patterns("public.pii.(nn|name)"))
    assert after(rules, "1", "a", "5", "x") == {"id": 1, "n": 5}
    assert list(row_schema(PII, rules)) == ["id", "n"]


def test_a_fixed_mask_hides_even_that_a_value_is_null() -> None:
    for rules in (NATIVE, DEBEZIUM):
        hidden = masked(rules, ColumnRule("mask", patterns("public.pii.name"), length=4))
        assert after(hidden, "1", "Alice", None, "x")["name"] == "****"
        assert after(hidden, "1", None, None, "x")["name"] == "****"
    (deleted, _) = events(PII, delete("1", None, None, None), rules=hidden)
    assert deleted.value["before"]["name"] == "****"


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        (2, "alice@example.com", "7404d2ed8506279b8038b571358626038ec8d8c769c367caf8"),
        (2, "é", "58b8c79748cd5e8021e5fc9538e5feb4ba49f3df9939084e38"),
        (1, "4111111111111111", "d16cc1fce268e972cee"),
        (1, "", "7b061bc77caec9afdc6"),
        (2, None, None),
    ],
)
def test_a_hash_is_debezium_s_cut_to_its_column(
    version: Any, text: str | None, expected: str | None
) -> None:
    rule = ColumnRule(
        "hash", patterns(".*name"), hash="SHA-256", salt="CzQMA0cB5K", version=version
    )
    of = table(f"id int4!, name varchar({len(expected or '1')})")
    assert after(masked(DEBEZIUM, rule), "1", text, of=of)["name"] == expected
    assert after(masked(NATIVE, rule), "1", text, of=of)["name"] == expected


def test_truncation_keeps_whole_characters_where_debezium_cuts_one_in_its_middle() -> None:
    rule = ColumnRule("truncate", patterns(".*name"), length=3)
    assert after(masked(NATIVE, rule), "1", "😀😀😀😀", None, "x")["name"] == "😀😀😀"
    assert after(masked(DEBEZIUM, rule), "1", "😀😀", None, "x")["name"] == "😀\ud83d"
    assert after(masked(DEBEZIUM, rule), "1", None, None, "x")["name"] is None
    assert after(masked(DEBEZIUM, rule), "1", "abcd", None, "x")["name"] == "abc"


def test_the_first_rule_for_a_column_counts() -> None:
    rules = (
        ColumnRule("truncate", patterns(".*name"), length=2),
        ColumnRule("mask", patterns(".*"), length=1),
    )
    shown = after(masked(DEBEZIUM, *rules), "1", "abc", "5", "abc")
    assert shown == {"id": 1, "name": "ab", "n": 5, "nn": "*"}


def test_debezium_masks_the_placeholder_of_an_unchanged_value() -> None:
    rule = ColumnRule("truncate", patterns(".*name"), length=5)
    change = update(("1", ABSENT, "5", "x"))
    (made,) = events(PII, change, rules=masked(DEBEZIUM, rule))
    assert made.value["after"]["name"] == "__deb"
    (made,) = events(PII, change, rules=masked(NATIVE, rule))
    assert "name" not in made.value["after"]


def test_a_key_is_never_masked() -> None:
    keyed = table("id text!, v text", name="keyed")
    rule = masked(DEBEZIUM, ColumnRule("mask", patterns("public.keyed.id"), length=3))
    (made,) = events(keyed, insert("k", "v"), rules=rule)
    assert (made.key, made.value["after"]["id"]) == ({"id": "k"}, "***")
    with pytest.raises(TableRefusedError, match="the key must tell rows from each other"):
        events(keyed, rules=replace(rule, values=NATIVE.values))


@BOTH
def test_columns_whose_adjusted_names_are_one_are_refused(rules: EventRules) -> None:
    schema = table("id int4!, a-b text, a_b text")
    row = insert("1", "x", "y")
    with pytest.raises(TableRefusedError, match="columns a-b and a_b get the same name a_b"):
        events(schema, row, rules=replace(rules, field_names="avro"))
    (made,) = events(schema, row, rules=replace(rules, field_names="avro_unicode"))
    assert list(made.value["after"].values()) == [1, "x", "y"]


def test_masks_say_so_in_the_schema() -> None:
    rules = masked(
        DEBEZIUM,
        ColumnRule("truncate", patterns(".*name"), length=2),
        ColumnRule("mask", patterns(".*nn"), length=1),
    )
    schemas = row_schema(PII, rules)
    assert schemas["name"].parameters == {"truncateLength": "2"}
    assert schemas["nn"].parameters == {"masked": "true"}
    assert schemas["n"].parameters is None


def key_rule(text: str) -> tuple[KeyRule, ...]:
    pattern, _, columns = text.partition(":")
    return (KeyRule(patterns(pattern), tuple(columns.split(","))),)


def keyed_by(text: str, schema: TableSchema, rules: EventRules) -> tuple[EventRules, TableSchema]:
    rules = with_columns(rules, keys=key_rule(text))
    columns = rekeyed(schema.columns, schema.name, schema.replica_identity, rules)
    return rules, schema.model_copy(update={"columns": columns})


@BOTH
def test_message_key_columns_replace_the_key_in_the_table_s_order(rules: EventRules) -> None:
    full = table("tenant int4!, name text, v text", key="", identity="f")
    rules, keyed = keyed_by("public.t:Name,tenant", full, rules)
    old = ("1", "n", "v")
    made = events(
        keyed,
        insert("2", None, "w"),
        update(("1", "nn", "v"), old=old),
        rules=rules,
    )
    assert [record.key for record in made] == [
        {"tenant": 2, "name": None},
        {"tenant": 1, "name": "n"},
        {"tenant": 1, "name": "n"},
        {"tenant": 1, "name": "nn"},
    ]


def test_a_key_that_old_rows_come_without_is_refused() -> None:
    schema = table("id int4!, email text!")
    with pytest.raises(TableRefusedError, match="old rows don't contain"):
        keyed_by("public.t:email", schema, NATIVE)
    with pytest.raises(TableRefusedError, match=r"has no such column(?s:.*)→ correct"):
        keyed_by("public.t:mail", schema, NATIVE)
    assert keyed_by("public.other:mail", schema, NATIVE)[1] == schema


def test_debezium_makes_that_key_up() -> None:
    schema = table("id int4!, email text!, v text")
    rules, keyed = keyed_by("public.t:email", schema, DEBEZIUM)
    change = update(("20", "b@x", "two"), old=("2", None, None), key_only=True)
    assert said(events(keyed, change, rules=rules)) == [
        ("d", {"email": ""}, {"id": 2, "email": "", "v": None}, None),
        (None, {"email": ""}),
        ("c", {"email": "b@x"}, None, {"id": 20, "email": "b@x", "v": "two"}),
    ]
    assert keyed_by("public.t:mail", schema, DEBEZIUM)[1] == schema


def test_another_key_is_another_version_of_the_schema() -> None:
    rules = with_columns(NATIVE, keys=key_rule("public.t:email"))
    assert key_signature("s", PII.name, rules) == "s"
    assert key_signature("s", table("email text").name, rules) == "s key email"


def test_schemas_are_named_after_the_topic() -> None:
    (made,) = events(PII, insert("1", None, None, "x"), rules=DEBEZIUM)
    key, envelope = made.key_schema, made.value_schema
    assert key is not None
    assert envelope is not None
    assert (key.name, key.version, key.optional) == ("pre.public.pii.Key", None, False)
    assert (envelope.name, envelope.version) == ("pre.public.pii.Envelope", 2)
    for image in ("before", "after"):
        row = envelope.of_field(image)
        assert row is not None
        assert (row.name, row.version, row.optional) == ("pre.public.pii.Value", None, True)


def test_a_member_that_an_image_may_lack_is_optional_in_its_schema() -> None:
    optional = {name: schema.optional for name, schema in row_schema(PII, NATIVE).items()}
    assert optional == {"id": False, "name": True, "n": True, "nn": True}
    full = PII.model_copy(update={"replica_identity": "f"})
    assert not row_schema(full, NATIVE)["nn"].optional
    assert not row_schema(PII, DEBEZIUM)["nn"].optional


def test_names_that_avro_does_not_take_are_adjusted() -> None:
    odd = table("id int4!, a-b text").model_copy(update={"topic": "pre.public.o-d"})
    rules = replace(NATIVE, schema_names="avro", field_names="avro_unicode")
    (made,) = events(odd, insert("1", "x"), rules=rules)
    assert made.value["after"] == {"id": 1, "a_u002db": "x"}
    assert made.key_schema is not None
    assert made.key_schema.name == "pre.public.o_d.Key"


@BOTH
def test_column_propagate_source_type(rules: EventRules) -> None:
    rules = with_columns(
        rules, source_type_of=patterns("public.pii.name"), source_type_of_types=patterns("int4")
    )
    schemas = row_schema(PII, rules)
    assert schemas["name"].parameters == {
        "__debezium.source.column.type": "VARCHAR",
        "__debezium.source.column.length": "50",
        "__debezium.source.column.scale": "0",
        "__debezium.source.column.name": "name",
    }
    assert (schemas["n"].parameters or {})["__debezium.source.column.length"] == "10"
    assert schemas["nn"].parameters is None

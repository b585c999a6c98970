"""Placeholders, zeros and defaults → Debezium's values for them, and ours."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values import Codec, codec, default, placeholder, zero
from tests.unit.cdc.values.test_debezium_values import DEBEZIUM, LOSSLESS, column, scaled


def stand_in(
    of: Callable[[Column, Codec, ValueModes], Any], of_column: Column, modes: ValueModes
) -> Any:
    """What stands for a value of a column; None where events have no member for it."""
    made = codec(of_column, modes)
    return None if made is None else of(of_column, made, modes)


PLACEHOLDER = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("declared", "modes", "expected"),
    [
        ("text", DEBEZIUM, PLACEHOLDER),
        ("jsonb", DEBEZIUM, PLACEHOLDER),
        ("bytea", DEBEZIUM, PLACEHOLDER.encode()),
        ("bytea", replace(DEBEZIUM, binary="hex"), PLACEHOLDER),
        ("bytea", replace(DEBEZIUM, binary="base64"), "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("hstore", DEBEZIUM, f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'),
        ("hstore", replace(DEBEZIUM, hstore="map"), {PLACEHOLDER: PLACEHOLDER}),
        ("hstore", LOSSLESS, PLACEHOLDER),
        ("text[]", DEBEZIUM, [PLACEHOLDER]),
        ("json[]", DEBEZIUM, [PLACEHOLDER]),
        ("bytea[]", DEBEZIUM, [PLACEHOLDER.encode()]),
        ("uuid[]", DEBEZIUM, ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("int4[]", DEBEZIUM, list(PLACEHOLDER.encode())),
        ("int8[]", DEBEZIUM, list(PLACEHOLDER.encode())),
        ("date[]", DEBEZIUM, list(PLACEHOLDER.encode())),
        ("date[]", replace(DEBEZIUM, time_precision="isostring"), None),
        ("timestamptz[]", DEBEZIUM, None),
        ("timestamptz[]", LOSSLESS, [PLACEHOLDER]),
        ("inet[]", DEBEZIUM, None),
        ("numeric", DEBEZIUM, None),
        ("numeric", replace(DEBEZIUM, decimal="string"), PLACEHOLDER),
        ("varbit", DEBEZIUM, None),
        ("point", DEBEZIUM, None),
        ("cube", DEBEZIUM, None),
        ("cube", replace(DEBEZIUM, include_unknown=True), PLACEHOLDER.encode()),
    ],
)
def test_an_unchanged_value_has_its_types_placeholder(
    declared: str, modes: ValueModes, expected: Any
) -> None:
    assert stand_in(placeholder, column(declared), modes) == expected


@pytest.mark.parametrize(
    ("declared", "modes", "expected"),
    [
        ("int4", {}, 0),
        ("float8", {}, 0.0),
        ("bool", {}, False),
        ("text", {}, ""),
        ("uuid", {}, ""),
        ("enum", {}, ""),
        ("bytea", {}, b""),
        ("bytea", {"binary": "hex"}, ""),
        ("date", {}, 0),
        ("date", {"time_precision": "isostring"}, "1970-01-01Z"),
        ("time", {"time_precision": "isostring"}, "00:00:00Z"),
        ("timestamp", {}, 0),
        ("timestamp", {"time_precision": "isostring"}, "1970-01-01T00:00:00Z"),
        ("timestamptz", {}, "1970-01-01T00:00:00Z"),
        ("timetz", {}, "00:00:00Z"),
        ("interval", {}, 0),
        ("interval", {"interval": "string"}, "P0Y0M0DT0H0M0S"),
        ("numeric", {}, {"scale": 0, "value": b"\0"}),
        ("numeric", {"decimal": "double"}, 0.0),
        ("money", {}, b"\0"),
        ("money", {"decimal": "string"}, "0.00"),
        ("hstore", {}, "{}"),
        ("hstore", {"hstore": "map"}, {}),
        ("varbit", {}, b""),
        ("int4[]", {}, []),
        ("cube", {}, None),
    ],
)
def test_a_column_that_is_never_null_has_its_types_zero(
    declared: str, modes: dict[str, Any], expected: Any
) -> None:
    assert stand_in(zero, column(declared), replace(DEBEZIUM, **modes)) == expected


def test_the_zero_of_a_numeric_has_its_scale() -> None:
    of = column("numeric", **scaled(6, 2))
    assert stand_in(zero, of, DEBEZIUM) == b"\0"
    assert stand_in(zero, of, replace(DEBEZIUM, decimal="string")) == "0.00"


NOTHING = object()


@pytest.mark.parametrize(
    ("declared", "expression", "ours", "debeziums"),
    [
        ("int4", "5", 5, 5),
        ("int4", "'-7'::integer", -7, -7),
        ("int4", "(1 + 2)", None, None),
        ("int8", "nextval('s'::regclass)", None, 0),
        ("bool", "true", True, True),
        ("text", "'it''s'::text", "it's", "it's"),
        ("text", "upper('q'::text)", None, ""),
        ("text", "CURRENT_USER", None, "CURRENT_USER"),
        ("text", "('a'::text || 'b'::text)", None, "a"),
        ("varchar", "NULL::character varying", None, None),
        ("uuid", "gen_random_uuid()", None, "00000000-0000-0000-0000-000000000000"),
        ("timestamptz", "CURRENT_TIMESTAMP", None, "1970-01-01T00:00:00.000000Z"),
        ("timestamptz", "'2020-01-01 00:00:00+00'::timestamp with time zone",
         "2020-01-01T00:00:00.000000Z", "2020-01-01T00:00:00.000000Z"),
        ("date", "('now'::text)::date", None, None),
        ("date", "'2020-02-02'::date", 18294, 18294),
        ("bytea", "'\\x01'::bytea", b"\x01", None),
        ("int4[]", "'{1,2}'::integer[]", [1, 2], None),
        ("json", "json_build_object()", None, "{}"),
        ("float8", "'NaN'::double precision", "nan", "nan"),
        ("hstore", "'\"a\"=>\"1\"'::hstore", '"a"=>"1"', None),
        ("int4", None, None, None),
    ],
)  # fmt: skip
def test_a_constant_default_is_a_value(
    declared: str, expression: str | None, ours: Any, debeziums: Any
) -> None:
    of = column(declared, default=expression)
    for modes, expected in ((LOSSLESS, ours), (DEBEZIUM, debeziums)):
        assert str(stand_in(default, of, modes)) == str(expected)


def test_a_numeric_default_has_the_columns_scale() -> None:
    of = column("numeric", default="1.25", **scaled(8, 3))
    assert stand_in(default, of, DEBEZIUM) == b"\x04\xe2"
    assert stand_in(default, of, replace(DEBEZIUM, decimal="string")) == "1.250"
    assert stand_in(default, of.model_copy(update={"default": "1.23456"}), DEBEZIUM) is None
    assert stand_in(default, of.model_copy(update={"default": "random()"}), DEBEZIUM) == b"\0"
    assert (
        stand_in(default, column("numeric", default="5"), DEBEZIUM) is None
    )  # a struct: KAFKA-12694


def test_an_enums_default_is_one_of_its_labels() -> None:
    of = column("enum", default="'a'::public.e", labels=("a", "b"))
    assert stand_in(default, of, DEBEZIUM) == "a"
    assert stand_in(default, of.model_copy(update={"default": "f()"}), DEBEZIUM) is None


def test_debezium_does_not_look_behind_a_domain() -> None:
    of = column("int4", default="5", domain=True)
    assert stand_in(default, of, DEBEZIUM) is None
    assert stand_in(default, of, LOSSLESS) == 5


def test_an_array_that_debezium_has_as_bytes_has_no_numbers_for_a_placeholder() -> None:
    unknown = column("int4[]").model_copy(update={"domain_elements": True})
    assert stand_in(placeholder, unknown, replace(DEBEZIUM, include_unknown=True)) is None

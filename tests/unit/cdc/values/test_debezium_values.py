"""Texts → values in Debezium's modes, if no recorded case has them."""

import struct
from dataclasses import replace
from typing import Any

import pytest

from cdc.errors import CorruptMessageError
from cdc.records.connect import Type
from cdc.records.schema import Column, TableName
from cdc.settings.modes import ValueModes
from cdc.values import codec
from tests.fixtures.json_values import decoded, json_text, written

LOSSLESS = ValueModes()
DEBEZIUM = ValueModes(
    decimal="precise",
    time_precision="adaptive",
    interval="numeric",
    hstore="json",
    include_unknown=False,
    lossless=False,
)


def column(declared: str, **more: Any) -> Column:
    name = declared.removesuffix("[]")
    array = declared.endswith("[]")
    return Column(name="c", type=name, type_oid=1, array=array, declared=declared, **more)


def scaled(precision: int, scale: int) -> dict[str, int]:
    """The modifier of numeric(precision, scale)."""
    return {"modifier": (precision << 16 | scale & 0x7FF) + 4}


def value(of: Column, modes: ValueModes, text: str) -> Any:
    """The Connect value, after making sure that its JSON says the same."""
    found = codec(of, modes)
    assert found is not None
    read = found.decode(text.encode())
    assert written(found, text.encode()) == json_text(read, found.schema)
    return read


@pytest.mark.parametrize(
    ("text", "modifier", "expected"),
    [
        ("-128", scaled(5, 0), b"\x80"),
        ("127", scaled(5, 0), b"\x7f"),
        ("128", scaled(5, 0), b"\x00\x80"),
        ("-129", scaled(5, 0), b"\xff\x7f"),
        ("-0.01", scaled(5, 2), b"\xff"),
        ("0.00", scaled(5, 2), b"\x00"),
        ("1234500", scaled(5, -2), b"\x30\x39"),
        ("0", scaled(5, -2), b"\x00"),
        ("1.10", {}, {"scale": 2, "value": b"\x6e"}),
        ("100", {}, {"scale": 0, "value": b"\x64"}),
    ],
)
def test_a_precise_numeric_keeps_its_scale(
    text: str, modifier: dict[str, int], expected: Any
) -> None:
    assert value(column("numeric", **modifier), replace(LOSSLESS, decimal="precise"), text) == (
        expected
    )


def test_a_numeric_of_many_digits_is_exact() -> None:
    digits = "7" * 20_000
    precise = value(column("numeric"), replace(LOSSLESS, decimal="precise"), f"-{digits}.5")
    unscaled = int.from_bytes(precise["value"], "big", signed=True)
    assert unscaled == -(7 * (10**20_000 - 1) // 9 * 10 + 5)
    assert precise["scale"] == 1


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_a_decimal_cannot_hold_stops_unless_losses_are_allowed(text: str) -> None:
    for declared in ("numeric", "numeric[]"):
        given = text if declared == "numeric" else f"{{1.5,{text}}}"
        assert value(column(declared), DEBEZIUM, given) is None
        lossless = replace(LOSSLESS, decimal="precise")
        with pytest.raises(CorruptMessageError, match="no Decimal") as raised:
            decoded(column(declared), TableName("public", "t"), given.encode(), lossless)
        assert "lossless" in raised.value.remedy


@pytest.mark.parametrize(
    ("mode", "text", "ours", "debeziums"),
    [
        ("string", "NaN", "NaN", "NAN"),
        ("string", "-Infinity", "-Infinity", "NEGATIVE_INFINITY"),
        ("string", "1.10", "1.10", "1.10"),
        ("double", "1.10", 1.1, 1.1),
        ("double", "Infinity", float("inf"), float("inf")),
    ],
)
def test_other_modes_of_decimals(mode: Any, text: str, ours: Any, debeziums: Any) -> None:
    assert value(column("numeric"), replace(LOSSLESS, decimal=mode), text) == ours
    assert value(column("numeric"), replace(DEBEZIUM, decimal=mode), text) == debeziums


@pytest.mark.parametrize(
    ("text", "java"),
    [
        ("1e-45", 1.4e-45),
        ("-3e-45", -2.8e-45),
        ("1e-44", 9.8e-45),
        ("0.1", 0.1),
        ("1e+10", 1e10),
        ("16777216", 16777216.0),
        ("3.4028235e+38", 3.4028235e38),
    ],
)
def test_a_float4_has_javas_digits(text: str, java: float) -> None:
    assert value(column("float4"), DEBEZIUM, text) == java
    assert struct.pack("f", java) == struct.pack("f", float(text))
    assert value(column("float4"), LOSSLESS, text) == float(text)


@pytest.mark.parametrize(
    ("declared", "modes", "text", "ours", "debeziums"),
    [
        ("date", {"time_precision": "isostring"}, "infinity", "infinity", "-5877611-06-21Z"),
        ("date", {"time_precision": "isostring"}, "0044-03-15 BC", "-0043-03-15Z", "-0043-03-15Z"),
        ("time", {"time_precision": "isostring"}, "24:00:00", "24:00:00Z", "00:00:00Z"),
        ("time[]", {"time_precision": "microseconds"}, "{10:00:00.123456}",
         [36000123456], [36000123000]),
        ("timetz", {}, "24:00:00+02", "24:00:00+02:00", "22:00:00Z"),
        ("timetz[]", {}, "{10:00:00.5-01:30}", ["10:00:00.5-01:30"], ["11:30:00Z"]),
        ("timestamp", {"time_precision": "nanoseconds"}, "3000-01-01 00:00:00",
         32503680000000000000, None),
        ("timestamp[]", {"time_precision": "nanoseconds"}, '{"3000-01-01 00:00:00"}',
         [32503680000000000000], [None]),
        ("timestamp", {"time_precision": "isostring"}, "infinity",
         "infinity", "+294247-01-10T04:00:25.2Z"),
        ("interval", {"interval": "numeric"}, "P178000000Y",
         178_000_000 * 31_557_600_000_000, 2**63 - 1),
        ("interval", {"interval": "numeric"}, "-infinity", -(2**63), -(2**63)),
        ("interval", {"interval": "string"}, "PT-0.5S", "P0Y0M0DT0H0M-0.5S", "P0Y0M0DT0H0M-0.5S"),
        ("interval", {"interval": "text"}, "P1M-1D", "P1M-1D", "P1M-1D"),
    ],
)  # fmt: skip
def test_times_where_debezium_loses_some(
    declared: str, modes: dict[str, Any], text: str, ours: Any, debeziums: Any
) -> None:
    assert value(column(declared), replace(LOSSLESS, **modes), text) == ours
    assert value(column(declared), replace(DEBEZIUM, **modes), text) == debeziums


def test_infinite_timestamps_of_few_digits_are_in_their_unit() -> None:
    few = column("timestamp", modifier=3)
    assert value(few, DEBEZIUM, "infinity") == 9223372036825200
    assert value(few, LOSSLESS, "infinity") == 9223372036825200000


@pytest.mark.parametrize(
    ("declared", "text", "expected"),
    [
        ("enum[]", "{a,NULL}", None),
        ("ltree[]", "{a.b,NULL}", None),
        ("enum[]", "{a,b}", ["a", "b"]),
        ("text[]", "{{a,b},{c,d}}", [None, None]),
        ("bit[]", "{101}", None),
        ("int4[]", "[2:3]={7,NULL}", [7, None]),
        ("float4[]", "{1e-45,NaN}", [1.4e-45, "NaN"]),
        ("hstore[]", '{"\\"a\\"=>\\"1\\"",NULL}', ['{"a":"1"}', None]),
        ("vector[]", '{"[1,2]"}', [[1.0, 2.0]]),
        ("vector[]", '{"[1,2]",NULL}', None),
    ],
)
def test_arrays_lose_what_debezium_loses(declared: str, text: str, expected: Any) -> None:
    decoded = value(column(declared), DEBEZIUM, text)
    assert str(decoded).replace("nan", "'NaN'") == str(expected)


@pytest.mark.parametrize(
    "declared",
    ["money[]", "name[]", "interval[]", "varbit[]", "xml[]", "point[]", "refcursor[]"],
)
def test_arrays_that_debezium_leaves_out(declared: str) -> None:
    assert codec(column(declared), replace(DEBEZIUM, include_unknown=True)) is None
    assert codec(column(declared), LOSSLESS) is not None


def test_unknown_types_are_text_bytes_or_left_out() -> None:
    for unknown in (column("cube"), column("composite", typtype="c"), column("int4multirange")):
        assert value(unknown, LOSSLESS, "(1,é)") == "(1,é)"
        assert codec(unknown, replace(LOSSLESS, include_unknown=False)) is None
        assert codec(unknown, DEBEZIUM) is None
        known = replace(DEBEZIUM, include_unknown=True)
        assert value(unknown, known, "(1,é)") == "(1,é)".encode()
        assert value(unknown, replace(known, binary="hex"), "(1)") == "283129"
    domains = column("int4[]", domain_elements=True)
    assert codec(domains, DEBEZIUM) is None
    assert value(domains, replace(DEBEZIUM, include_unknown=True), "{1,2}") == [b"1", b"2"]
    assert value(domains, replace(DEBEZIUM, include_unknown=True), "{1,NULL}") is None
    assert value(domains, LOSSLESS, "{1,NULL}") == [1, None]


def test_a_composite_may_have_any_types_name() -> None:
    for name in ("vector", "numeric", "enum", "box"):
        assert value(column(name, typtype="c"), LOSSLESS, "(1,)") == "(1,)"
        known = replace(DEBEZIUM, include_unknown=True)
        assert codec(column(name, typtype="c"), DEBEZIUM) is None
        assert value(column(f"{name}[]", typtype="c"), known, '{"(1,)"}') == [b"(1,)"]


@pytest.mark.parametrize(
    ("declared", "text", "java"),
    [
        ("line", "{1,2.5,-0}", "{1.0,2.5,-0.0}"),
        ("circle", "<(10000000,0.001),0.0001>", "<(1.0E7,0.001),1.0E-4>"),
        ("box", "(1e+300,123456789.5),(NaN,-Infinity)", "(1.0E300,1.234567895E8),(NaN,-Infinity)"),
        ("lseg", "[(0,9999999),(5e-324,12345678)]", "[(0.0,9999999.0),(4.9E-324,1.2345678E7)]"),
    ],
)
def test_geometric_types_have_javas_numbers(declared: str, text: str, java: str) -> None:
    known = replace(DEBEZIUM, include_unknown=True)
    assert value(column(declared), known, text) == java.encode()
    assert value(column(declared), LOSSLESS, text) == text


def test_bits_are_a_boolean_bytes_or_text() -> None:
    assert value(column("bit", modifier=1), DEBEZIUM, "1") is True
    assert value(column("varbit", modifier=1), DEBEZIUM, "") is False
    nine = column("bit", modifier=9)
    assert value(nine, DEBEZIUM, "100000001") == b"\x01\x01"
    assert value(nine, replace(DEBEZIUM, binary="hex"), "100000001") == b"\x01\x01"
    assert value(nine, LOSSLESS, "000000000") == "000000000"
    unbounded = codec(column("varbit"), DEBEZIUM)
    assert unbounded is not None
    assert unbounded.schema.parameters == {"length": "2147483647"}


def test_bytes_in_every_mode() -> None:
    expected = {"bytes": b"\xff\xef\xbe", "base64": "/+++", "base64-url-safe": "_---"}
    for mode, text in expected.items():
        modes = replace(LOSSLESS, binary=mode)  # type: ignore[arg-type]
        assert value(column("bytea"), modes, "\\xffefbe") == text
    assert value(column("bytea"), replace(LOSSLESS, binary="hex"), "\\xffefbe") == "ffefbe"


def test_postgis_says_its_srid() -> None:
    with_srid = "0101000020E6100000000000000000F03F0000000000000040"
    geometry = value(column("geometry"), DEBEZIUM, with_srid)
    assert geometry == {"wkb": bytes.fromhex(with_srid), "srid": 4326}
    big_endian = "00000000013FF00000000000004000000000000000"
    assert value(column("geography"), DEBEZIUM, big_endian)["srid"] is None
    assert value(column("geometry"), LOSSLESS, with_srid) == with_srid


def test_vectors_are_lists_of_numbers() -> None:
    assert value(column("vector"), DEBEZIUM, "[1,2.5,-3e-20]") == [1.0, 2.5, -3e-20]
    sparse = value(column("sparsevec"), DEBEZIUM, "{1:1.5,3:2}/5")
    assert sparse == {"dimensions": 5, "vector": {1: 1.5, 3: 2.0}}
    found = codec(column("sparsevec"), DEBEZIUM)
    assert found is not None
    assert written(found, b"{1:1.5,3:2}/5") == '{"dimensions":5,"vector":[[1,1.5],[3,2.0]]}'
    assert found.decode(b"{}/3") == {"dimensions": 3, "vector": {}}


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("hstore", '"a"=>"1",'), ("hstore", '"a"=>"1", '), ("hstore", '"a"=>'), ("hstore", "a=>b"),
        ("hstore", '"a"=>"1" "b"=>"2"'),
        ("point", "(1,2"), ("point", "(1,x)"), ("point", "1,2"),
        ("vector", "[1,2"), ("vector", "[1,x]"), ("vector", "[]"),
        ("sparsevec", "{1:1}"), ("sparsevec", "{1:}/2"), ("sparsevec", "{x:1}/2"),
        ("geometry", "0101"), ("geometry", "xx"),
        ("interval", "P"), ("interval", "P1DT"), ("interval", "1 day"), ("interval", ""),
        ("bit", "2"), ("numeric", "1e5"), ("money", "1 EUR"), ("timetz", "10:00:00"),
        ("bit[]", "{"), ("line", "{1,2,1e999}"),
    ],
)  # fmt: skip
def test_a_malformed_text_is_refused(declared: str, text: str) -> None:
    found = codec(column(declared, modifier=3), replace(DEBEZIUM, include_unknown=True))
    assert found is not None
    with pytest.raises((ValueError, LookupError)):
        found.decode(text.encode())


def test_schemas_that_no_recorded_case_has() -> None:
    vector = codec(column("halfvec"), DEBEZIUM)
    assert vector is not None
    assert (vector.schema.name, vector.schema.items and vector.schema.items.type) == (
        "io.debezium.data.FloatVector",
        Type.FLOAT,
    )
    enums = codec(column("enum[]", labels=("a", "b")), DEBEZIUM)
    assert enums is not None
    assert enums.schema.items is not None
    assert enums.schema.items.parameters == {"allowed": "a,b"}
    assert not enums.schema.items.optional
    negative = codec(column("numeric", **scaled(5, -2)), DEBEZIUM)
    assert negative is not None
    assert negative.schema.parameters == {"scale": "2046", "connect.decimal.precision": "5"}

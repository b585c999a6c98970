"""Texts of each type → values, equal to Debezium's recorded ones if they should be."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CorruptMessageError
from cdc.records.schema import Column, TableName
from cdc.values import MALFORMED, Codec, codec
from tests.fixtures.json_values import decoded, written

TABLE = TableName("public", "t")
MODIFIERS = {0: 0, 3: 3, 6: -1}


def column(declared: str, digits: int = 6) -> Column:
    return Column(
        name="c",
        type=declared.removesuffix("[]"),
        type_oid=1,
        array=declared.endswith("[]"),
        modifier=MODIFIERS[digits],
        declared=declared,
    )


def codec_of(kind: Column) -> Codec:
    found = codec(kind)
    assert found is not None
    return found


def both(declared: str, text: str, digits: int = 6) -> Any:
    """The decoded value, after making sure that its JSON says the same."""
    kind = column(declared, digits)
    value = decoded(kind, TABLE, text.encode())
    fragment = written(codec_of(kind), text.encode())
    assert fragment == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ("bool", "t", True),
        ("bool", "f", False),
        ("int2", "-32768", -32768),
        ("int4", "0", 0),
        ("int8", "-9223372036854775808", -(2**63)),
        ("int8", "9223372036854775807", 2**63 - 1),
        ("oid", "4294967295", 2**32 - 1),
        ("float8", "0.1", 0.1),
        ("float8", "100000", 100000.0),
        ("float8", "1e+300", 1e300),
        ("float8", "-0", -0.0),
        ("float8", "0.0001", 0.0001),
        ("float8", "0.00010001", 0.00010001),
        ("float8", "1e-05", 1e-05),
        ("float8", "1.7976931348623157e+308", 1.7976931348623157e308),
        ("float8", "5e-324", 5e-324),
        ("float4", "3.4028235e+38", 3.4028235e38),
        ("float8", "NaN", "NaN"),
        ("float8", "-Infinity", "-Infinity"),
        ("numeric", "-0.0000000000000000000000001", "-0.0000000000000000000000001"),
        ("numeric", "1.10", "1.10"),
        ("numeric", "12" * 300, "12" * 300),
        ("numeric", "NaN", "NaN"),
        ("numeric", "-Infinity", "-Infinity"),
        ("money", "-$92,233,720,368,547,758.08", "-92233720368547758.08"),
        ("money", "$0.00", "0.00"),
        ("bytea", "\\x", ""),
        ("bytea", "\\xdeadbeef00", "3q2+7wA="),
        ("text", 'q"b\\s/ \x01\x1f\x7f\t\n 日本 😀', 'q"b\\s/ \x01\x1f\x7f\t\n 日本 😀'),
        ("bpchar", "ab   ", "ab   "),
        ("jsonb", '{"a": 1.50}', '{"a": 1.50}'),
        ("bit", "00000000", "00000000"),
        ("interval", "P1Y2M3DT4H5M6.789012S", "P1Y2M3DT4H5M6.789012S"),
        ("no_such_type", "(1,2)", "(1,2)"),
    ],
)
def test_a_text_has_one_value(declared: str, text: str, value: Any) -> None:
    assert repr(both(declared, text)) == repr(value)


@pytest.mark.parametrize(
    ("declared", "digits", "text", "value"),
    [
        ("date", 6, "2024-02-29", 19782),
        ("date", 6, "0001-01-01", -719162),
        ("date", 6, "0044-03-15 BC", -735160),
        ("date", 6, "4713-01-01 BC", -2440550),
        ("date", 6, "5874897-12-31", 2145042905),
        ("date", 6, "infinity", 2147483647),
        ("date", 6, "-infinity", -2147483648),
        ("time", 6, "13:14:15.123456", 47655123456),
        ("time", 6, "24:00:00", 86400000000),
        ("time", 3, "13:14:15.123", 47655123),
        ("time", 0, "13:14:16", 47656000),
        ("timestamp", 6, "2024-02-29 13:14:15.123456", 1709212455123456),
        ("timestamp", 6, "1969-12-31 23:59:59.999999", -1),
        ("timestamp", 6, "0044-03-15 10:00:00 BC", -63517788000000000),
        ("timestamp", 6, "4713-01-01 00:00:00 BC", -210863520000000000),
        ("timestamp", 6, "10000-01-01 00:00:00.5", 253402300800500000),
        ("timestamp", 6, "294276-12-31 23:59:59.999999", 9224318015999999999),
        ("timestamp", 6, "infinity", 9223372036825200000),
        ("timestamp", 6, "-infinity", -9223372036832400000),
        ("timestamp", 3, "2024-02-29 13:14:15.124", 1709212455124),
        ("timestamp", 3, "infinity", 9223372036825200000),
        ("timestamp", 0, "2024-02-29 13:14:16", 1709212456000),
        ("timestamptz", 6, "2024-02-29 10:14:15.123456+00", "2024-02-29T10:14:15.123456Z"),
        ("timestamptz", 6, "0001-01-01 00:00:00+00", "0001-01-01T00:00:00.000000Z"),
        ("timestamptz", 6, "2024-02-29 10:14:15.5+00", "2024-02-29T10:14:15.500000Z"),
        ("timestamptz", 0, "2024-02-29 13:14:16+00", "2024-02-29T13:14:16Z"),
        ("timestamptz", 3, "2024-02-29 13:14:15.12+00", "2024-02-29T13:14:15.120Z"),
        ("timestamptz", 6, "0044-03-15 10:00:00+00 BC", "-0043-03-15T10:00:00.000000Z"),
        ("timestamptz", 6, "0001-03-15 10:00:00+00 BC", "0000-03-15T10:00:00.000000Z"),
        ("timestamptz", 6, "10000-01-01 00:00:00.5+00", "+10000-01-01T00:00:00.500000Z"),
        ("timestamptz", 6, "infinity", "infinity"),
        ("timestamptz", 6, "-infinity", "-infinity"),
        ("timetz", 6, "13:14:15.123456+02", "13:14:15.123456+02:00"),
        ("timetz", 6, "13:14:15-05:30", "13:14:15-05:30"),
        ("timetz", 6, "24:00:00+00", "24:00:00Z"),
        ("timetz", 6, "13:14:15+01:02:03", "13:14:15+01:02:03"),
    ],
)
def test_a_time_has_one_value(declared: str, digits: int, text: str, value: Any) -> None:
    assert both(declared, text, digits) == value


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ("int4[]", "{}", []),
        ("int4[]", "{1,NULL,2147483647}", [1, None, 2147483647]),
        ("int4[]", "[2:3]={7,8}", "[2:3]={7,8}"),
        ("text[]", '[1:1][-2:-1]={{"a b",NULL}}', '[1:1][-2:-1]={{"a b",NULL}}'),
        ("int4[]", "{{1,2},{3,NULL}}", [[1, 2], [3, None]]),
        ("text[]", "{a,b c}", ["a", "b c"]),
        ("text[]", "{NULL}", [None]),
        ("text[]", '{"",NULL,"NULL","a,b","q\\"x","back\\\\slash","{}","\n"," sp "}',
         ["", None, "NULL", "a,b", 'q"x', "back\\slash", "{}", "\n", " sp "]),
        ("text[]", '{{{"a"}},{{b}}}', [[["a"]], [["b"]]]),
        ("text[]", "{\x01é,日}", ["\x01é", "日"]),
        ("bool[]", "{t,f,NULL}", [True, False, None]),
        ("float8[]", "{1.5,NaN}", [1.5, "NaN"]),
        ("numeric[]", "{1.10,NULL}", ["1.10", None]),
        ("money[]", '{$1.50,"$1,000.00"}', ["1.50", "1000.00"]),
        ("bytea[]", '{"\\\\xdead",NULL}', ["3q0=", None]),
        ("date[]", "{2024-02-29,NULL}", [19782, None]),
        ("timestamptz[]", '{"2024-02-29 10:14:15+00"}', ["2024-02-29T10:14:15.000000Z"]),
        ("box[]", "{(1,1),(0,0);(2,2),(0,0)}", ["(1,1),(0,0)", "(2,2),(0,0)"]),
    ],
)  # fmt: skip
def test_an_array_is_a_list(declared: str, text: str, value: Any) -> None:
    assert both(declared, text) == value


MALFORMED_TEXTS = [
    ("bool", b"true"), ("bool", b""),
    ("int4", b""), ("int4", b"1_0"), ("int4", b" 1"), ("int4", b"+1"), ("int4", b"007"),
    ("int4", b"-0"), ("int8", b"1" * 5000), ("int4", "\u0661".encode()),
    ("float8", b"nan"), ("float8", b"1_0"), ("float8", b"1e999"), ("float8", b""),
    ("float8", b"--1"), ("float8", b" 1"),
    ("numeric", b"1e5"), ("numeric", b""), ("numeric", b"1.2.3"), ("numeric", b"- 1"),
    ("money", b"1.50 EUR"), ("money", b"($1.50)"),
    ("bytea", b"\\000"), ("bytea", b"\\xabc"), ("bytea", b"\\xzz"), ("bytea", b""),
    ("text", b"\xff"), ("json", b"\xed\xa0\x80"),
    ("date", b"2024-13-01"), ("date", b"2023-02-29"), ("date", b"0000-01-01"),
    ("date", b"24-01-01"), ("date", b"2024-W01-1"), ("date", b"01/02/2024"),
    ("date", b"0001-02-29 AC"),
    ("date", b"10000-02-30"), ("date", b"0002-02-29 BC"),
    ("time", b"24:00:01"), ("time", b"12:60:00"), ("time", b"12:00"), ("time", b"12:00:00+00"),
    ("timestamp", b"2024-02-29"), ("timestamp", b"2024-02-29 24:00:00"),
    ("timestamp", b"2024-02-29T10:00:00"), ("timestamp", b"2024-02-29 10:00:00+00"),
    ("timestamp", b"10000-02-30 10:00:00"), ("timestamp", b"now"),
    ("timestamptz", b"2024-02-30 10:00:00+00"), ("timestamptz", b"2024-02-29 10:00:00+02"),
    ("timestamptz", b"2024-02-29 10:00:00"), ("timestamptz", b"10000-02-29 25:00:00+00"),
    ("timetz", b"10:00:00"), ("timetz", b"10:00:00+99"), ("timetz", b"10:00:00+01:60"),
    ("int4[]", b""), ("int4[]", b"{"), ("int4[]", b"{1"), ("int4[]", b"1}"), ("int4[]", b"{1,}"),
    ("int4[]", b"{,1}"), ("int4[]", b"{1}}"), ("int4[]", b"{{1}"), ("int4[]", b"{1}x"),
    ("int4[]", b"{x}"), ("int4[]", b"[1:2]"), ("int4[]", b"[x]={1}"), ("text[]", b'{"a}'),
    ("text[]", b'{"a"b}'), ("text[]", b"{a\\b}"), ("text[]", b"{{{{{{{a}}}}}}}"),
    ("text[]", b"{\xff}"), ("text[]", b"{{},{}}"), ("text[]", b"{a}{b}"), ("text[]", b"{a,{b}"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "text"), MALFORMED_TEXTS)
def test_a_malformed_text_is_corrupt_and_named(declared: str, text: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="column c isn't a") as raised:
        decoded(column(declared), TABLE, text)
    assert "public.t" in str(raised.value)
    with pytest.raises(MALFORMED):
        written(codec_of(column(declared)), text)


def test_more_digits_than_declared_are_corrupt_not_cut() -> None:
    for declared, text in (("time", b"10:00:00.1234"), ("timestamp", b"2024-02-29 10:00:00.1234")):
        with pytest.raises(CorruptMessageError):
            decoded(column(declared, 3), TABLE, text)


TYPES = sorted(
    {declared for declared, _ in MALFORMED_TEXTS} | {"text", "box[]", "date[]", "float8[]"}
)


@given(
    st.sampled_from(TYPES),
    st.sampled_from([0, 3, 6]),
    st.one_of(
        st.binary(max_size=20),
        st.text('0123456789-+:. "{}[]=,\\NULBCeEnfity', max_size=30).map(str.encode),
        st.from_regex(
            rb"\d{4,7}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?(\+00)?( BC)?", fullmatch=True
        ),
        st.from_regex(rb'\{(\d|"(a|\\"|,)*"|NULL)(,(\d|""|NULL|\{\d\}))*\}', fullmatch=True),
    ),
)
def test_both_ways_agree_on_any_text(declared: str, digits: int, text: bytes) -> None:
    kind = column(declared, digits)
    try:
        expected = decoded(kind, TABLE, text)
    except CorruptMessageError:
        with pytest.raises(MALFORMED):
            written(codec_of(kind), text)
    else:
        fragment = written(codec_of(kind), text)
        assert fragment == json.dumps(expected, ensure_ascii=False, separators=(",", ":"))

"""Random values of every type → a real server → our reading of its text = the server's own answer.

The oracle asks the server in another form: seconds since the epoch, base64, to_json.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.postgres.connection import connect
from cdc.records.schema import Column, TableName
from cdc.values import codec
from tests.fixtures.examples import examples
from tests.fixtures.json_values import decoded, written

pytestmark = pytest.mark.postgres

SERVER = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Kind(NamedTuple):
    """A type: texts that PostgreSQL takes for it, and an expression over ``v`` for the oracle."""

    declared: str
    texts: st.SearchStrategy[str]
    oracle: str
    modifier: int = -1


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
DAY = st.integers(-2_440_580, 2_145_031_948).map(lambda days: f"1970-01-01 {days}")
"""Days that PostgreSQL's own arithmetic turns into dates: see SOURCE."""
MICROSECONDS = st.one_of(
    st.integers(-210_866_803_200_000_000, 9_224_318_015_999_999_999),
    st.integers(-(10**15), 10**16),
    st.integers(-(10**9), 10**10).map(lambda second: second * 1_000_000),
)
TIME_OF_DAY = st.one_of(st.times().map(str), st.just("24:00:00"))
FLOATS = st.floats(allow_subnormal=True).map(lambda number: repr(number).replace("inf", "Infinity"))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)
INTERVALS = st.tuples(
    st.integers(-1_000, 1_000), st.integers(-1_000, 1_000), st.integers(-(10**12), 10**12)
).map(lambda parts: f"{parts[0]} months {parts[1]} days {Decimal(parts[2]) / 10**6:f} seconds")

SOURCE = {"date": "(split_part($1, ' ', 1)::date + split_part($1, ' ', 2)::int)"}
"""How a drawn text becomes a value, where a cast isn't enough."""
for zone, at_utc in (("", ""), ("tz", " AT TIME ZONE 'UTC'")):
    for digits in (0, 3, 6):
        SOURCE[f"timestamp{zone}({digits})"] = (
            "((timestamp '1970-01-01' + div($1::numeric, 86400000000)::int * interval '1 day'"
            " + ($1::numeric % 86400000000)::float8 * interval '1 microsecond')"
            f"{at_utc})::timestamp{zone}({digits})"
        )

EPOCH = {unit: f"(extract(epoch FROM v) * {unit})::numeric(30,0)" for unit in (1_000, 1_000_000)}
SINCE_1970 = {
    unit: f"((v::date - date '1970-01-01') * {unit * 86_400}::numeric"
    f" + extract(epoch FROM v::time) * {unit})::numeric(30,0)"
    for unit in (1_000, 1_000_000)
}
"""Of timestamps day and time apart: extract(epoch) rounds near the end of their range."""
YEAR = (
    "CASE WHEN extract(year FROM v) < 0 THEN extract(year FROM v) + 1 ELSE extract(year FROM v) END"
)
ISO = f"(({YEAR})::text || ' ' || to_char(v, '-MM-DD\"T\"HH24:MI:SS%s\"Z\"'))"

KINDS = [
    Kind("bool", st.sampled_from(["true", "false"]), "to_json(v)"),
    Kind("int2", st.integers(-(2**15), 2**15 - 1).map(str), "to_json(v)"),
    Kind("int4", st.integers(-(2**31), 2**31 - 1).map(str), "to_json(v)"),
    Kind("int8", st.integers(-(2**63), 2**63 - 1).map(str), "to_json(v)"),
    Kind("oid", st.integers(0, 2**32 - 1).map(str), "to_json(v::int8)"),
    Kind("float4", st.floats(width=32).map(str), "to_json(v)"),
    Kind("float8", FLOATS, "to_json(v)"),
    Kind("numeric", st.decimals().map(lambda d: f"{d:f}" if d.is_finite() else "NaN"),
         "to_json(v::text)"),
    Kind("money", st.integers(-(2**63) + 1, 2**63 - 1).map(lambda n: str(Decimal(n).scaleb(-2))),
         "to_json(v::numeric::text)"),
    Kind("bytea", st.binary(max_size=100).map(lambda raw: "\\x" + raw.hex()),
         "to_json(replace(encode(v, 'base64'), E'\\n', ''))"),
    *(Kind(name, TEXT, "to_json(v)") for name in ("text", "varchar", "name")),
    Kind("bpchar", TEXT, "to_json(v)"),
    Kind("uuid", st.uuids().map(str), "to_json(v::text)"),
    Kind("json", JSON.map(json.dumps), "to_json(v::text)"),
    Kind("jsonb", JSON.map(json.dumps).filter(lambda text: "\\u0000" not in text),
         "to_json(v::text)"),
    Kind("inet", st.ip_addresses().map(str), "to_json(v)"),
    Kind("interval", INTERVALS, "to_json(v::text)"),
    Kind("varbit", st.text("01", max_size=70), "to_json(v::text)"),
    Kind("point", st.tuples(FLOATS, FLOATS).map(lambda at: f"({at[0]},{at[1]})"),
         "to_json(v::text)"),
    Kind("int4range", st.tuples(st.integers(-9, 0), st.integers(1, 9)).map(
        lambda ends: f"[{ends[0]},{ends[1]}]"), "to_json(v::text)"),
    Kind("date", DAY, "to_json(v - date '1970-01-01')"),
    Kind("time", TIME_OF_DAY, EPOCH[1_000_000]),
    Kind("time(3)", TIME_OF_DAY, EPOCH[1_000], 3),
    Kind("time(0)", TIME_OF_DAY, EPOCH[1_000], 0),
    Kind("timestamp(6)", MICROSECONDS.map(str), SINCE_1970[1_000_000], 6),
    Kind("timestamp(3)", MICROSECONDS.map(str), SINCE_1970[1_000], 3),
    Kind("timestamp(0)", MICROSECONDS.map(str), SINCE_1970[1_000], 0),
    Kind("timestamptz(6)", MICROSECONDS.map(str), f"to_json({ISO % '.US'})", 6),
    Kind("timestamptz(3)", MICROSECONDS.map(str), f"to_json({ISO % '.MS'})", 3),
    Kind("timestamptz(0)", MICROSECONDS.map(str), f"to_json({ISO % ''})", 0),
    Kind("timetz", st.tuples(TIME_OF_DAY, st.sampled_from("+-"), st.times().filter(
        lambda offset: offset.hour < 16)).map(lambda at: f"{at[0]}{at[1]}{at[2]:%H:%M:%S}"),
        "json_build_array(extract(epoch FROM v::time), extract(timezone FROM v))"),
]  # fmt: skip


@pytest.fixture
def connection(database: dict[str, str]) -> Iterator[psycopg.Connection]:
    """Open a session with the settings that Millrace pins."""
    with connect(database, purpose="test") as opened:
        yield opened


def asked(connection: psycopg.Connection, kind: Kind, drawn: str) -> tuple[bytes, Any]:
    """The server's text for the value, and its answer to the oracle's question."""
    value = SOURCE.get(kind.declared, f"$1::{kind.declared}")
    query = f"SELECT v, ({kind.oracle})::text FROM (SELECT {value} AS v) AS one"
    result = connection.pgconn.exec_params(query.encode(), [drawn.encode()])
    text, oracle = result.get_value(0, 0), result.get_value(0, 1)
    assert text is not None, result.error_message
    assert oracle is not None
    return text, json.loads(oracle)


def column(kind: Kind, *, array: bool = False) -> Column:
    return Column(
        name="c",
        type=kind.declared.partition("(")[0],
        type_oid=1,
        modifier=kind.modifier,
        array=array,
        declared=kind.declared,
    )


def read(kind: Column, text: bytes) -> Any:
    """Our reading, after making sure that both ways agree."""
    value = decoded(kind, TableName("public", "t"), text)
    found = codec(kind)
    assert found is not None
    assert json.loads(written(found, text)) == value
    return value


def iso_as_asked(value: str) -> str:
    """Our ISO text in the oracle's form: the year as a plain number, set apart."""
    match = re.fullmatch(r"([+-]?\d{4,})(-\d\d-\d\dT.*Z)", value)
    assert match is not None
    return f"{int(match[1])} {match[2]}"


def timetz_as_asked(value: str) -> list[float]:
    at = value.find("Z") if value.endswith("Z") else max(value.find("+"), value.find("-"))
    clock, offset = value[:at], value[at:].replace("Z", "")
    sign = -1 if offset[:1] == "-" else 1
    return [_seconds(clock), sign * _seconds(offset[1:] or "0")]


def _seconds(clock: str) -> float:
    return sum(float(part) * 60.0**-power * 3600 for power, part in enumerate(clock.split(":")))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.declared)
@SERVER
@given(data=st.data())
def test_our_reading_is_the_servers(
    connection: psycopg.Connection, kind: Kind, data: st.DataObject
) -> None:
    text, oracle = asked(connection, kind, data.draw(kind.texts))
    value = read(column(kind), text)
    if kind.declared.startswith("timestamptz"):
        value = iso_as_asked(value)
    if kind.declared == "timetz":
        assert timetz_as_asked(value) == pytest.approx(oracle, abs=1e-9)
    else:
        assert value == oracle
        assert type(value) is type(oracle) or isinstance(value, float)


ARRAYS = {
    "int8": st.integers(-(2**63), 2**63 - 1),
    "text": st.one_of(TEXT, st.text('a\\"{},; \n\tNULnul', max_size=6)),
    "bool": st.booleans(),
}


@pytest.mark.parametrize("declared", ARRAYS)
@SERVER
@given(data=st.data())
def test_our_reading_of_an_array_is_the_servers(
    connection: psycopg.Connection, declared: str, data: st.DataObject
) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), max_size=3))
    items: Any = st.one_of(st.none(), ARRAYS[declared])
    for size in shape:
        items = st.lists(items, min_size=size, max_size=size)
    drawn = data.draw(items) if shape else []
    bound = data.draw(st.integers(-2, 3))
    bounds = "".join(f"[{bound}:{bound + size - 1}]" for size in reversed(shape))
    query = f"SELECT v, to_json(v) FROM (SELECT %s::text::{declared}[] AS v) AS one"
    literal = f"{bounds}={_literal(drawn)}" if shape else "{}"
    result = connection.execute(query.encode(), [literal]).pgresult
    assert result is not None
    text, oracle = result.get_value(0, 0), result.get_value(0, 1)
    assert text is not None
    assert oracle is not None
    value = read(column(Kind(declared, TEXT, ""), array=True), text)
    if shape and bound != 1:  # a list can't say where it begins
        assert value.encode() == text
        value = read(column(Kind(declared, TEXT, ""), array=True), text.partition(b"=")[2])
    assert value == json.loads(oracle) == drawn


def _literal(value: Any) -> str:
    """An array as PostgreSQL reads it, every text in quotes."""
    if isinstance(value, list):
        return "{" + ",".join(_literal(item) for item in value) + "}"
    if value is None:
        return "NULL"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.mark.parametrize(
    ("declared", "literal", "expected"),
    [
        ("date", "infinity", 2147483647),
        ("date", "-infinity", -2147483648),
        ("timestamp", "infinity", 9223372036825200000),
        ("timestamptz", "-infinity", "-infinity"),
        ("date[]", "{2024-02-29,NULL}", [19782, None]),
        ("timestamptz[]", "{2024-02-29 10:14:15.5+02}", ["2024-02-29T08:14:15.500000Z"]),
        ("money[]", "{1.5,-1000}", ["1.50", "-1000.00"]),
        ("bytea[]", '{"\\\\xdead"}', ["3q0="]),
        ("box[]", "{(1,1),(0,0);(2,2),(0,0)}", ["(1,1),(0,0)", "(2,2),(0,0)"]),
        ("numeric", "Infinity", "Infinity"),
    ],
)
def test_a_special_value(
    connection: psycopg.Connection, declared: str, literal: str, expected: Any
) -> None:
    result = connection.execute(f"SELECT %s::text::{declared}".encode(), [literal]).pgresult
    assert result is not None
    text = result.get_value(0, 0)
    assert text is not None
    kind = Kind(declared.removesuffix("[]"), TEXT, "")
    assert read(column(kind, array=declared.endswith("[]")), text) == expected

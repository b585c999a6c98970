"""Random values of types that Debezium's modes rewrite → our reading is the server's arithmetic."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.postgres.connection import connect
from cdc.records.schema import Column
from cdc.settings.modes import ValueModes
from cdc.values import codec
from tests.fixtures.json_values import json_text, written

pytestmark = pytest.mark.postgres

SERVER = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DEBEZIUM = {"decimal": "precise", "interval": "numeric", "hstore": "map", "lossless": False}


class Rewritten(NamedTuple):
    """A type in a mode: texts of it, the server's answer over ``v``, what of ours equals it."""

    declared: str
    texts: st.SearchStrategy[str]
    oracle: str
    modes: dict[str, Any]
    ours: Callable[[Any], Any] = lambda value: value
    modifier: int = -1


def unscaled(value: Any) -> str:
    return str(int.from_bytes(value, "big", signed=True))


def number(value: Any) -> list[Any]:
    return [value["scale"], unscaled(value["value"])]


WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
PAIRS = st.dictionaries(WORD, st.none() | WORD, max_size=4)
DECIMALS = st.decimals(-(10**20), 10**20, places=10, allow_nan=False).map(lambda n: f"{n:f}")
DAYS = st.integers(-2_440_000, 2_900_000)
MICROSECONDS = st.integers(-210_000_000_000_000_000, 9_000_000_000_000_000_000)
PARTS = st.tuples(
    st.integers(-10_000, 10_000), st.integers(-(10**6), 10**6), st.integers(-(10**15), 10**15)
)
OFFSETS = st.integers(-15 * 3600 - 3599, 15 * 3600 + 3599)
SINCE_1970 = "(v::date - date '1970-01-01') * 86400000000 + extract(epoch FROM v::time) * 1000000"
STAMP = "timestamp '1970-01-01' + div($1::numeric, 86400000000)::int * interval '1 day'"
STAMP += " + ($1::numeric % 86400000000)::float8 * interval '1 microsecond'"
SOURCE = {
    "date": "(date '1970-01-01' + $1::int)",
    "timestamp": f"({STAMP})",
    "hstore": "(SELECT public.hstore(array_agg(key), array_agg(value))"
    " FROM json_each_text($1::json))",
    "interval": "(SELECT make_interval(months => (p->>0)::int, days => (p->>1)::int)"
    " + (p->>2)::float8 * interval '1 microsecond' FROM (SELECT $1::json AS p) AS one)",
}

REWRITTEN = {
    "numeric as Decimal": Rewritten(
        "numeric(38,10)", DECIMALS, "to_json((v * 1e10)::numeric(60,0)::text)", {},
        unscaled, (38 << 16 | 10) + 4,
    ),
    "numeric as VariableScaleDecimal": Rewritten(
        "numeric", DECIMALS,
        "json_build_array(min_scale(v), (v * 10::numeric ^ min_scale(v))::numeric(60,0)::text)",
        {}, number,
    ),
    "numeric as it is scaled": Rewritten(
        "numeric", DECIMALS,
        "json_build_array(scale(v), (v * 10::numeric ^ scale(v))::numeric(60,0)::text)",
        {"lossless": True}, number,
    ),
    "numeric as double": Rewritten(
        "numeric", DECIMALS, "to_json(v::float8)", {"decimal": "double"},
    ),
    "money as Decimal": Rewritten(
        "money", st.integers(-(2**63) + 1, 2**63 - 1).map(lambda n: f"{n // 100}.{n % 100:02}"
                                                            if n >= 0 else "0"),
        "to_json((v::numeric * 100)::numeric(30,0)::text)", {}, unscaled,
    ),
    "hstore as map": Rewritten("hstore", PAIRS.map(json.dumps), "public.hstore_to_json(v)", {}),
    "hstore as JSON": Rewritten(
        "hstore", PAIRS.map(json.dumps), "public.hstore_to_json(v)", {"hstore": "json"},
        json.loads,
    ),
    "interval as exact µs": Rewritten(
        "interval", PARTS.map(json.dumps),
        "((extract(year FROM v) * 12 + extract(month FROM v)) * 2629800000000::numeric"
        " + extract(day FROM v) * 86400000000::numeric + extract(hour FROM v) * 3600000000"
        " + extract(minute FROM v) * 60000000 + extract(microseconds FROM v))::numeric(40,0)",
        {"lossless": True},
    ),
    "date in ISO": Rewritten(
        "date", DAYS.map(str),
        "json_build_array(abs(extract(year FROM v))::int, extract(year FROM v) < 0,"
        " to_char(v, '-MM-DD\"Z\"'))",
        {"time_precision": "isostring"},
        lambda iso: [abs(int(iso[:-7])) + iso.startswith(("-", "0000")),
                     iso.startswith(("-", "0000")), iso[-7:]],
    ),
    "timestamp in ns": Rewritten(
        "timestamp", MICROSECONDS.map(str), f"(({SINCE_1970}) * 1000)::numeric(40,0)",
        {"time_precision": "nanoseconds", "lossless": True},
    ),
    "timestamp in whole ms": Rewritten(
        "timestamp", MICROSECONDS.map(str), f"floor(({SINCE_1970}) / 1000)::numeric(40,0)",
        {"time_precision": "connect"},
    ),
    "timetz in UTC": Rewritten(
        "timetz",
        st.tuples(st.times(), OFFSETS).map(
            lambda at: f"{at[0]}{'-' if at[1] < 0 else '+'}{abs(at[1]) // 3600:02}"
            f":{abs(at[1]) // 60 % 60:02}:{abs(at[1]) % 60:02}"
        ),
        "to_json((v AT TIME ZONE 'UTC')::time)", {}, lambda iso: iso.removesuffix("Z"),
    ),
}  # fmt: skip


@pytest.fixture
def connection(database: dict[str, str]) -> Iterator[psycopg.Connection]:
    """Open a session with the settings that Millrace pins."""
    with connect(database, purpose="test") as opened:
        opened.execute("CREATE EXTENSION hstore SCHEMA public")
        yield opened


@pytest.mark.parametrize("name", REWRITTEN)
@SERVER
@given(data=st.data())
def test_our_arithmetic_is_the_servers(
    connection: psycopg.Connection, name: str, data: st.DataObject
) -> None:
    kind = REWRITTEN[name]
    value = SOURCE.get(kind.declared, f"$1::{kind.declared}")
    query = f"SELECT v, ({kind.oracle})::text FROM (SELECT {value} AS v) AS one"
    result = connection.pgconn.exec_params(query.encode(), [data.draw(kind.texts).encode()])
    assert not result.error_message
    text, oracle = result.get_value(0, 0), result.get_value(0, 1)
    if text is None:  # of no pairs the server makes NULL
        return
    assert oracle is not None
    column = Column(
        name="c",
        type=kind.declared.partition("(")[0],
        type_oid=1,
        modifier=kind.modifier,
        declared=kind.declared,
    )
    found = codec(column, ValueModes(**{**DEBEZIUM, **kind.modes}))
    assert found is not None
    decoded = found.decode(text)
    assert written(found, text) == json_text(decoded, found.schema)
    assert kind.ours(decoded) == json.loads(oracle)

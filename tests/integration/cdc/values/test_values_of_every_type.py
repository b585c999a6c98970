"""A table with a column of every type of the server → nothing is lost, by either way.

Our native text of a value, cast back to its type, is that value. A row read by COPY has the same
event as one sent by pgoutput, in every mode.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final, get_args, get_type_hints

import psycopg
import pytest

from cdc.events.changes import Row
from cdc.postgres import catalog
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.schema import Column, TableName
from cdc.settings.modes import ValueModes
from cdc.values import codec
from tests.fixtures.both_ways import available_extensions, copied, make_slot, sent
from tests.fixtures.json_values import json_text, json_value, written
from tests.fixtures.source import Conninfo, session

pytestmark = pytest.mark.postgres

OPTIONAL: Final = {
    "vector": ("public.vector", "public.halfvec", "public.sparsevec"),
    "postgis": ("public.geometry", "public.geography"),
}
"""Extensions that a server may lack, and their types in SAMPLES."""
EXTENSIONS: Final = (
    *("citext", "cube", "hstore", "intarray", "isn", "lo", "ltree", "seg"),
    *OPTIONAL,
)
USER_TYPES: Final = """
    CREATE TYPE mood AS ENUM ('sad', 'it''s, "odd"', 'ünï', 'NULL');
    CREATE TYPE pair AS (a text, b int, c numeric[]);
    CREATE TYPE clock AS RANGE (subtype = time);
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE DOMAIN precise AS numeric(20,5);
    CREATE DOMAIN list AS int[];
    CREATE DOMAIN lists AS list[];
    CREATE DOMAIN pairs AS pair;
    CREATE DOMAIN moody AS mood;
"""
NO_INPUT: Final = frozenset({
    "gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "pg_dependencies",
    "pg_mcv_list", "pg_ndistinct", "pg_node_tree", "query_int", "lquery", "ltxtquery",
    "ghstore", "ltree_gist", "intbig_gkey",
})  # fmt: skip
"""Types that no column has: without an input function, or made for queries and indexes."""
XML: Final = "xml"
"""A server built without libxml refuses it."""

SAMPLES: Final[dict[str, list[str]]] = {
    "aclitem": ["postgres=r/postgres"],
    "bit(1)": ["1", "0"],
    "bit(20)": ["1" * 20, "0" * 19 + "1", "0" * 20],
    "bool": ["t", "f"],
    "box": ["(1,1),(0,-0)", "(1e300,2),(-1e-300,1)"],
    "bpchar": ["a  ", ""],
    "bytea": ["\\x00ff10", "\\x"],
    '"char"': ["x", "", '"'],
    "char(5)": ["ab", "", "é"],
    "cid": ["7"],
    "cidr": ["10.1.0.0/16", "::/0"],
    "circle": ["<(0,1.5),2>"],
    "date": ["2024-02-29", "infinity", "-infinity", "4713-01-01 BC", "5874897-12-31"],
    "datemultirange": ["{[2024-01-01,2024-02-01),[infinity,infinity]}", "{}"],
    "daterange": ["[2024-01-01,infinity)", "empty", "(,)"],
    "float4": ["1e-45", "3.4028235e38", "-0", "NaN", "-Infinity", "16777216", "0.1", "1e-44"],
    "float8": ["5e-324", "1.7976931348623157e308", "-0", "NaN", "Infinity", "100000", "1e15"],
    "inet": ["192.168.1.5/24", "::1", "10.0.0.1/32"],
    "int2": ["-32768"],
    "int2vector": ["1 2 3"],
    "int4": ["-2147483648"],
    "int4multirange": ["{[1,3),[5,7)}"],
    "int4range": ["[1,10]", "empty"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "int8multirange": ["{}"],
    "int8range": ["(5,)"],
    "interval": [
        *("1 year 2 mons 3 days 04:05:06.789012", "0", "-1 year -2 mons +3 days -04:05:06.789"),
        *("178000000 years", "-00:00:00.5", "300 hours", "-1 day", "1 mon -1 day"),
    ],
    "json": ['{"a" : 1.50,  "a":2}', "  null "],
    "jsonb": ['{"b": [1, 2.50, "x\\u00e9\\n"], "a": {}}', '"\\ud83d\\ude00"'],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "line": ["{1,2,3}", "{1.5,-1e300,0}"],
    "lseg": ["[(0,0),(1,1)]"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["-92233720368547758.08", "0", "1234567.5"],
    "name": ["nm", 'é,"x'],
    "numeric": ["1.10", "NaN", "Infinity", "-Infinity", "0.000", "-1e-30", "1e200", "7" * 5000],
    "numeric(10,2)": ["1.5", "-99999999.99", "NaN", "0"],
    "numeric(5,-2)": ["1234500", "-100", "0"],
    "nummultirange": ["{[1.5,2.5],(3,)}"],
    "numrange": ["[1.50,2.5]"],
    "oid": ["4294967295", "0"],
    "oidvector": ["1 2"],
    "path": ["[(0,0),(1,1),(2,0)]", "((0,0),(1,1))"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14"],
    "point": ["(1.5,-2)", "(NaN,Infinity)", "(1e300,-1e-300)"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "refcursor": ['cursor "c"'],
    "regclass": ["pg_class"],
    "regcollation": ['"C"'],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regnamespace": ["pg_catalog"],
    "regoper": ["!!"],
    "regoperator": ["+(integer,integer)"],
    "regproc": ["pg_sleep"],
    "regprocedure": ["sum(integer)"],
    "regrole": ["postgres"],
    "regtype": ["timestamp with time zone"],
    "text": ["", 'q"b\\s/ \x01\x1f\x7f\t\n\r', "NULL", "\\N", "{a,b}", "日本 😀", " sp "],
    "tid": ["(0,1)"],
    "time": ["24:00:00", "13:14:15.123456", "00:00:00"],
    "time(0)": ["13:14:15.6"],
    "timestamp": [
        *("infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"),
        *("1969-12-31 23:59:59.999999", "10000-01-01 00:00:00.5", "2024-02-29 13:14:15"),
    ],
    "timestamp(3)": ["2024-02-29 13:14:15.1235", "infinity", "0044-03-15 10:00:00 BC"],
    "timestamptz": [
        *("infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00"),
        *("2024-02-29 13:14:15.5+03", "10000-01-01 00:00:00+00"),
    ],
    "timestamptz(0)": ["2024-02-29 13:14:15.5+00"],
    "timetz": ["13:14:15.5+02", "24:00:00-15:59", "10:00:00+01:02:03", "00:00:00+00"],
    "tsmultirange": ['{["2024-01-01 00:00:00","2024-01-02 00:00:00")}'],
    "tsquery": ["fat & !cat:a <-> rat"],
    "tsrange": ['["2024-01-01 00:00:00",)'],
    "tstzmultirange": ['{["2024-01-01 00:00:00+02",)}'],
    "tstzrange": ["[infinity,infinity]"],
    "tsvector": ["fat:1A cat 'o''clock':2,3"],
    "txid_snapshot": ["10:20:10"],
    "uuid": ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "varbit": ["", "1", "000000000001", "1" * 67],
    "varbit(1)": ["1"],
    "varchar(10)": ['é, "x"', ""],
    "xid": ["123"],
    "xid8": ["18446744073709551615"],
    # ours, and those of extensions
    "public.mood": ["sad", 'it\'s, "odd"', "ünï", "NULL"],
    "public.pair": ['("x ""y"", z",1,"{1.50,NULL}")', "(,,)"],
    "public.clock": ["[10:00:00,11:00:00)"],
    "public.clock_multirange": ["{[10:00:00,11:00:00)}"],
    "public.positive": ["7"],
    "public.precise": ["1.5"],
    "public.list": ["{1,NULL,2}"],
    "public.lists": ['{"{1,2}","{}"}'],
    "public.pairs": ["(a,1,{})"],
    "public.moody": ["sad"],
    "public.citext": ["CiText", ""],
    "public.cube": ["(1, 2, 3)", "(0, 1),(2, 3)"],
    "public.ean13": ["9780306406157"],
    "public.hstore": ['"a"=>"1", "b"=>NULL, "c d"=>"x\\"y\\\\z"', "", '"=>"=>", "'],
    "public.isbn": ["0-306-40615-2"],
    "public.isbn13": ["9780306406157"],
    "public.ismn": ["M-2306-7118-7"],
    "public.ismn13": ["9790230671187"],
    "public.issn": ["1436-4522"],
    "public.issn13": ["9771436452008"],
    "public.lo": ["16384"],
    "public.ltree": ["Top.Science", ""],
    "public.seg": ["1.5 .. 2.50", "~7", "< 3"],
    "public.upc": ["220356483481"],
    "public.vector": ["[1,2.5,-3e-20]"],
    "public.halfvec": ["[1,0.1,65504]"],
    "public.sparsevec": ["{1:1.5,3:2}/5", "{}/3"],
    "public.geometry": ["SRID=4326;POINT(1 2)", "LINESTRING(0 0,1 1)"],
    "public.geography": ["SRID=4326;POINT(1 2)"],
}
"""Type → texts that it takes."""

CATALOG_TYPES: Final = """
SELECT CASE n.nspname WHEN 'pg_catalog' THEN '' ELSE n.nspname || '.' END || t.typname
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname IN ('pg_catalog', 'public') AND t.typtype IN ('b', 'r', 'm', 'e')
  AND NOT EXISTS (SELECT 1 FROM pg_type e WHERE e.typarray = t.oid)
"""
NATIVE: Final = ValueModes()


def all_modes() -> Iterator[ValueModes]:
    """Every choice of each option, with and without losses."""
    hints = get_type_hints(ValueModes)
    choices = {name: get_args(hints[name]) for name in NATIVE.__slots__ if get_args(hints[name])}
    longest = max(map(len, choices.values()))
    for place, lossless in product(range(longest), (True, False)):
        chosen: dict[str, Any] = {
            name: values[place % len(values)] for name, values in choices.items()
        }
        yield ValueModes(**chosen, lossless=lossless)
    yield ValueModes(include_unknown=False)
    yield ValueModes(include_unknown=False, lossless=False)


@pytest.fixture
def opened(database: Conninfo) -> Iterator[psycopg.Connection]:
    """Open a session on a database with all types that there are."""
    with session(database) as connection:
        for name in available_extensions(connection).intersection(EXTENSIONS):
            connection.execute(f"CREATE EXTENSION {name} SCHEMA public".encode())
        connection.execute("SET search_path = public")
        connection.pgconn.exec_(USER_TYPES.encode())
        connection.execute("SET search_path = pg_catalog")
        yield connection


def known_types(connection: psycopg.Connection) -> list[str]:
    """The types of SAMPLES that this server has."""
    return [
        name
        for name in SAMPLES
        if connection.execute("SELECT to_regtype(%s)", [name]).fetchone() != (None,)
    ]


def test_every_type_has_a_sample(opened: psycopg.Connection) -> None:
    there = {name for (name,) in opened.execute(CATALOG_TYPES).fetchall()}
    arrays = {name for name in there if name.rpartition(".")[2].startswith("_")}
    sampled = {name.partition("(")[0].strip('"') for name in SAMPLES}
    sampled |= {"char", "bit"}
    missing = {
        name for name in there - arrays - sampled - {XML} if name.split(".")[-1] not in NO_INPUT
    }
    assert not missing


ARRAYS: Final = (
    *("'{}'", "ARRAY[one.v, NULL]", "array_fill(one.v, ARRAY[2,1,2])"),
    "array_fill(one.v, ARRAY[2,1], ARRAY[0,5])",  # with lower bounds of its own
)


@pytest.mark.parametrize("extension", OPTIONAL)
def test_an_optional_extensions_types_are_among_them(
    opened: psycopg.Connection, extension: str
) -> None:
    if extension not in available_extensions(opened):
        pytest.skip(f"this server has no {extension}")
    assert set(OPTIONAL[extension]) <= set(known_types(opened))


def fill(connection: psycopg.Connection, types: list[str]) -> TableDescription:
    """Make a table of these types and of arrays of them, with a row per sample at least."""
    columns = [f"v{place} {name}, a{place} {name}[]" for place, name in enumerate(types)]
    connection.execute(f"CREATE TABLE public.every ({', '.join(columns)})".encode())
    connection.execute("ALTER TABLE public.every REPLICA IDENTITY FULL")
    connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    make_slot(connection)
    for row in range(max(map(len, SAMPLES.values()))):
        array = ARRAYS[row % len(ARRAYS)]
        expressions = [
            f"%s::text::{name},"
            f" (SELECT ({array})::{name}[] FROM (SELECT %s::text::{name} AS v) AS one)"
            for name in types
        ]
        texts = [SAMPLES[name][row % len(SAMPLES[name])] for name in types]
        insert = f"INSERT INTO public.every VALUES ({', '.join(expressions)})"
        connection.execute(insert.encode(), [text for one in texts for text in (one, one)])
    ((oid,),) = connection.execute("SELECT 'public.every'::regclass::oid").fetchall()
    (table,) = catalog.describe(connection, [CapturedTable(oid, TableName("public", "every"))], "p")
    return table


def back(value: Any, delimiter: str) -> str:
    """A native value as text that PostgreSQL takes; lists as its arrays, every text quoted."""
    if not isinstance(value, list):
        return str(value)
    return f"{{{delimiter.join(_element(item, delimiter) for item in value)}}}"


def _element(item: Any, delimiter: str) -> str:
    if isinstance(item, list):
        return back(item, delimiter)
    if item is None:
        return "NULL"
    return '"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"'


ELSEWHERE: Final = frozenset({"date", "time", "timestamp", "timestamptz", "bytea"})
"""Types whose native values aren't texts of theirs: test_values_against_postgres has them."""


def test_what_we_say_cast_back_is_the_value(opened: psycopg.Connection) -> None:
    types = known_types(opened)
    table = fill(opened, types)
    lost = []
    for row in copied(opened, table):
        for place, (column, text) in enumerate(zip(table.columns, row, strict=True)):
            found = codec(column)
            assert found is not None
            if not isinstance(text, bytes) or column.type in ELSEWHERE:
                continue
            said = json_value(found.decode(text), found.schema)
            name = types[place // 2] + ("[]" if place % 2 else "")
            cast = opened.pgconn.exec_params(
                f"SELECT $1::{name}".encode(), [back(said, column.delimiter or ",").encode()]
            )
            if cast.error_message or cast.get_value(0, 0) != text:
                lost.append((name, text, said, cast.error_message))
    assert not lost


def test_both_ways_in_say_the_same_in_every_mode(opened: psycopg.Connection) -> None:
    table = fill(opened, known_types(opened))
    sents = list(sent(opened, "p"))
    described = sents[0].columns
    rows = list(copied(opened, table))
    assert described == table.columns
    assert [one.new for one in sents] == rows
    for how in all_modes():
        for row in rows:
            check(table.columns, row, how)


def check(columns: tuple[Column, ...], row: Row, how: ValueModes) -> None:
    """Both ways of a codec agree on a row's values."""
    for column, text in zip(columns, row, strict=True):
        found = codec(column, how)
        if found is None or not isinstance(text, bytes):
            assert text is None or not how.lossless or not how.include_unknown
            continue
        try:
            expected = json_text(found.decode(text), found.schema)
        except ValueError:
            assert how.lossless
            with pytest.raises(ValueError, match="no Decimal"):
                written(found, text)
        else:
            assert written(found, text) == expected

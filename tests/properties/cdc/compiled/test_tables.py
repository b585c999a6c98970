"""The extension in tables of every type, modifier, default and width. Byte for byte."""

import re
import struct
from dataclasses import replace
from typing import Any, Literal

from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from cdc.convert.converters import converters
from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.errors import TableRefusedError
from cdc.events.rules import EventRules
from cdc.records.position import Position
from cdc.records.schema import Column, TableSchema
from cdc.settings.modes import ColumnModes, ColumnRule, EventModes, Patterns
from cdc.stream.translation import Limits
from cdc.tables.tables import Arrival
from cdc.wal.messages import ABSENT, Row, Value
from tests.fixtures import wal_bytes as wal
from tests.fixtures.examples import examples
from tests.fixtures.preset import DEBEZIUM
from tests.properties.cdc.compiled.test_forms import FORMS, RULES, FormedTable
from tests.properties.cdc.compiled.test_stream import (
    OID,
    START,
    OneTable,
    as_key,
    frame,
    outcome,
    relation,
    timeless,
)
from tests.properties.cdc.events.test_reference import TEXTS

WORDS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    st.sampled_from(["", "NULL", "\N{GRINNING FACE}", "a" * 40, '"\\' * 9, "\x7f\x01\u2028\ufffe"]),
)
NUMERIC = st.one_of(
    st.sampled_from(["NaN", "Infinity", "-Infinity", "0", "0.00", "-0.01", "1" * 20]),
    st.integers(-(10**19), 10**19).map(str),
    st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 99)).map(lambda p: f"{p[0]}.{p[1]:02}"),
)
DAYS = st.one_of(
    st.dates().map(str),
    st.sampled_from(
        ["infinity", "-infinity", "0001-01-01 BC", "4713-01-01 BC", "10000-01-01", "5874897-12-31",
         "2000-02-29", "1900-02-28", "0001-01-01"]
    ),
)  # fmt: skip
CLOCKS = st.one_of(
    st.sampled_from(["24:00:00", "00:00:00", "23:59:59.999999", "12:00:00.1", "01:02:03.120"]),
    st.times().map(str),
)
TIMES = st.one_of(
    st.tuples(st.dates().map(str), CLOCKS.filter(lambda at: at[:2] != "24")).map(" ".join),
    st.sampled_from(["infinity", "-infinity", "294276-12-31 23:59:59.999999"]),
)
OTHERS: dict[str, st.SearchStrategy[str]] = {
    **dict.fromkeys(("varchar", "bpchar", "citext", "json", "uuid", "inet", "name", "char"), WORDS),
    **dict.fromkeys(("xml", "tsvector", "ltree", "enum", "daterange", "nowhere", "text"), WORDS),
    **dict.fromkeys(("int2", "int4", "int8", "oid"), st.integers(-(2**31), 2**31).map(str)),
    "float4": st.one_of(
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda f: f"{f:.7g}"),
        st.sampled_from(["NaN", "Infinity", "-0", "0", "1e-45", "9999999", "1e+07", "0.001"]),
    ),
    "float8": st.one_of(TEXTS["float8"], st.sampled_from(["-0", "123456789012345", "0.0001"])),
    "numeric": NUMERIC,
    "money": TEXTS["money"],
    "bytea": TEXTS["bytea"],
    "bool": TEXTS["bool"],
    "bit": st.text("01", max_size=17),
    "varbit": st.text("01", max_size=17),
    "date": DAYS,
    "time": CLOCKS,
    "timetz": CLOCKS.map(lambda clock: f"{clock}+02"),
    "timestamp": st.one_of(TIMES, st.just("0044-02-29 10:00:00.5 BC")),
    "timestamptz": st.one_of(TIMES.map(lambda at: f"{at}+00" if at[-1].isdigit() else at)),
    "interval": st.sampled_from(["P1Y2M3DT4H5M6.7S", "PT0S", "P-1D", "infinity", "P1Y2M"]),
    "hstore": st.sampled_from(['"a"=>"1", "b"=>NULL', "", '"\\""=>"é"']),
    "point": st.sampled_from(["(1,2)", "(1.5,-0)", "(NaN,Infinity)", "(1e+300,0)"]),
    "box": st.just("(1,2),(0,0)"),
    "circle": st.just("<(1,2),3>"),
    "vector": st.just("[1,2.5]"),
    "geometry": st.just("0101000000000000000000F03F0000000000000040"),
}
DEFAULTS = [
    *("'x'::text", "'\N{GRINNING FACE}'::text", "1", "-1.5", "now()", "true", "'{1}'::integer[]"),
    "'1970-01-02'::date", "'\\x00'::bytea", "'1.50'::numeric", "'$1.00'::money", "NULL::text",
]  # fmt: skip


@st.composite
def columns(draw: st.DrawFn, number: int, keys: int) -> Column:
    """Those with the lowest numbers are the key, which stands last in the table."""
    kind = draw(st.sampled_from(sorted(OTHERS)))
    modifier = -1
    if kind == "numeric":
        scale = draw(st.integers(-3, 20))
        modifier = draw(st.sampled_from([-1, (20 << 16 | scale & 0x7FF) + 4]))
    elif kind in {"time", "timetz", "timestamp", "timestamptz"}:
        modifier = draw(st.integers(-1, 6))
    elif kind in {"varchar", "bpchar", "bit", "varbit"}:
        modifier = draw(st.sampled_from([-1, 1, 5, 9]))
    return Column(
        name=f"{draw(st.sampled_from('abé'))}{number}" + "n" * draw(st.sampled_from([0, 0, 40])),
        type=kind,
        type_oid=1,
        modifier=modifier,
        array=not draw(st.integers(0, 4)),
        declared=kind,
        optional=draw(st.booleans()),
        key=number + 1 if number < keys else None,
        default=draw(st.one_of(st.none(), st.sampled_from(DEFAULTS))),
        labels=("NULL", "a"),
        typtype="c" if kind == "nowhere" else "b",
    )


@st.composite
def tables(draw: st.DrawFn) -> TableSchema:
    width = draw(st.one_of(st.integers(0, 8), st.just(70)))
    keys = draw(st.integers(0, min(width, 3)))
    made = [draw(columns(number, keys)) for number in reversed(range(width))]
    return TableSchema(
        namespace="public", table="t", version=draw(st.integers(1, 10**20)), since=str(START),
        topic="t", replica_identity=draw(st.sampled_from("dnfi")),
        columns=tuple(made), signature="",
    )  # fmt: skip


def array(items: list[str], bounded: bool) -> str:
    """As PostgreSQL writes it; every third element is NULL."""
    texts = []
    for number, item in enumerate(items):
        bare = item.upper() != "NULL" and re.fullmatch(r"[\w.:+-]+", item)
        quoted = '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        texts.append("NULL" if number % 3 == 2 else item if bare else quoted)
    text = "{" + ",".join(texts) + "}"
    return f"[2:{len(items) + 1}]={text}" if items and bounded else text


def texts(column: Column) -> st.SearchStrategy[str]:
    """Of times, no more digits than the column has: those are an error to some modes."""
    if column.modifier < 0 or not column.type.startswith("time"):
        return OTHERS[column.type]
    digits = column.modifier

    def cut(fraction: re.Match[str]) -> str:
        return fraction[0][: digits + 1] if digits else ""

    return OTHERS[column.type].map(lambda text: re.sub(r"\.\d+", cut, text))


@st.composite
def rows(draw: st.DrawFn, table: TableSchema) -> Row:
    made: list[Value] = []
    for column in table.columns:
        choice = draw(st.integers(0, 15))
        if choice < 2 and (column.key is None or not draw(st.integers(0, 5))):
            made.append(ABSENT if choice else None)
        elif column.array:
            items = draw(st.lists(texts(column), max_size=4))
            made.append(array(items, choice == 2).encode())
        else:
            made.append(draw(texts(column)).encode())
    return tuple(made)


@st.composite
def like(draw: st.DrawFn, row: Row, table: TableSchema) -> Row:
    """A row of which most is the same, its key mostly, too."""
    other = draw(rows(table))
    kept = [draw(st.integers(0, 9)) for _ in row]
    return tuple(
        one if keep else changed for one, changed, keep in zip(row, other, kept, strict=True)
    )


@st.composite
def changes(draw: st.DrawFn, table: TableSchema, oid: int) -> bytes:
    new = draw(rows(table))
    kind = draw(st.sampled_from("IUUUDD"))
    start = kind.encode() + wal.u32(oid)
    if kind == "I":
        return start + b"N" + wal.row(new)
    old = draw(like(new, table))
    image = draw(st.sampled_from([b"O" + wal.row(old), b"K" + wal.row(as_key(old, table))]))
    if kind == "D":
        return start + image
    return start + draw(st.sampled_from([image, b""])) + b"N" + wal.row(new)


@st.composite
def streams(draw: st.DrawFn, versions: list[TableSchema]) -> bytes:
    """Transactions of two relations, which change their schemas between any two rows."""
    made = []
    oids = OID, OID + 1
    known: dict[int, TableSchema] = {}
    for xid in range(draw(st.integers(1, 2))):
        lsn = 1_000 * (xid + 1)
        made.append(b"B" + struct.pack(">QqI", lsn + 900, draw(st.integers(-(2**61), 2**61)), xid))
        if draw(st.booleans()):
            made.append(b"O" + wal.u64(5) + "örigin\0".encode())
        for _ in range(draw(st.integers(0, 5))):
            oid = draw(st.sampled_from(oids))
            if oid not in known or not draw(st.integers(0, 3)):
                known[oid] = draw(st.sampled_from(versions))
                made.append(wal_relation(known[oid], oid))
            made.append(draw(changes(known[oid], oid)))
        made.append(b"C\0" + struct.pack(">QQq", lsn + 900, lsn + 950, 0))
    return b"".join(frame(1_000 + number, message) for number, message in enumerate(made))


def wal_relation(schema: TableSchema, oid: int) -> bytes:
    message = relation(schema)
    return message[:1] + wal.u32(oid) + message[5:]


class Versions(OneTable):
    """Tables by the name in their Relation message."""

    def __init__(self, encoders: dict[str, Encoder]) -> None:
        self._encoders = encoders

    def has_read(self, _relation: Any, _position: Position) -> bool:
        return False

    def arrive(self, relation: Any, _since: Position, _xid: int | None) -> Arrival:
        return Arrival(relation.name, [])

    def encoder(self, name: Any) -> Encoder:
        return self._encoders[name]


def rule(kind: Literal["truncate", "mask", "hash"], columns: str, **more: Any) -> EventRules:
    rules = (ColumnRule(kind, Patterns((columns,)), **more),)
    return replace(DEBEZIUM, columns=ColumnModes(rules=rules))


ALL_RULES = [
    *RULES,
    *(
        replace(base, values=replace(base.values, **modes))
        for base in (EventRules(), DEBEZIUM)
        for modes in (
            {"time_precision": "isostring", "binary": "base64-url-safe", "decimal": "string"},
            {"time_precision": "nanoseconds", "interval": "string", "hstore": "map"},
            {"time_precision": "microseconds", "interval": "numeric", "hstore": "json"},
            {"time_precision": "adaptive", "decimal": "double", "include_unknown": True},
            {"time_precision": "connect", "decimal": "precise", "binary": "base64"},
            {"placeholder": '\N{GRINNING FACE}"\\'.encode(), "decimal": "precise"},
        )
    ),
    rule("truncate", r".*\.a.*", length=1),
    rule("hash", r".*\.a.*", hash="SHA-256", salt="s", version=2),
    rule("mask", r".*\.a.*", length=0),
    replace(DEBEZIUM, field_names="avro_unicode", schema_names="avro"),
    replace(DEBEZIUM, events=replace(DEBEZIUM.events, skipped=frozenset("tr"))),
    EventRules(columns=ColumnModes(exclude=Patterns((".*",)))),
    EventRules(columns=ColumnModes(source_type_of=Patterns((".*",)))),
    EventRules(events=EventModes(tombstones=False)),
    EventRules(events=EventModes(tombstones=True, context_headers=True)),
]
ALL_FORMS = [
    *FORMS,
    RecordPipeline(converters({"value.decimal.format": "NUMERIC"})),
    RecordPipeline(converters({"key.decimal.format": "NUMERIC"}, preset=True)),
    RecordPipeline(converters({"key.replace.null.with.default": "true"})),
    RecordPipeline(converters({"value.replace.null.with.default": "false"}, preset=True)),
]


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_table_is_what_the_reference_writes(data: st.DataObject) -> None:
    native = data.draw(st.booleans())
    rules, form = data.draw(st.sampled_from(ALL_RULES)), data.draw(st.sampled_from(ALL_FORMS))
    versions = [
        data.draw(tables()).model_copy(update={"table": name}) for name in ("first", "second")
    ]
    encoders: dict[str, Encoder] = {}
    for schema in versions:
        compacted = bool(schema.key) and data.draw(st.booleans())
        try:
            table = OneTable(schema, compacted=compacted, since=START)
            if not native:
                table = FormedTable(schema, rules, form, compacted=compacted, reselects=False)
            encoders[schema.table] = table.encoder(schema)
        except TableRefusedError:
            reject()
    stream = data.draw(streams(versions))
    limits = Limits(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5_000)))
    fast, plain = (
        outcome(Versions(encoders), stream, limits, compiled=way) for way in (True, False)
    )
    assert timeless(fast[0], bytes) == timeless(plain[0], bytes)
    assert fast[1:] == plain[1:]

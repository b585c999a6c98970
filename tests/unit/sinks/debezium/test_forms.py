"""Types and modes -> how Debezium writes values, compared with the codec that writes them."""

from dataclasses import replace
from itertools import product

import pytest

from cdc.errors import ConfigError
from cdc.records.connect import DECIMAL, Schema, Type
from cdc.values import codec
from sinks.changes.types import spark_type
from sinks.debezium.described import declared_column
from sinks.debezium.forms import column_of, form_of, with_names
from tests.fixtures.debezium_topics import DEBEZIUM

TYPES = [
    *("boolean", "smallint", "integer", "bigint", "oid", "real", "double precision"),
    *("numeric(10,2)", "numeric", "numeric(5,-2)", "numeric(40,0)", "money", "bytea"),
    *("bit", "bit(1)", "bit(8)", "bit varying", "bit varying(1)", "bit varying(9)"),
    *("date", "time", "time(3)", "time(6) without time zone", "time with time zone"),
    *("timestamp", "timestamp(0)", "timestamp(4) without time zone", "timestamp with time zone"),
    *("interval", "interval day to second(3)", "uuid", "json", "jsonb", "xml", "enum", "hstore"),
    *("text", "character varying(5)", "char(3)", '"char"', "name", "citext", "inet", "macaddr8"),
    *("int4range", "ltree", "tsvector", "point", "vector", "halfvec", "sparsevec", "geometry"),
]
MODES = [
    DEBEZIUM,
    *(replace(DEBEZIUM, decimal=mode) for mode in ("string", "double")),
    *(
        replace(DEBEZIUM, time_precision=mode)
        for mode in (
            *("adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"),
        )
    ),
    *(replace(DEBEZIUM, binary=mode) for mode in ("base64", "base64-url-safe", "hex")),
    replace(DEBEZIUM, interval="string", hstore="map"),
    replace(DEBEZIUM, include_unknown=True),
]


def shape(schema: Schema | None) -> object:
    if schema is None:
        return None
    parameters = dict(schema.parameters or {})
    for irrelevant in ("length", "allowed"):
        parameters.pop(irrelevant, None)
    return schema.type, schema.name, parameters, shape(schema.items)


@pytest.mark.parametrize("text", TYPES)
def test_a_type_is_read_as_it_is_written(text: str) -> None:
    column = declared_column("c", text)
    for modes in MODES:
        found = codec(column, modes)
        ours = form_of(column, modes)
        theirs = shape(found.schema if found else None)
        if column.type in {"vector", "halfvec"} and ours is not None:
            ours = replace(ours, items=found.schema.items if found else None)
        assert shape(ours) == theirs, modes


def test_a_type_that_a_run_remembers_is_read_as_the_one_that_was_told() -> None:
    for text, modes in product(TYPES, MODES):
        declared = declared_column("c", text)
        form = form_of(declared, modes)
        if form is None:
            continue
        remembered = form_of(column_of("c", form, declared), modes)
        assert remembered is not None
        is_number = form.name == "io.debezium.time.MicroDuration"
        assert remembered.type == form.type, (text, modes)
        assert remembered.name == (None if is_number else form.name), (text, modes)


@pytest.mark.parametrize("text", [text for text in TYPES if not text.startswith("bit")])
def test_an_array_is_read_as_it_is_written(text: str) -> None:
    column = declared_column("c", f"{text}[]")
    found = codec(column, DEBEZIUM)
    ours = form_of(column, DEBEZIUM)
    assert (ours is None) == (found is None)
    if ours is not None and found is not None:
        declared, written = ours.of_items(), found.schema.items
        assert written is not None
        assert (declared.type, declared.name) == (written.type, written.name)


@pytest.mark.parametrize(
    ("text", "type_", "modifier", "array"),
    [
        ("int", "int4", -1, False),
        ("bigserial", "int8", -1, False),
        ("Double  Precision[]", "float8", -1, True),
        ("numeric(10,2)", "numeric", (10 << 16 | 2) + 4, False),
        ("decimal(3)[][]", "numeric", (3 << 16) + 4, True),
        ("varchar(7)", "varchar", 11, False),
        ("bit", "bit", 1, False),
        ("bit varying(12)", "varbit", 12, False),
        ("timestamp (3) with time zone", "timestamptz", 3, False),
        ("interval day to second(3)", "interval", 3, False),
        ("text array", "text", -1, True),
        ('"char"', "char", -1, False),
        ("composite", "composite", -1, False),
    ],
)
def test_declarations_are_read_as_in_create_table(
    text: str, type_: str, modifier: int, array: bool
) -> None:
    column = declared_column("c", text)
    assert (column.type, column.modifier, column.array) == (type_, modifier, array)


@pytest.mark.parametrize("text", ["", "mood", "numeric(", "numeric(a)", "int)", "public.mood"])
def test_a_type_that_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="isn't a type"):
        declared_column("c", text)


NAMED = {
    "io.debezium.time.MicroTimestamp": (Type.INT64, "timestamp_ntz"),
    "io.debezium.time.Date": (Type.INT32, "date"),
    "io.debezium.time.MicroDuration": (Type.INT64, "bigint"),
    "io.debezium.time.ZonedTimestamp": (Type.STRING, "timestamp"),
    "io.debezium.time.NanoTime": (Type.INT64, "bigint"),
    "io.debezium.data.VariableScaleDecimal": (Type.STRUCT, "string"),
    "io.debezium.data.Bits": (Type.BYTES, "binary"),
    "io.debezium.data.Uuid": (Type.STRING, "string"),
    "io.debezium.data.Json": (Type.STRING, "string"),
    "io.debezium.data.geometry.Point": (Type.STRUCT, "string"),
    "io.debezium.data.DoubleVector": (Type.ARRAY, "string"),
    "somebody.elses.Type": (Type.INT32, "int"),
    None: (Type.FLOAT, "float"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_schema_alone_says_what_column_it_is(name: str | None) -> None:
    type_, kind = NAMED[name]
    assert spark_type(column_of("c", Schema(type_, name=name), None)) == kind


def test_a_schema_tells_how_many_bits_there_are() -> None:
    bits = Schema(Type.BYTES, name="io.debezium.data.Bits", parameters={"length": "16"})
    altered = column_of("c", bits, declared_column("c", "bit(8)"))
    assert (altered.modifier, altered.declared) == (16, "bit(16)")
    assert column_of("c", bits, declared_column("c", "bit(16)")).declared == "bit(16)"


def test_decimals_say_their_digits_but_for_money() -> None:
    digits = {"scale": "2", "connect.decimal.precision": "10"}
    exact = column_of("c", Schema(Type.BYTES, name=DECIMAL, parameters=digits), None)
    money = column_of("c", Schema(Type.BYTES, name=DECIMAL, parameters={"scale": "2"}), None)
    assert (spark_type(exact), exact.declared) == ("decimal(10,2)", "numeric(10,2)")
    assert (money.type, spark_type(money)) == ("money", "string")


TOLD: list[tuple[Schema, str, str]] = [
    (Schema(Type.STRING), "numeric(10,2)", "decimal(10,2)"),
    (Schema(Type.STRING), "bytea", "binary"),
    (Schema(Type.STRING), "citext", "string"),
    (Schema(Type.DOUBLE), "numeric(10,2)", "double"),  # the digits are gone
    (Schema(Type.BYTES, name="io.debezium.data.Bits"), "bit(8)", "string"),
    (Schema(Type.BYTES, name="io.debezium.data.Bits"), "bit varying(8)", "binary"),
    (Schema(Type.BOOLEAN), "bit(1)", "string"),
    (Schema(Type.BYTES), "composite", "string"),
    (Schema(Type.INT64, name="io.debezium.time.MicroDuration"), "interval", "bigint"),
    (Schema(Type.INT32), "text", "int"),  # what a record says counts
    (Schema(Type.INT64), "oid", "bigint"),
    (Schema(Type.ARRAY, items=Schema(Type.STRING)), "numeric(5,1)[]", "array<decimal(5,1)>"),
    (Schema(Type.ARRAY, items=Schema(Type.STRING)), "text", "array<string>"),
]


@pytest.mark.parametrize(("schema", "text", "kind"), TOLD)
def test_what_was_told_decides_what_a_schema_leaves_open(
    schema: Schema, text: str, kind: str
) -> None:
    assert spark_type(column_of("c", schema, declared_column("c", text))) == kind


def test_a_decimal_that_got_other_digits_has_them() -> None:
    before = declared_column("c", "numeric(10,2)")
    digits = {"scale": "3", "connect.decimal.precision": "12"}
    wider = column_of("c", Schema(Type.BYTES, name=DECIMAL, parameters=digits), before)
    free = Schema(Type.STRUCT, name="io.debezium.data.VariableScaleDecimal")
    assert spark_type(wider) == "decimal(12,3)"
    assert spark_type(column_of("c", free, before)) == "string"


def test_a_schema_without_a_name_gets_that_of_the_type() -> None:
    declared = declared_column("c", "timestamp(3)")
    assert with_names(Schema(Type.INT64), declared, DEBEZIUM).name == "io.debezium.time.Timestamp"
    assert with_names(Schema(Type.INT32), declared, DEBEZIUM).name is None
    array = Schema(Type.ARRAY, items=Schema(Type.INT32))
    days = with_names(array, declared_column("c", "date[]"), DEBEZIUM)
    assert days.of_items().name == "io.debezium.time.Date"
    assert with_names(array, None, DEBEZIUM) == array
    floats = Schema(Type.ARRAY, items=Schema(Type.DOUBLE))
    vector = with_names(floats, declared_column("c", "vector"), DEBEZIUM)
    assert spark_type(column_of("c", vector, declared_column("c", "vector"))) == "string"

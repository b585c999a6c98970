"""Avro schemas, compared with those of Confluent's AvroData for the same Connect schemas."""

import io
from typing import Any

import fastavro
import pytest

from cdc.convert.avro import SUBJECTS, AvroConverter
from cdc.convert.avro_schema import AvroOptions, avro
from cdc.errors import ConversionError
from cdc.records.connect import DECIMAL, Field, Schema, Type

NAMESPACE = "io.confluent.connect.avro"
TEXT = Schema(Type.STRING, optional=True)
INT = Schema(Type.INT32)


def struct(name: str | None, **fields: Schema) -> Schema:
    return Schema(Type.STRUCT, name=name, fields=tuple(Field(*one) for one in fields.items()))


def made(schema: Schema, **options: bool) -> Any:
    return avro(schema, AvroOptions(**options)).schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (Schema(Type.BOOLEAN), "boolean"),
        (Schema(Type.INT8), {"type": "int", "connect.type": "int8"}),
        (Schema(Type.INT16), {"type": "int", "connect.type": "int16"}),
        (INT, "int"),
        (Schema(Type.INT64), "long"),
        (Schema(Type.FLOAT), "float"),
        (Schema(Type.DOUBLE), "double"),
        (Schema(Type.BYTES), "bytes"),
        (
            Schema(Type.STRING, name="io.debezium.data.Enum", version=1,
                   parameters={"allowed": "a,b"}, doc="kind", default="a"),
            {"type": "string", "connect.doc": "kind", "connect.version": 1,
             "connect.parameters": {"allowed": "a,b"}, "connect.default": "a",
             "connect.name": "io.debezium.data.Enum"},
        ),
        (
            Schema(Type.INT32, name="org.apache.kafka.connect.data.Date", version=1),
            {"type": "int", "connect.version": 1,
             "connect.name": "org.apache.kafka.connect.data.Date", "logicalType": "date"},
        ),
        (
            Schema(Type.BYTES, name=DECIMAL, version=1,
                   parameters={"scale": "2", "connect.decimal.precision": "5"}),
            {"type": "bytes", "scale": 2, "precision": 5, "connect.version": 1,
             "connect.parameters": {"scale": "2", "connect.decimal.precision": "5"},
             "connect.name": DECIMAL, "logicalType": "decimal"},
        ),
        (
            Schema(Type.BYTES, name=DECIMAL, parameters={"scale": "-2"}),
            {"type": "bytes", "scale": -2, "precision": 64,
             "connect.parameters": {"scale": "-2"}, "connect.name": DECIMAL},
        ),
        (Schema(Type.ARRAY, items=TEXT), {"type": "array", "items": ["null", "string"]}),
        (
            Schema(Type.MAP, keys=Schema(Type.STRING), items=TEXT),
            {"type": "map", "values": ["null", "string"]},
        ),
        (
            Schema(Type.MAP, keys=INT, items=TEXT),
            {"type": "array", "items": {
                "type": "record", "name": "MapEntry", "namespace": NAMESPACE,
                "fields": [{"name": "key", "type": "int"},
                           {"name": "value", "type": ["null", "string"], "default": None}]}},
        ),
        (
            struct(None, a=INT),
            {"type": "record", "name": "ConnectDefault", "namespace": NAMESPACE,
             "fields": [{"name": "a", "type": "int"}]},
        ),
    ],
)  # fmt: skip
def test_each_type_has_its_avro_schema(schema: Schema, expected: Any) -> None:
    assert made(schema) == expected
    fastavro.parse_schema(expected)


def test_optional_fields_are_unions_whose_first_branch_fits_the_default() -> None:
    row = struct(
        "shop.public.t.Value",
        plain=TEXT,
        number=Schema(Type.INT32, optional=True, default=7),
        raw=Schema(Type.BYTES, default=b"\0\xff"),
        ratio=Schema(Type.DOUBLE, default=float("nan")),
    )
    assert made(row)["fields"] == [
        {"name": "plain", "type": ["null", "string"], "default": None},
        {"name": "number", "type": [{"type": "int", "connect.default": 7}, "null"], "default": 7},
        {"name": "raw", "type": {"type": "bytes", "connect.default": "\0ÿ"}, "default": "\0ÿ"},
        {"name": "ratio", "type": "double"},
    ]


def test_a_record_that_comes_again_is_named() -> None:
    row = Schema(Type.STRUCT, optional=True, name="shop.public.t.Value", fields=(Field("a", INT),))
    before, after = made(struct("shop.public.t.Envelope", before=row, after=row))["fields"]
    assert before == {
        "name": "before",
        "type": [
            "null",
            {
                "type": "record",
                "name": "Value",
                "namespace": "shop.public.t",
                "fields": [{"name": "a", "type": "int"}],
                "connect.name": "shop.public.t.Value",
            },
        ],
        "default": None,
    }
    assert after == {"name": "after", "type": ["null", "shop.public.t.Value"], "default": None}


def test_two_structs_of_one_name_are_told_apart() -> None:
    schema = struct("a.Row", x=struct("a.B", n=INT), y=struct("a.B", t=TEXT))
    x, y = made(schema)["fields"]
    assert (x["type"]["name"], y["type"]["name"]) == ("B", "B2")
    assert y["type"]["connect.name"] == "a.B"


def test_names_are_adjusted_and_clashes_are_refused() -> None:
    schema = struct("my-shop.t", **{"a b": INT})
    record = made(schema)
    assert (record["namespace"], record["connect.name"]) == ("my_shop", "my_shop.t")
    assert record["fields"][0]["name"] == "a_b"
    clash = struct("s.t", **{"a b": INT, "a-b": INT})
    with pytest.raises(ConversionError, match="a_b"):
        made(clash)
    names = [field["name"] for field in made(clash, unicode_field_names=True)["fields"]]
    assert names == ["a_u0020b", "a_u002db"]


def test_no_part_of_a_records_name_is_empty_or_begins_with_a_digit() -> None:
    record = made(struct("shop..2024.1st", a=INT))
    assert (record["namespace"], record["name"]) == ("shop._._2024", "_1st")


def test_the_metadata_of_connect_can_be_left_out() -> None:
    schema = struct("s.t", a=Schema(Type.INT16, version=1, default=3))
    assert made(schema, connect_meta_data=False) == {
        "type": "record",
        "name": "t",
        "namespace": "s",
        "fields": [{"name": "a", "type": "int", "default": 3}],
    }


class Counting:
    """Ids by order of coming."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def id_of(self, subject: str, schema: str) -> int:
        assert schema
        self.asked.append(subject)
        return len(self.asked)


def converter(
    strategy: str = "TopicNameStrategy", /, **options: bool
) -> tuple[AvroConverter, Counting]:
    ids = Counting()
    return AvroConverter("value", ids, SUBJECTS[strategy], AvroOptions(**options)), ids


def test_a_value_has_the_magic_byte_and_its_schemas_id() -> None:
    convert, ids = converter()
    assert convert("t", INT, 1) == b"\0\0\0\0\1\2"
    assert convert("t", INT, -1) == b"\0\0\0\0\1\1"
    assert convert("u", INT, 0) == b"\0\0\0\0\2\0"
    assert ids.asked == ["t-value", "u-value"]
    assert convert("t", INT, None) is None
    assert convert("t", None, None) is None


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("RecordNameStrategy", "s.Row"), ("TopicRecordNameStrategy", "t-s.Row")],
)
def test_the_subject_can_be_named_after_the_record(strategy: str, subject: str) -> None:
    convert, ids = converter(strategy)
    convert("t", struct("s.Row", a=INT), {"a": 1})
    assert ids.asked == [subject]


def decoded(schema: Schema, value: Any, **options: bool) -> Any:
    convert, _ = converter(**options)
    wire = convert("t", schema, value)
    assert wire is not None
    writer = fastavro.parse_schema(made(schema, **options))
    return fastavro.schemaless_reader(io.BytesIO(wire[5:]), writer, None)


def test_null_is_the_default_unless_nullables_keep_it() -> None:
    row = struct("s.t", a=Schema(Type.INT32, optional=True, default=7), b=INT)
    assert decoded(row, {"a": None, "b": 1}) == {"a": 7, "b": 1}
    assert decoded(row, {"a": None, "b": 1}, ignore_default_for_nullables=True) == {
        "a": None,
        "b": 1,
    }


def test_an_absent_value_is_null_where_it_may_be_and_refused_elsewhere() -> None:
    row = struct("s.t", a=TEXT, b=INT)
    assert decoded(row, {"b": 1}) == {"a": None, "b": 1}
    with pytest.raises(ConversionError, match=r"missing[\s\S]*s\.t, b"):
        decoded(row, {"a": "x"})


@pytest.mark.parametrize("value", [[["a"], ["b"]], "[2:3]={a,b}"])
def test_an_array_with_dimensions_or_bounds_of_its_own_is_refused(value: Any) -> None:
    row = struct("s.t", a=Schema(Type.ARRAY, items=TEXT))
    with pytest.raises(ConversionError, match=r"dimensions[\s\S]*s\.t, a"):
        decoded(row, {"a": value})


def test_half_an_emoji_is_a_question_mark() -> None:
    row = struct("s.t", a=TEXT)
    assert decoded(row, {"a": "cut \ud83d"}) == {"a": "cut ?"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (INT, "secret"),
        (TEXT, 7_000_000_001),
        (Schema(Type.BYTES), "secret"),
        (INT, 7_000_000_001),
        (Schema(Type.INT64), 2**63),
    ],
)
def test_a_value_that_does_not_fit_is_refused_without_being_shown(
    schema: Schema, value: Any
) -> None:
    with pytest.raises(ConversionError, match=r"s\.t") as error:
        decoded(struct("s.t", a=schema), {"a": value})
    assert str(value) not in str(error.value)

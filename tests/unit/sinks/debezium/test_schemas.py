"""Schemas in records, and in a registry -> Connect's; Spark's form of an Avro schema."""

import io
import json
from typing import Any

import fastavro
import pytest

from cdc.convert.avro_schema import AvroOptions, avro
from cdc.errors import SinkError
from cdc.records.connect import DECIMAL, Field, Schema, Type
from sinks.debezium import schemas
from tests.fixtures.debezium_topics import MadeRegistry, in_avro, recorded
from tests.fixtures.recorded import schema_of

CASES = [
    ("schemas_typical", "cust"),
    ("schemas_temporal_decimal", "td"),
    ("schemas_temporal_connect_string", "td"),
    ("schemas_nanoseconds", "td"),
    ("schemas_isostring_double", "td"),
]


def said(schema: Schema) -> Any:
    """What decides how a value is read."""
    return (
        schema.type,
        schema.name,
        schema.parameters,
        said(schema.items) if schema.items else None,
        [(field.name, said(field.schema)) for field in schema.fields],
    )


@pytest.mark.parametrize(("case", "table"), CASES)
def test_a_schema_inside_of_records(case: str, table: str) -> None:
    for one in recorded(case, table):
        for side in (one.key, one.value):
            if side is not None:
                written = json.loads(side)["schema"]
                assert said(schemas.read_json_schema(json.dumps(written))) == said(
                    schema_of(written)
                )


@pytest.mark.parametrize(("case", "table"), CASES)
def test_a_schema_of_the_registry_is_the_same(case: str, table: str) -> None:
    registry = MadeRegistry()
    for one, wire in zip(recorded(case, table), in_avro(case, table, registry), strict=True):
        for text, made in ((one.key, wire.key), (one.value, wire.value)):
            if text is None:
                assert made is None
                continue
            assert made is not None
            read = schemas.read_avro_schema(registry.text_of(int.from_bytes(made[1:5])))
            assert said(read.schema) == said(schema_of(json.loads(text)["schema"]))


def test_spark_reads_the_same_bytes_by_places() -> None:
    row = Schema(
        Type.STRUCT,
        optional=True,
        name="p.public.t.Value",
        fields=(
            Field("id", Schema(Type.INT32)),
            Field("ID", Schema(Type.STRING, optional=True, default="x")),
            Field(
                "price",
                Schema(
                    Type.BYTES,
                    name=DECIMAL,
                    parameters={"scale": "2", "connect.decimal.precision": "9"},
                ),
            ),
            Field("amount", Schema(Type.BYTES, name=DECIMAL, parameters={"scale": "2"})),
        ),
    )
    envelope = Schema(
        Type.STRUCT,
        name="p.public.t.Envelope",
        fields=(Field("before", row), Field("after", row), Field("op", Schema(Type.STRING))),
    )
    made = avro(envelope, AvroOptions())
    read = schemas.read_avro_schema(json.dumps(made.schema))
    value = {"id": 1, "ID": None, "price": b"\5", "amount": b"\6"}
    out = io.BytesIO()
    datum = made.to_datum({"before": None, "after": value, "op": "c"})
    fastavro.schemaless_writer(out, fastavro.parse_schema(made.schema), datum)
    out.seek(0)
    found: Any = fastavro.schemaless_reader(out, fastavro.parse_schema(json.loads(read.text)), None)
    assert found["f0"] is None
    assert (found["f1"]["f0"], found["f1"]["f1"], found["f2"]) == (1, "x", "c")
    # A decimal of a known precision is decoded, one without is left as it is.
    assert (str(found["f1"]["f2"]), found["f1"]["f3"]) == ("0.05", b"\6")


def test_avro_without_connects_own_properties() -> None:
    fields = [
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "n",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            ],
        },
        {"name": "m", "type": {"type": "map", "values": ["null", "string"]}},
    ]
    text = json.dumps({"type": "record", "name": "R", "namespace": "a.b", "fields": fields})
    read = schemas.read_avro_schema(text)
    d, at, n, m = (field.schema for field in read.schema.fields)
    assert d.name == "org.apache.kafka.connect.data.Date"
    assert at.name == "org.apache.kafka.connect.data.Timestamp"
    assert (n.name, n.optional, schemas.decimal_digits(n)) == (DECIMAL, True, (5, 2))
    assert (m.type, m.of_items().type) == (Type.MAP, Type.STRING)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"type":"struct","fields":[{}]}', '{"type":"int33"}', '"int"']
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SinkError, match="a Kafka Connect schema"):
        schemas.read_json_schema(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '["int","string"]', '{"type":"record","name":"R"}', '"Unknown"']
)
def test_what_is_no_avro_schema_of_connect_is_refused(text: str) -> None:
    with pytest.raises(SinkError, match="a Kafka Connect schema"):
        schemas.read_avro_schema(text)

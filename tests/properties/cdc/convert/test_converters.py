"""Any value of any schema → Avro and JSON → the same value; nothing of a payload is lost."""

import io
import json
import math
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from cdc.convert.avro_schema import AvroOptions, avro
from cdc.convert.json_text import JsonConverter, JsonOptions
from cdc.records.connect import Field, Schema, Type
from cdc.transforms.expand import Expansion, NotExpandableError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PRIMITIVES: dict[Type, st.SearchStrategy[Any]] = {
    Type.BOOLEAN: st.booleans(),
    Type.INT8: st.integers(-128, 127),
    Type.INT16: st.integers(-(2**15), 2**15 - 1),
    Type.INT32: st.integers(-(2**31), 2**31 - 1),
    Type.INT64: st.integers(-(2**63), 2**63 - 1),
    Type.FLOAT: st.floats(width=32, allow_nan=False),
    Type.DOUBLE: st.floats(allow_nan=False),
    Type.STRING: TEXTS,
    Type.BYTES: st.binary(max_size=6),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Schema:
    optional = draw(st.booleans())
    kinds = list(PRIMITIVES) + ([Type.ARRAY, Type.MAP, Type.STRUCT] if depth else [])
    match draw(st.sampled_from(kinds)):
        case Type.ARRAY:
            return Schema(Type.ARRAY, optional, items=draw(schemas(depth - 1)))
        case Type.MAP:
            keys = Schema(draw(st.sampled_from([Type.STRING, Type.INT32])))
            return Schema(Type.MAP, optional, keys=keys, items=draw(schemas(depth - 1)))
        case Type.STRUCT:
            return draw(structs(depth - 1))
        case kind:
            return Schema(kind, optional)


@st.composite
def structs(draw: st.DrawFn, depth: int = 2) -> Schema:
    # Few names: a record that comes twice, alike or not, is what may go wrong.
    name = draw(st.sampled_from([None, "a.B", "a.C", "Bare"]))
    fields = draw(st.lists(schemas(depth), max_size=3))
    members = tuple(Field(f"f{number}", schema) for number, schema in enumerate(fields))
    return Schema(Type.STRUCT, draw(st.booleans()), name, fields=members)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    made: st.SearchStrategy[Any]
    if schema.type is Type.ARRAY:
        made = st.lists(values(schema.of_items()), max_size=3)
    elif schema.type is Type.MAP:
        made = st.dictionaries(values(schema.of_keys()), values(schema.of_items()), max_size=3)
    elif schema.type is Type.STRUCT:
        made = st.fixed_dictionaries({one.name: values(one.schema) for one in schema.fields})
    else:
        made = PRIMITIVES[schema.type]
    return st.none() | made if schema.optional else made


@st.composite
def valued_structs(draw: st.DrawFn) -> tuple[Schema, Any]:
    schema = draw(structs())
    return schema, draw(values(schema).filter(lambda value: value is not None))


def as_avro_reads(schema: Schema, value: Any) -> Any:
    """Maps without text keys are lists of entries."""
    if value is None:
        return None
    if schema.type is Type.ARRAY:
        return [as_avro_reads(schema.of_items(), one) for one in value]
    if schema.type is Type.STRUCT:
        return {one.name: as_avro_reads(one.schema, value[one.name]) for one in schema.fields}
    if schema.type is not Type.MAP:
        return value
    read = {key: as_avro_reads(schema.of_items(), one) for key, one in value.items()}
    if schema.of_keys().type is Type.STRING:
        return read
    return [{"key": key, "value": one} for key, one in read.items()]


@given(valued_structs())
def test_avro_is_read_back(valued: tuple[Schema, Any]) -> None:
    schema, value = valued
    made = avro(schema, AvroOptions())
    text = json.dumps(made.schema)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(made.schema), made.to_datum(value))
    out.seek(0)
    found = fastavro.schemaless_reader(out, fastavro.parse_schema(json.loads(text)), None)
    assert found == as_avro_reads(schema, value)


@given(valued_structs(), st.booleans())
def test_json_says_the_same_with_and_without_schemas(
    valued: tuple[Schema, Any], java: bool
) -> None:
    schema, value = valued
    plain = JsonConverter(JsonOptions(java_floats=java)).payload(schema, value)
    wrapped = JsonConverter(JsonOptions(schemas=True, java_floats=java)).payload(schema, value)
    assert json.loads(wrapped)["payload"] == json.loads(plain)
    fields = [one["field"] for one in json.loads(wrapped)["schema"]["fields"]]
    assert list(json.loads(plain)) == fields == [one.name for one in schema.fields]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_in_javas_layout_is_the_same_number(number: float) -> None:
    converter = JsonConverter(JsonOptions(java_floats=True))
    found = float(converter.payload(Schema(Type.DOUBLE), number))
    assert found == number
    assert math.copysign(1, found) == math.copysign(1, number)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def without_nulls(value: Any) -> Any:
    """A member that another object of the same array has is null in the others."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


@given(st.dictionaries(NAMES, JSON, max_size=4) | st.lists(JSON, max_size=4))
def test_an_expanded_payload_says_what_its_text_says(payload: Any) -> None:
    expansion = Expansion(lossless=True, null_as_bytes=True, empty_array_as_texts=True)
    try:
        value, schema = expansion.expand(json.dumps(payload), "payload")
    except NotExpandableError:
        return
    written = json.loads(JsonConverter(JsonOptions()).payload(schema, value))
    assert without_nulls(written) == without_nulls(payload)


@given(st.text(max_size=30) | st.from_regex(r"[\[{][\[\]{}\",:0-9eE.a-z+-]*"), st.booleans())
def test_any_text_is_expanded_or_refused(text: str, lossless: bool) -> None:
    expansion = Expansion(lossless, null_as_bytes=False, empty_array_as_texts=False)
    try:
        value, schema = expansion.expand(text, "payload")
    except NotExpandableError:
        return
    assert JsonConverter(JsonOptions()).payload(schema, value)

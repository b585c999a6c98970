"""The JSON converter, compared with Kafka Connect's through a real Debezium's records."""

import json
import sys
from typing import Any

import pytest

from cdc.convert.converters import converters
from cdc.convert.json_text import JsonConverter, JsonOptions
from cdc.errors import ConfigError
from cdc.records.connect import DECIMAL, Field, Header, Schema, SourceRecord, Type
from tests.fixtures.recorded import RECORDED, record_of, texts_of

LINES = RECORDED.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["topic"])
def test_recorded_keys_values_and_headers_are_written_as_debezium_wrote_them(line: str) -> None:
    record = converters({}, preset=True)(record_of(line))
    texts = [part.decode() if part is not None else "null" for part in (record.key, record.value)]
    assert tuple(texts) == texts_of(line)
    assert [[name, json.loads(text)] for name, text in record.headers] == json.loads(line)[
        "headers"
    ]


def written(schema: Schema, value: Any, **options: Any) -> str:
    return JsonConverter(JsonOptions(**options)).payload(schema, value).decode()


def struct(**fields: Schema) -> Schema:
    return Schema(Type.STRUCT, fields=tuple(Field(*field) for field in fields.items()))


INT = Schema(Type.INT32, optional=True)
TEXT = Schema(Type.STRING, optional=True)
DOUBLE = Schema(Type.DOUBLE)
AMOUNT = Schema(Type.BYTES, name=DECIMAL, version=1, parameters={"scale": "2"})
COUNTS = Schema(Type.MAP, keys=Schema(Type.STRING), items=INT)
BY_NUMBER = Schema(Type.MAP, keys=Schema(Type.INT32), items=TEXT)


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        (Schema(Type.BOOLEAN), False, "false"),
        (Schema(Type.INT8), -1, "-1"),
        (Schema(Type.INT64), 2**63 - 1, "9223372036854775807"),
        (DOUBLE, 1e10, "10000000000.0"),
        (DOUBLE, float("nan"), '"NaN"'),
        (DOUBLE, float("-inf"), '"-Infinity"'),
        (TEXT, 'ü"\n😀', '"ü\\"\\n😀"'),
        (TEXT, "cut \ud83d", '"cut \\uD83D"'),
        (TEXT, None, "null"),
        (Schema(Type.BYTES), b"\0\xff", '"AP8="'),
        (AMOUNT, b"\xfd\xda", '"/do="'),
        (Schema(Type.ARRAY, items=INT), [1, None], "[1,null]"),
        (COUNTS, {"a": 1, "b": None}, '{"a":1,"b":null}'),
        (BY_NUMBER, {1: "x"}, '[[1,"x"]]'),
        (struct(b=INT, a=TEXT), {"a": "x", "b": 1}, '{"b":1,"a":"x"}'),
    ],
)
def test_a_value_is_written_by_its_schema(schema: Schema, value: Any, text: str) -> None:
    assert written(schema, value) == text


def test_an_array_of_postgresql_may_have_dimensions_within_or_tell_its_bounds() -> None:
    numbers = Schema(Type.ARRAY, items=INT)
    assert written(numbers, [[1, 2], [3, None]]) == "[[1,2],[3,null]]"
    assert written(numbers, "[2:3]={7,8}") == '"[2:3]={7,8}"'


def test_an_array_of_arrays_is_written_by_the_schema_of_the_inner_one() -> None:
    objects = Schema(Type.ARRAY, items=Schema(Type.ARRAY, items=struct(a=INT)))
    assert written(objects, [[{"a": 1}], []]) == '[[{"a":1}],[]]'


def test_a_member_that_the_struct_does_not_hold_is_left_out() -> None:
    assert written(struct(a=INT, b=INT), {"b": None}) == '{"b":null}'


@pytest.mark.parametrize(
    ("unscaled", "scale", "text"),
    [
        (b"\x00\x96", 2, "1.50"),
        (b"\xff", 2, "-0.01"),
        (b"\x00", 2, "0.00"),
        (b"\x01", 7, "1E-7"),
        (b"\x0c", -2, "1.2E+3"),
    ],
)
def test_a_decimal_as_a_number_has_the_digits_of_its_scale(
    unscaled: bytes, scale: int, text: str
) -> None:
    schema = Schema(Type.BYTES, name=DECIMAL, parameters={"scale": str(scale)})
    assert written(schema, unscaled, decimal_numbers=True) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.001, "0.001"),
        (0.0009, "9.0E-4"),
        (1e7, "1.0E7"),
        (-123456789.5, "-1.234567895E8"),
        (9999999.0, "9999999.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-0.0, "-0.0"),
    ],
)
def test_java_floats_are_laid_out_as_java_does(number: float, text: str) -> None:
    assert written(DOUBLE, number, java_floats=True) == text


def test_null_is_the_default_only_where_the_option_says_so() -> None:
    schema = struct(n=Schema(Type.INT32, optional=True, default=7))
    assert written(schema, {"n": None}, replace_null_with_default=True) == '{"n":7}'
    assert written(schema, {"n": None}, replace_null_with_default=False) == '{"n":null}'


def test_no_value_is_a_tombstone_and_no_key_is_none() -> None:
    record = converters({"value.schemas.enable": "true"})(SourceRecord("t", None, None, None, INT))
    assert (record.key, record.value) == (None, None)


def test_a_header_has_its_schema_whatever_the_values_have() -> None:
    header = Header("op", None, Schema(Type.STRING, optional=True))
    record = converters({})(SourceRecord("t", None, None, None, None, (header,), 3))
    assert record.headers == [
        ("op", b'{"schema":{"type":"string","optional":true},"payload":null}')
    ]
    assert record.partition == 3


WITH_SCHEMA = (
    b'{"schema":{"type":"struct","fields":[{"type":"int32","optional":true,"default":7,"field":"n"}],'
    b'"optional":false},"payload":{"n":null}}'
)


@pytest.mark.parametrize(
    ("settings", "preset", "text"),
    [
        ({}, False, b'{"n":null}'),
        ({"value": "json", "value.replace.null.with.default": "true"}, False,
         b'{"n":7}'),
        ({"schemas.enable": "false"}, True, b'{"n":7}'),
        ({"value.schemas.enable": "true"}, False, WITH_SCHEMA),
    ],
)  # fmt: skip
def test_settings_choose_the_format(settings: dict[str, str], preset: bool, text: bytes) -> None:
    schema = struct(n=Schema(Type.INT32, optional=True, default=7))
    convert = converters(settings, preset=preset)
    assert convert(SourceRecord("t", None, None, {"n": None}, schema)).value == text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"value": "xml"}, "json, avro"),
        ({"valeu.schemas.enable": "true"}, "valeu.schemas.enable"),
        ({"key.schemas.enable": "yes"}, "true or false"),
        ({"value.decimal.format": "TEXT"}, "BASE64, NUMERIC"),
        ({"header": "avro"}, "headers"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        converters(settings)
    assert words in str(error.value)


def test_without_the_packages_of_avro_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "cdc.convert.registry", raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigError, match=r"httpx2[\s\S]*millrace\[avro\]"):
        converters({"value": "avro", "schema.registry.url": "http://r"})

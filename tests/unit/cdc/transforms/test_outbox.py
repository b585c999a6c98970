"""EventRouter: rows of an outbox table become events; where Debezium stops, we continue."""

import json
from typing import Any

import pytest

from cdc.convert.converters import converters
from cdc.errors import ConfigError, ConversionError, MillraceError
from cdc.records.connect import Field, Header, Schema, SourceRecord, Type
from cdc.transforms.chain import Chain
from tests.unit.cdc.transforms.events import INT, TEXT, Table, struct
from tests.unit.cdc.transforms.sections import build

UUID = Schema(Type.STRING, name="io.debezium.data.Uuid", version=1)
NAME = Schema(Type.STRING)
JSON = Schema(Type.STRING, optional=True, name="io.debezium.data.Json", version=1)
MICROS = Schema(Type.INT64, optional=True, name="io.debezium.time.MicroTimestamp", version=1)
TABLE = Table(
    "outbox",
    "id",
    id=UUID,
    aggregatetype=Schema(Type.STRING, optional=True),
    aggregateid=NAME,
    type=NAME,
    payload=JSON,
    shard=Schema(Type.INT32, optional=True, default=5),
    at=MICROS,
)


def row(payload: str | None = "{}", **columns: Any) -> dict[str, Any]:
    return {
        "id": "a0",
        "aggregatetype": "Order",
        "aggregateid": "7",
        "type": "Created",
        "payload": payload,
        "shard": None,
        "at": 1_700_000_000_123_456,
        **columns,
    }


def chain(lossless: bool = False, /, **options: str) -> Chain:
    settings = {name.replace("_", "."): value for name, value in options.items()}
    return build(
        {
            "order": "outbox",
            "outbox.type": "io.debezium.transforms.outbox.EventRouter",
            **{f"outbox.{name}": value for name, value in settings.items()},
        },
        lossless=lossless,
    )


def event(payload: str | None, lossless: bool = False, /, **options: str) -> SourceRecord:
    (record,) = chain(lossless, **options)(TABLE.change("c", None, row(payload)))
    return record


def expanded(payload: str | None, lossless: bool = False, /, **options: str) -> str | None:
    """The value as JSON, once the payload is expanded."""
    record = event(payload, lossless, table_expand_json_payload="true", **options)
    value = converters({})(record).value
    return None if value is None else value.decode()


def test_an_insert_becomes_an_event_of_its_type() -> None:
    own = Header("own", "x", TEXT)
    for op in ("c", "r"):
        (record,) = chain()(TABLE.change(op, None, row('{"a": 1}'), own))
        assert record == SourceRecord(
            "outbox.event.Order",
            "7",
            NAME,
            '{"a": 1}',
            JSON,
            (own, Header("id", "a0", UUID)),
            None,
            None,
        )


def test_housekeeping_goes_and_other_records_pass() -> None:
    outbox = chain()
    assert outbox(TABLE.change("d", row(), None)) == []
    assert outbox(TABLE.tombstone("a0")) == []
    assert outbox(TABLE.change("t", None, None)) == []
    heartbeat = SourceRecord("h", None, None, {"ts_ms": 1}, struct("io.debezium.Heartbeat"))
    assert outbox(heartbeat) == [heartbeat]


@pytest.mark.parametrize("behavior", ["warn", "error"])
def test_an_update_is_left_out(behavior: str) -> None:
    outbox = chain(table_op_invalid_behavior=behavior)
    assert outbox(TABLE.change("u", row(), row())) == []


def test_an_update_can_be_fatal() -> None:
    outbox = chain(table_op_invalid_behavior="fatal")
    with pytest.raises(ConversionError, match="was updated"):
        outbox(TABLE.change("u", row(), row()))


def test_columns_have_the_names_and_the_places_that_options_give() -> None:
    outbox = chain(
        table_field_event_id="aggregateid",
        table_field_event_key="type",
        table_field_event_payload="aggregatetype",
        table_field_event_timestamp="at",
        table_fields_additional_placement="type:header:kind, shard:partition",
        route_by_field="type",
        route_topic_regex="(.*)ated",
        route_topic_replacement="e-$1",
    )
    (record,) = outbox(TABLE.change("c", None, row()))
    assert (record.topic, record.key, record.value) == ("e-Cre", "Created", "Order")
    assert record.headers == (Header("id", "7", NAME), Header("kind", "Created", NAME))
    assert (record.partition, record.timestamp_ms) == (5, 1_700_000_000_123)


def test_a_column_in_the_envelope_wraps_the_payload() -> None:
    outbox = chain(
        table_fields_additional_placement="type:envelope:eventType,shard:envelope",
        table_field_event_schema_version="shard",
    )
    (record,) = outbox(TABLE.change("c", None, row("x", shard=3)))
    assert record.value == {"payload": "x", "eventType": "Created", "shard": 3}
    assert record.value_schema == Schema(
        Type.STRUCT,
        name="shop.public.outbox.Order.Value",
        version=3,
        fields=(
            Field("payload", JSON),
            Field("eventType", NAME),
            Field("shard", Schema(Type.INT32, optional=True, default=5)),
        ),
    )


def test_an_empty_payload_is_a_tombstone_where_that_is_wanted() -> None:
    wrapped = {"table_fields_additional_placement": "type:envelope"}
    assert event(" ", route_tombstone_on_empty_payload="true").value is None
    assert event(None, route_tombstone_on_empty_payload="true", **wrapped).value is None
    assert event(None, table_expand_json_payload="true", **wrapped).value == {
        "payload": None,
        "type": "Created",
    }


def test_a_row_that_names_no_topic_stays_a_change_of_its_table() -> None:
    change = TABLE.change("c", None, row(aggregatetype=None))
    assert chain()(change) == [change]


DEEP = '{"b": true, "n": null, "u": "ü", "id": 1, "deep": {"a": {"b": []}}}'
LINES = '{"lines": [{"qty": 1.50, "sku": "x"}, {"qty": 2, "sku": "y"}]}'


@pytest.mark.parametrize(
    ("payload", "debezium", "ours"),
    [
        (DEEP, '{"b":true,"u":"ü","id":1,"deep":{"a":{}}}',
         '{"b":true,"n":null,"u":"ü","id":1,"deep":{"a":{"b":[]}}}'),
        # Debezium stops at these two.
        (LINES, '{"lines":[{"qty":1.5,"sku":"x"},{"qty":2.0,"sku":"y"}]}',
         '{"lines":[{"qty":1.5,"sku":"x"},{"qty":2.0,"sku":"y"}]}'),
        ("[1, 2]", "[1,2]", "[1,2]"),
        ('{"a": [1, 2.5]}', None, '{"a":[1.0,2.5]}'),
        ('{"a": [1, 3000000000]}', None, '{"a":[1,3000000000]}'),
        ('{"a": [null]}', None, '{"a":[null]}'),
        ('{"a": [{"x": null}, {"x": 1}, {"y": "z"}]}',
         '{"a":[{"x":null,"y":null},{"x":1,"y":null},{"x":null,"y":"z"}]}',
         '{"a":[{"x":null,"y":null},{"x":1,"y":null},{"x":null,"y":"z"}]}'),
        ('{"a": 12345678901234567890.125}', '{"a":1.2345678901234567e+19}', None),
        ('{"a": 1e400}', '{"a":"Infinity"}', None),
        ('{"arr": [1, "a", null]}', None, None),
        ('{"arr": [{"x": 1}, {"x": "1"}]}', None, None),
        ('"text"', None, None),
        ("{not json", None, None),
        ('{"a": [NaN]}', None, None),
        ("", None, None),
    ],
)  # fmt: skip
def test_a_payload_is_expanded_where_it_has_a_schema_and_kept_as_text_elsewhere(
    payload: str, debezium: str | None, ours: str | None
) -> None:
    text = json.dumps(payload)
    assert expanded(payload, False) == (debezium or text)
    assert expanded(payload, True) == (ours or text)


def test_a_null_payload_is_no_value() -> None:
    assert expanded(None) is None


def test_a_payload_of_any_depth_is_text_where_it_cant_be_expanded() -> None:
    for depth in (5_000, 50_000):
        deep = "[" * depth + "1" + "]" * depth
        assert expanded(deep) == json.dumps(deep)


def test_nulls_and_empty_arrays_can_be_kept_in_debeziums_way() -> None:
    kept = expanded(
        '{"n": null, "a": []}',
        table_json_payload_null_behavior="optional_bytes",
        table_json_payload_empty_array_behavior="optional_string",
    )
    assert kept == '{"n":null,"a":[]}'


def test_an_expanded_payloads_schema_is_named_by_its_path() -> None:
    schema = event('{"a": {"b": 1}}', table_expand_json_payload="true").value_schema
    assert schema is not None
    inner = schema.of_field("a")
    assert inner is not None
    assert (schema.name, inner.name) == ("payload", "payload.a")
    assert inner.of_field("b") == Schema(Type.INT32, optional=True)


@pytest.mark.parametrize(
    "options",
    [
        {"table_field_event_payload": "nosuch"},
        {"table_fields_additional_placement": "nosuch:header"},
        {"table_field_event_timestamp": "type"},
    ],
)
def test_a_table_that_is_no_outbox_is_named(options: dict[str, str]) -> None:
    with pytest.raises(MillraceError, match=r"nosuch|timestamp") as error:
        chain(**options)(TABLE.change("c", None, row()))
    assert isinstance(error.value, ConfigError)
    assert "shop.public.outbox" in str(error.value)


def test_missing_columns_can_be_ignored() -> None:
    outbox = chain(
        table_fields_additional_placement="nosuch:header,type:header",
        table_field_additional_missing="ignore",
    )
    (record,) = outbox(TABLE.change("c", None, row()))
    assert [header.name for header in record.headers] == ["id", "type"]


def test_an_int_key_keeps_its_type() -> None:
    table = Table("outbox", "id", id=INT, aggregatetype=NAME, aggregateid=INT, payload=JSON)
    (record,) = chain()(
        table.change("c", None, {"id": 1, "aggregatetype": "T", "aggregateid": 9, "payload": "{}"})
    )
    assert (record.key, record.key_schema) == (9, INT)

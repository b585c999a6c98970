"""Avro through a real schema registry, read back by Confluent's own deserializer."""

import datetime as dt
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.convert.converters import Converters, converters
from cdc.convert.registry import Registry
from cdc.errors import ConfigError, ExitCode, RegistryError
from cdc.records.connect import DECIMAL, Field, Schema, SourceRecord, Type
from deploy.local.certificates import Certificates
from deploy.local.processes import reserve_port
from tests.fixtures.recorded import RECORDED, record_of
from tests.fixtures.registry import Guard, SchemaRegistry

pytestmark = [pytest.mark.registry, pytest.mark.xdist_group("registry")]

INT = Schema(Type.INT32)
TEXT = Schema(Type.STRING, optional=True)


@pytest.fixture
def topic() -> str:
    return f"shop.public.t{uuid.uuid4().hex[:10]}"


def avro(registry: SchemaRegistry, **settings: str) -> Converters:
    return converters(
        {
            "key": "avro",
            "value": "avro",
            "schema.registry.url": registry.url,
            **settings,
        }
    )


def struct(name: str | None, **fields: Schema) -> Schema:
    return Schema(Type.STRUCT, name=name, fields=tuple(Field(*one) for one in fields.items()))


def row(topic: str, value: Any, **columns: Schema) -> SourceRecord:
    key = struct(f"{topic}.Key", id=INT)
    return SourceRecord(topic, {"id": 1}, key, value, struct(f"{topic}.Value", **columns))


def read(registry: SchemaRegistry, topic: str, wire: bytes | None, side: str = "value") -> Any:
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    return deserialize(wire, SerializationContext(topic, MessageField(side)))


def id_in(wire: bytes | None) -> int:
    assert wire is not None
    assert wire[0] == 0
    return int.from_bytes(wire[1:5])


ALL_TYPES: dict[str, tuple[Schema, Any, Any]] = {
    "boolean": (Schema(Type.BOOLEAN), True, True),
    "int8": (Schema(Type.INT8), -128, -128),
    "int16": (Schema(Type.INT16), 32_767, 32_767),
    "int32": (INT, -(2**31), -(2**31)),
    "int64": (Schema(Type.INT64), 2**63 - 1, 2**63 - 1),
    "float": (Schema(Type.FLOAT), 1.5, 1.5),
    "double": (Schema(Type.DOUBLE), 1e300, 1e300),
    "infinite": (Schema(Type.DOUBLE), float("-inf"), float("-inf")),
    "string": (TEXT, "ü😀", "ü😀"),
    "bytes": (Schema(Type.BYTES, optional=True), b"\0\xff", b"\0\xff"),
    "null": (TEXT, None, None),
    "array": (Schema(Type.ARRAY, items=TEXT, optional=True), ["a", None], ["a", None]),
    "nested": (
        Schema(Type.ARRAY, items=Schema(Type.ARRAY, items=INT)), [[1], [], [2, 3]],
        [[1], [], [2, 3]],
    ),
    "map": (Schema(Type.MAP, keys=Schema(Type.STRING), items=TEXT), {"k": None}, {"k": None}),
    "by_number": (
        Schema(Type.MAP, keys=INT, items=TEXT), {1: "x"}, [{"key": 1, "value": "x"}],
    ),
    "point": (
        Schema(Type.STRUCT, name="io.debezium.data.geometry.Point", version=1, optional=True,
               fields=(Field("x", Schema(Type.DOUBLE)), Field("srid", TEXT))),
        {"x": 1.0, "srid": None}, {"x": 1.0, "srid": None},
    ),
    "amount": (
        Schema(Type.BYTES, name=DECIMAL, version=1,
               parameters={"scale": "2", "connect.decimal.precision": "9"}),
        b"\xfd\xda", Decimal("-5.50"),
    ),
    "odd_scale": (
        Schema(Type.BYTES, name=DECIMAL, version=1, parameters={"scale": "-2"}), b"\5", b"\5",
    ),
    "day": (
        Schema(Type.INT32, name="org.apache.kafka.connect.data.Date", version=1), 1,
        dt.date(1970, 1, 2),
    ),
    "time": (
        Schema(Type.INT32, name="org.apache.kafka.connect.data.Time", version=1), 1_001,
        dt.time(0, 0, 1, 1_000),
    ),
    "at": (
        Schema(Type.INT64, name="org.apache.kafka.connect.data.Timestamp", version=1), 1,
        dt.datetime(1970, 1, 1, microsecond=1_000, tzinfo=dt.UTC),
    ),
    "micros": (
        Schema(Type.INT64, name="io.debezium.time.MicroTimestamp", version=1, default=0), 9, 9,
    ),
}  # fmt: skip


def test_every_connect_type_is_read_back(registry: SchemaRegistry, topic: str) -> None:
    columns = {name: schema for name, (schema, _, _) in ALL_TYPES.items()}
    value = {name: given for name, (_, given, _) in ALL_TYPES.items()}
    convert = avro(registry)
    convert.check()
    record = convert(row(topic, value, **columns))
    assert read(registry, topic, record.value) == {
        name: expected for name, (_, _, expected) in ALL_TYPES.items()
    }
    assert read(registry, topic, record.key, "key") == {"id": 1}
    assert convert(row(topic, None)).value is None


@pytest.mark.proof
def test_recorded_events_of_debezium_are_read_back(registry: SchemaRegistry) -> None:
    convert = avro(registry, **{"value.ignore.default.for.nullables": "true"})
    envelopes = 0
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        recorded = record_of(line)
        # Each line has a topic of its own: what changed meanwhile isn't this test's matter.
        record = convert(recorded._replace(topic=uuid.uuid4().hex))
        if recorded.value is not None:
            found = read(registry, record.topic, record.value)
            assert found.keys() == {name.replace("-", "_") for name in recorded.value}
            assert found.get("op") == recorded.value.get("op")
            envelopes += "op" in found
    assert envelopes > 20


def test_a_schema_is_registered_once_and_found_again_after_a_restart(
    registry: SchemaRegistry, topic: str
) -> None:
    first = avro(registry)
    ids = {id_in(first(row(topic, {"a": number}, a=INT)).value) for number in range(3)}
    ids.add(id_in(avro(registry)(row(topic, {"a": 4}, a=INT)).value))
    assert len(ids) == 1
    subjects = SchemaRegistryClient({"url": registry.url}).get_subjects()
    assert {f"{topic}-key", f"{topic}-value"} <= set(subjects)


def test_a_column_added_in_mid_stream_is_a_new_compatible_version(
    registry: SchemaRegistry, topic: str
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    convert = avro(registry)
    old = convert(row(topic, {"a": 1}, a=INT))
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    new = convert(row(topic, {"a": 2, "b": "x"}, a=INT, b=TEXT))
    assert id_in(old.value) != id_in(new.value)
    assert client.get_versions(f"{topic}-value") == [1, 2]
    latest = client.get_latest_version(f"{topic}-value").schema
    deserialize = AvroDeserializer(client, latest.schema_str)
    context = SerializationContext(topic, MessageField.VALUE)
    assert [deserialize(one.value, context) for one in (old, new)] == [
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
    ]


def test_an_incompatible_schema_is_refused_by_name(registry: SchemaRegistry, topic: str) -> None:
    convert = avro(registry)
    convert(row(topic, {"a": 1}, a=INT))
    SchemaRegistryClient({"url": registry.url}).set_compatibility(f"{topic}-value", "BACKWARD")
    with pytest.raises(RegistryError, match="incompatible") as error:
        convert(row(topic, {"a": "x"}, a=Schema(Type.STRING)))
    assert f"subject {topic}-value" in str(error.value)
    assert (error.value.exit_code, error.value.retry) == (ExitCode.REGISTRY_REFUSED, False)


def test_a_schema_whose_registration_was_answered_too_late_is_found(
    registry: SchemaRegistry, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = SchemaRegistryClient.register_schema

    def register_twice(client: SchemaRegistryClient, *arguments: Any) -> int:
        register(client, *arguments)
        raise SchemaRegistryError(409, 409, "an artifact with this id already exists")

    monkeypatch.setattr(SchemaRegistryClient, "register_schema", register_twice)
    assert avro(registry)(row(topic, {"a": 1}, a=INT)).value


def test_without_auto_registration_the_schema_has_to_be_there(
    registry: SchemaRegistry, topic: str
) -> None:
    strict = avro(registry, **{"auto.register.schemas": "false"})
    with pytest.raises(RegistryError, match=r"404[\s\S]*auto.register.schemas"):
        strict(row(topic, {"a": 1}, a=INT))
    registered = avro(registry)(row(topic, {"a": 1}, a=INT))
    assert strict(row(topic, {"a": 1}, a=INT)) == registered


def test_odd_names_are_accepted(registry: SchemaRegistry) -> None:
    topic = f"my-shop..public.2024-{uuid.uuid4().hex}"
    record = avro(registry)(row(topic, {"größe in m": 2}, **{"größe in m": INT}))
    assert read(registry, topic, record.value) == {"gr__e_in_m": 2}


def test_tables_that_share_a_topic_can_have_subjects_of_their_own(
    registry: SchemaRegistry, topic: str
) -> None:
    convert = avro(registry, **{"value.subject.name.strategy": "TopicRecordNameStrategy"})
    other = row(f"{topic}2", {"b": "x"}, b=Schema(Type.STRING))._replace(topic=topic)
    ids = {id_in(convert(one).value) for one in (row(topic, {"a": 1}, a=INT), other)}
    subjects = SchemaRegistryClient({"url": registry.url}).get_subjects()
    assert {f"{topic}-{topic}.Value", f"{topic}-{topic}2.Value"} <= set(subjects)
    assert len(ids) == 2


def test_only_one_side_may_be_avro(registry: SchemaRegistry, topic: str) -> None:
    record = avro(registry, key="json")(row(topic, {"a": 1}, a=INT))
    assert record.key == b'{"id":1}'
    assert read(registry, topic, record.value) == {"a": 1}


def refused(url: str, **settings: str) -> RegistryError:
    convert = converters({"value": "avro", "value.schema.registry.url": url,
                          **settings})  # fmt: skip
    with pytest.raises(RegistryError) as error:
        convert.check()
    assert "sesame" not in str(error.value)
    return error.value


def test_the_right_password_over_tls_opens_the_registry(
    guarded: Guard, tmp_path: Path, topic: str
) -> None:
    certificates = Certificates.create(tmp_path)
    url = guarded("me:sesame", certificates)
    authority = {"schema.registry.ssl.ca.location": str(certificates.authority)}
    settings: Mapping[str, str] = {
        "value": "avro",
        "schema.registry.url": url,
        "schema.registry.basic.auth.user.info": "me:sesame",
        **authority,
    }
    convert = converters(settings)
    convert.check()
    assert id_in(convert(row(topic, {"a": 1}, a=INT)).value) > 0

    in_url = converters({"value": "avro", **authority,
                         "schema.registry.url": url.replace("//", "//me:sesame@"),
                         "basic.auth.credentials.source": "URL"})  # fmt: skip
    in_url.check()

    wrong = refused(url, **authority, **{"basic.auth.user.info": "me:open-sesame"})
    assert "credentials" in str(wrong)
    assert not wrong.retry
    untrusted = refused(url, **{"basic.auth.user.info": "me:sesame"})
    assert (untrusted.exit_code, untrusted.retry) == (ExitCode.REGISTRY_REFUSED, False)
    assert "schema.registry.ssl.ca.location" in str(untrusted)


def test_a_schema_is_found_by_the_id_that_records_have(
    registry: SchemaRegistry, topic: str
) -> None:
    wire = avro(registry)(row(topic, {"a": 1}, a=INT)).value
    reader = Registry({"schema.registry.url": registry.url})
    found = json.loads(reader.text_of(id_in(wire)))
    assert (found["type"], found["fields"][0]["name"]) == ("record", "a")
    with pytest.raises(RegistryError, match="HTTP 404"):
        reader.text_of(2**30)


def test_a_registry_that_is_not_there_can_be_waited_for() -> None:
    error = refused(f"http://me:sesame@127.0.0.1:{reserve_port()}")
    assert (error.exit_code, error.retry) == (ExitCode.REGISTRY_UNREACHABLE, True)
    assert "schema.registry.url" in str(error)


def test_the_second_address_is_asked_when_the_first_is_silent(
    registry: SchemaRegistry, topic: str
) -> None:
    urls = f"http://127.0.0.1:{reserve_port()},{registry.url}"
    convert = avro(registry, **{"schema.registry.url": urls})
    assert id_in(convert(row(topic, {"a": 1}, a=INT)).value) > 0


def test_a_wrong_path_is_named(registry: SchemaRegistry) -> None:
    assert "/apis/ccompat/v7" in str(refused(registry.url.removesuffix("/v7") + "/nosuch"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "schema.registry.url"),
        ({"value.schema.registry.url": "nowhere"}, "valid"),
        ({"value.schema.registry.url": "http://r", "value.schemas.enable": "true"},
         "schemas.enable"),
        ({"value.schema.registry.url": "http://r",
          "value.value.subject.name.strategy": "x"}, "TopicNameStrategy"),
        ({"value.schema.registry.url": "http://r",
          "value.schema.registry.ssl.truststore.location": "x"}, "truststore"),
        ({"value.schema.registry.url": "http://r",
          "value.schema.registry.timeout": "long"}, "timeout"),
        ({"value.schema.registry.url": "http://r",
          "value.schema.registry.ssl.ca.location": "/nosuch/ca.pem"}, "No such file"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        converters({"value": "avro", **settings})
    assert words in str(error.value)

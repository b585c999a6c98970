"""A record's own schema, JSON's or Avro's → Connect's schema, and its text for Spark."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from cdc.errors import SinkError
from cdc.records.connect import DECIMAL, Field, Schema, Type

DIGITS_MAX: Final = 38
"""Maximum of Spark's decimals. Others stay bytes."""
_PRIMITIVES: Final = {
    "boolean": Type.BOOLEAN,
    "int": Type.INT32,
    "long": Type.INT64,
    "float": Type.FLOAT,
    "double": Type.DOUBLE,
    "string": Type.STRING,
    "bytes": Type.BYTES,
}
_CONNECT_TYPES: Final = {"int8": Type.INT8, "int16": Type.INT16}
_LOGICAL: Final = {
    "decimal": DECIMAL,
    "date": "org.apache.kafka.connect.data.Date",
    "time-millis": "org.apache.kafka.connect.data.Time",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
}


def read_json_schema(text: str) -> Schema:
    """Parse a schema's JSON. Raise SinkError for anything else."""
    try:
        return _schema(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SinkError(f"a record's schema isn't a Kafka Connect schema: {error!r}") from None


def _schema(read: Mapping[str, Any]) -> Schema:
    items = read.get("items", read.get("values"))
    parameters = read.get("parameters")
    return Schema(
        Type(read["type"]),
        optional=bool(read.get("optional", False)),
        name=read.get("name"),
        parameters={name: str(value) for name, value in parameters.items()} if parameters else None,
        keys=_schema(read["keys"]) if "keys" in read else None,
        items=_schema(items) if items is not None else None,
        fields=tuple(Field(field["field"], _schema(field)) for field in read.get("fields", ())),
    )


class AvroSchema(NamedTuple):
    """A schema in Connect's form, and its text for Spark."""

    schema: Schema
    text: str


def read_avro_schema(text: str) -> AvroSchema:
    """Parse the registry's text of a schema. Raise SinkError for one that isn't Connect's."""
    try:
        schema, neutral = _AvroSchemaReader().read(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SinkError(
            f"an Avro schema isn't a Kafka Connect schema: {error!r}"[:400],
            remedy="let Debezium write the topics with Confluent's AvroConverter",
        ) from None
    return AvroSchema(schema, json.dumps(neutral))


def avro_member_name(index: int) -> str:
    """Return Spark's name of a record's member."""
    return f"f{index}"


def decimal_digits(schema: Schema) -> tuple[int, int] | None:
    """Return (precision, scale) of a Decimal that Spark decodes."""
    parameters = schema.parameters or {}
    precision = int(parameters.get("connect.decimal.precision", 0))
    scale = int(parameters.get("scale", 0))
    if schema.name == DECIMAL and 0 <= scale <= precision <= DIGITS_MAX and precision:
        return precision, scale
    return None


class _AvroSchemaReader:
    """A reader of one schema. A record is defined once, and its name refers to it from then on."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[Schema, str]] = {}

    def read(self, avro: Any, namespace: str = "") -> tuple[Schema, Any]:
        if isinstance(avro, list):
            return self._union(avro, namespace)
        if isinstance(avro, str):
            avro = {"type": avro}
        kind: Any = avro["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, namespace)
        if kind in _PRIMITIVES:
            return _primitive(avro)
        structured = {"record": self._record, "array": self._array, "map": self._map}.get(kind)
        if structured is not None:
            return structured(avro, namespace)
        return self._records[kind if "." in kind or not namespace else f"{namespace}.{kind}"]

    def _union(self, branches: list[Any], namespace: str) -> tuple[Schema, Any]:
        (of_value,) = (branch for branch in branches if branch != "null")
        schema, neutral = self.read(of_value, namespace)
        union = ["null" if branch == "null" else neutral for branch in branches]
        return replace(schema, optional="null" in branches), union

    def _record(self, avro: dict[str, Any], namespace: str) -> tuple[Schema, Any]:
        space = avro.get("namespace", namespace)
        full = avro["name"] if "." in avro["name"] or not space else f"{space}.{avro['name']}"
        fields, members = [], []
        for index, field in enumerate(avro["fields"]):
            schema, neutral = self.read(field["type"], full.rpartition(".")[0])
            fields.append(Field(field["name"], schema))
            members.append({"name": avro_member_name(index), "type": neutral})
        name = f"r{len(self._records)}"
        made = _with_properties(Schema(Type.STRUCT, fields=tuple(fields)), avro)
        self._records[full] = (made, name)
        return made, {"type": "record", "name": name, "fields": members}

    def _array(self, avro: dict[str, Any], namespace: str) -> tuple[Schema, Any]:
        items, neutral = self.read(avro["items"], namespace)
        schema = _with_properties(Schema(Type.ARRAY, items=items), avro)
        return schema, {"type": "array", "items": neutral}

    def _map(self, avro: dict[str, Any], namespace: str) -> tuple[Schema, Any]:
        items, neutral = self.read(avro["values"], namespace)
        schema = _with_properties(Schema(Type.MAP, keys=Schema(Type.STRING), items=items), avro)
        return schema, {"type": "map", "values": neutral}


def _primitive(avro: dict[str, Any]) -> tuple[Schema, Any]:
    schema = _with_properties(Schema(_PRIMITIVES[avro["type"]]), avro)
    digits = decimal_digits(schema)
    if digits is None:
        return schema, avro["type"]
    precision, scale = digits
    return schema, {
        "type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale,
    }  # fmt: skip


def _with_properties(schema: Schema, avro: dict[str, Any]) -> Schema:
    """Return the schema with the properties of the Avro one."""
    parameters = {name: str(value) for name, value in avro.get("connect.parameters", {}).items()}
    name = avro.get("connect.name") or _LOGICAL.get(avro.get("logicalType", ""))
    if name == DECIMAL:
        parameters.setdefault("scale", str(avro.get("scale", 0)))
        if "connect.parameters" not in avro:
            parameters.setdefault("connect.decimal.precision", str(avro.get("precision", 0)))
    kind = _CONNECT_TYPES.get(avro.get("connect.type", ""), schema.type)
    return replace(schema, type=kind, name=name, parameters=parameters or None)

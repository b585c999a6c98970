"""A Connect schema → an Avro schema, and a function from Connect values to fastavro's.

The schemas equal those of Confluent's AvroData, so its readers recover Connect's own.
``connect.name``, ``connect.version``, ``connect.type``, ``connect.parameters``, ``connect.default``
and ``connect.doc`` carry what Avro can't express. An optional value is a union with null. Names
that Avro refuses are adjusted (cdc/records/topics.py).
https://docs.confluent.io/platform/current/schema-registry/connect.html
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any, Final, NamedTuple

from cdc.errors import ConversionError
from cdc.records import topics
from cdc.records.connect import DECIMAL, Field, Schema, Type

ToDatum = Callable[[Any], Any]

_NAMESPACE: Final = "io.confluent.connect.avro"
_PRECISION_DEFAULT: Final = 64
"""AvroData's precision of a Decimal whose schema has none."""
_PRIMITIVES: Final[Mapping[Type, str]] = {
    Type.BOOLEAN: "boolean",
    Type.INT8: "int",
    Type.INT16: "int",
    Type.INT32: "int",
    Type.INT64: "long",
    Type.FLOAT: "float",
    Type.DOUBLE: "double",
    Type.STRING: "string",
    Type.BYTES: "bytes",
}
_LOGICAL: Final[Mapping[str, str]] = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}


@dataclass(frozen=True, slots=True)
class AvroOptions:
    """The AvroConverter's options that change schemas, and Debezium's adjustment of names."""

    connect_meta_data: bool = True
    ignore_default_for_nullables: bool = False
    unicode_schema_names: bool = False
    unicode_field_names: bool = False


class AvroType(NamedTuple):
    """An Avro schema as JSON's values, its name in a union, and a function to Avro's values."""

    schema: Any
    branch: str
    to_datum: ToDatum


def avro(schema: Schema, options: AvroOptions) -> AvroType:
    """Return the Avro schema of a key or a value. Ignores whether it is optional itself."""
    return _Compiler(options).required(schema, schema.name or "a value")


class _Compiler:
    """Builder of one Avro schema. A record is written in full at its first use."""

    def __init__(self, options: AvroOptions) -> None:
        self._options = options
        self._schema_name = topics.schema_name(
            "avro_unicode" if options.unicode_schema_names else "avro"
        )
        self._field_name = topics.field_name(
            "avro_unicode" if options.unicode_field_names else "avro"
        )
        self._records: dict[str, tuple[Schema, AvroType]] = {}

    def any(self, schema: Schema, where: str) -> AvroType:
        """Return a schema that accepts null if optional, with the default if there is one."""
        made = self.required(schema, where)
        null: Any = None
        if schema.default is not None and not self._options.ignore_default_for_nullables:
            null = made.to_datum(schema.default)
        if not schema.optional:
            return made._replace(to_datum=partial(_value_or_default, made.to_datum, null, where))
        if null is not None:
            null = (made.branch, null)
        to_datum = partial(_branch_or_null, made.branch, made.to_datum, null)
        union = [made.schema, "null"] if schema.default is not None else ["null", made.schema]
        return AvroType(union, "", to_datum)

    def required(self, schema: Schema, where: str) -> AvroType:
        """Return the schema of values that aren't null."""
        if schema.type is Type.STRUCT:
            return self._record(schema, schema.name, schema.fields)
        if schema.type is Type.ARRAY:
            items = self.any(schema.of_items(), f"{where}, an element")
            made = {"type": "array", "items": items.schema, **self._meta(schema)}
            return AvroType(
                made, "array", partial(_array, schema.of_items(), items.to_datum, where)
            )
        if schema.type is Type.MAP:
            return self._map(schema, where)
        primitive = _PRIMITIVES[schema.type]
        properties = {**_decimal(schema), **self._meta(schema), **_logical_type(schema)}
        made_schema: Any = {"type": primitive, **properties} if properties else primitive
        to_datum = partial(_int, where) if primitive == "int" else _as_it_is
        return AvroType(made_schema, primitive, to_datum)

    def _record(self, schema: Schema, name: str | None, fields: tuple[Field, ...]) -> AvroType:
        full = _proper(self._schema_name(name)) if name else f"{_NAMESPACE}.ConnectDefault"
        same = replace(schema, optional=False, default=None)
        attempt, number = full, 1
        while attempt in self._records:
            existing, made = self._records[attempt]
            # Avro would look up a name without a dot in the namespace around the reference.
            if existing == same and "." in attempt:
                return made._replace(schema=made.branch)
            number += 1
            attempt = f"{full}{number}"
        space, _, short = attempt.rpartition(".")
        record: dict[str, Any] = {"type": "record", "name": short, "namespace": space}
        members: list[tuple[str, str, ToDatum]] = []
        made = AvroType(record, attempt, partial(_struct, members))
        self._records[attempt] = (same, made)
        record["fields"] = [self._member(field, members, attempt) for field in fields]
        record.update(self._meta(schema))
        return made

    def _member(self, field: Field, members: list[tuple[str, str, ToDatum]], record: str) -> Any:
        name = self._field_name(field.name)
        if any(name == other for _, other, _ in members):
            raise ConversionError(
                f"two columns have the same name in Avro: {name}",
                where=f"schema {record}",
                remedy='set field.name.adjustment.mode = "avro_unicode", or leave one out with'
                " column.exclude.list",
            )
        made = self.any(field.schema, f"{record}, {field.name}")
        members.append((field.name, name, made.to_datum))
        member = {"name": name, "type": made.schema}
        default = field.schema.default
        if default is not None and _is_finite(default):
            member["default"] = self._default(field.schema, default)
        elif default is None and field.schema.optional:
            member["default"] = None
        return member

    def _map(self, schema: Schema, where: str) -> AvroType:
        keys, items = schema.of_keys(), schema.of_items()
        if keys.type is Type.STRING and not keys.optional:
            values = self.any(items, f"{where}, a value")
            made = {"type": "map", "values": values.schema, **self._meta(schema)}
            return AvroType(
                made,
                "map",
                lambda entries: {key: values.to_datum(value) for key, value in entries.items()},
            )
        fields = (Field("key", keys), Field("value", items))
        name = schema.name or f"{_NAMESPACE}.MapEntry"
        entry_schema = Schema(Type.STRUCT, fields=fields)
        entry = self._record(entry_schema, name, fields)
        if schema.name is not None and isinstance(entry.schema, dict):
            entry.schema["connect.internal.type"] = "MapEntry"
        made = {"type": "array", "items": entry.schema, **self._meta(schema)}
        return AvroType(
            made,
            "array",
            lambda entries: [
                entry.to_datum({"key": key, "value": value}) for key, value in entries.items()
            ],
        )

    def _meta(self, schema: Schema) -> dict[str, Any]:
        """Return, as properties of the Avro schema, what Avro can't express."""
        if not self._options.connect_meta_data:
            return {}
        default, is_small = schema.default, schema.type in {Type.INT8, Type.INT16}
        properties = {
            "connect.doc": schema.doc,
            "connect.version": schema.version,
            "connect.parameters": dict(schema.parameters or {}) or None,
            "connect.default": self._default(schema, default) if _is_finite(default) else None,
            "connect.name": None if schema.name is None else self._schema_name(schema.name),
            "connect.type": schema.type.value if is_small else None,
        }
        return {name: value for name, value in properties.items() if value is not None}

    def _default(self, schema: Schema, value: Any) -> Any:
        """Return a default as JSON in an Avro schema: bytes become text, one character each."""
        if value is None:
            return None
        if schema.type is Type.BYTES:
            return value.decode("latin-1")
        if schema.type is Type.ARRAY:
            return [self._default(schema.of_items(), item) for item in value]
        if schema.type is Type.MAP:
            return {key: self._default(schema.of_items(), item) for key, item in value.items()}
        if schema.type is Type.STRUCT:
            return {
                self._field_name(field.name): self._default(field.schema, value.get(field.name))
                for field in schema.fields
            }
        return value


def _proper(full: str) -> str:
    """Return a full name in which each part begins with a letter or an underscore.

    Debezium adjusts only the first part. Registries refuse such a schema without a reason.
    """
    return ".".join(
        f"_{name}" if not name or name[0].isdigit() else name for name in full.split(".")
    )


def _decimal(schema: Schema) -> dict[str, int]:
    if schema.name != DECIMAL:
        return {}
    parameters = schema.parameters or {}
    precision = parameters.get("connect.decimal.precision", _PRECISION_DEFAULT)
    return {"scale": int(parameters.get("scale", 0)), "precision": int(precision)}


def _logical_type(schema: Schema) -> dict[str, str]:
    logical = _LOGICAL.get(schema.name or "")
    if decimal := _decimal(schema):
        # Avro's rules exclude other decimals, whose values stay bytes with a scale.
        logical = "decimal" if 0 <= decimal["scale"] <= decimal["precision"] else None
    return {"logicalType": logical} if logical else {}


def _is_finite(default: Any) -> bool:
    """Whether JSON has this default. An Avro schema can't name NaN or an infinity."""
    return not isinstance(default, float) or isfinite(default)


def _as_it_is(value: Any) -> Any:
    return value


def _value_or_default(to_datum: ToDatum, default: Any, where: str, value: Any) -> Any:
    if value is not None:
        return to_datum(value)
    if default is None:
        raise ConversionError(
            "a value is missing, but its Avro type requires one",
            where=where,
            remedy='set toast.unavailable = "reselect" to fill in what PostgreSQL didn\'t send, or'
            " unavailable.value.placeholder",
        )
    return default


def _int(where: str, value: int) -> int:
    """Return the int unchanged. fastavro would write a longer one, which Java's readers refuse."""
    if -(2**31) <= value < 2**31:
        return value
    raise ConversionError("a number is too large for its Avro type", where=where)


def _array(items: Schema, to_datum: ToDatum, where: str, values: Any) -> list[Any]:
    """Convert an array of one dimension. Others arrive as nested lists, or as text."""
    if values.__class__ is not list or (
        items.type is not Type.ARRAY and any(value.__class__ is list for value in values)
    ):
        raise ConversionError(
            "Avro has no schema for an array of several dimensions, or one that doesn't begin at 1",
            where=where,
            remedy="leave the column out with column.exclude.list, or use JSON, or set lossless ="
            " false: it then becomes what Debezium writes",
        )
    return [to_datum(value) for value in values]


def _branch_or_null(branch: str, to_datum: ToDatum, null: Any, value: Any) -> Any:
    """Name the union's branch, as fastavro otherwise tries the value against each branch."""
    return null if value is None else (branch, to_datum(value))


def _struct(members: list[tuple[str, str, ToDatum]], struct: Mapping[str, Any]) -> dict[str, Any]:
    return {adjusted: to_datum(struct.get(name)) for name, adjusted, to_datum in members}

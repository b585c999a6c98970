"""A record's key or value → its content: JSON with or without its schema, or Avro.

With a schema, bytes are bytes, and Connect's Decimals are Decimals. Without one, they stay as in
the JSON. Everything else has the form that the capture's options define (docs/reference/types.md).
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format
"""

import io
import json
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from cdc.errors import ConfigError, LogFormatError
from cdc.records.connect import DECIMAL

_WRAPPED: Final = {"schema", "payload"}
_ID_END: Final = 5
_DECIMAL: Final = "decimal"
"""The only logical type of Avro that isn't written as a plain number."""


class Decoder:
    """Decodes keys and values. Requests each Avro schema once from a registry."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """``options`` are those of [format]."""
        self._options = options
        self._has_numbers = "NUMERIC" in {text.upper() for text in options.values()}
        """Whether Decimals may be JSON's numbers, which lose digits as a float."""
        self._schema_of: Callable[[int], str] | None = None
        self._schemas: dict[int, Any] = {}

    def decode(self, data: bytes) -> Any:
        """Decode JSON or Avro. Raise ValueError for anything else, or the registry's errors."""
        if data[:1] == b"\0":
            return self._avro(data)
        decoded = json.loads(data)
        if isinstance(decoded, dict) and decoded.keys() == _WRAPPED:
            if self._has_numbers:
                decoded = json.loads(data, parse_float=Decimal)
            return _converted(decoded["schema"], decoded["payload"])
        return decoded

    def _avro(self, data: bytes) -> Any:
        from fastavro import schemaless_reader

        if len(data) < _ID_END:
            raise ValueError("it ends before the id of its Avro schema")
        number = int.from_bytes(data[1:_ID_END])
        if number not in self._schemas:
            self._schemas[number] = self._parsed(number)
        try:
            return schemaless_reader(io.BytesIO(data[_ID_END:]), self._schemas[number], None)
        except (EOFError, IndexError, TypeError, KeyError) as error:
            raise ValueError(f"it doesn't match its Avro schema {number}: {error!r}") from None

    def _parsed(self, number: int) -> Any:
        from fastavro import parse_schema

        if self._schema_of is None:
            from cdc.convert.converters import schema_reader

            self._schema_of = schema_reader(self._options)
        if self._schema_of is None:
            raise ConfigError(
                "records are in Avro, but no schema registry is configured",
                where="[format]",
                remedy="set schema.registry.url",
            )
        return parse_schema(_without_times(json.loads(self._schema_of(number))))


def _without_times(schema: Any) -> Any:
    """Return an Avro schema whose dates and times stay numbers, as in JSON."""
    if isinstance(schema, list):
        return [_without_times(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_times(member)
        for name, member in schema.items()
        if name != "logicalType" or member == _DECIMAL
    }


def _converted(schema: Any, value: Any) -> Any:
    """Convert a payload by its JSON schema. Raise ValueError if the schema isn't Connect's."""
    try:
        return _of_schema(schema, value)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its schema isn't a Kafka Connect schema: {error!r}") from None


def _of_schema(schema: Mapping[str, Any] | None, value: Any) -> Any:
    kind = schema["type"] if schema is not None and value is not None else ""
    read = _BY_TYPE.get(kind)
    return value if read is None else read(schema, value)


def _of_struct(schema: Mapping[str, Any], value: Any) -> Any:
    members = {field["field"]: field for field in schema["fields"]}
    return {name: _of_schema(members.get(name), each) for name, each in value.items()}


def _of_array(schema: Mapping[str, Any], value: Any) -> Any:
    return [_of_schema(schema["items"], each) for each in value]


def _of_map(schema: Mapping[str, Any], value: Any) -> Any:
    """Convert an object. A map whose keys aren't text is an array of pairs."""
    if not isinstance(value, dict):
        return value
    return {name: _of_schema(schema["values"], each) for name, each in value.items()}


def _of_bytes(schema: Mapping[str, Any], value: Any) -> Any:
    if schema.get("name") != DECIMAL:
        return a2b_base64(value)
    if not isinstance(value, str):  # decimal.format = NUMERIC
        return Decimal(value)
    scale = int((schema.get("parameters") or {}).get("scale", 0))
    unscaled = Decimal(int.from_bytes(a2b_base64(value), signed=True)).as_tuple()
    return Decimal((unscaled.sign, unscaled.digits, -scale))


def _of_float(_schema: Mapping[str, Any], value: Any) -> Any:
    return float(value)


_BY_TYPE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "struct": _of_struct,
    "array": _of_array,
    "map": _of_map,
    "bytes": _of_bytes,
    "float": _of_float,
    "double": _of_float,
}


def decode_or_refuse(decoder: Decoder, data: bytes, what: str, where: str) -> Any:
    """Return a key's or value's content. Raise LogFormatError if it can't be decoded."""
    try:
        return decoder.decode(data)
    except ValueError as error:
        raise LogFormatError(
            f"a record's {what} can't be read: {error}"[:400],
            where=where,
            remedy="the reader reads events of Millrace and of Debezium's PostgreSQL connector, "
            "in JSON or in Avro",
        ) from None

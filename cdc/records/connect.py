"""A key, a value or a header → Kafka Connect's data model, before a converter makes bytes.

A value is plain Python by its schema's type: bool, int, float (NaN and infinity too), str, bytes,
list, and dict for structs and maps. ``Decimal``, dates and times are Connect's logical types: one
of these with a schema that has a name (``io.debezium.time.MicroTimestamp``).
https://kafka.apache.org/documentation/#connect_development (Working with Schemas)
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeGuard, TypeVar

_SCHEMAS_MAX: Final = 1_024
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
"""Two's complement bytes of the unscaled number. The parameter ``scale`` is its decimals."""
JSON_TEXT: Final = "millrace.Json"
"""A string that the JSON converter writes unchanged: JSON without a schema, in our own events."""


T = TypeVar("T")


class Type(StrEnum):
    """Connect's types, by their names in JSON schemas."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"


class Field(NamedTuple):
    """A member of a struct."""

    name: str
    schema: "Schema"


@dataclass(frozen=True, slots=True)
class Schema:
    """A value's type. ``default`` replaces a missing value; None: there is no default."""

    type: Type
    optional: bool = False
    name: str | None = None
    version: int | None = None
    parameters: Mapping[str, str] | None = None
    default: Any = None
    doc: str | None = None
    keys: "Schema | None" = None
    items: "Schema | None" = None
    fields: tuple[Field, ...] = ()

    def of_items(self) -> "Schema":
        """Return the schema of an array's elements, or of a map's values."""
        if self.items is None:
            raise TypeError(f"a schema of type {self.type.value} has no schema for its items")
        return self.items

    def of_keys(self) -> "Schema":
        """Return the schema of a map's keys."""
        if self.keys is None:
            raise TypeError(f"a schema of type {self.type.value} has no schema for its keys")
        return self.keys

    def of_field(self, name: str) -> "Schema | None":
        """Return the schema of a struct's member, or None without one of that name."""
        return next((field.schema for field in self.fields if field.name == name), None)


class Header(NamedTuple):
    """A record header, converted by the header converter (JSON with its schema)."""

    name: str
    value: Any
    schema: Schema


class SourceRecord(NamedTuple):
    """A record as Debezium's connector passes it to transforms and converters.

    ``value`` None is a tombstone; ``key`` None means no key. ``partition`` None leaves the choice
    to the partitioner, ``timestamp_ms`` None to the producer (now).
    """

    topic: str
    key: Any
    key_schema: Schema | None
    value: Any
    value_schema: Schema | None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class PerSchema(Generic[T]):
    """Calls ``make`` once per schema object and arguments. Keeps up to _SCHEMAS_MAX results."""

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._made: dict[Hashable, tuple[Schema, T]] = {}

    def __call__(self, schema: Schema, *more: Hashable) -> T:
        """Return this object's result. An equal object has its own."""
        key = (id(schema), *more)
        entry = self._made.get(key)
        if entry is None:
            if len(self._made) >= _SCHEMAS_MAX:
                self._made.clear()
            # The entry keeps the schema alive, so no other object gets its id.
            entry = self._made[key] = (schema, self._make(schema, *more))
        _schema, made = entry
        return made


def is_envelope(schema: Schema | None) -> TypeGuard[Schema]:
    """Whether values of this schema are envelopes. Those of heartbeats, for example, aren't."""
    return schema is not None and schema.name is not None and schema.name.endswith(".Envelope")


def member(struct: Mapping[str, Any], schema: Schema, name: str) -> Any:
    """Return a struct's member, or its default if it is null, as Connect's Struct.get does."""
    value = struct.get(name)
    if value is not None:
        return value
    field = schema.of_field(name)
    return field.default if field is not None else None

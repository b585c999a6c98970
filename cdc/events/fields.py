"""Table schema + rules → the plan of a table's events: members, key, placeholders.

Three states of a column are no values, and each has its own form. NULL is null. A value that an
update left unchanged is *absent*: left out, or Debezium's placeholder. A value that an old key
lacks is *unsent*: left out, or made up as Debezium does (the column's default or its type's zero if
NULL isn't allowed, else null). ``EventRules.lossless`` selects the form.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from cdc import values
from cdc.errors import TableRefusedError
from cdc.events import masks, schemas
from cdc.events.changes import ABSENT, Row
from cdc.events.rules import EventRules
from cdc.records.connect import Schema, Type
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.topics import field_name, schema_name
from cdc.values import MALFORMED, Decode, ValueKind, malformed

_UNLIMITED: Final = 2_147_483_647
_LENGTHS: Final = {
    "bool": 1, "char": 1, "int2": 5, "int4": 10, "oid": 10, "int8": 19, "float4": 8, "float8": 17,
    "date": 13, "time": 15, "timetz": 21, "timestamp": 29, "timestamptz": 35, "interval": 49,
}  # fmt: skip
"""JDBC's size of a type, which Debezium passes on."""
_SCALES: Final = {"float4": 8, "float8": 17}
_VARIABLE_SCALE_LENGTH: Final = 131_089


class EventField(NamedTuple):
    """A member of a row image, or of a key.

    ``column`` is its index in the row. ``decode`` takes PostgreSQL's text, and returns None if
    Debezium can't convert it. It raises BrokenRowError with the column's name. ``null``,
    ``unavailable`` and ``unsent`` replace NULL, an unchanged value, and a value that an old key
    lacks (ABSENT: nothing). ``kind`` and ``digits`` are the codec's, if the codec makes the value
    from the text.
    """

    column: int
    name: str
    schema: Schema
    decode: Decode
    null: Any
    unavailable: Any
    unsent: Any
    kind: ValueKind
    digits: int

    def of(self, row: Row) -> Any:
        """Return an event's value for a row. ABSENT: the event has none."""
        value = row[self.column]
        if value is None:
            return self.null
        return self.unavailable if value is ABSENT else self.of_text(value)

    def of_text(self, text: bytes) -> Any:
        """Return an event's value for a text that was sent."""
        value = self.decode(text)
        return self.null if value is None else value

    def of_old_key(self, row: Row) -> Any:
        """Return an event's value for a row that has only its key."""
        return self.unsent if row[self.column] is None else self.of(row)

    def decoded_by(self, decode: Decode) -> "EventField":
        """Return the field with values that the codec doesn't make."""
        return self._replace(decode=decode, kind=ValueKind.OTHER)


@dataclass(frozen=True, slots=True)
class EventPlan:
    """How the rows of a table, in one version of its schema, become events.

    A table without a key has an empty ``key``, and None as its ``key_schema``. ``read_row`` and
    ``read_key`` are for rows that a snapshot reads; if lossless, they are the same.
    """

    row: tuple[EventField, ...]
    read_row: tuple[EventField, ...]
    key: tuple[EventField, ...]
    read_key: tuple[EventField, ...]
    key_schema: Schema | None
    envelope_schema: Schema


def plan(schema: TableSchema, rules: EventRules) -> EventPlan:
    """Return the plan of a table's events. Raise TableRefusedError for rules that can't apply."""
    row: list[EventField] = []
    read_row: list[EventField] = []
    of_key: dict[str, tuple[EventField, EventField]] = {}
    for index, column in enumerate(schema.columns):
        field = _field(index, column, schema.name, rules)
        if field is None:
            continue
        streamed, read = field, field
        if not rules.lossless:
            streamed, read = _of_stream(field, column), _of_snapshot(field, column)
        read_key = field
        if rules.columns.keeps(str(schema.name), column.name):
            row.append(_of_row(streamed, column, schema, rules))
            read_row.append(_of_row(read, column, schema, rules))
        elif not rules.lossless:
            # Debezium's snapshot doesn't read columns that events lack, not even for the key.
            read_key = field.decoded_by(_nothing)
        of_key[column.name] = field, read_key
    key_fields = [of_key[column.name] for column in schema.key if column.name in of_key]
    key = tuple(field for field, _ in key_fields)
    _refuse_same_names((*row, *key), schema)
    return EventPlan(
        row=tuple(row),
        read_row=tuple(read_row),
        key=key,
        read_key=tuple(read for _, read in key_fields),
        key_schema=_struct(f"{schema.topic}.Key", key, rules) if key else None,
        envelope_schema=schemas.envelope(
            schema_name(rules.schema_names)(f"{schema.topic}.Envelope"),
            replace(_struct(f"{schema.topic}.Value", row, rules), optional=True),
        ),
    )


def _refuse_same_names(fields: tuple[EventField, ...], schema: TableSchema) -> None:
    """Refuse two columns with one adjusted name, as an event would keep either value."""
    columns: dict[str, str] = {}
    for field in fields:
        column = schema.columns[field.column].name
        if (other := columns.setdefault(field.name, column)) != column:
            raise TableRefusedError(
                f"columns {other} and {column} get the same name {field.name} in events",
                where=f"table {schema.name}",
                remedy='set field.name.adjustment.mode = "avro_unicode", or leave one out with'
                " column.exclude.list",
            )


def _field(index: int, column: Column, table: TableName, rules: EventRules) -> EventField | None:
    """Return the column as a key has it: never masked, and without its source type.

    None: events have no member for it.
    """
    modes = rules.values
    codec = values.codec(column, modes)
    if codec is None:
        return None
    default = values.default(column, codec, modes)
    null = None
    if not rules.lossless and not column.optional:
        null = values.zero(column, codec, modes) if default is None else default
    has_placeholder = rules.events.unchanged == "placeholder"
    return EventField(
        index,
        field_name(rules.field_names)(column.name),
        replace(codec.schema, optional=column.optional, default=default),
        checked(column, table, codec.decode),
        null,
        values.placeholder(column, codec, modes) if has_placeholder else ABSENT,
        ABSENT if rules.lossless else null,
        codec.kind,
        codec.digits,
    )


def checked(column: Column, table: TableName, inner: Decode) -> Decode:
    """Return the decoder with BrokenRowError, which names the column, for a malformed text."""

    def decode(text: bytes) -> Any:
        try:
            return inner(text)
        except MALFORMED as error:
            raise malformed(column, table, error) from error

    return decode


def _of_row(
    field: EventField, column: Column, schema: TableSchema, rules: EventRules
) -> EventField:
    """Return the column as a row's image has it: described, and masked if a rule says so."""
    rule = rules.columns.rule(str(schema.name), column.name)
    if rule and not masks.applies(rule, column, field.schema, lossless=rules.lossless):
        rule = None
    if rule and rules.lossless and column.key is not None:
        raise TableRefusedError(
            f"key column {column.name} can't be masked: the key must tell rows from each other",
            where=f"table {schema.name}",
            remedy="remove the column from column.mask.… and column.truncate.…, or from the key"
            " with message.key.columns",
        )
    parameters = dict(field.schema.parameters or {})
    if rule:
        parameters.update(masks.parameters(rule))
    if _propagates_type(schema, column, rules):
        parameters.update(_source_type(column))
    described = replace(field.schema, parameters=parameters or None)
    if rules.lossless and schema.replica_identity != "f" and column.key is None:
        # The schema of an image that may lack a column must not require it, or give its default.
        described = replace(described, optional=True, default=None)
    field = field._replace(schema=described)
    return _masked(field, masks.mask(rule, column, lossless=rules.lossless)) if rule else field


def _masked(field: EventField, mask: masks.Apply) -> EventField:
    unavailable, unsent = (
        ABSENT if value is ABSENT else mask(value) for value in (field.unavailable, field.unsent)
    )
    masked = field.decoded_by(lambda text: mask(field.of_text(text)))
    return masked._replace(null=mask(field.null), unavailable=unavailable, unsent=unsent)


def _struct(name: str, fields: Iterable[EventField], rules: EventRules) -> Schema:
    members = [(field.name, field.schema) for field in fields]
    return schemas.struct(members, schema_name(rules.schema_names)(name))


def _propagates_type(schema: TableSchema, column: Column, rules: EventRules) -> bool:
    """Whether the column's schema shows the column's type in PostgreSQL."""
    columns = rules.columns
    return columns.source_type_of.match(
        f"{schema.name}.{column.name}"
    ) or columns.source_type_of_types.match(column.type, f"{schema.namespace}.{column.type}")


def _source_type(column: Column) -> dict[str, str]:
    """column.propagate.source.type: return the column's type as JDBC describes it."""
    name = column.declared.partition("(")[0] if column.type == "enum" else column.type
    length, scale = _LENGTHS.get(column.type, _UNLIMITED), _SCALES.get(column.type, 0)
    if column.type == "numeric":
        length, scale = column.precision_scale or (_VARIABLE_SCALE_LENGTH, 0)
    elif column.type in {"time", "timetz", "timestamp", "timestamptz", "interval"}:
        scale = column.time_precision if column.modifier < 0 else column.modifier & 0xFFFF
    elif column.type in {"varchar", "bpchar"} and column.modifier >= 4:
        length = column.modifier - 4
    elif column.type in {"bit", "varbit"} and column.modifier > 0:
        length = column.modifier
    return {
        "__debezium.source.column.type": f"{'_' if column.array else ''}{name}".upper(),
        "__debezium.source.column.length": str(length),
        "__debezium.source.column.scale": str(scale),
        "__debezium.source.column.name": column.name,
    }


_ERA: Final = b" BC"
_INFINITE: Final[dict[Type, dict[bytes, Any]]] = {
    Type.INT32: {b"infinity": -622_191_234, b"-infinity": -625_821_272},
    Type.STRING: {b"infinity": "+292278994-08-16Z", b"-infinity": "+292269055-12-02Z"},
}
"""Debezium's values for infinite dates: days since 1970 cut to 32 bits, or ISO dates."""
_OFFSET_WITH_SECONDS: Final = re.compile(rb".*[+-]\d\d:\d\d:\d\d", re.DOTALL).fullmatch


def _of_stream(field: EventField, column: Column) -> EventField:
    """Return the field for Debezium's stream, which has no values of type name."""
    return field.decoded_by(_nothing) if column.type == "name" and not column.array else field


def _of_snapshot(field: EventField, column: Column) -> EventField:
    """Return the field for Debezium's snapshot, which reads dates and zoned times through JDBC."""
    decode = field.decode
    if column.array or column.type not in {"timetz", "date"}:
        return field
    if column.type == "timetz":
        return field.decoded_by(lambda text: None if _OFFSET_WITH_SECONDS(text) else decode(text))
    infinite = _INFINITE.get(field.schema.type, {})
    return field.decoded_by(
        lambda text: infinite[text] if text in infinite else decode(text.removesuffix(_ERA))
    )


def _nothing(_text: bytes) -> None:
    """Decode any text to nothing."""

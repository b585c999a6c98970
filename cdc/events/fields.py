"""Table schema + rules → the plan of a table's events: members, key, what stands for what.

Three things are no values of a row, and each is said differently. NULL is null. A value that an
update left unchanged is *absent*: left out, or Debezium's placeholder. What an old key doesn't
carry is *unsent*: left out, or made up as Debezium does (the column's default or its type's zero
where NULL can't be, else null). Which of the two ways is ``EventRules.lossless``.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from cdc import values
from cdc.errors import TableRefusedError
from cdc.events import masks, schemas
from cdc.events.changes import ABSENT
from cdc.events.rules import EventRules
from cdc.records.connect import Field, Schema, Type
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.topics import field_name, schema_name
from cdc.settings.modes import ValueModes
from cdc.values import MALFORMED, Decode, ValueKind, malformed

_UNLIMITED: Final = 2_147_483_647
_LENGTHS: Final = {
    "bool": 1, "char": 1, "int2": 5, "int4": 10, "oid": 10, "int8": 19, "float4": 8, "float8": 17,
    "date": 13, "time": 15, "timetz": 21, "timestamp": 29, "timestamptz": 35, "interval": 49,
}  # fmt: skip
"""What JDBC calls a type's size, which Debezium hands on."""
_SCALES: Final = {"float4": 8, "float8": 17}
_VARIABLE_SCALE_LENGTH: Final = 131_089


class ColumnValues(NamedTuple):
    """A column's values: ``decode`` raises CorruptMessageError naming the column.

    ``schema`` is neither optional nor has a default. ``placeholder`` stands for a value that an
    update left unchanged, ``zero`` for one that an old key doesn't carry where NULL can't;
    ``default`` is the column's own, None where there is none that a schema can tell. ``kind`` and
    ``digits`` are the codec's.
    """

    decode: Decode
    schema: Schema
    placeholder: Any
    zero: Any
    default: Any
    kind: ValueKind
    digits: int


def column_values(column: Column, table: TableName, modes: ValueModes) -> ColumnValues | None:
    """How the column's values become Connect's, or None where events have no member for it."""
    codec = values.codec(column, modes)
    if codec is None:
        return None
    inner = codec.decode

    def decode(text: bytes) -> Any:
        try:
            return inner(text)
        except MALFORMED as error:
            raise malformed(column, table, error) from error

    return ColumnValues(
        decode,
        codec.schema,
        values.placeholder(column, modes),
        values.zero(column, modes),
        values.default(column, modes),
        codec.kind,
        codec.digits,
    )


class EventField(NamedTuple):
    """A member of a row image, or of a key.

    ``column`` is its index in the row, ``decode`` takes PostgreSQL's text. ``null``,
    ``unavailable`` and ``unsent`` are what stands for NULL, for an unchanged value, and for what
    an old key doesn't carry (ABSENT: nothing). ``kind`` and ``digits`` are the codec's where the
    value is ``exact``ly what the codec makes of the text.
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
    exact: bool


@dataclass(frozen=True, slots=True)
class EventPlan:
    """How the rows of a table, in one version of its schema, become events.

    ``key`` is empty, and ``key_schema`` None, for a table without one. ``read_row`` and
    ``read_key`` are those of a row read by a snapshot: lossless, the same.
    """

    row: tuple[EventField, ...]
    read_row: tuple[EventField, ...]
    key: tuple[EventField, ...]
    read_key: tuple[EventField, ...]
    key_schema: Schema | None
    envelope_schema: Schema


def plan(schema: TableSchema, rules: EventRules) -> EventPlan:
    """The plan of a table's events; raises TableRefusedError for rules that can't be kept."""
    row, read_row = [], []
    values_of: dict[str, ColumnValues] = {}
    for index, column in enumerate(schema.columns):
        values = column_values(column, schema.name, rules.values)
        if values is None:
            continue
        values_of[column.name] = values
        if rules.columns.keeps(str(schema.name), column.name):
            streamed, read = _as_debezium(column, values) if not rules.lossless else (values,) * 2
            row.append(_row_field(index, column, streamed, schema, rules))
            field = _row_field(index, column, read, schema, rules)
            exact = field.exact and read.decode is values.decode
            read_row.append(field._replace(exact=exact))
    key = tuple(
        _key_field(schema.columns.index(column), column, values_of[column.name], rules)
        for column in schema.key
        if column.name in values_of
    )
    _refuse_same_names((*row, *key), schema)
    return EventPlan(
        row=tuple(row),
        read_row=tuple(read_row),
        key=key,
        read_key=key if rules.lossless else _read_key(key, schema, rules),
        key_schema=_struct(f"{schema.topic}.Key", key, rules) if key else None,
        envelope_schema=schemas.envelope(
            schema_name(rules.schema_names)(f"{schema.topic}.Envelope"),
            replace(_struct(f"{schema.topic}.Value", row, rules), optional=True),
        ),
    )


def _refuse_same_names(fields: tuple[EventField, ...], schema: TableSchema) -> None:
    """Two columns whose adjusted names are one would be one value, whichever it is."""
    columns: dict[str, str] = {}
    for field in fields:
        column = schema.columns[field.column].name
        if (other := columns.setdefault(field.name, column)) != column:
            raise TableRefusedError(
                f"columns {other} and {column} would both be {field.name} in events",
                where=f"table {schema.name}",
                remedy='field.name.adjustment.mode = "avro_unicode" keeps them apart; or leave one'
                " out by column.exclude.list",
            )


def _as_debezium(column: Column, values: ColumnValues) -> tuple[ColumnValues, ColumnValues]:
    """The values as Debezium's stream and as its snapshot have them."""
    decode = values.decode
    streamed = values._replace(decode=of_stream(column, decode))
    if streamed.decode is not decode:
        streamed = streamed._replace(kind=ValueKind.OTHER)
    read = values._replace(decode=of_snapshot(column, values.schema, decode))
    if read.decode is not decode:
        read = read._replace(kind=ValueKind.OTHER)
    return streamed, read


def _row_field(
    index: int, column: Column, values: ColumnValues, schema: TableSchema, rules: EventRules
) -> EventField:
    rule = rules.columns.rule(str(schema.name), column.name)
    if rule and not masks.applies(rule, column, values.schema, lossless=rules.lossless):
        rule = None
    if rule and rules.lossless and column.key is not None:
        raise TableRefusedError(
            f"key column {column.name} is to be masked, but keys keep rows apart",
            where=f"table {schema.name}",
            remedy="take the column out of column.mask.… or column.truncate.…, or out of the key"
            " by message.key.columns",
        )
    parameters = dict(values.schema.parameters or {})
    if rule:
        parameters.update(masks.parameters(rule))
    if _propagates_type(schema, column, rules):
        parameters.update(_source_type(column))
    described = replace(values.schema, parameters=parameters or None)
    # An image that lacks a column must not be said to have it, nor be given its default.
    may_lack = rules.lossless and schema.replica_identity != "f" and column.key is None
    return _field(
        index,
        column,
        values,
        replace(
            described,
            optional=column.optional or may_lack,
            default=None if may_lack else values.default,
        ),
        rules,
        masks.mask(rule, column, lossless=rules.lossless) if rule else None,
    )


def _key_field(index: int, column: Column, values: ColumnValues, rules: EventRules) -> EventField:
    """A key's member is never masked, and says nothing of its source type."""
    schema = replace(values.schema, optional=column.optional, default=values.default)
    return _field(index, column, values, schema, rules, None)


def _field(
    index: int,
    column: Column,
    values: ColumnValues,
    schema: Schema,
    rules: EventRules,
    mask: masks.Apply | None,
) -> EventField:
    null = None
    if not rules.lossless and not column.optional:
        null = values.zero if values.default is None else values.default
    unavailable, unsent = values.placeholder, null
    decode = values.decode if null is None else _never_null(values.decode, null)
    if mask is not None:
        decode = _masked(decode, mask)
        null, unavailable, unsent = mask(null), mask(unavailable), mask(unsent)
    return EventField(
        index,
        field_name(rules.field_names)(column.name),
        schema,
        decode,
        null,
        unavailable if rules.events.unchanged == "placeholder" else ABSENT,
        ABSENT if rules.lossless else unsent,
        ValueKind.OTHER if mask else values.kind,
        values.digits,
        exact=mask is None,
    )


def _read_key(
    key: tuple[EventField, ...], schema: TableSchema, rules: EventRules
) -> tuple[EventField, ...]:
    """Debezium's snapshot doesn't read columns that events don't have, not even for the key."""
    return tuple(
        field
        if rules.columns.keeps(str(schema.name), schema.columns[field.column].name)
        else field._replace(decode=_always(field.unsent))
        for field in key
    )


def _struct(
    name: str, fields: "tuple[EventField, ...] | list[EventField]", rules: EventRules
) -> Schema:
    members = tuple(Field(field.name, field.schema) for field in fields)
    return schemas.struct(members, schema_name(rules.schema_names)(name))


def _never_null(decode: Decode, instead: Any) -> Decode:
    """A value that Debezium can't convert is null to it, and then what stands for NULL."""

    def decode_value(text: bytes) -> Any:
        value = decode(text)
        return instead if value is None else value

    return decode_value


def _masked(decode: Decode, mask: masks.Apply) -> Decode:
    return lambda text: mask(decode(text))


def _always(value: Any) -> Decode:
    return lambda _text: value


def _propagates_type(schema: TableSchema, column: Column, rules: EventRules) -> bool:
    """Whether the column's schema tells the type that the column has in PostgreSQL."""
    columns = rules.columns
    return columns.source_type_of.match(
        f"{schema.name}.{column.name}"
    ) or columns.source_type_of_types.match(column.type, f"{schema.namespace}.{column.type}")


def _source_type(column: Column) -> dict[str, str]:
    """column.propagate.source.type: the column's type as JDBC describes it."""
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
"""Days since 1970 that don't fit into 32 bits, and what is left of them; or the dates in ISO."""
_OFFSET_WITH_SECONDS: Final = re.compile(rb".*[+-]\d\d:\d\d:\d\d", re.DOTALL).fullmatch


def of_stream(column: Column, decode: Decode) -> Decode:
    """Debezium's stream has no values of type name."""
    return decode if column.type != "name" or column.array else _nothing


def of_snapshot(column: Column, schema: Schema, decode: Decode) -> Decode:
    """Debezium's snapshot reads dates and zoned times through JDBC's classes."""
    if column.array:
        return decode
    if column.type == "timetz":
        return lambda text: None if _OFFSET_WITH_SECONDS(text) else decode(text)
    if column.type != "date":
        return decode
    infinite = _INFINITE.get(schema.type, {})

    def of_date(text: bytes) -> Any:
        return infinite[text] if text in infinite else decode(text.removesuffix(_ERA))

    return of_date


def _nothing(_text: bytes) -> None:
    """What comes of any text."""

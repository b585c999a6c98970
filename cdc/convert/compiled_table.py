"""A table's plan and JSON converters → the compiled way's table, where it writes the same bytes.

The compiled way takes values from PostgreSQL's text. So it has no table for events that are
counted, compared, transformed or in another format. Columns that it doesn't know (masked ones, rare
types) go through the functions of the readable way.
"""

from dataclasses import replace
from json.encoder import encode_basestring
from typing import Any, Final

from cdc.compiled import fast
from cdc.convert.json_text import JsonConverter, Write, encoded, label
from cdc.events import schemas
from cdc.events.changes import ABSENT, Change, Operation, Read
from cdc.events.fields import EventField
from cdc.events.reference import CONNECTOR, VERSION, LogContext, TableEvents
from cdc.records.connect import DECIMAL
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableSchema
from cdc.values import ValueKind

_ROWS: Final = {Operation.CREATE.value, Operation.UPDATE.value, Operation.DELETE.value}
_JAVA_FLOAT: Final = 1
"""Replaces the number of digits of a FLOAT."""
_LEFT_OUT: Final["fast.CompiledColumn"] = (-1, 0, b"", b"", b"", b"", bytes, str)
"""A column that events don't have."""


def compiled_table(
    schema: TableSchema,
    events: TableEvents,
    converters: tuple[JsonConverter, JsonConverter],
    headers: list[tuple[str, bytes]],
    *,
    reselects: bool,
    position_header: bool,
) -> fast.Table | None:
    """Return the table for the compiled way. None: the compiled way can't write it.

    ``converters`` are the key's and the value's. ``headers`` come before each record's position.
    """
    modes = events.rules.events
    if modes.skip_without_change or _ROWS & modes.skipped:
        return None
    fields = events.plan.row, events.plan.key
    flags = events.tombstones, reselects, position_header, modes.key_change_headers
    return _table(schema, events, fields, converters, headers, flags)


def compiled_read(
    schema: TableSchema,
    events: TableEvents,
    converters: tuple[JsonConverter, JsonConverter],
    headers: list[tuple[str, bytes]],
    *,
    position_header: bool,
) -> fast.Table | None:
    """Return the table for rows of a snapshot, or None."""
    if Operation.READ.value in events.rules.events.skipped:
        return None
    fields = events.plan.read_row, events.plan.read_key
    return _table(
        schema, events, fields, converters, headers, (False, False, position_header, False)
    )


def read_source(
    events: TableEvents, converter: JsonConverter, lsn: Lsn, ts_us: int, read: Read
) -> bytes:
    """Return bytes between a snapshot's row and the event's own time, by the converter."""
    place = Position(1, lsn, 0)
    row = Change(Operation.READ, None, False, None, place, lsn, None, ts_us, read)
    block = converter.writer(schemas.SOURCE)(events.source(row))
    return f',"source":{block},"transaction":null,"op":"{Operation.READ}'.encode()


def _table(
    schema: TableSchema,
    events: TableEvents,
    fields: tuple[tuple[EventField, ...], tuple[EventField, ...]],
    converters: tuple[JsonConverter, JsonConverter],
    headers: list[tuple[str, bytes]],
    flags: tuple[bool, bool, bool, bool],
) -> fast.Table | None:
    """Return the table. ``fields`` are those of a row and of the key."""
    row, key_fields = fields
    key, value = converters
    plan = events.plan
    columns: list[fast.CompiledColumn] = [_LEFT_OUT] * len(schema.columns)
    for field in row:
        columns[field.column] = _column(field, value)
    if not all(_is_of_row(field, row, columns, converters) for field in key_fields):
        return None
    key_around = ("", "") if plan.key_schema is None else key.around(plan.key_schema)
    around = *value.around(plan.envelope_schema), *key_around
    snapshot = value.writer(schemas.SNAPSHOT)("false" if events.rules.lossless else None)
    return fast.Table(
        schema.topic,
        columns,
        [field.column for field in key_fields],
        _source_around(schema, events.log, snapshot),
        flags,
        f"/{schema.version}".encode(),
        tuple(text.encode() for text in around),
        tuple(headers),
    )


def _column(field: EventField, converter: JsonConverter) -> "fast.CompiledColumn":
    write = converter.writer(field.schema)
    kind, digits = field.kind, field.digits
    if kind.of_element is ValueKind.FLOAT and converter.options.java_floats:
        digits = _JAVA_FLOAT
    schema = field.schema.items or field.schema
    if schema.name == DECIMAL and converter.options.decimal_numbers:
        kind = ValueKind.OTHER
    name = label(field.name)
    return (
        kind,
        digits,
        f",{name}".encode(),
        _member(name, write, field.null),
        _member(name, write, field.unavailable),
        _member(name, write, field.unsent),
        field.of_text,
        write,
    )


def _member(name: str, write: Write, value: Any) -> bytes:
    """Return a member that needs no text from PostgreSQL; empty if it is left out."""
    return b"" if value is ABSENT else encoded(f",{name}{write(value)}")


def _is_of_row(
    field: EventField,
    row: tuple[EventField, ...],
    columns: "list[fast.CompiledColumn]",
    converters: tuple[JsonConverter, JsonConverter],
) -> bool:
    """Whether a key's member equals the row's, so that it can be copied from there."""
    twin = next((member for member in row if member.column == field.column), None)
    if twin is None or twin.decode is not field.decode:
        return False
    of_key, of_row = _column(field, converters[0]), columns[field.column]
    if of_row[0] == ValueKind.OTHER:  # a converter writes all of it, including numbers within
        key, value = (replace(converter.options, schemas=False) for converter in converters)
        if key != value:
            return False
    return of_key[:6] == of_row[:6]


def _source_around(
    schema: TableSchema, log: LogContext, snapshot: str
) -> tuple[bytes, bytes, bytes]:
    """Return texts up to ``ts_ms``, from there to ``sequence``, and from ``ts_ns`` to ``txId``."""
    start = _members(("version", VERSION), ("connector", CONNECTOR), ("name", log.prefix))
    database = _members(("db", log.database))
    table = _members(("schema", schema.namespace), ("table", schema.table))
    return (
        f',"source":{{{start},"ts_ms":'.encode(),
        f',"snapshot":{snapshot},{database},"sequence":"['.encode(),
        f',{table},"txId":'.encode(),
    )


def _members(*pairs: tuple[str, str]) -> str:
    return ",".join(f"{label(name)}{encode_basestring(text)}" for name, text in pairs)

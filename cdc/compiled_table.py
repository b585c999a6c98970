"""A table's plan and JSON converters → what the compiled way needs, where it writes the same.

It takes values as it finds them in PostgreSQL's texts, so it has nothing for events that are
counted, compared, transformed or in another format; and columns that it doesn't know (masked ones,
rare types) go through the same functions as in the readable way.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdc import event_schemas
from cdc.changes import ABSENT, Operation
from cdc.convert.json_text import JsonConverter, Write, encoded, label
from cdc.events import SourceText
from cdc.fields import EventField
from cdc.records.connect import DECIMAL
from cdc.records.schema import TableSchema
from cdc.reference import TableEvents
from cdc.values import Kind
from cdc.wal.compiled import fast

_ROWS: Final = {Operation.CREATE.value, Operation.UPDATE.value, Operation.DELETE.value}
_JAVA_FLOAT: Final = 1
"""In place of a FLOAT's number of digits."""
_LEFT_OUT: Final["fast.Column"] = (
    *(-1, 0, b"", b"", b"", b""),
    lambda _text: "",
)
"""A column that events don't have."""


def compiled_table(
    schema: TableSchema,
    events: TableEvents,
    converters: tuple[JsonConverter, JsonConverter],
    headers: list[tuple[str, bytes]],
    *,
    reselects: bool,
    position_header: bool,
) -> "fast.Table | None":
    """The table for the compiled way; None where that can't have it.

    ``converters`` are the key's and the value's, ``headers`` what every record has in front of its
    position.
    """
    key, value = converters
    plan, rules = events.plan, events.rules
    if fast is None or rules.events.skip_without_change or _ROWS & rules.events.skipped:
        return None
    columns: list[fast.Column] = [_LEFT_OUT] * len(schema.columns)
    for field in plan.row:
        columns[field.column] = _column(field, value)
    if not all(_is_of_row(field, plan.row, columns, converters) for field in plan.key):
        return None
    key_around = ("", "") if plan.key_schema is None else key.around(plan.key_schema)
    around = *value.around(plan.envelope_schema), *key_around
    snapshot = value.writer(event_schemas.SNAPSHOT)("false" if rules.lossless else None)
    source = SourceText(schema, events.log.prefix, events.log.database)
    return fast.Table(
        schema.topic,
        columns,
        [field.column for field in plan.key],
        source.around(snapshot),
        (events.tombstones, reselects, position_header),
        f"/{schema.version}".encode(),
        tuple(text.encode() for text in around),
        tuple(headers),
    )


def _column(field: EventField, converter: JsonConverter) -> "fast.Column":
    write = converter.writer(field.schema)
    kind, digits = field.kind, field.digits
    if kind.of_element is Kind.FLOAT and converter.options.java_floats:
        digits = _JAVA_FLOAT
    schema = field.schema.items or field.schema
    if schema.name == DECIMAL and converter.options.decimal_numbers:
        kind = Kind.OTHER
    name = label(field.name)
    return (
        kind,
        digits,
        f",{name}".encode(),
        _member(name, write, field.null),
        _member(name, write, field.unavailable),
        _member(name, write, field.unsent),
        partial(_fragment, write, field),
    )


def _member(name: str, write: Write, value: Any) -> bytes:
    """A member that needs no text of PostgreSQL's; nothing at all where it is left out."""
    return b"" if value is ABSENT else encoded(f",{name}{write(value)}")


def _fragment(write: Write, field: EventField, text: bytes) -> str:
    return write(field.decode(text))


def _is_of_row(
    field: EventField,
    row: tuple[EventField, ...],
    columns: "list[fast.Column]",
    converters: tuple[JsonConverter, JsonConverter],
) -> bool:
    """Whether a key's member reads the same in the row, from which it is copied."""
    twin = next((one for one in row if one.column == field.column), None)
    if twin is None or not (twin.exact and field.exact):
        return False
    of_key, of_row = _column(field, converters[0]), columns[field.column]
    if of_row[0] == Kind.OTHER:  # a converter writes all of it: numbers within it, too
        key, value = (replace(one.options, schemas=False) for one in converters)
        if key != value:
            return False
    return of_key[:6] == of_row[:6]

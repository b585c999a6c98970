"""A column → functions from a value's text to what an event says; the errors name the column."""

from typing import Any

from cdc.errors import CorruptMessageError
from cdc.records.schema import Column, TableName
from cdc.settings.modes import ValueModes
from cdc.values.blocks import MALFORMED, Codec, Decode, Fragment, UnconvertibleError, json_value
from cdc.values.types import NATIVE, codec


def json_fragment(column: Column, modes: ValueModes = NATIVE) -> Fragment:
    """Text → JSON, the fast way; raises one of MALFORMED, which ``malformed`` explains."""
    return _required(column, modes).fragment


def decode(column: Column, table: TableName, modes: ValueModes = NATIVE) -> Decode:
    """Text → value as JSON has it, the readable way; raises CorruptMessageError."""
    one = _required(column, modes)

    def decode_value(value: bytes) -> Any:
        try:
            return json_value(one.decode(value), one.schema)
        except MALFORMED as error:
            raise malformed(column, table, error) from error

    return decode_value


def _required(column: Column, modes: ValueModes) -> Codec:
    found = codec(column, modes)
    if found is None:
        raise LookupError(f"column {column.name} is left out of events")
    return found


def malformed(
    column: Column, table: TableName, error: Exception | None = None
) -> CorruptMessageError:
    """The error for a text that isn't of its column's type; it never shows the text."""
    if isinstance(error, UnconvertibleError):
        return CorruptMessageError(
            f"a value of column {column.name}, a {column.declared}, can't be written: {error}",
            where=f"table {table}",
            remedy="choose a mode that has a form for it (docs/types.md), or lossless = false,"
            " which writes null",
        )
    return CorruptMessageError(
        f"a value of column {column.name} isn't a {column.declared}", where=f"table {table}"
    )

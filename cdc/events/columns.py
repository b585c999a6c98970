"""A column → all that events need to know about its values: the one seam to the codecs."""

from typing import Any, NamedTuple

from cdc import values
from cdc.records.connect import Schema
from cdc.records.schema import Column, TableName
from cdc.settings.modes import ValueModes
from cdc.values import MALFORMED, Decode, Kind, malformed


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
    kind: Kind
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

"""A table's columns before and after DDL → those in which rows have other values by it.

ALTER TABLE … ADD COLUMN with a default gives every row a value, ALTER COLUMN … TYPE a new one, and
neither is in the stream: what the log has of these rows is to be read again.
https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-NOTES
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from cdc.records.schema import Column, TableSchema

_SAME_TEXT: Final = {"text", "varchar"}
"""From one to the other a value stays what it is, if there is room."""


def altered_columns(
    before: TableSchema,
    after: TableSchema,
    filled: Callable[[int, Sequence[str]], Collection[str]],
) -> list[str]:
    """The columns of the later version in which rows may have values that no event has told.

    ``filled`` tells of a table, by its OID, in which of the new columns rows have such values.
    """
    if before.oid != after.oid:
        return []
    numbered = all(one.number is not None for one in (*before.columns, *after.columns))
    known = {(one.number if numbered else one.name): one for one in before.columns}
    new, altered = [], []
    for column in after.columns:
        was = known.get(column.number if numbered else column.name)
        if was is None:
            new.append(column.name)
        elif not _keeps_values(was, column):
            altered.append(column.name)
    return [*altered, *sorted(filled(after.oid, new))] if new else altered


def _keeps_values(before: Column, after: Column) -> bool:
    """Whether the column's type, if it is another one, has left every value as it was."""
    if (before.type_oid, before.modifier) == (after.type_oid, after.modifier):
        return True
    if before.array != after.array:
        return False
    if {before.type, after.type} <= _SAME_TEXT:
        return after.modifier == -1 or 0 <= before.modifier <= after.modifier
    if before.type == after.type == "numeric":
        room, had = after.precision_scale, before.precision_scale
        return room is None or (had is not None and had[0] <= room[0] and had[1] == room[1])
    return False

"""A table's columns before and after DDL → those in which rows have other values by it.

ALTER TABLE … ADD COLUMN with a default gives every row a value, ALTER COLUMN … TYPE a new one, and
neither is in the stream: what the log has of these rows is to be read again.
https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-NOTES
"""

from collections.abc import Callable, Collection
from typing import Final

from cdc.records.schema import Column, TableSchema

_SAME_TEXT: Final = {"text", "varchar"}
"""From one to the other, of whatever length, a value stays what it is."""


def altered_columns(
    before: TableSchema, after: TableSchema, filled: Callable[[int], Collection[str]]
) -> list[str]:
    """The columns of the later version in which rows may have values that no event has told.

    ``filled`` tells of a table, by its OID, in which columns a row has a value that nothing wrote.
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
    there = filled(after.oid) if new else ()
    return [*altered, *(name for name in new if name in there)]


def _keeps_values(before: Column, after: Column) -> bool:
    """Whether the column's type, if it is another one, has left every value as it was."""
    if before.array == after.array and {before.type, after.type} <= _SAME_TEXT:
        return True
    if before.precision_scale and after.precision_scale:
        return before.precision_scale[1] == after.precision_scale[1]
    kinds = ((one.type_oid, one.array, one.modifier) for one in (before, after))
    return len(set(kinds)) == 1

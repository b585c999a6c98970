"""A table's schema versions → its generations: successive versions with the same key.

Under another key, rows are other rows, and changes of one key don't find rows of the other. So the
daemon reads such a table again after a TRUNCATE (cdc/tables/doubts.py), and all rows of a
generation come after it. Earlier rows end with it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.records.position import Position
from cdc.records.schema import TableSchema
from cdc.settings.lakehouse import DerivedTable
from sinks.changes.ends import RowsEnd
from sinks.changes.shape import DerivedField, TableShape, column_lines, keeps_names, typed


def generations(versions: Sequence[TableSchema]) -> dict[int, int]:
    """Return the first version of each version's generation."""
    lines = column_lines(versions) if len(versions) > 1 else []
    begun, before = dict[int, int](), list[tuple[int, str]]()
    for version in versions:
        sources = ((line.sources.get(version.version), line.id) for line in lines)
        key = sorted((of.key, id_) for of, id_ in sources if of is not None and of.key is not None)
        is_same = bool(begun) and key == before
        begun[version.version] = begun[max(begun)] if is_same else version.version
        before = key
    return begun


def newest_generation(versions: Sequence[TableSchema]) -> int:
    """Return the first version of the newest generation."""
    return generations(versions)[versions[-1].version]


def keeps_rows(versions: Sequence[TableSchema], reached: int, reserved: Collection[str]) -> bool:
    """Whether data up to a version has the newest version's key and column names."""
    begun = generations(versions)
    is_same = begun.get(reached) == begun[versions[-1].version]
    return is_same and keeps_names(versions, reached, reserved)


def begins_read(versions: Sequence[TableSchema], ends: Collection[RowsEnd]) -> bool:
    """Whether all rows have ended since the newest generation began. Later ones belong to it.

    A read that finds the changed key itself ends the rows directly before that.
    """
    newest = newest_generation(versions)
    since = next(Position.parse(each.since) for each in versions if each.version == newest)
    return any(not end.bounds and end.position >= since.just_before() for end in ends)


def ends_under(versions: Sequence[TableSchema], ends: Iterable[RowsEnd]) -> list[RowsEnd]:
    """Return the ends of all rows, and those whose bounds use the newest generation's key."""
    begun = generations(versions)
    others = {number for number in begun if begun[number] != begun[versions[-1].version]}
    later = versions[-1].version + 1
    return [
        end
        for end in ends
        if not end.bounds or (end.schema_version < later and end.schema_version not in others)
    ]


def forgotten_end(
    versions: Sequence[TableSchema], earlier: TableSchema, ends: Iterable[RowsEnd]
) -> Position | None:
    """Return where rows with an ``earlier`` version's key ended. None: the ``ends`` have it.

    If several reads follow, each with another key, compaction keeps only the last TRUNCATE. Under
    the next key no change mentions those rows, so the TRUNCATE before it is the last one for them.
    """
    begun = generations(versions)
    begins = [each for each in versions if begun[each.version] == each.version]
    later = [each for each in begins if each.version > begun[earlier.version]]
    since = [Position.parse(each.since).just_before() for each in later]
    if not since:
        return None
    here = (end.position for end in ends if not end.bounds and end.position >= since[0])
    is_kept = any(len(since) == 1 or position < since[1] for position in here)
    return None if is_kept else since[0]


def of_newest(raw: DataFrame, versions: Sequence[TableSchema], last: int = 0) -> DataFrame:
    """Return the newest generation's raw records, without later ones than version ``last``.

    Records without a version stay, so that parse refuses them.
    """
    newest, number = newest_generation(versions), F.col("schema_version")
    if newest != versions[0].version:
        raw = raw.where(number.isNull() | (number >= newest))
    if versions[-1].version < last:
        raw = raw.where(number.isNull() | (number <= versions[-1].version))
    return raw


def require_one(versions: Sequence[TableSchema]) -> None:
    """Raise SinkError if the key has changed, and it is unknown which rows that ended."""
    if newest_generation(versions) != versions[0].version:
        keys = [
            ", ".join(f"{column.name} ({column.declared})" for column in version.key) or "none"
            for version in versions
        ]
        raise SinkError(
            f"the table's key has changed: {' → '.join(dict.fromkeys(keys))}",
            where=f"table {versions[-1].name}",
            remedy="rows of the old key can't be found by the new one: give the table a new topic,"
            " and remove the derived table",
        )


def earlier_shapes(
    shape: TableShape,
    applied: int,
    stored: Mapping[str, str],
    options: DerivedTable,
    first: int,
) -> list[TableShape]:
    """Return the columns under each earlier key, oldest first, from the ``applied`` version on.

    Rows without a key have no history.

    See ``of_generation``.
    """
    begun, versions = generations(shape.versions), shape.versions
    lasts = [
        number
        for number, version in enumerate(versions, start=1)
        if number < len(versions) and begun[versions[number].version] == versions[number].version
        if version.version >= applied and version.key
    ]
    return [of_generation(shape, versions[:last], stored, options, first) for last in lasts]


def of_generation(
    shape: TableShape,
    versions: Sequence[TableSchema],
    stored: Mapping[str, str],
    options: DerivedTable,
    first: int,
) -> TableShape:
    """Return the columns of ``shape`` with the key of these earlier ``versions``.

    Dropped columns of that key come after the others. ``stored`` are the names of the derived
    table's columns, by their ids. ``first`` is the version that it began with.
    """
    last = versions[-1]
    fields = [_with_key_of(field, last.version) for field in shape.fields]
    _require_shown(fields, last)
    taken, there = {*shape.names, *stored.values()}, {field.id for field in fields}
    for line in column_lines(versions):
        column = line.sources.get(last.version)
        if column is None or column.key is None or line.id in there:
            continue
        name = stored.get(line.id) or f"_millrace_key_{column.key}"
        assert line.id in stored or name not in taken  # noqa: S101 (no column has this name)
        fields.append(
            replace(typed(line, last, first, options), name=name, nulled=False, unfit_is_null=False)
        )
    return TableShape(shape.table, tuple(fields), tuple(versions), shape.salt)


def _with_key_of(field: DerivedField, version: int) -> DerivedField:
    column = field.sources.get(version)
    if column is None:
        column = field.column.model_copy(update={"key": None})
    return replace(field, column=column)


def _require_shown(fields: Iterable[DerivedField], version: TableSchema) -> None:
    """Raise SinkError if the values of a version's key are hidden."""
    keyed = (field for field in fields if field.column.key is not None)
    if hidden := [field.column.name for field in keyed if field.nulled or field.unfit_is_null]:
        raise SinkError(
            f"columns that were in the key up to schema version {version.version} can't be null:"
            f" {', '.join(hidden)}",
            where=f"table {version.name}",
            remedy="a history needs them to tell earlier rows from each other: hash them, or leave"
            " them out (exclude)",
        )

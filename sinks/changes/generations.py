"""A table's schema versions → its generations: those in a row whose key tells rows apart alike.

Under another key, rows are other rows: none of the one is found by the other. So the daemon reads
such a table again behind a TRUNCATE (cdc/tables/doubts.py), and a generation's rows have all come
behind that. What was there before ends with it.
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
    """Of each version: the one with which its generation begins."""
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
    """The version with which the newest generation begins."""
    return generations(versions)[versions[-1].version]


def keeps_rows(versions: Sequence[TableSchema], reached: int, reserved: Collection[str]) -> bool:
    """Whether what was made up to a version goes by the newest one's key and columns' names."""
    begun = generations(versions)
    is_same = begun.get(reached) == begun[versions[-1].version]
    return is_same and keeps_names(versions, reached, reserved)


def begins_read(versions: Sequence[TableSchema], ends: Collection[RowsEnd]) -> bool:
    """Whether all rows have ended since the newest generation began: what came then is of it.

    The end of a read that finds another key itself stands right before that.
    """
    newest = newest_generation(versions)
    since = next(Position.parse(each.since) for each in versions if each.version == newest)
    return any(not end.bounds and end.position >= since.just_before() for end in ends)


def ends_under(versions: Sequence[TableSchema], ends: Iterable[RowsEnd]) -> list[RowsEnd]:
    """The ends of all rows, and those within bounds of columns of the newest generation's key."""
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
    """Where rows under an ``earlier`` version's key ended; None if the ``ends`` have it.

    Of several reads, each under another key, compaction keeps only the last TRUNCATE. Under the
    next key no change speaks of those rows, so the one before that is the last to do so.
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
    """The raw records of the newest generation; none of later ones, up to the ``last`` version.

    Records without a version stay, for parse to refuse.
    """
    newest, number = newest_generation(versions), F.col("schema_version")
    if newest != versions[0].version:
        raw = raw.where(number.isNull() | (number >= newest))
    if versions[-1].version < last:
        raw = raw.where(number.isNull() | (number <= versions[-1].version))
    return raw


def require_one(versions: Sequence[TableSchema]) -> None:
    """Raise SinkError where the key has changed, and nothing tells which rows ended by that."""
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
    """The columns under each earlier key, oldest first; none before the ``applied`` version's.

    Rows that no key told apart have no history.

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
    """The columns of ``shape`` with the key that the table had in these earlier ``versions``.

    Columns of that key which are gone by now come behind the others. ``stored`` are the names of
    the derived table's columns, by their ids; ``first`` is the version that it began with.
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
        assert line.id in stored or name not in taken  # noqa: S101 (no column is called so)
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
    """Raise SinkError where the values are hidden by which a version tells rows apart."""
    keyed = (field for field in fields if field.column.key is not None)
    if hidden := [field.column.name for field in keyed if field.nulled or field.unfit_is_null]:
        raise SinkError(
            f"columns that were in the key up to schema version {version.version} can't be null:"
            f" {', '.join(hidden)}",
            where=f"table {version.name}",
            remedy="a history needs them to tell earlier rows from each other: hash them, or leave"
            " them out (exclude)",
        )

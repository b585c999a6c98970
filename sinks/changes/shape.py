"""A table's schema versions and the user's column options → the columns of a derived table.

Columns of two versions are the same if PostgreSQL's number is (of the same table), otherwise if the
name is. So a rename renames the derived column, and a column that was dropped and created again is
a new one. Its type grows with the source's if Delta can widen it. A key's column whose new type
can't hold its values is also a new one. It identifies other rows, so the table begins a new
generation (sinks/changes/generations.py).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

from cdc.errors import SinkError
from cdc.records.position import Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings.lakehouse import DerivedTable, Unfit
from sinks.changes.names import NOT_IN_PARQUET
from sinks.changes.types import can_be_absent, holds, spark_type, widens

_SUFFIX: Final = re.compile(r"__v?\d+$")
"""Suffix of a name that another column, or one of another type, had first."""


@dataclass(frozen=True, slots=True)
class DerivedField:
    """A column of a derived table.

    ``id`` stays the same if the column is renamed. ``column`` is the newest version's. ``sources``
    has the column of each schema version that has it. ``type`` is in Spark's words. If the column
    ``partitions`` the table, each value has a folder.
    """

    id: str
    name: str
    type: str
    column: Column
    sources: Mapping[int, Column]
    hashed: bool = False
    nulled: bool = False
    unfit_is_null: bool = False
    partitions: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns of a derived table, as the newest version has them, and all versions.

    ``dropped`` has the ids of columns to remove: the source has certainly dropped them, or the
    options exclude them. ``gone`` has names that only columns had which the newest version lacks,
    dropped or not.
    """

    table: TableName
    fields: tuple[DerivedField, ...]
    versions: tuple[TableSchema, ...]
    salt: str = field(default="", repr=False)
    dropped: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [field.name for field in self.fields]

    @property
    def keys(self) -> list[str]:
        """The names of the key's columns, in key order."""
        keyed = [field for field in self.fields if field.column.key is not None]
        return [field.name for field in sorted(keyed, key=lambda field: field.column.key or 0)]

    def still(self, names: Iterable[str]) -> list[str]:
        """Return those of the columns that the user has named which still exist."""
        there = {name.lower() for name in self.names}
        gone = {name.lower() for name in self.gone}

        def is_gone(name: str) -> bool:
            return name not in there and not gone.isdisjoint({name, _SUFFIX.sub("", name)})

        return [name for name in names if not is_gone(name.lower())]

    @property
    def patchy(self) -> list[str]:
        """Return the names of the columns that an update may have no value for.

        None of them is in the key, whatever it was before: every record with that key has it.
        """
        return [
            field.name
            for field in self.fields
            if field.column.key is None and not field.nulled
            if any(can_be_absent(source) for source in field.sources.values())
        ]


def plain_shape(
    versions: Sequence[TableSchema], reserved: Collection[str], unfit_is_null: Collection[str] = ()
) -> TableShape:
    """Return all columns as the newest version has them."""
    newest = versions[-1]
    unfit: dict[str, Unfit] = dict.fromkeys(unfit_is_null, "null")
    options = DerivedTable.model_construct(source=str(newest.name), unfit=unfit)
    return derive_shape(versions, newest.version, options, reserved)


def keeps_names(versions: Sequence[TableSchema], reached: int, reserved: Collection[str]) -> bool:
    """Whether data up to a schema version has the newest one's columns under the same names.

    It doesn't if one was renamed, or a new one has the name of a dropped one.
    """
    used = {
        column.name
        for version in versions
        if version.version <= reached
        for column in version.event_columns
    }
    return all(
        source.name == field.column.name
        if (source := field.sources.get(reached)) is not None
        else field.column.name not in used
        for field in plain_shape(versions, reserved).fields
    )


def drops_since(versions: Sequence[TableSchema], reached: int) -> bool:
    """Whether the newest version lacks a column that a schema version had."""
    newest = versions[-1].version
    lines = column_lines(versions)
    return any(reached in line.sources and newest not in line.sources for line in lines)


def derive_shape(
    versions: Sequence[TableSchema],
    first: int,
    options: DerivedTable,
    reserved: Collection[str],
    *,
    salt: str = "",
    by_key: bool = True,
) -> TableShape:
    """Return the derived columns of a table that began with version ``first``.

    ``reserved`` are names that its columns can't have. ``salt`` is added to the input of a hash
    mask. Raise SinkError if a type has changed to one that doesn't fit, if an option names no
    column, or if it hides the key of rows that are identified ``by_key``.
    """
    newest = versions[-1]
    replaced = (*options.mask.items(), *options.unfit.items())
    hidden = {*options.exclude, *(name for name, what in replaced if what == "null")}
    lost = [column.name for column in newest.key if column.name in hidden]
    if by_key and lost:
        raise SinkError(
            f"columns of the key can't be left out, or be null: {', '.join(lost)}",
            where=f"table {newest.name}",
            remedy="keep them, or hash them; a table of kind changes doesn't need them",
        )
    names = {column.name for version in versions for column in version.columns}
    named = (options.include, options.exclude, options.rename, options.mask, options.types)
    if unknown := sorted({*chain(*named, options.unfit)} - names):
        raise SinkError(
            f"[[lakehouse.tables]] names columns that {newest.name} doesn't have:"
            f" {', '.join(unknown)}",
            where=f"table {newest.name}",
            remedy="correct the names: they are those in the source",
        )
    lines = column_lines(versions)
    live = [typed(line, newest, first, options) for line in lines if newest.version in line.sources]
    places = {column.name: place for place, column in enumerate(newest.columns)}
    live.sort(key=lambda field: places[field.column.name])
    return TableShape(
        newest.name,
        _called([field for field in live if _is_kept(field.column, options)], options, reserved),
        tuple(versions),
        salt,
        _dropped(lines, newest.version, options),
        _gone(lines, newest, options),
    )


@dataclass(slots=True)
class ColumnLine:
    """One column across versions. ``sources`` has it by the number of each version that has it.

    It ``is_ended`` if the next version certainly lacks it. If columns are matched by name, it may
    have been renamed.
    """

    id: str
    sources: dict[int, Column]
    is_ended: bool = False

    @property
    def last(self) -> Column:
        """Return the column in the last version that has it."""
        return self.sources[max(self.sources)]


def column_lines(versions: Sequence[TableSchema]) -> list[ColumnLine]:
    """Return all columns of the versions, in the order of their appearance."""
    lines: list[ColumnLine] = []
    before: TableSchema | None = None
    for version in versions:
        numbered = before is not None and _are_numbered(before, version)
        open_lines = {
            (column.number if numbered else column.name): line
            for line in lines
            if before is not None and (column := line.sources.get(before.version)) is not None
        }
        for column in version.event_columns:
            line = open_lines.get(column.number if numbered else column.name)
            if line is None or (before and _is_other_key(line.sources[before.version], column)):
                line = ColumnLine(f"{version.version}:{column.name}", {})
                lines.append(line)
            line.sources[version.version] = column
        left_out = {column.name for column in version.columns if column.left_out}
        for line in open_lines.values():
            if version.version not in line.sources:
                line.is_ended = numbered or line.last.name in left_out
        before = version
    return lines


def _dropped(lines: Iterable[ColumnLine], newest: int, options: DerivedTable) -> frozenset[str]:
    """Return ``TableShape.dropped``. A column of a changed type may have had its own id since.

    A column that may only have been renamed stays: only it has a history's older values. A
    history's former key also stays, as it identifies earlier rows.
    """
    return frozenset(
        f"{version}:{column.name}"
        for line in lines
        if not _is_kept(line.last, options) or (newest not in line.sources and line.is_ended)
        if options.kind != "history" or all(of.key is None for of in line.sources.values())
        for version, column in line.sources.items()
    )


def _gone(
    lines: Iterable[ColumnLine], newest: TableSchema, options: DerivedTable
) -> frozenset[str]:
    """Return ``TableShape.gone``: the names as the derived table would have them."""
    ended = (line for line in lines if newest.version not in line.sources)
    had = {column.name for line in ended for column in line.sources.values()}
    there = {column.name for column in newest.event_columns}
    named = partial(_named, options)
    return frozenset(map(named, had)) - frozenset(map(named, there))


def _is_other_key(before: Column, column: Column) -> bool:
    """Whether a column of the key must be another one, as earlier values don't fit."""
    if before.key is None or column.key is None:
        return False
    was, kind = spark_type(before), spark_type(column)
    return not (holds(was, kind) or widens(was, kind))


def _are_numbered(older: TableSchema, newer: TableSchema) -> bool:
    """Whether PostgreSQL's numbers identify the columns of both versions."""
    columns = (*older.columns, *newer.columns)
    same = older.oid == newer.oid != 0 and _epoch(older) == _epoch(newer)
    return same and all(column.number is not None for column in columns)


def _epoch(version: TableSchema) -> int:
    """Return the version's epoch. Another epoch may be another cluster, with other OIDs."""
    return Position.parse(version.since).epoch


def typed(line: ColumnLine, newest: TableSchema, first: int, options: DerivedTable) -> DerivedField:
    """Return the field with the type that results from its versions since ``first``."""
    column = line.sources[newest.version]
    chosen_type = options.types.get(column.name)
    mask = options.mask.get(column.name)
    field = DerivedField(
        line.id,
        column.name,
        "",
        column,
        line.sources,
        hashed=mask == "hash",
        nulled=mask == "null",
        unfit_is_null=options.unfit.get(column.name) == "null",
    )
    if field.hashed or chosen_type is not None:
        kind = "string" if field.hashed else _chosen(column, chosen_type or "", newest)
        return replace(field, type=kind)
    for number, source in sorted(line.sources.items()):
        kind = spark_type(source)
        if number <= first or not field.type:
            field = replace(field, type=kind)
        elif not holds(field.type, kind):
            field = _changed(field, kind, number, newest, options)
    return field


def _chosen(column: Column, chosen_type: str, newest: TableSchema) -> str:
    if column.array:
        raise SinkError(
            f"types: {column.name} is an array, and types can't set its type",
            where=f"table {newest.name}",
        )
    return chosen_type.replace(" ", "")


def _changed(
    field: DerivedField, kind: str, number: int, newest: TableSchema, options: DerivedTable
) -> DerivedField:
    """Return the field after the source's type has become one that this one can't hold."""
    if widens(field.type, kind):
        return replace(field, type=kind)
    if options.incompatible == "cast":
        return field
    if options.incompatible == "new_column":
        sources = {
            version: source for version, source in field.sources.items() if version >= number
        }
        name = f"{field.column.name}__v{number}"
        return replace(
            field, id=f"{number}:{sources[number].name}", name=name, type=kind, sources=sources
        )
    anew = "rebuild the table: `millrace rebuild lakehouse` with its name"
    if options.kind != "current":  # its older rows have values, too
        anew = f'set types = {{ {field.column.name} = "string" }} there, and {anew}'
    raise SinkError(
        f"column {field.column.name} has type {field.type} here, but {field.column.declared} in"
        f" the source from schema version {number} on: {kind} can't hold the old values",
        where=f"table {newest.name}",
        remedy='set incompatible = "cast" or "new_column" for the table in [[lakehouse.tables]], '
        f"or {anew}",
    )


def _is_kept(column: Column, options: DerivedTable) -> bool:
    if options.include and column.name not in options.include and column.key is None:
        return False
    return column.name not in options.exclude


def _called(
    fields: list[DerivedField], options: DerivedTable, reserved: Collection[str]
) -> tuple[DerivedField, ...]:
    """Return the fields with names that differ in any case, as Spark's must.

    A name that differs from an earlier one only by case, or is one of ours, gets ``__2`` appended
    (``__3`` and so on if that is taken). For other readers, ``_`` replaces characters that need
    Delta's column mapping.
    """
    wanted = [_named(options, field.column.name, field.name) for field in fields]
    own = {name.lower() for name in reserved}
    taken = own | {name.lower() for name in wanted}
    used = set(own)
    called: list[DerivedField] = []
    for original, first_choice in zip(fields, wanted, strict=True):
        name, number = first_choice, 2
        while name.lower() in used or (name != first_choice and name.lower() in taken):
            name, number = f"{first_choice}__{number}", number + 1
        used.add(name.lower())
        called.append(replace(original, name=name, partitions=name in options.partition))
    return tuple(called)


def _named(options: DerivedTable, column: str, usual: str | None = None) -> str:
    """Return the options' name of a column, unless the name is taken."""
    name = options.rename.get(column, usual or column)
    return NOT_IN_PARQUET.sub("_", name) if options.compatibility == "readers" else name

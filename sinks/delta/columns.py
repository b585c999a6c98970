"""The columns of a Delta table, and the wanted ones → the steps from one to the other.

A column's id is in its comment, and a step refers to the column by it. So steps need no order, two
columns can swap names, and after some steps a new plan has the rest. All steps are planned before
any change, and one commit applies them.

This module handles data, without a JVM: fields are those of Delta's log.
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#schema-serialization-format
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StructField

from cdc.errors import SinkError
from cdc.settings.drops import COLUMN_POLICY
from sinks.changes.names import COLUMN_ID, quoted
from sinks.changes.shape import DerivedField
from sinks.changes.types import widens

LoggedField = dict[str, Any]
"""A column in Delta's log: name, type, nullable, metadata."""
_IN_JSON: Final = {"smallint": "short", "int": "integer", "bigint": "long"}
"""Types whose names in Delta's log differ from Spark's words."""
_ARRAY: Final = "array<"
_CONSTRAINT: Final = "delta.constraints."
_TYPE_CHANGES: Final = "delta.typeChanges"


class AddColumn(NamedTuple):
    """Add a column. Existing rows have null."""

    id: str
    name: str
    type: str


class RenameColumn(NamedTuple):
    """Rename a column, which keeps its values."""

    id: str
    name: str
    to: str


class WidenColumn(NamedTuple):
    """Widen a column to a type that holds all of its values."""

    id: str
    name: str
    to: str


class DropColumn(NamedTuple):
    """Remove a column with its values."""

    id: str
    name: str


ColumnStep = AddColumn | RenameColumn | WidenColumn | DropColumn


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Delta's log of a table's columns: the columns, its partitioning, its properties."""

    fields: tuple[LoggedField, ...]
    partitioned_by: tuple[str, ...]
    properties: Mapping[str, str]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> "TableColumns":
        """Return the columns in a table's metadata."""
        fields = json.loads(metadata["schemaString"])["fields"]
        partitioned_by = tuple(metadata["partitionColumns"])
        return cls(tuple(fields), partitioned_by, metadata["configuration"])

    def into(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata with these columns."""
        return {
            **metadata,
            "schemaString": json.dumps({"type": "struct", "fields": self.fields}),
            "partitionColumns": list(self.partitioned_by),
            "configuration": dict(self.properties),
        }

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [field["name"] for field in self.fields]

    def before(self, there: "TableColumns") -> list[str | None]:
        """Return each column's name in ``there``, an earlier state. None: it didn't exist."""
        names = {_identity(field): field["name"] for field in there.fields}
        return [names.get(_identity(field)) for field in self.fields]

    def after(self, steps: Sequence[ColumnStep], *, rewritten: bool = False) -> "TableColumns":
        """Return the columns after the steps. Files are unchanged, or ``rewritten``."""
        fields = {_identity(field): field for field in self.fields}
        for step in steps:
            match step:
                case AddColumn():
                    fields[step.id, ""] = _new_field(step)
                case DropColumn():
                    del fields[step.id, ""]
                case WidenColumn():
                    fields[step.id, ""] = _widened(fields[step.id, ""], step.to, told=not rewritten)
                case RenameColumn():
                    fields[step.id, ""] = {**fields[step.id, ""], "name": step.to}
        renamed = {step.name: step.to for step in steps if isinstance(step, RenameColumn)}
        partitioned_by = tuple(renamed.get(name, name) for name in self.partitioned_by)
        return replace(self, fields=tuple(fields.values()), partitioned_by=partitioned_by)


def plan_steps(
    there: TableColumns, wanted: Sequence[DerivedField], drops: Collection[str] = ()
) -> tuple[ColumnStep, ...]:
    """Return the steps from a table's columns to the wanted ones. Raise SinkError.

    Other columns stay, except those that it ``drops``, by their ids. If a wanted column needs the
    name of one that stays, that one is renamed.
    """
    standing = {id_: field for field in there.fields if (id_ := column_id(field)) is not None}
    others = {field["name"].lower() for field in there.fields if column_id(field) is None}
    names = {field.name.lower() for field in wanted} | others
    steps: list[ColumnStep] = []
    for field in wanted:
        if field.name.lower() in others:
            raise SinkError(
                f"the table has a column {field.name} that Millrace didn't create",
                remedy="drop or rename that column of the Delta table, or rename the source's"
                " column with rename in [[lakehouse.tables]]",
            )
        if field.id not in standing:
            steps.append(AddColumn(field.id, field.name, field.type))
            continue
        steps += _changed(standing[field.id], field)
    left = {id_: field["name"] for id_, field in standing.items()}
    for field in wanted:
        left.pop(field.id, None)
    steps += [DropColumn(id_, left.pop(id_)) for id_ in [*left] if id_ in drops]
    steps += _made_way(left, names)
    _require_possible(there, steps)
    return tuple(steps)


def _changed(there: LoggedField, field: DerivedField) -> list[ColumnStep]:
    """Return the steps of an existing wanted column."""
    steps: list[ColumnStep] = []
    if there["name"] != field.name:
        steps.append(RenameColumn(field.id, there["name"], field.name))
    kind = type_of(there)
    if kind != field.type:
        if not widens(kind, field.type):
            raise SinkError(
                f"column {there['name']} has type {kind} and can't become {field.type}",
                remedy="undo the change of its type in the configuration (types, mask), or rebuild"
                " the table: `millrace rebuild lakehouse` with its name",
            )
        steps.append(WidenColumn(field.id, field.name, field.type))
    return steps


def _made_way(left: Mapping[str, str], names: set[str]) -> list[ColumnStep]:
    """Return new names for remaining columns whose names are needed: the old name and a number."""
    taken = names | {name.lower() for name in left.values()}
    steps: list[ColumnStep] = []
    used = set(names)
    for id_, name in left.items():
        if name.lower() not in used:
            used.add(name.lower())
            continue
        number = 1
        while f"{name}__dropped{number}".lower() in taken:
            number += 1
        to = f"{name}__dropped{number}"
        taken.add(to.lower())
        steps.append(RenameColumn(id_, name, to))
    return steps


def _require_possible(there: TableColumns, steps: Iterable[ColumnStep]) -> None:
    """Raise SinkError if the table's settings refer to a column that is removed or renamed."""
    for step in steps:
        if isinstance(step, DropColumn) and step.name in there.partitioned_by:
            raise SinkError(
                f"column {step.name} must be removed, but it partitions the table",
                remedy="rebuild the table: `millrace rebuild lakehouse` with its name; or "
                f'set "{COLUMN_POLICY}" = "keep" for it in [[lakehouse.tables]]',
            )
        if not isinstance(step, DropColumn | RenameColumn):
            continue
        for key, text in there.properties.items():
            if key.startswith(_CONSTRAINT) and _speaks_of(text, step.name):
                constraint = key.removeprefix(_CONSTRAINT)
                raise SinkError(
                    f"constraint {constraint} of the table uses column {step.name}, which the"
                    " source has renamed or dropped",
                    remedy=f"ALTER TABLE … DROP CONSTRAINT {quoted(constraint)}",
                )


def require_replaceable(table: str, there: TableColumns, names: Collection[str]) -> None:
    """Raise SinkError if the table's settings refer to a column that isn't among ``names``.

    Everything else of the table is replaced.
    """
    gone = [DropColumn("", name) for name in there.names if name not in names]
    try:
        _require_possible(replace(there, partitioned_by=()), gone)
    except SinkError as error:
        error.where = table
        raise


def _speaks_of(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


def column_id(field: LoggedField) -> str | None:
    """Return the id of a column. None: the source has no such column."""
    comment = str(field["metadata"].get("comment", ""))
    return comment.removeprefix(COLUMN_ID) if comment.startswith(COLUMN_ID) else None


def _identity(field: LoggedField) -> tuple[str | None, str]:
    """Return what identifies a column: its id, or else its name."""
    id_ = column_id(field)
    return id_, "" if id_ else field["name"]


def type_of(field: LoggedField) -> str:
    """Return a column's type, in Spark's words."""
    return StructField.fromJson(field).dataType.simpleString()


def _new_field(step: AddColumn) -> LoggedField:
    kind: Any = _in_json(step.type)
    if step.type.startswith(_ARRAY):
        element = _in_json(step.type.removeprefix(_ARRAY).removesuffix(">"))
        kind = {"type": "array", "elementType": element, "containsNull": True}
    metadata = {"comment": COLUMN_ID + step.id}
    return {"name": step.name, "type": kind, "nullable": True, "metadata": metadata}


def _widened(field: LoggedField, to: str, *, told: bool) -> LoggedField:
    """Return the column with another type.

    If ``told``, it records that older files have the old one.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#type-change-metadata
    """
    kind = _in_json(to)
    if not told:
        return {**field, "type": kind}
    changes = [
        *field["metadata"].get(_TYPE_CHANGES, []),
        {"fromType": field["type"], "toType": kind},
    ]
    return {**field, "type": kind, "metadata": {**field["metadata"], _TYPE_CHANGES: changes}}


def _in_json(kind: str) -> str:
    return _IN_JSON.get(kind, kind)

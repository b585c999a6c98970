"""The columns of a Delta table, and those that it is to have → the steps from one to the other.

A column is identified by its id, which its comment holds, and a step names it by that. So steps
need no order, two columns can have each other's names, and where some steps are done already, a new
plan has the others. All of them are planned before anything is changed, and one commit takes them.

What is here is data, without a JVM: fields are those of Delta's log.
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
"""A column as Delta's log has it: name, type, nullable, metadata."""
_IN_JSON: Final = {"smallint": "short", "int": "integer", "bigint": "long"}
"""Types that have another name in Delta's log than in Spark's words."""
_ARRAY: Final = "array<"
_CONSTRAINT: Final = "delta.constraints."
_TYPE_CHANGES: Final = "delta.typeChanges"


class AddColumn(NamedTuple):
    """A column that isn't there yet; rows that are there have null."""

    id: str
    name: str
    type: str


class RenameColumn(NamedTuple):
    """A column gets another name, and keeps its values."""

    id: str
    name: str
    to: str


class WidenColumn(NamedTuple):
    """A column gets a type that holds all values of the one that it has."""

    id: str
    name: str
    to: str


class DropColumn(NamedTuple):
    """A column goes, with its values."""

    id: str
    name: str


ColumnStep = AddColumn | RenameColumn | WidenColumn | DropColumn


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What Delta's log says of a table's columns: itself, which partition it, its properties."""

    fields: tuple[LoggedField, ...]
    partitioned_by: tuple[str, ...]
    properties: Mapping[str, str]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> "TableColumns":
        """Those that a table's metadata has."""
        fields = json.loads(metadata["schemaString"])["fields"]
        partitioned_by = tuple(metadata["partitionColumns"])
        return cls(tuple(fields), partitioned_by, metadata["configuration"])

    def into(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata with these columns."""
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
        """What each column is called in ``there``, a state of before; None: it wasn't there."""
        names = {_identity(field): field["name"] for field in there.fields}
        return [names.get(_identity(field)) for field in self.fields]

    def after(self, steps: Sequence[ColumnStep], *, rewritten: bool = False) -> "TableColumns":
        """The columns once the steps are done; files are as they were, or ``rewritten``."""
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
    """The steps that lead from a table's columns to those that are wanted; raises SinkError.

    Columns that aren't wanted any more stay, but those that it ``drops``, by their ids. One whose
    name is needed gets another one.
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
    """What becomes of a column that is there and wanted."""
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
    """New names for the columns left whose names are needed: what they were, and a number."""
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
    """Raise SinkError where something in the table speaks of a column that goes or is renamed."""
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
    """Raise SinkError where something in the table speaks of a column that isn't among ``names``.

    All else of it is made anew.
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
    """The id of a column; None: the source has no such column."""
    comment = str(field["metadata"].get("comment", ""))
    return comment.removeprefix(COLUMN_ID) if comment.startswith(COLUMN_ID) else None


def _identity(field: LoggedField) -> tuple[str | None, str]:
    """What a column is known by: its id, or else its name."""
    id_ = column_id(field)
    return id_, "" if id_ else field["name"]


def type_of(field: LoggedField) -> str:
    """A column's type, in Spark's words."""
    return StructField.fromJson(field).dataType.simpleString()


def _new_field(step: AddColumn) -> LoggedField:
    kind: Any = _in_json(step.type)
    if step.type.startswith(_ARRAY):
        element = _in_json(step.type.removeprefix(_ARRAY).removesuffix(">"))
        kind = {"type": "array", "elementType": element, "containsNull": True}
    metadata = {"comment": COLUMN_ID + step.id}
    return {"name": step.name, "type": kind, "nullable": True, "metadata": metadata}


def _widened(field: LoggedField, to: str, *, told: bool) -> LoggedField:
    """The column of another type; older files have the old one, where that is ``told``.

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

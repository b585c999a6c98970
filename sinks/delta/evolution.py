"""A derived table's columns → those of its Delta table: made, added, renamed, widened.

A column is identified by its id, which its comment holds, so that each step may be repeated
after a crash. Renaming needs Delta's column mapping, which older readers don't know: a table gets
it with its first rename.
"""

import math
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.names import COLUMN_ID, DELETED, END, POSITION, quoted
from sinks.changes.shape import DerivedField, TableShape
from sinks.delta.table import CHECKPOINT_EVERY, DeltaTarget
from sinks.spark.session import first_line

_NOT_IN_PARQUET: Final = re.compile(r"[ ,;{}()\n\t=]")
_NAME_MAPPING: Final = {"delta.columnMapping.mode": "name"}
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_COLUMNS_WITH_STATISTICS: Final = 32
"""So many columns, the first ones, have statistics by Delta's default."""
_WITH_STATISTICS: Final = (
    "smallint", "int", "bigint", "float", "double", "decimal", "date", "timestamp", "string",
)  # fmt: skip
"""Types of which Delta keeps the least and the greatest value."""
_MARGIN_HOURS: Final = 1
"""A run that meets a compaction still stands at the version from before it."""
_LOG_HOURS: Final = 30 * 24
_BETWEEN: Final = "_millrace_renamed_"
"""Opens the name that a column has while it is renamed to one that another column still has."""


def creation_properties(target: DeltaTarget, shape: TableShape) -> dict[str, str]:
    """The Delta properties that a new table needs: for its columns, and to be queried as it was."""
    odd = any(_NOT_IN_PARQUET.search(name) for name in shape.names)
    return {
        **(_NAME_MAPPING if odd else {}),
        **retention_properties(target.derived.keep),
        **_statistics(target, shape),
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        "delta.enableDeletionVectors": str(target.derived.deletion_vectors).lower(),
    }


def _statistics(target: DeltaTarget, shape: TableShape) -> dict[str, str]:
    """Of which columns Delta keeps the least and greatest value, if not of the first ones."""
    if len(shape.names) + len(target.derived.reserved) <= _COLUMNS_WITH_STATISTICS:
        return {}
    options = target.derived.options
    able = [
        field.name
        for field in shape.fields
        if field.type.startswith(_WITH_STATISTICS) and field.name not in options.partition
    ]
    own = [POSITION, *([END] if target.derived.kind == "history" else [])]
    first = dict.fromkeys([*own, *options.cluster, *shape.keys, *able])
    listed = [name for name in first if name in able or name in own]
    kept = listed[:_COLUMNS_WITH_STATISTICS]
    return {_STATISTICS: ",".join(map(quoted, kept))}


def retention_properties(keep: timedelta) -> dict[str, str]:
    """What keeps every version readable for so long; Delta's own defaults are 7 and 30 days."""
    hours = math.ceil(keep / timedelta(hours=1)) + _MARGIN_HOURS
    return {
        "delta.logRetentionDuration": f"interval {max(hours, _LOG_HOURS)} hours",
        "delta.deletedFileRetentionDuration": f"interval {hours} hours",
    }


def columns_with_ids(shape: TableShape) -> list[SparkColumn]:
    """The columns for a new table, each with its id."""
    return [
        F.col(quoted(field.name)).alias(field.name, metadata={"comment": COLUMN_ID + field.id})
        for field in shape.fields
    ]


def dropped_columns(target: DeltaTarget, shape: TableShape) -> list[str]:
    """The table's columns that the source doesn't have any more: null from then on."""
    own = {name.lower() for name in (*target.derived.reserved, *shape.names)}
    return [field.name for field in target.columns() if field.name.lower() not in own]


def evolve(target: DeltaTarget, shape: TableShape) -> None:
    """Add, rename and widen the table's columns to those of a shape; raises SinkError.

    Columns that the source has dropped stay.
    """
    _require_same_deletes(target)
    try:
        _rename(target, shape)
        there = {field.name.lower(): field.dataType.simpleString() for field in target.columns()}
        added = [field for field in shape.fields if field.name.lower() not in there]
        if added:
            _add(target, added)
        for field in shape.fields:
            if there.get(field.name.lower(), field.type) != field.type:
                _widen(target, field)
        cluster(target)
    except PySparkException as error:
        raise SinkError(
            f"the table's columns can't be changed: {first_line(error)}",
            where=target.name,
            remedy="remove the Delta table, so that the next run rebuilds it from the log",
        ) from None


def prepare_replacement(target: DeltaTarget, shape: TableShape) -> None:
    """Let the table take the columns of a shape in place of its own; raises SinkError.

    Properties that name columns of before, which are about to go, are taken away.
    """
    types = " ".join(field.type for field in shape.fields)
    try:
        set_properties(target, _needed_by(shape.names, types))
        if _STATISTICS in target.properties():
            target.spark.sql(f"ALTER TABLE {target.sql_name} UNSET TBLPROPERTIES ('{_STATISTICS}')")
        detail = DeltaTable.forPath(target.spark, target.path).detail().first()
        if detail is not None and list(detail["clusteringColumns"]):
            target.spark.sql(f"ALTER TABLE {target.sql_name} CLUSTER BY NONE")
    except PySparkException as error:
        raise SinkError(
            f"the table can't be written anew: {first_line(error)}",
            where=target.name,
            remedy="remove the Delta table, so that the next run rebuilds it from the log",
        ) from None


def settle(target: DeltaTarget, shape: TableShape) -> None:
    """Have a table that was just written as a whole clustered, with statistics of its columns."""
    cluster(target)
    lacking = _statistics(target, shape).items() - target.properties().items()
    set_properties(target, dict(lacking))


def _needed_by(names: Iterable[str], types: str) -> dict[str, str]:
    """The properties that a table needs to have such columns."""
    properties = _NAME_MAPPING if any(_NOT_IN_PARQUET.search(name) for name in names) else {}
    is_local = "timestamp_ntz" in types
    return {**properties, **({"delta.feature.timestampNtz": "supported"} if is_local else {})}


def _require_same_deletes(target: DeltaTarget) -> None:
    derived = target.derived
    marked = DELETED in target.columns().names
    if derived.kind == "current" and marked != derived.marks_deletes:
        raise SinkError(
            f"the table was begun with deletes = {'mark' if marked else 'remove'}",
            where=target.name,
            remedy="leave it so, or remove the Delta table, so that the next run rebuilds it",
        )


def cluster(target: DeltaTarget) -> None:
    """Have the table clustered as it is to be; only files written from then on are."""
    wanted = list(target.derived.options.cluster)
    if not wanted:
        return
    detail = DeltaTable.forPath(target.spark, target.path).detail().first()
    if detail is not None and list(detail["clusteringColumns"]) != wanted:
        columns = ", ".join(map(quoted, wanted))
        target.spark.sql(f"ALTER TABLE {target.sql_name} CLUSTER BY ({columns})")


def stored_names(target: DeltaTarget) -> dict[str, str]:
    """The names of the table's columns, by their ids."""
    there = ((_id(field.metadata), field.name) for field in target.columns())
    return {id_: name for id_, name in there if id_ is not None}


def _rename(target: DeltaTarget, shape: TableShape) -> None:
    """Give every column that is there already the name that it has now.

    One that the source has dropped gives its name away to a new one.
    """
    names = stored_names(target)
    wanted = {field.id: field.name for field in shape.fields}
    renamed = {id_: name for id_, name in wanted.items() if names.get(id_, name) != name}
    used = {name.lower() for name in wanted.values()}
    for id_, name in names.items():
        if id_ not in wanted and (name.lower() in used or name.startswith(_BETWEEN)):
            had = id_.partition(":")[2] if name.startswith(_BETWEEN) else name
            renamed[id_] = _free(had, used | {other.lower() for other in names.values()})
    if not renamed:
        return
    set_properties(target, _NAME_MAPPING)
    for id_ in renamed:  # by a name in between: two columns may have each other's
        _rename_column(target, names[id_], f"{_BETWEEN}{id_}")
    for id_, name in renamed.items():
        _rename_column(target, f"{_BETWEEN}{id_}", name)


def _free(name: str, taken: set[str]) -> str:
    """A name for a dropped column: the one that it had, and a number."""
    number = 1
    while f"{name}__dropped{number}".lower() in taken:
        number += 1
    return f"{name}__dropped{number}"


def _id(metadata: dict[str, str]) -> str | None:
    comment = metadata.get("comment", "")
    return comment.removeprefix(COLUMN_ID) if comment.startswith(COLUMN_ID) else None


def _rename_column(target: DeltaTarget, name: str, to: str) -> None:
    if name != to:
        target.spark.sql(
            f"ALTER TABLE {target.sql_name} RENAME COLUMN {quoted(name)} TO {quoted(to)}"
        )


def _add(target: DeltaTarget, columns: list[DerivedField]) -> None:
    types = " ".join(field.type for field in columns)
    set_properties(target, _needed_by([field.name for field in columns], types))
    listed = ", ".join(
        f"{quoted(field.name)} {field.type} COMMENT {_literal(COLUMN_ID + field.id)}"
        for field in columns
    )
    target.spark.sql(f"ALTER TABLE {target.sql_name} ADD COLUMNS ({listed})")


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _widen(target: DeltaTarget, field: DerivedField) -> None:
    set_properties(target, {"delta.enableTypeWidening": "true"})
    target.spark.sql(
        f"ALTER TABLE {target.sql_name} ALTER COLUMN {quoted(field.name)} TYPE {field.type}"
    )


def set_properties(target: DeltaTarget, properties: dict[str, str]) -> None:
    """Have the table's properties be these."""
    if properties:
        pairs = ((_literal(name), _literal(value)) for name, value in properties.items())
        listed = ", ".join(f"{name} = {value}" for name, value in pairs)
        target.spark.sql(f"ALTER TABLE {target.sql_name} SET TBLPROPERTIES ({listed})")

"""A derived table's columns → those of its Delta table: made, added, renamed, widened.

A column is identified by its id, which its comment holds, so that each step may be repeated
after a crash. Renaming needs Delta's column mapping, which older readers don't know: a table gets
it with its first rename.
"""

import math
import re
from datetime import timedelta
from typing import Final

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.settings.drops import COLUMN_POLICY
from sinks.changes.names import COLUMN_ID, DELETED, END, POSITION, quoted
from sinks.changes.shape import DerivedField, TableShape
from sinks.delta.table import CHECKPOINT_EVERY, DeltaTarget
from sinks.spark.session import first_line

_NOT_IN_PARQUET: Final = re.compile(r"[ ,;{}()\n\t=]")
_NAME_MAPPING: Final = {"delta.columnMapping.mode": "name"}
_MAPPING_ID: Final = "delta.columnMapping.id"
_MAPPING_LAST: Final = "delta.columnMapping.maxColumnId"
PURGED_PROPERTY: Final = "millrace.purged"
"""The numbers of the columns that a table had before files were rewritten that had others."""
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
    return {"delta.dataSkippingStatsColumns": ",".join(map(quoted, kept))}


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

    Columns that the source has dropped stay, but where they are to be removed.
    """
    _require_same_deletes(target)
    try:
        if target.derived.removes_columns:
            remove_dropped(target, shape)
        _rename(target, shape)
        there = {field.name.lower(): field.dataType.simpleString() for field in target.columns()}
        added = [field for field in shape.fields if field.name.lower() not in there]
        if added:
            _add(target, added)
        for field in shape.fields:
            if there.get(field.name.lower(), field.type) != field.type:
                _widen(target, field)
        cluster(target, shape)
    except PySparkException as error:
        raise SinkError(
            f"the table's columns can't be changed: {first_line(error)}",
            where=target.name,
            remedy="remove the Delta table, so that the next run rebuilds it from the log",
        ) from None


def _require_same_deletes(target: DeltaTarget) -> None:
    derived = target.derived
    marked = DELETED in target.columns().names
    if derived.kind == "current" and marked != derived.marks_deletes:
        raise SinkError(
            f"the table was begun with deletes = {'mark' if marked else 'remove'}",
            where=target.name,
            remedy="leave it so, or remove the Delta table, so that the next run rebuilds it",
        )


def remove_dropped(target: DeltaTarget, shape: TableShape) -> None:
    """Remove the columns that the source has dropped; nothing where there are none.

    Queries of the table don't see their values any more, files have them until compaction has
    rewritten these. Raises SinkError where the table is partitioned by one.
    """
    dropped = [field.name for field in target.columns() if _id(field.metadata) in shape.dropped]
    if not dropped:
        return
    detail = DeltaTable.forPath(target.spark, target.path).detail().first()
    if detail is not None and (fixed := {*detail["partitionColumns"]} & {*dropped}):
        raise SinkError(
            f"column {min(fixed)} is to be removed, and partitions the table, which Delta can't "
            "change",
            where=target.name,
            remedy="remove the Delta table, so that the next run rebuilds it from the log; or set "
            f'"{COLUMN_POLICY}" = "keep" for it in [[lakehouse.tables]]',
        )
    if detail is not None and {*(columns := detail["clusteringColumns"])} & {*dropped}:
        _cluster_by(target, [name for name in columns if name not in dropped])
    set_properties(target, _NAME_MAPPING)
    listed = ", ".join(map(quoted, dropped))
    target.spark.sql(f"ALTER TABLE {target.sql_name} DROP COLUMNS ({listed})")


def column_ids(target: DeltaTarget) -> str:
    """The numbers that Delta's column mapping has given the table's columns; empty: it hasn't.

    A column that comes later has a number that none before had.
    """
    ids = (field.metadata.get(_MAPPING_ID) for field in target.columns())
    return ",".join(str(id_) for id_ in ids if id_ is not None)


def has_removed_columns(target: DeltaTarget) -> bool:
    """Whether files may have values of columns that the table doesn't have any more."""
    properties, ids = target.properties(), column_ids(target)
    ever = int(properties.get(_MAPPING_LAST, 0))
    return ever > len(ids.split(",")) and properties.get(PURGED_PROPERTY) != ids


def cluster(target: DeltaTarget, shape: TableShape) -> None:
    """Have the table clustered as it is to be; only files written from then on are."""
    options = target.derived.options
    if not options.cluster:
        return
    there, still = target.columns().names, shape.still(options.cluster)
    wanted = [name for name in options.cluster if name in still or name in there]
    detail = DeltaTable.forPath(target.spark, target.path).detail().first()
    if detail is not None and list(detail["clusteringColumns"]) != wanted:
        _cluster_by(target, wanted)


def _cluster_by(target: DeltaTarget, names: list[str]) -> None:
    by = f"({', '.join(map(quoted, names))})" if names else "NONE"
    target.spark.sql(f"ALTER TABLE {target.sql_name} CLUSTER BY {by}")


def _rename(target: DeltaTarget, shape: TableShape) -> None:
    """Give every column that is there already the name that it has now.

    One that the source has dropped gives its name away to a new one.
    """
    there = {_id(field.metadata): field.name for field in target.columns()}
    names = {id_: name for id_, name in there.items() if id_ is not None}
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
    properties: dict[str, str] = {}
    if any(_NOT_IN_PARQUET.search(field.name) for field in columns):
        properties |= _NAME_MAPPING
    if any("timestamp_ntz" in field.type for field in columns):
        properties["delta.feature.timestampNtz"] = "supported"
    set_properties(target, properties)
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

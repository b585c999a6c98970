"""A derived table's columns → those of its Delta table: created, added, renamed, widened.

A rename needs Delta's column mapping, which some readers don't support. So a table gets it with its
first rename, in a separate commit.
"""

import math
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.names import COLUMN_ID, DELETED, END, NOT_IN_PARQUET, POSITION, quoted
from sinks.changes.shape import TableShape
from sinks.delta.columns import (
    AddColumn,
    ColumnStep,
    DropColumn,
    RenameColumn,
    TableColumns,
    WidenColumn,
    column_id,
    plan_steps,
    require_replaceable,
    type_of,
)
from sinks.delta.readers import MAPPING, WIDENING, require_readable, warning
from sinks.delta.table import CHECKPOINT_EVERY, DerivedDeltaTable
from sinks.delta.transaction import CONFLICTS, DeltaTransaction
from sinks.run.options import Report
from sinks.spark.errors import spark_error

_MAPPING_MODE: Final = "delta.columnMapping.mode"
NAME_MAPPING: Final = {_MAPPING_MODE: "name"}
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_MAPPING_ID: Final = "delta.columnMapping.id"
_MAPPING_LAST: Final = "delta.columnMapping.maxColumnId"
PURGED_PROPERTY: Final = "millrace.purged"
"""The numbers of the table's columns before files with other columns were rewritten."""
_COLUMNS_WITH_STATISTICS: Final = 32
"""The first columns, of this number, have statistics by Delta's default."""
_WITH_STATISTICS: Final = (
    "smallint", "int", "bigint", "float", "double", "decimal", "date", "timestamp", "string",
)  # fmt: skip
"""Types for which Delta keeps the least and the greatest value."""
_MARGIN_HOURS: Final = 1
"""A run that meets a compaction still uses the version before it."""
_LOG_HOURS: Final = 30 * 24


def creation_properties(target: DerivedDeltaTable, shape: TableShape) -> dict[str, str]:
    """Return a new table's Delta properties: for its columns, and for queries of old versions."""
    return {
        **(NAME_MAPPING if needs_mapping(shape.names) else {}),
        **retention_properties(target.derived.keep),
        **_statistics(target, shape, TableColumns((), target.derived.options.partition, {})),
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        "delta.enableDeletionVectors": str(target.derived.deletion_vectors).lower(),
    }


def needs_mapping(names: Iterable[str]) -> bool:
    """Whether columns can have these names only with Delta's column mapping."""
    return any(NOT_IN_PARQUET.search(name) for name in names)


def _statistics(
    target: DerivedDeltaTable, shape: TableShape, there: TableColumns
) -> dict[str, str]:
    """Return the property with the columns that need statistics, if they aren't the first ones.

    Existing columns (``there``) count as well: dropped ones come before others.
    """
    columns = {*there.names, *shape.names, *target.derived.reserved}
    if len(columns) <= _COLUMNS_WITH_STATISTICS:
        return {}
    options = target.derived.options
    able = [
        field.name
        for field in shape.fields
        if field.type.startswith(_WITH_STATISTICS) and field.name not in there.partitioned_by
    ]
    standing = {field["name"]: type_of(field) for field in there.fields}
    able += [
        name for name in options.cluster if standing.get(name, "").startswith(_WITH_STATISTICS)
    ]
    own = [POSITION, *([END] if target.derived.kind == "history" else [])]
    first = dict.fromkeys([*own, *options.cluster, *shape.keys, *able])
    listed = [name for name in first if name in able or name in own]
    kept = listed[:_COLUMNS_WITH_STATISTICS]
    return {_STATISTICS: ",".join(map(quoted, kept))}


def retention(keep: timedelta) -> timedelta:
    """Return how long a file stays that the current version no longer has."""
    return timedelta(hours=math.ceil(keep / timedelta(hours=1)) + _MARGIN_HOURS)


def retention_properties(keep: timedelta) -> dict[str, str]:
    """Return the properties that keep every version readable for this time.

    Delta: 7 and 30 days.
    """
    hours = retention(keep) // timedelta(hours=1)
    return {
        "delta.logRetentionDuration": f"interval {max(hours, _LOG_HOURS)} hours",
        "delta.deletedFileRetentionDuration": f"interval {hours} hours",
    }


def columns_with_ids(shape: TableShape) -> list[SparkColumn]:
    """Return the columns for a new table, each with its id."""
    return [
        F.col(quoted(field.name)).alias(field.name, metadata={"comment": COLUMN_ID + field.id})
        for field in shape.fields
    ]


def dropped_columns(target: DerivedDeltaTable, shape: TableShape) -> list[str]:
    """Return the table's columns that the source has dropped: null from then on."""
    own = {name.lower() for name in (*target.derived.reserved, *shape.names)}
    return [field.name for field in target.columns() if field.name.lower() not in own]


def evolve(target: DerivedDeltaTable, run: int, shape: TableShape, report: Report) -> None:
    """Change the table's columns to those of a shape, in one commit before the run's own.

    All steps are planned first, from the current state. Nothing is changed if one of them is
    impossible, and nothing is left to do if an earlier run has done it. Columns that the source has
    dropped stay, unless they must be removed. ``report`` gets the readers that don't support the
    result. Raise SinkError if it is impossible, ``CONFLICTS`` if other writers were faster.
    """
    _require_same_deletes(target)
    if target.derived.for_readers:
        require_readable(target.name, target.reader_features())
    there = target.columns_in_log()
    try:
        drops = shape.dropped if target.derived.removal else ()
        steps = plan_steps(there, shape.fields, drops)
        require_clusterable(target, shape, there.after(steps).names)
        if steps:
            for feature in sorted(_features(target, steps) - target.reader_features()):
                report(warning(feature, [target.name]))
            change = _rewrite if _rewrites(target, steps) else _change
            change(target, run, there, steps, shape)
        cluster(target, shape)
    except CONFLICTS:
        raise
    except PySparkException as error:
        raise spark_error(
            "can't change the table's columns",
            error,
            where=target.name,
            remedy="correct its options in [[lakehouse.tables]], or rebuild it: millrace rebuild"
            f" lakehouse {shlex.quote(target.name)}",
        ) from None
    except SinkError as error:
        error.where = target.name
        raise


def _rewrites(target: DerivedDeltaTable, steps: Iterable[ColumnStep]) -> bool:
    """Whether files are rewritten, as some readers wouldn't find columns in the old ones."""
    return target.derived.for_readers and not all(isinstance(step, AddColumn) for step in steps)


def _features(target: DerivedDeltaTable, steps: Sequence[ColumnStep]) -> set[str]:
    """Return the Delta features of the steps that not all readers support."""
    if target.derived.for_readers:
        return set()
    odd = needs_mapping(step.name for step in steps if isinstance(step, AddColumn))
    mapped = odd or any(isinstance(step, RenameColumn | DropColumn) for step in steps)
    widened = any(isinstance(step, WidenColumn) for step in steps)
    return {*([MAPPING] if mapped else []), *([WIDENING] if widened else [])}


def _change(
    target: DerivedDeltaTable,
    run: int,
    there: TableColumns,
    steps: Sequence[ColumnStep],
    shape: TableShape,
) -> None:
    """Apply the steps. Names are mapped first, as Delta changes nothing else with that."""
    is_mapped = there.properties.get(_MAPPING_MODE, "none") != "none"
    if MAPPING in _features(target, steps) and not is_mapped:
        set_properties(target, NAME_MAPPING)
        there = target.columns_in_log()
    _let_go(target, {step.name for step in steps if isinstance(step, DropColumn)})
    transaction = DeltaTransaction(target, run)
    transaction.change_columns(_with_properties(target, there.after(steps), steps, shape))
    transaction.commit_columns()


def _rewrite(
    target: DerivedDeltaTable,
    run: int,
    there: TableColumns,
    steps: Sequence[ColumnStep],
    shape: TableShape,
) -> None:
    """Apply the steps, and rewrite all files with the new columns, in one commit."""
    _let_go(target, {step.name for step in steps if isinstance(step, DropColumn | RenameColumn)})
    transaction = DeltaTransaction(target, run)
    after = there.after(steps, rewritten=True)
    files = transaction.files()
    columns = [
        (F.lit(None) if old is None else F.col(quoted(old)))
        .cast(type_of(field))
        .alias(field["name"])
        for field, old in zip(after.fields, after.before(there), strict=True)
    ]
    rows = transaction.rows(files).select(*columns)
    transaction.change_columns(_with_properties(target, after, steps, shape))
    transaction.write(rows)
    transaction.remove(files)
    transaction.commit_columns()


def _let_go(target: DerivedDeltaTable, names: Collection[str]) -> None:
    """Stop clustering by columns that don't exist afterwards.

    Delta would refuse to remove them. Without column mapping it has their old names.
    """
    if names and not set(names).isdisjoint(_clustering(target)):
        target.spark.sql(f"ALTER TABLE {target.sql_name} CLUSTER BY NONE")


def _with_properties(
    target: DerivedDeltaTable, after: TableColumns, steps: Sequence[ColumnStep], shape: TableShape
) -> TableColumns:
    """Return the columns, with the properties for their types and statistics."""
    properties = {key: value for key, value in after.properties.items() if key != _STATISTICS}
    properties |= _statistics(target, shape, after)
    if WIDENING in _features(target, steps):
        properties["delta.enableTypeWidening"] = "true"
    types = [step.type for step in steps if isinstance(step, AddColumn)]
    types += [step.to for step in steps if isinstance(step, WidenColumn)]
    if any("timestamp_ntz" in kind for kind in types):
        properties["delta.feature.timestampNtz"] = "supported"
    return replace(after, properties=properties)


def prepare_replacement(
    target: DerivedDeltaTable, _run: int, shape: TableShape, report: Report
) -> None:
    """Let a shape's columns replace the table's. Raise SinkError.

    Removes properties that refer to old columns. ``report`` gets the readers that don't support the
    result.
    """
    there = target.columns_in_log()
    if target.derived.for_readers:
        require_readable(target.name, target.reader_features())
    require_replaceable(target.name, there, {*shape.names, *target.derived.reserved})
    needed = _needed_by(shape)
    if _MAPPING_MODE in needed and MAPPING not in target.reader_features():
        report(warning(MAPPING, [target.name]))
    try:
        set_properties(target, needed)
        if _clustering(target):
            target.spark.sql(f"ALTER TABLE {target.sql_name} CLUSTER BY NONE")
        if _STATISTICS in there.properties:
            target.spark.sql(f"ALTER TABLE {target.sql_name} UNSET TBLPROPERTIES ('{_STATISTICS}')")
    except CONFLICTS:
        raise
    except PySparkException as error:
        raise spark_error(
            "can't rewrite the table",
            error,
            where=target.name,
            remedy="remove the Delta table: the next run writes it again from the log",
        ) from None


def settle(target: DerivedDeltaTable, shape: TableShape) -> None:
    """Cluster a table after a full rewrite, with statistics of its columns."""
    _set_statistics(target, shape)
    cluster(target, shape)


def _set_statistics(target: DerivedDeltaTable, shape: TableShape) -> None:
    there = target.columns_in_log()
    missing = _statistics(target, shape, there).items() - there.properties.items()
    set_properties(target, dict(missing))


def _needed_by(shape: TableShape) -> dict[str, str]:
    """Return the properties that a table needs for such columns."""
    properties = NAME_MAPPING if needs_mapping(shape.names) else {}
    is_local = any("timestamp_ntz" in field.type for field in shape.fields)
    return {**properties, **({"delta.feature.timestampNtz": "supported"} if is_local else {})}


def _require_same_deletes(target: DerivedDeltaTable) -> None:
    derived = target.derived
    marked = DELETED in target.columns().names
    if derived.kind == "current" and marked != derived.marks_deletes:
        raise SinkError(
            f"the table was created with deletes = {('mark' if marked else 'remove')}",
            where=target.name,
            remedy="restore that option, or run: millrace rebuild lakehouse"
            f" {shlex.quote(target.name)}",
        )


def require_clusterable(target: DerivedDeltaTable, shape: TableShape, names: Iterable[str]) -> None:
    """Raise SinkError if the table must be clustered by a column that it won't have."""
    there = {name.lower() for name in names}
    wanted = shape.still(target.derived.options.cluster)
    lacking = [name for name in wanted if name.lower() not in there]
    if lacking:
        raise SinkError(
            f"cluster names columns that the table doesn't have: {', '.join(lacking)}",
            where=target.name,
            remedy="correct cluster in [[lakehouse.tables]]: use the columns' names in the"
            " lakehouse",
        )


def column_ids(target: DerivedDeltaTable) -> str:
    """Return the numbers that Delta's column mapping has given the columns. Empty: it hasn't.

    A later column has a new number.
    """
    ids = (field.metadata.get(_MAPPING_ID) for field in target.columns())
    return ",".join(str(id_) for id_ in ids if id_ is not None)


def has_removed_columns(target: DerivedDeltaTable) -> bool:
    """Whether files may have values of columns that the table no longer has."""
    properties, ids = target.properties(), column_ids(target)
    ever = int(properties.get(_MAPPING_LAST, 0))
    return ever > len(ids.split(",")) and properties.get(PURGED_PROPERTY) != ids


def cluster(target: DerivedDeltaTable, shape: TableShape) -> None:
    """Cluster the table as configured. Only files written from then on are clustered.

    Columns without statistics can't be used.
    """
    options = target.derived.options
    if not options.cluster:
        return
    there, still = target.columns().names, shape.still(options.cluster)
    wanted = [name for name in options.cluster if name in still or name in there]
    if _clustering(target) != wanted:
        _set_statistics(target, shape)
        by = f"({', '.join(map(quoted, wanted))})" if wanted else "NONE"
        target.spark.sql(f"ALTER TABLE {target.sql_name} CLUSTER BY {by}")


def _clustering(target: DerivedDeltaTable) -> list[str]:
    """Return the columns by which the table is clustered."""
    detail = DeltaTable.forPath(target.spark, target.path).detail().first()
    return list(detail["clusteringColumns"]) if detail is not None else []


def stored_names(target: DerivedDeltaTable) -> dict[str, str]:
    """Return the names of the table's columns, by their ids."""
    there = ((column_id(field), field["name"]) for field in target.columns_in_log().fields)
    return {id_: name for id_, name in there if id_ is not None}


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def set_properties(target: DerivedDeltaTable, properties: dict[str, str]) -> None:
    """Set the table's properties."""
    if properties:
        pairs = ((_literal(name), _literal(value)) for name, value in properties.items())
        listed = ", ".join(f"{name} = {value}" for name, value in pairs)
        target.spark.sql(f"ALTER TABLE {target.sql_name} SET TBLPROPERTIES ({listed})")

"""The newest state of each key → one commit to the Delta table: written whole, or merged.

A row changes only to a newer position. Where deletes are marked, a row that is gone stays, with
``_millrace_deleted``; one that comes under its key later is another row, and takes its place.
"""

from functools import reduce
from operator import and_

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sinks.changes.names import ABSENT, DELETE, DELETED, FILLED, OP, POSITION, UPSERT, quoted
from sinks.changes.newest import Newest, Older, lost
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.delta.commit import create, execute
from sinks.delta.evolution import columns_with_ids, dropped_columns
from sinks.delta.table import DeltaTarget
from sinks.run.summary import Rows


def write_new(target: DeltaTarget, newest: DataFrame, shape: TableShape) -> Rows:
    """Create the Delta table with the rows; inside of ``commit``."""
    incomplete = refuse(F.size(ABSENT) > 0, lost(F.col(ABSENT)), "string")
    rows = newest.where(F.col(OP) == UPSERT).select(
        *columns_with_ids(shape),
        F.coalesce(incomplete, F.col(POSITION)).alias(POSITION),
        *([F.lit(False).alias(DELETED)] if target.derived.marks_deletes else []),
    )
    return create(target, rows, shape)


def merge(
    target: DeltaTarget,
    newest: Newest,
    shape: TableShape,
    older: Older | None,
    *,
    rebuilds: bool = False,
) -> Rows:
    """Apply upserts and deletes to an existing table; inside of ``commit``.

    Rows that are ``older``, and that no change speaks of, go. Where it ``rebuilds``, changes are
    missing in between, so that stored values don't count where a change has left some as they were.
    """
    marks = target.derived.marks_deletes
    # What is kept needs no copy of Delta's.
    target.spark.conf.set("spark.databricks.delta.merge.materializeSource", "none")
    condition = same_key(shape)
    if newest.within is not None:
        condition &= newest.within(stored)
    builder = (
        DeltaTable.forPath(target.spark, target.path)
        .alias("t")
        .merge(newest.all().alias("s"), condition)
    )
    newer = source(POSITION) > stored(POSITION)
    gone = newer & (source(OP) == DELETE)
    if marks:
        builder = builder.whenMatchedUpdate(gone, set=_mark(source(POSITION)))
    else:
        builder = builder.whenMatchedDelete(gone)
    builder = builder.whenMatchedUpdate(
        newer & (source(OP) == UPSERT), set=_updated(target, shape, marks=marks, rebuilds=rebuilds)
    ).whenNotMatchedInsert(source(OP) == UPSERT, values=_inserted(shape, marks=marks))
    return execute(_without_older(builder, older, marks=marks))


def same_key(shape: TableShape) -> SparkColumn:
    """Whether a row of the source is one of the target."""
    return reduce(and_, (stored(key) == source(key) for key in shape.keys))


def source(name: str) -> SparkColumn:
    """A column of what is merged."""
    return F.col(f"s.{quoted(name)}")


def stored(name: str) -> SparkColumn:
    """A column of the table that is merged into."""
    return F.col(f"t.{quoted(name)}")


def _updated(
    target: DeltaTarget, shape: TableShape, *, marks: bool, rebuilds: bool
) -> dict[str, str | SparkColumn]:
    patchy = set() if rebuilds else set(shape.patchy)
    return {
        **{
            quoted(name): _unless_unchanged(name, marks=marks) if name in patchy else source(name)
            for name in shape.names
        },
        **{quoted(name): F.lit(None) for name in dropped_columns(target, shape)},
        POSITION: _complete(marks=marks, rebuilds=rebuilds),
        **({DELETED: F.lit(False)} if marks else {}),
    }


def _inserted(shape: TableShape, *, marks: bool) -> dict[str, str | SparkColumn]:
    incomplete = refuse(F.size(source(ABSENT)) > 0, lost(source(ABSENT)), "string")
    return {
        **{quoted(name): source(name) for name in shape.names},
        POSITION: F.coalesce(incomplete, source(POSITION)),
        **({DELETED: F.lit(False)} if marks else {}),
    }


def _complete(*, marks: bool, rebuilds: bool) -> SparkColumn:
    """The new position; raises where the row that is stored doesn't know what the change lacks."""
    if not marks and not rebuilds:
        return source(POSITION)
    unknown = F.lit(True) if rebuilds else stored(DELETED)
    incomplete = unknown & (F.size(source(ABSENT)) > 0)
    return F.coalesce(refuse(incomplete, lost(source(ABSENT)), "string"), source(POSITION))


def _unless_unchanged(name: str, *, marks: bool) -> SparkColumn:
    """The row's own value where the change left it as it was, whether it was filled or not.

    But not its null, which it has of before the column was there: what is left out is no null.
    """
    unchanged = F.array_contains(source(ABSENT), name) | F.array_contains(source(FILLED), name)
    if marks:
        unchanged &= ~F.coalesce(stored(DELETED), F.lit(False))
    return F.when(unchanged, F.coalesce(stored(name), source(name))).otherwise(source(name))


def _without_older(
    builder: DeltaMergeBuilder, older: Older | None, *, marks: bool
) -> DeltaMergeBuilder:
    if older is None:
        return builder
    position = stored(POSITION)
    if not marks:
        return builder.whenNotMatchedBySourceDelete(older.goes(position))
    gone = older.goes(position) & ~stored(DELETED)
    return builder.whenNotMatchedBySourceUpdate(gone, set=_mark(older.deleted_at(position)))


def _mark(position: SparkColumn) -> dict[str, str | SparkColumn]:
    return {DELETED: F.lit(True), POSITION: position}

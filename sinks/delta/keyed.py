"""The newest state of each key → one commit to the table of current rows, in one of four ways.

- ``write_all`` creates the table, or rewrites it: it is rebuilt, or has another key.
- ``rewrite`` writes a small table whole, in one job. For 1,000 changes of each of twelve tables of
  10,000 rows it takes 10 s on two cores; ``mark`` would take 21 s, and ``merge`` 42 s.
- ``mark`` marks rows of a large table as removed, by deletion vectors, and writes the new ones. It
  reads only the table's keys. For few keys, or if rows within bounds end, it reads only files that
  may have them. Every change must be newer than any stored row. For 1 million changes of 2 million
  rows it takes 4 s; MERGE would take 9.6 s.
- ``merge`` is Delta's MERGE, for everything else: it compares positions, marks deletes, rebuilds,
  and needs no private interface.

A row changes only to a newer position. If deletes are marked, a removed row stays, with
``_millrace_deleted``. A later row with its key is another row, and replaces it.
"""

from functools import reduce
from operator import and_, or_
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from sinks.changes.ended import ColumnOf, Older, changed
from sinks.changes.names import ABSENT, DELETE, DELETED, FILLED, OP, POSITION, UPSERT, quoted
from sinks.changes.newest import Newest, lost
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.delta.commit import execute, write_whole
from sinks.delta.evolution import columns_with_ids, dropped_columns
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.transaction import FILE_AND_INDEX, DeltaTransaction
from sinks.run.plan import RunPlan
from sinks.run.summary import Rows
from sinks.run.topics import TableChanges
from sinks.spark.jvm import struct_of

SMALL_BYTES: Final = 4 << 20
"""A smaller table is rewritten faster than its rows are found."""
_STORED: Final = "_millrace_stored_"


def write_rows(
    target: DerivedDeltaTable, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """Write the plan's changes in the way that suits the table. Runs inside ``commit``."""
    table = plan.tables[target.name]
    if table.begins:
        return write_all(target, plan, changes, shape)
    older = changes.older(shape)
    simple = not (table.rebuilds or target.derived.marks_deletes) and DeltaTransaction.is_supported(
        target
    )
    if simple and target.size_bytes() < SMALL_BYTES:
        with changes.newest(shape) as newest:
            return rewrite(target, plan.run, newest, shape, older)
    can_mark = simple and table.truncated is None and target.has_deletion_vectors()
    with changes.newest(shape, ranges=table.truncated is None) as newest:
        if can_mark and changes.are_newer(newest):
            return mark(target, plan.run, newest, shape, older)
        return merge(target, newest, shape, older, rebuilds=table.rebuilds)


def write_all(
    target: DerivedDeltaTable, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """Write all rows of the table from the changes. Runs inside ``commit``.

    Everything else in an existing table is removed, including rows that are marked as deleted.
    """
    with changes.newest(shape) as newest:
        rows = new_rows(target, newest.all(), shape)
        return write_whole(target, plan.tables[target.name], rows, shape)


def new_rows(target: DerivedDeltaTable, newest: DataFrame, shape: TableShape) -> DataFrame:
    """Return all columns of existing rows, for a table that has no others."""
    return newest.where(F.col(OP) == UPSERT).select(
        *columns_with_ids(shape),
        _position(changed, F.lit(True)).alias(POSITION),
        *([F.lit(False).alias(DELETED)] if target.derived.marks_deletes else []),
    )


def rewrite(
    target: DerivedDeltaTable, run: int, newest: Newest, shape: TableShape, older: Older | None
) -> Rows:
    """Rewrite a small table. ``older`` rows that no change has are removed."""
    transaction = DeltaTransaction(target, run)
    files = transaction.files()
    columns = target.columns().fields
    rows = _joined(
        newest.all(), transaction.rows(files), shape, [c.name for c in columns], "full_outer"
    )
    is_stored, has_change = _is_kept(), F.col(POSITION).isNotNull()
    later = F.coalesce(F.col(POSITION) > kept(POSITION), F.lit(False))
    newer = has_change & (~is_stored | later)
    upsert = newer & (F.col(OP) == UPSERT)
    gone = newer & (F.col(OP) == DELETE) & is_stored
    if older is not None:
        gone |= ~has_change & F.coalesce(older.goes(kept), F.lit(False))
    counts = Observation()
    rows = rows.observe(
        counts,
        F.count_if(upsert & ~is_stored).alias("inserted"),
        F.count_if(upsert & is_stored).alias("updated"),
        F.count_if(gone).alias("deleted"),
    ).where(upsert | (is_stored & ~gone))
    transaction.write(
        _rewritten(rows, upsert, columns, shape, of_several=newest.patched is not None)
    )
    transaction.remove(files)
    observed = counts.get
    return transaction.commit(observed["inserted"], observed["updated"], observed["deleted"])


def _rewritten(
    rows: DataFrame,
    upsert: SparkColumn,
    columns: list[StructField],
    shape: TableShape,
    *,
    of_several: bool,
) -> DataFrame:
    """Return the rows of ``_joined`` in their stored form.

    If no change is ``of_several``, one expression is enough for any number of columns.
    """
    if of_several:
        return rows.select(
            *(
                F.when(upsert, _value(column, shape, of_several=True))
                .otherwise(kept(column.name))
                .alias(column.name)
                for column in columns
            )
        )
    named = {*shape.names, POSITION}
    new = {
        column.name: quoted(column.name)
        if column.name in named
        else f"CAST(NULL AS {column.dataType.simpleString()})"  # dropped in the source
        for column in columns
    }
    old = {column.name: quoted(_STORED + column.name) for column in columns}
    row = F.when(upsert, struct_of(new)).otherwise(struct_of(old))
    return rows.select(row.alias(_STORED)).select(f"{_STORED}.*")


def mark(
    target: DerivedDeltaTable, run: int, newest: Newest, shape: TableShape, older: Older | None
) -> Rows:
    """Mark removed rows, and write new ones. All of them are newer than any stored row."""
    transaction = DeltaTransaction(target, run)
    files = transaction.files(_of_marked(newest, older))
    keys = [changed(name) for name in shape.keys]
    place = [F.col(of).alias(name) for name, of in FILE_AND_INDEX.items()]
    goes = F.lit(False) if older is None else older.goes(changed)
    deleted = Observation()
    indexes = (
        newest.all()
        .select(*keys, OP)
        .join(
            transaction.rows(files).select(*keys, POSITION, *place),
            shape.keys,
            "inner" if older is None else "right",
        )
        .where(F.col(OP).isNotNull() | goes)
        .observe(deleted, F.count_if(F.coalesce(OP, F.lit(DELETE)) == DELETE).alias("rows"))
        .select(*FILE_AND_INDEX)
    )
    marked = transaction.mark(indexes, files)
    columns = target.columns().fields

    def complete(rows: DataFrame, *, of_several: bool) -> DataFrame:
        """Return the table's columns for rows that are upserts."""
        return rows.where(F.col(OP) == UPSERT).select(
            *(_value(column, shape, of_several=of_several).alias(column.name) for column in columns)
        )

    rows = complete(newest.whole, of_several=False)
    if newest.patched is not None:
        needed = [*shape.keys, *shape.patchy]
        both = _joined(newest.patched, transaction.rows(files), shape, needed, "left")
        rows = rows.unionByName(complete(both, of_several=True))
    written = transaction.write(rows)
    # Without any row, Spark may leave out the counter.
    gone = deleted.get["rows"] if marked else 0
    return transaction.commit(written - (marked - gone), marked - gone, gone)


def _of_marked(newest: Newest, older: Older | None) -> SparkColumn | None:
    """Return a condition that holds for all stored rows that ``mark`` marks. None: unknown."""
    conditions = [] if older is None else [older.goes(changed)]
    if newest.oldest is not None:
        if newest.within is None:
            return None
        conditions.append(newest.within(changed))
    return reduce(or_, conditions) if conditions else None


def merge(
    target: DerivedDeltaTable,
    newest: Newest,
    shape: TableShape,
    older: Older | None,
    *,
    rebuilds: bool = False,
) -> Rows:
    """Apply upserts and deletes by MERGE.

    ``older`` rows that no change has are removed. If it ``rebuilds``, changes are missing in
    between, so stored values don't count for columns that a change left unchanged.
    """
    marks = target.derived.marks_deletes
    # The executors keep the source, so Delta needs no copy.
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
        builder = builder.whenMatchedUpdate(gone, set=_deleted(source(POSITION)))
    else:
        builder = builder.whenMatchedDelete(gone)
    there: dict[str, str | SparkColumn] = {DELETED: F.lit(False)} if marks else {}
    builder = builder.whenMatchedUpdate(
        newer & (source(OP) == UPSERT),
        set=_updated(target, shape, marks=marks, rebuilds=rebuilds) | there,
    ).whenNotMatchedInsert(
        source(OP) == UPSERT,
        values={
            **{quoted(name): source(name) for name in shape.names},
            POSITION: _position(source, F.lit(True)),
            **there,
        },
    )
    if older is not None and marks:
        ended = older.goes(stored) & ~stored(DELETED)
        at = older.deleted_at(stored)
        builder = builder.whenNotMatchedBySourceUpdate(ended, set=_deleted(at))
    elif older is not None:
        builder = builder.whenNotMatchedBySourceDelete(older.goes(stored))
    return execute(builder)


def same_key(shape: TableShape) -> SparkColumn:
    """Whether a source row is one of the target."""
    return reduce(and_, (stored(key) == source(key) for key in shape.keys))


def source(name: str) -> SparkColumn:
    """Return a column of the merge's source."""
    return F.col(f"s.{quoted(name)}")


def stored(name: str) -> SparkColumn:
    """Return a column of the merge's target."""
    return F.col(f"t.{quoted(name)}")


def kept(name: str) -> SparkColumn:
    """Return a column of a stored row that changes are joined with."""
    return F.col(quoted(_STORED + name))


def _is_kept() -> SparkColumn:
    """Whether a stored row has the key."""
    return F.coalesce(F.col(_STORED), F.lit(False))


def _joined(
    changes: DataFrame, rows: DataFrame, shape: TableShape, names: list[str], how: str
) -> DataFrame:
    """Return changes with columns of the stored rows of their keys."""
    columns = [f"{quoted(name)} AS {quoted(_STORED + name)}" for name in names]
    same = [changed(key) == kept(key) for key in shape.keys]
    return changes.join(rows.selectExpr(*columns, f"true AS {_STORED}"), same, how)


def _updated(
    target: DerivedDeltaTable, shape: TableShape, *, marks: bool, rebuilds: bool
) -> dict[str, str | SparkColumn]:
    """Return the values of a stored row that MERGE updates."""
    patchy = set() if rebuilds else set(shape.patchy)
    counts = ~F.coalesce(stored(DELETED), F.lit(False)) if marks else None
    unknown = F.lit(True) if rebuilds else stored(DELETED)
    return {
        **{
            quoted(name): _unless_unchanged(name, source, stored, counts)
            if name in patchy
            else source(name)
            for name in shape.names
        },
        **{quoted(name): F.lit(None) for name in dropped_columns(target, shape)},
        POSITION: _position(source, unknown) if marks or rebuilds else source(POSITION),
    }


def _value(column: StructField, shape: TableShape, *, of_several: bool) -> SparkColumn:
    """Return a changed row's value of a column. A change that isn't ``of_several`` is whole."""
    name = column.name
    if name == POSITION:
        return _position(changed, ~_is_kept()) if of_several else changed(POSITION)
    if name not in shape.names:  # dropped in the source
        return F.lit(None).cast(column.dataType)
    if not of_several or name not in shape.patchy:
        return changed(name)
    return _unless_unchanged(name, changed, kept)


def _position(change: ColumnOf, unknown: SparkColumn) -> SparkColumn:
    """Return a change's position.

    Raise if it lacks values that are ``unknown`` in the stored row.
    """
    absent = change(ABSENT)
    incomplete = refuse(unknown & (F.size(absent) > 0), lost(absent), "string")
    return F.coalesce(incomplete, change(POSITION))


def _unless_unchanged(
    name: str, change: ColumnOf, row: ColumnOf, counts: SparkColumn | None = None
) -> SparkColumn:
    """Return the row's own value if the change left it unchanged, filled or not, and it ``counts``.

    Its null doesn't count, as it is from before the column existed: an omitted value isn't null.
    """
    value = change(name)
    unchanged = F.array_contains(change(ABSENT), name) | F.array_contains(change(FILLED), name)
    if counts is not None:
        unchanged &= counts
    return F.when(unchanged, F.coalesce(row(name), value)).otherwise(value)


def _deleted(position: SparkColumn) -> dict[str, str | SparkColumn]:
    """Return the values of a removed row, where such rows stay."""
    return {DELETED: F.lit(True), POSITION: position}

"""The newest state of each key → one commit of our own, where that is known to be enough.

A small table is rewritten, in one job. In a large one, rows are marked as gone by deletion
vectors: the table's keys are read to find them, and nothing else of it.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from sinks.changes.names import ABSENT, DELETE, FILLED, OP, POSITION, UPSERT, quoted
from sinks.changes.newest import Newest, Older, lost
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.delta.commit import FILE, INDEX, DeltaTransaction
from sinks.delta.table import DeltaTarget
from sinks.run.summary import Rows

SMALL_BYTES: Final = 4 << 20
"""Rewriting a smaller table is faster than finding its rows."""
_STORED: Final = "_millrace_stored_"


def rewrite(
    target: DeltaTarget, run: int, newest: Newest, shape: TableShape, older: Older | None
) -> Rows:
    """Rewrite a small table; rows that are ``older``, and that no change speaks of, go."""
    transaction = DeltaTransaction(target, run)
    files = transaction.files()
    columns = target.columns().fields
    stored = _with_mark(
        transaction.rows(files).select(*(_renamed(column.name) for column in columns))
    )
    rows = newest.all().join(stored, _same_key(shape), "full_outer")
    is_stored = F.coalesce(F.col(_STORED), F.lit(False))
    has_change = F.col(POSITION).isNotNull()
    later = F.coalesce(F.col(POSITION) > _stored(POSITION), F.lit(False))
    newer = has_change & (~is_stored | later)
    upsert = newer & (F.col(OP) == UPSERT)
    gone = newer & (F.col(OP) == DELETE) & is_stored
    if older is not None:
        gone |= ~has_change & F.coalesce(older.goes(_stored(POSITION)), F.lit(False))
    counts = Observation()
    rows = rows.observe(
        counts,
        F.count_if(upsert & ~is_stored).alias("inserted"),
        F.count_if(upsert & is_stored).alias("updated"),
        F.count_if(gone).alias("deleted"),
    ).where(upsert | (is_stored & ~gone))
    transaction.write(
        rows.select(
            *(
                F.when(upsert, _value(column, shape, is_stored))
                .otherwise(_stored(column.name))
                .alias(column.name)
                for column in columns
            )
        )
    )
    transaction.remove(files)
    observed = counts.get
    done = Rows(observed["inserted"], observed["updated"], observed["deleted"])
    transaction.commit(done.inserted, done.updated, done.deleted)
    return done


def mark(target: DeltaTarget, run: int, newest: Newest, shape: TableShape) -> Rows:
    """Mark the rows that go, and write those that come; all of them are newer than any stored."""
    transaction = DeltaTransaction(target, run)
    files = transaction.files(newest.within and newest.within(lambda key: F.col(quoted(key))))
    keys = [F.col(quoted(name)) for name in shape.keys]
    deleted = Observation()
    indexes = (
        newest.all()
        .select(*keys, OP)
        .join(transaction.rows_with_index(files, keys), shape.keys)
        .observe(deleted, F.count_if(F.col(OP) == DELETE).alias("rows"))
        .select(FILE, INDEX)
    )
    marked = transaction.mark(indexes, files)
    columns = target.columns().fields
    rows = _complete(newest.whole, columns, shape)
    if newest.patched is not None:
        kept = [*shape.keys, *shape.patchy]
        stored = _with_mark(transaction.rows(files).select(*map(_renamed, kept)))
        both = newest.patched.join(stored, _same_key(shape), "left")
        is_stored = F.coalesce(F.col(_STORED), F.lit(False))
        rows = rows.unionByName(_complete(both, columns, shape, is_stored))
    written = transaction.write(rows)
    # Of no rows at all, Spark may leave out what counts them.
    gone = deleted.get["rows"] if marked else 0
    done = Rows(written - (marked - gone), marked - gone, gone)
    transaction.commit(done.inserted, done.updated, done.deleted)
    return done


def _complete(
    rows: DataFrame,
    columns: list[StructField],
    shape: TableShape,
    is_stored: SparkColumn | None = None,
) -> DataFrame:
    """The table's columns of the rows that are upserts."""
    return rows.where(F.col(OP) == UPSERT).select(
        *(_value(column, shape, is_stored).alias(column.name) for column in columns)
    )


def _value(column: StructField, shape: TableShape, is_stored: SparkColumn | None) -> SparkColumn:
    """A changed row's value of a column; ``is_stored`` is None where the change is whole."""
    name = column.name
    if name == POSITION:
        if is_stored is None:
            return F.col(POSITION)
        incomplete = refuse(~is_stored & (F.size(ABSENT) > 0), lost(F.col(ABSENT)), "string")
        return F.coalesce(incomplete, F.col(POSITION))
    if name not in shape.names:  # dropped in the source
        return F.lit(None).cast(column.dataType)
    value = F.col(quoted(name))
    if is_stored is None or name not in shape.patchy:
        return value
    # Its own null is of before the column was there: what is left out is no null.
    unchanged = F.array_contains(ABSENT, name) | F.array_contains(FILLED, name)
    return F.when(unchanged, F.coalesce(_stored(name), value)).otherwise(value)


def _same_key(shape: TableShape) -> list[SparkColumn]:
    return [F.col(quoted(key)) == _stored(key) for key in shape.keys]


def _with_mark(stored: DataFrame) -> DataFrame:
    return stored.withColumn(_STORED, F.lit(True))


def _renamed(name: str) -> SparkColumn:
    return F.col(quoted(name)).alias(_STORED + name)


def _stored(name: str) -> SparkColumn:
    return F.col(quoted(_STORED + name))

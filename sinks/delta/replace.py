"""The newest state of each key → one commit of our own, where that is known to be enough.

A small table is written anew, in one job. In a large one, rows are marked as gone by deletion
vectors: the table's keys are read to find them, and nothing else of it.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from cdc.records.position import Position
from sinks.changes.latest import lost
from sinks.changes.names import ABSENT, DELETE, FILLED, OP, POSITION, UPSERT, quoted
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.delta.commit import Rows
from sinks.delta.newest import Newest
from sinks.delta.table import DeltaTarget
from sinks.delta.transaction import FILE, INDEX, Transaction

SMALL_BYTES: Final = 4 << 20
"""A table of so few is written anew sooner than its rows are found."""
_STORED: Final = "_millrace_stored_"


def rewrite(
    target: DeltaTarget, run: int, newest: Newest, shape: TableShape, older: Position | None
) -> Rows:
    """Write a small table anew; rows up to ``older`` that aren't spoken of go."""
    transaction = Transaction(target, run)
    files = transaction.files()
    columns = target.columns().fields
    stored = _known(transaction.rows(files).select(*(_kept(one.name) for one in columns)))
    rows = newest.all().join(stored, _same_key(shape), "full_outer")
    known, told = F.coalesce(F.col(_STORED), F.lit(False)), F.col(POSITION).isNotNull()
    later = F.coalesce(F.col(POSITION) > _stored(POSITION), F.lit(False))
    newer = told & (~known | later)
    upsert = newer & (F.col(OP) == UPSERT)
    gone = newer & (F.col(OP) == DELETE) & known
    if older is not None:
        gone |= ~told & F.coalesce(_stored(POSITION) <= str(older), F.lit(False))
    counts = Observation()
    rows = rows.observe(
        counts,
        F.count_if(upsert & ~known).alias("inserted"),
        F.count_if(upsert & known).alias("updated"),
        F.count_if(gone).alias("deleted"),
    ).where(upsert | (known & ~gone))
    transaction.write(
        rows.select(
            *(
                F.when(upsert, _value(one, shape, known))
                .otherwise(_stored(one.name))
                .alias(one.name)
                for one in columns
            )
        )
    )
    transaction.remove(files)
    found = counts.get
    done = Rows(found["inserted"], found["updated"], found["deleted"])
    transaction.commit(*done[:3])
    return done


def mark(target: DeltaTarget, run: int, newest: Newest, shape: TableShape) -> Rows:
    """Mark the rows that go, and write those that come; all of them are newer than any stored."""
    transaction = Transaction(target, run)
    files = transaction.files(newest.within and newest.within(lambda key: F.col(quoted(key))))
    keys = [F.col(quoted(name)) for name in shape.keys]
    deleted = Observation()
    places = (
        newest.all()
        .select(*keys, OP)
        .join(transaction.placed(files, keys), shape.keys)
        .observe(deleted, F.count_if(F.col(OP) == DELETE).alias("rows"))
        .select(FILE, INDEX)
    )
    marked = transaction.mark(places, files)
    columns = target.columns().fields
    rows = _complete(newest.whole, columns, shape)
    if newest.patched is not None:
        stored = _known(transaction.rows(files).select(*map(_kept, [*shape.keys, *shape.patchy])))
        both = newest.patched.join(stored, _same_key(shape), "left")
        known = F.coalesce(F.col(_STORED), F.lit(False))
        rows = rows.unionByName(_complete(both, columns, shape, known))
    written = transaction.write(rows)
    # Of no rows at all, Spark may leave out what counts them.
    gone = deleted.get["rows"] if marked else 0
    done = Rows(written - (marked - gone), marked - gone, gone)
    transaction.commit(*done[:3])
    return done


def _complete(
    rows: DataFrame, columns: list[StructField], shape: TableShape, known: SparkColumn | None = None
) -> DataFrame:
    """What the table is to have of rows that are there."""
    return rows.where(F.col(OP) == UPSERT).select(
        *(_value(one, shape, known).alias(one.name) for one in columns)
    )


def _value(column: StructField, shape: TableShape, known: SparkColumn | None) -> SparkColumn:
    """A changed row's value of a column, where the row is ``known``, or new; None: it is whole."""
    name = column.name
    if name == POSITION:
        if known is None:
            return F.col(POSITION)
        incomplete = refuse(~known & (F.size(ABSENT) > 0), lost(F.col(ABSENT)), "string")
        return F.coalesce(incomplete, F.col(POSITION))
    if name not in shape.names:  # dropped in the source
        return F.lit(None).cast(column.dataType)
    value = F.col(quoted(name))
    if known is None or name not in shape.patchy:
        return value
    # Its own null is of before the column was there: what is left out is no null.
    unchanged = F.array_contains(ABSENT, name) | F.array_contains(FILLED, name)
    return F.when(unchanged, F.coalesce(_stored(name), value)).otherwise(value)


def _same_key(shape: TableShape) -> list[SparkColumn]:
    return [F.col(quoted(key)) == _stored(key) for key in shape.keys]


def _known(stored: DataFrame) -> DataFrame:
    return stored.withColumn(_STORED, F.lit(True))


def _kept(name: str) -> SparkColumn:
    return F.col(quoted(name)).alias(_STORED + name)


def _stored(name: str) -> SparkColumn:
    return F.col(quoted(_STORED + name))

"""Changes of a table without a key → one commit that leaves the right number of each row's copies.

Rows are equal if all their columns are. The batch is netted per row: it adds or removes the net
number of copies. Each stored row has its own id: its record's topic, partition and offset
(``_millrace_row``), so that one of several copies can be removed.
"""

from delta.tables import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from sinks.changes.names import COUNT, DELETE, OP, POSITION, ROW, UPSERT, quoted
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.delta.commit import execute, write_whole
from sinks.delta.evolution import columns_with_ids
from sinks.delta.table import DerivedDeltaTable
from sinks.run.plan import RunPlan
from sinks.run.summary import Rows
from sinks.run.topics import TableChanges

_RANK = "_millrace_rank"
_NET = "_millrace_net"


def write_copies(
    target: DerivedDeltaTable, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """Add and remove copies of rows, or create the table from those that are left.

    A TRUNCATE removes all older rows. Runs inside ``commit``.
    """
    if plan.tables[target.name].begins:
        return write_all_copies(target, plan, changes, shape)
    names, older = shape.names, changes.older(shape)
    netted = changes.images(shape).transform(lambda rows: _net(rows, names))
    stored = DeltaTable.forPath(target.spark, target.path)
    if older is None:
        going = netted.transform(lambda rows: _going(rows, stored.toDF(), names))
    else:
        netted = netted.where(_no_more_than_added())
        going = netted.where(F.lit(False)).select(ROW)
    source = (
        netted.transform(lambda rows: _coming(rows, names))
        .withColumn(OP, F.lit(UPSERT))
        .unionByName(going.withColumn(OP, F.lit(DELETE)), allowMissingColumns=True)
    )
    builder = (
        stored.alias("t")
        .merge(source.alias("s"), F.col(f"t.{ROW}") == F.col(f"s.{ROW}"))
        .whenMatchedDelete(F.col(f"s.{OP}") == DELETE)
        .whenNotMatchedInsert(
            F.col(f"s.{OP}") == UPSERT,
            values={quoted(name): F.col(f"s.{quoted(name)}") for name in [*names, POSITION, ROW]},
        )
    )
    if older is not None:
        builder = builder.whenNotMatchedBySourceDelete(
            older.goes(lambda name: F.col(f"t.{quoted(name)}"))
        )
    return execute(builder)


def write_all_copies(
    target: DerivedDeltaTable, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """Write all rows of the table, new or existing. Runs inside ``commit``."""
    netted = changes.images(shape).transform(lambda rows: _net(rows, shape.names))
    return write_whole(target, plan.tables[target.name], _new_rows(netted, shape), shape)


def _new_rows(netted: DataFrame, shape: TableShape) -> DataFrame:
    """Return all columns of existing copies, for a table that has no others."""
    rows = _coming(netted.where(_no_more_than_added()), shape.names)
    return rows.select(*columns_with_ids(shape), POSITION, ROW)


def _net(images: DataFrame, names: list[str]) -> DataFrame:
    """Add the net number of copies of its row, and its rank among added ones, to each change."""
    copies = Window.partitionBy(*map(quoted, names))
    newest_first = copies.orderBy(F.desc(COUNT), F.desc(POSITION), F.desc(ROW))
    return images.withColumns(
        {_NET: F.sum(COUNT).over(copies), _RANK: F.row_number().over(newest_first)}
    )


def _coming(netted: DataFrame, names: list[str]) -> DataFrame:
    added = (F.col(COUNT) == 1) & (F.col(_RANK) <= F.col(_NET))
    return netted.where(added).select(*map(quoted, names), POSITION, ROW)


def _going(netted: DataFrame, stored: DataFrame, names: list[str]) -> DataFrame:
    """Return the ids of the stored rows to remove: any of the copies, since they are equal."""
    fewer = (
        netted.where(F.col(_NET) < 0)
        .select(*map(quoted, names), _NET)
        .dropDuplicates(names)
        .alias("n")
    )
    same = F.lit(True)
    for name in names:
        same &= F.col(f"n.{quoted(name)}").eqNullSafe(F.col(f"t.{quoted(name)}"))
    copies = Window.partitionBy(*(F.col(f"n.{quoted(name)}") for name in names))
    candidates = fewer.join(stored.alias("t"), same, "left").withColumns(
        {
            _RANK: F.row_number().over(copies.orderBy(F.col(f"t.{ROW}"))),
            "_millrace_stored": F.count(F.col(f"t.{ROW}")).over(copies),
        }
    )
    missing = F.col("_millrace_stored") < -F.col(_NET)
    unknown = refuse(missing, F.lit("the log removes a row that the table doesn't have"), "string")
    row = F.coalesce(unknown, F.col(f"t.{ROW}"))
    return candidates.where(F.col(_RANK) <= -F.col(_NET)).select(row.alias(ROW))


def _no_more_than_added() -> SparkColumn:
    """Check that no row has less than zero copies; otherwise end the job."""
    more = F.col(_NET) < 0
    message = F.lit("the log removes a row that it never added")
    return ~more | refuse(more, message, "boolean")

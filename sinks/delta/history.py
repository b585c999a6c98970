"""Changes of a table → one commit that ends versions of rows, and adds those that came after.

A version is identified by its key and the position at which it began, so what is applied twice
changes nothing.
"""

from delta.tables import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sinks.changes.ended import first_end, older
from sinks.changes.ends import RowsEnd
from sinks.changes.names import END, IS_CURRENT, OP, POSITION, UPSERT, VALID_FROM, VALID_TO, quoted
from sinks.changes.shape import TableShape
from sinks.changes.versions import versions, whole
from sinks.delta.commit import create, execute
from sinks.delta.evolution import columns_with_ids
from sinks.delta.keyed import same_key, source, stored
from sinks.delta.table import DeltaTarget
from sinks.run.plan import RunPlan
from sinks.run.summary import Rows
from sinks.run.topics import TableChanges

_OWN = (POSITION, VALID_FROM, VALID_TO, END, IS_CURRENT)


def write_history(
    target: DeltaTarget, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """End versions of rows, and add new ones; or make the table of all versions.

    Behind a gap, rows that the log doesn't have went away in between. Inside of ``commit``.
    """
    table = plan.tables[target.name]
    if not table.base:
        rows = versions(whole(changes.timed(shape, None)), None, shape, table.ends)
        return create(target, rows.select(*columns_with_ids(shape), *_OWN), shape)
    into = DeltaTable.forPath(target.spark, target.path)
    timed = changes.timed(shape, target.spark.read.format("delta").load(target.path))
    keys = timed.select(*map(quoted, shape.keys)).distinct()
    ends = list(table.ends)
    in_log = changes.behind_gap(shape)
    if in_log is not None and table.gap is not None:
        keys = keys.union(_alive(in_log, shape)).distinct()
        ends.append(RowsEnd(position=table.gap, ts_us=plan.ts_ms * 1000))
    standing = into.toDF().where(F.col(END).isNull()).join(keys, shape.keys, "left_semi")
    rows = versions(whole(timed), standing, shape, table.ends, behind_gap=in_log is not None)
    builder = (
        into.alias("t")
        .merge(
            rows.alias("s"),
            same_key(shape) & stored(END).isNull() & (stored(POSITION) == source(POSITION)),
        )
        .whenMatchedUpdate(set={name: source(name) for name in (END, VALID_TO, IS_CURRENT)})
        .whenNotMatchedInsert(values={quoted(name): source(name) for name in (*shape.names, *_OWN)})
    )
    if (older_rows := older(ends, shape)) is not None:
        end = first_end(ends, shape, stored)
        ended: dict[str, str | SparkColumn] = {
            END: end["position"],
            VALID_TO: F.timestamp_micros(end["ts_us"]),
            IS_CURRENT: F.lit(False),
        }
        # One that a later row of its key has ended meanwhile had its end before, within bounds.
        stood = stored(END).isNull() | (stored(END) > end["position"])
        builder = builder.whenNotMatchedBySourceUpdate(older_rows.goes(stored) & stood, set=ended)
    return execute(builder)


def _alive(in_log: DataFrame, shape: TableShape) -> DataFrame:
    """The keys that the log has a row of."""
    rows = in_log.groupBy(*map(quoted, shape.keys)).agg(F.max_by(OP, POSITION).alias(OP))
    return rows.where(F.col(OP) == UPSERT).select(*map(quoted, shape.keys))

"""Changes of a table → one commit that ends versions of rows, and adds those that came after.

A version is identified by its key and the position at which it began, so what is applied twice
changes nothing.
"""

from typing import NamedTuple

from delta.tables import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.records.position import Position
from sinks.changes.names import END, IS_CURRENT, OP, POSITION, UPSERT, VALID_FROM, VALID_TO, quoted
from sinks.changes.shape import TableShape
from sinks.changes.versions import versions, whole
from sinks.delta.commit import create, execute
from sinks.delta.current import same_key, source, stored
from sinks.delta.evolution import columns_with_ids
from sinks.delta.table import DeltaTarget
from sinks.run.plan import TablePlan
from sinks.run.summary import Rows

_OWN = (POSITION, VALID_FROM, VALID_TO, END, IS_CURRENT)


class Gap(NamedTuple):
    """A log that has forgotten changes: all that it still has, and when the run was planned."""

    log: DataFrame
    planned_ms: int

    def alive(self, shape: TableShape, truncated: Position | None) -> DataFrame:
        """The keys that the log has a row of."""
        rows = self.log.groupBy(*map(quoted, shape.keys)).agg(
            F.max_by(OP, POSITION).alias(OP), F.max(POSITION).alias(POSITION)
        )
        newer = F.lit(True) if truncated is None else F.col(POSITION) > str(truncated)
        return rows.where((F.col(OP) == UPSERT) & newer).select(*map(quoted, shape.keys))


def write_new_history(
    target: DeltaTarget, changes: DataFrame, shape: TableShape, table: TablePlan
) -> Rows:
    """Create the Delta table with all versions; inside of ``commit``."""
    rows = versions(whole(changes), None, shape, table.ends)
    return create(target, rows.select(*columns_with_ids(shape), *_OWN), shape)


def merge_history(
    target: DeltaTarget, changes: DataFrame, shape: TableShape, table: TablePlan, gap: Gap | None
) -> Rows:
    """End versions, and add new ones; inside of ``commit``.

    Behind a ``gap``, rows that the log doesn't have went away in between.
    """
    into = DeltaTable.forPath(target.spark, target.path)
    keys = changes.select(*map(quoted, shape.keys)).distinct()
    ends = list(table.ends)
    if gap is not None and table.gap is not None:
        keys = keys.union(gap.alive(shape, table.truncated)).distinct()
        ends.append((table.gap, gap.planned_ms * 1000))
    standing = into.toDF().where(F.col(END).isNull()).join(keys, shape.keys, "left_semi")
    rows = versions(whole(changes), standing, shape, table.ends, behind_gap=gap is not None)
    builder = (
        into.alias("t")
        .merge(
            rows.alias("s"),
            same_key(shape) & stored(END).isNull() & (stored(POSITION) == source(POSITION)),
        )
        .whenMatchedUpdate(set={name: source(name) for name in (END, VALID_TO, IS_CURRENT)})
        .whenNotMatchedInsert(values={quoted(name): source(name) for name in (*shape.names, *_OWN)})
    )
    if ends:
        position, time_us = min(ends)
        ended: dict[str, str | SparkColumn] = {
            END: F.lit(str(position)),
            VALID_TO: F.timestamp_micros(F.lit(time_us)),
            IS_CURRENT: F.lit(False),
        }
        older = stored(END).isNull() & (stored(POSITION) <= str(position))
        builder = builder.whenNotMatchedBySourceUpdate(older, set=ended)
    return execute(builder)

"""Changes of a table → one commit that ends versions of rows, and adds those that came after.

A version is found again by its key and the position at which it began, so what is applied twice
changes nothing.
"""

from delta.tables import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.delta.commit import Rows, create, execute
from sinks.delta.current import same_key, source, stored
from sinks.delta.evolution import described
from sinks.delta.table import DeltaTarget
from sinks.names import END, IS_CURRENT, POSITION, VALID_FROM, VALID_TO, quoted
from sinks.plan import Plan, TablePlan
from sinks.shape import Shape
from sinks.versions import versions, whole

_OWN = (POSITION, VALID_FROM, VALID_TO, END, IS_CURRENT)


def write_new_history(
    target: DeltaTarget, changes: DataFrame, shape: Shape, table: TablePlan, _plan: Plan
) -> Rows:
    """Create the Delta table with all versions; inside of ``commit``."""
    rows = versions(whole(changes), None, shape, table.ends)
    return create(target, rows.select(*described(shape), *_OWN), shape)


def merge_history(
    target: DeltaTarget, changes: DataFrame, shape: Shape, table: TablePlan, plan: Plan
) -> Rows:
    """End versions, and add new ones; inside of ``commit``."""
    into = DeltaTable.forPath(target.spark, target.path)
    keys = changes.select(*map(quoted, shape.keys)).distinct()
    standing = into.toDF().where(F.col(END).isNull()).join(keys, shape.keys, "left_semi")
    behind_gap = table.gap is not None
    rows = versions(whole(changes), standing, shape, table.ends, behind_gap=behind_gap)
    builder = (
        into.alias("t")
        .merge(
            rows.alias("s"),
            same_key(shape) & stored(END).isNull() & (stored(POSITION) == source(POSITION)),
        )
        .whenMatchedUpdate(set={name: source(name) for name in (END, VALID_TO, IS_CURRENT)})
        .whenNotMatchedInsert(values={quoted(name): source(name) for name in (*shape.names, *_OWN)})
    )
    # Behind a gap all of the log was read, so what it doesn't speak of went away in between.
    ends = table.ends if table.gap is None else ((table.gap, plan.ts_ms * 1000), *table.ends)
    if ends:
        place, time_us = min(ends)
        ended: dict[str, str | SparkColumn] = {
            END: F.lit(str(place)),
            VALID_TO: F.timestamp_micros(F.lit(time_us)),
            IS_CURRENT: F.lit(False),
        }
        older = stored(END).isNull() & (stored(POSITION) <= str(place))
        builder = builder.whenNotMatchedBySourceUpdate(older, set=ended)
    return execute(builder)

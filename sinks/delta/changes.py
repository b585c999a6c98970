"""Every event of a table → rows that are only ever added: the archive, whatever the log forgets.

A row has the columns of the row after the change (of a delete: what it tells of the row before),
``_millrace_op`` (c, u, d, r; t: TRUNCATE), when it was committed, the place of its record, and the
record itself, from which any other derived table can be made again; unless the table hides some
columns, which the record would tell. Where the log had forgotten events, a row ``gap`` says so.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.position import Position
from cdc.records.topics import TRUNCATE_KEY
from sinks.changes.names import OP, POSITION, RAW_VALUE, TIME, quoted
from sinks.changes.shape import Shape
from sinks.delta.commit import Rows, create
from sinks.delta.evolution import described
from sinks.delta.table import DeltaTarget
from sinks.log.parse import parse_events
from sinks.run.plan import TablePlan

GAP: Final = "gap"
_FIRST_PARTITION: Final = 0


def write_changes(target: DeltaTarget, raw: DataFrame, shape: Shape, table: TablePlan) -> Rows:
    """Add the events to the table, or make it of them; inside of ``commit``."""
    once = _once(raw) if table.gap is None else _once_behind_a_gap(raw)
    keeps = target.derived.keeps_records
    if table.base:  # one that has begun without the records goes on so
        keeps = keeps and RAW_VALUE in target.columns().names
    events = parse_events(once, shape, records=keeps)
    own = [name for name in events.columns if name not in shape.names]
    rows = events.select(*described(shape), *map(quoted, own))
    if table.gap is not None:
        rows = rows.unionByName(_mark(rows, table.gap), allowMissingColumns=True)
    if not table.base:
        return create(target, rows, shape)
    rows.write.format("delta").mode("append").save(target.path)
    return Rows(inserted=target.added())


def _once(raw: DataFrame) -> DataFrame:
    """One record of each event: not the tombstone of a delete, nor a TRUNCATE's other copies."""
    reserved = F.coalesce(F.col("key") == TRUNCATE_KEY.decode(), F.lit(False))
    copied = reserved & (F.col("partition") != _FIRST_PARTITION)
    return raw.where(F.col("value").isNotNull() & ~copied)


def _once_behind_a_gap(raw: DataFrame) -> DataFrame:
    """The same, and tombstones where compaction has left nothing else of a delete."""
    event = Window.partitionBy("partition", "position", "key")
    told = raw.withColumn("told", F.count("value").over(event) > 0)
    lonely = told.where(F.col("value").isNull() & ~F.col("told")).drop("told")
    return raw.transform(_once).unionByName(lonely)


def _mark(rows: DataFrame, gap: Position) -> DataFrame:
    """A row that says that events are missing behind a position."""
    return rows.sparkSession.range(1).select(
        F.lit(str(gap)).alias(POSITION), F.lit(GAP).alias(OP), F.current_timestamp().alias(TIME)
    )

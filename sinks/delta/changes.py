"""Every event of a table → rows that are only ever added: the archive, whatever the log forgets.

A row has the columns of the row after the change (of a delete: what it tells of the row before),
``_millrace_op`` (c, u, d, r; t: TRUNCATE), when it was committed, the place of its record, and the
record itself, from which any other derived table can be made again; unless the table hides some
columns, which the record would tell.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.topics import TRUNCATE_KEY
from sinks.delta.commit import Rows, create
from sinks.delta.evolution import described
from sinks.delta.table import DeltaTarget
from sinks.names import quoted
from sinks.parse import parse_events
from sinks.plan import TablePlan
from sinks.shape import Shape

_FIRST_PARTITION: Final = 0


def unseen(raw: DataFrame, table: TablePlan) -> DataFrame:
    """The raw records that no run before has archived; those up to the cut.

    What the run before has read and left was above its cut.
    """
    if table.after is None:
        return raw
    seen = F.lit(False)
    for partition, offset in table.seen.items():
        seen |= (F.col("partition") == partition) & (F.col("offset") < offset)
    return raw.where(~seen | F.col("position").isNull() | (F.col("position") > str(table.after)))


def write_changes(target: DeltaTarget, raw: DataFrame, shape: Shape, *, new: bool) -> Rows:
    """Add the events to the table, or make it of them; inside of ``commit``."""
    events = parse_events(raw.transform(_once), shape, records=target.derived.keeps_records)
    own = [name for name in events.columns if name not in shape.names]
    rows = events.select(*described(shape), *map(quoted, own))
    if new:
        return create(target, rows, shape)
    rows.write.format("delta").mode("append").save(target.path)
    return Rows(inserted=target.added())


def _once(raw: DataFrame) -> DataFrame:
    """One record of each event: not the tombstone of a delete, nor a TRUNCATE's other copies."""
    reserved = F.coalesce(F.col("key") == TRUNCATE_KEY.decode(), F.lit(False))
    copied = reserved & (F.col("partition") != _FIRST_PARTITION)
    return raw.where(F.col("value").isNotNull() & ~copied)

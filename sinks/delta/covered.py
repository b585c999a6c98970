"""A derived table and a doubt about its rows → whether an event has covered each of them since."""

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from cdc.records.position import FIRST_EPOCH
from sinks.changes.names import DELETED, IS_CURRENT, OP, POSITION, quoted
from sinks.delta.table import DerivedDeltaTable
from sinks.run.debezium_topic import MemberDoubt

_DELETE, _TRUNCATE = "d", "t"


def is_covered(target: DerivedDeltaTable, doubt: MemberDoubt, keys: Sequence[str]) -> bool:
    """Whether no current row was last written by an event from before the doubt.

    An archive's rows are those of its replayed events. Without a key (``keys``) the answer is
    unknown.
    """
    rows = target.spark.read.format("delta").load(target.path)
    is_older = F.col(POSITION) < f"{FIRST_EPOCH:08x}.{doubt.since:016x}"
    if target.derived.kind == "changes":
        if not keys:
            return False
        emptied = rows.where(F.col(OP) == _TRUNCATE).agg(F.max(POSITION)).first()
        if emptied is not None and emptied[0] is not None:
            rows = rows.where(F.col(POSITION) > emptied[0])
        event: SparkColumn = F.struct(POSITION, OP)
        newest = rows.groupBy(*map(quoted, keys)).agg(F.max(event).alias("event"))
        rows = newest.select("event.*").where(F.col(OP) != _DELETE)
    elif target.derived.kind == "history":
        rows = rows.where(IS_CURRENT)
    elif target.derived.marks_deletes:
        rows = rows.where(~F.col(DELETED))
    return rows.where(is_older).isEmpty()

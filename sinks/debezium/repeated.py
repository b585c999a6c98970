"""Changes of a table with a key → without those that a connector that crashed has written again.

It goes on from where it last said that it was, so that what came after that is in the topic once
more, in the same order. An event is told by its LSN and the time of its commit: no row changes
twice at one LSN. A history would have those versions twice.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.changes.names import DELETE, END, OP, POSITION, TIME, VALID_FROM, VALID_TO, quoted
from sinks.changes.shape import Shape

_LAST: Final = "_millrace_last"
_LSN_CHARS: Final = 16
_NO_LSN: Final = "0" * _LSN_CHARS
"""A tombstone's."""


def unrepeated(changes: DataFrame, shape: Shape, history: DataFrame | None) -> DataFrame:
    """Parsed changes (timed) but for repeated ones, of which the ``history`` may have the first.

    It has what a row became, and not every event: so of a row all goes that stands before, or is,
    the event that the history has last. A run that ends before that one makes versions of what is
    repeated; rows are right again with the next.
    """
    once = _unlike_before(changes, shape)
    if history is not None:
        once = _behind(once, shape, history)
    same = Window.partitionBy(*map(quoted, shape.keys), _lsn(F.col(POSITION)), TIME, OP)
    first = F.row_number().over(same.orderBy(POSITION)) == 1
    return (
        once.withColumn(_LAST, first | (_lsn(F.col(POSITION)) == _NO_LSN)).where(_LAST).drop(_LAST)
    )


def _unlike_before(changes: DataFrame, shape: Shape) -> DataFrame:
    """Without deletes of what is gone: a tombstone must not outlive the delete that it follows."""
    before = F.lag(OP).over(_keyed(shape).orderBy(POSITION))
    again = F.coalesce((F.col(OP) == DELETE) & (before == DELETE), F.lit(False))
    return changes.withColumn(_LAST, again).where(~F.col(_LAST)).drop(_LAST)


def _behind(changes: DataFrame, shape: Shape, history: DataFrame) -> DataFrame:
    """The changes that come after the one of their row that the history has last."""
    first = changes.agg(F.min(F.unix_micros(TIME))).first()
    assert first is not None  # noqa: S101 (an aggregate returns a row)
    since = F.timestamp_micros(F.lit(first[0]).cast("bigint"))
    place = F.struct(
        F.coalesce(END, POSITION).alias("position"), F.coalesce(VALID_TO, VALID_FROM).alias("time")
    )
    last = (
        history.where(F.col(END).isNull() | (F.col(VALID_TO) >= since))
        .groupBy(*map(quoted, shape.keys))
        .agg(F.max(place).alias(_LAST))
    )
    is_last = (_lsn(F.col(POSITION)) == _lsn(F.col(_LAST)["position"])) & (
        F.col(TIME) == F.col(_LAST)["time"]
    )
    seen = F.max(F.when(is_last, F.col(POSITION))).over(_keyed(shape))
    return (
        changes.join(last, shape.keys, "left")
        .withColumn(_LAST, seen)
        .where(F.col(_LAST).isNull() | (F.col(POSITION) > F.col(_LAST)))
        .select(*map(quoted, changes.columns))
    )


def _lsn(position: SparkColumn) -> SparkColumn:
    return F.substring(position, -_LSN_CHARS, _LSN_CHARS)


def _keyed(shape: Shape) -> WindowSpec:
    return Window.partitionBy(*map(quoted, shape.keys))

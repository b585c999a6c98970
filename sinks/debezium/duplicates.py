"""Changes that a connector that crashed has written again → a history without them.

The connector goes on from the offset that it last stored, so that all later events are in the topic
once more, in the same order. An event of a row is known by its LSN and commit time.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from sinks.changes.latest import by_key
from sinks.changes.names import DELETE, END, OP, POSITION, TIME, VALID_FROM, VALID_TO, quoted
from sinks.changes.shape import TableShape

_LAST: Final = "_millrace_last"
_LSN_CHARS: Final = 16
_NO_LSN: Final = "0" * _LSN_CHARS
"""A tombstone's."""


def without_repeated_changes(
    changes: DataFrame, shape: TableShape, history: DataFrame | None
) -> DataFrame:
    """Parsed changes (timed) but for repeated ones, of which the ``history`` may have the first.

    It has the states of a row, and not every event: so all events of a row go up to the one that
    the history has last. A merge that ends before that one makes versions of repeated events; the
    next one sets the rows right.
    """
    once = _unlike_before(changes, shape)
    if history is not None:
        once = _behind_history(once, shape, history)
    same = Window.partitionBy(*map(quoted, shape.keys), _lsn(F.col(POSITION)), TIME, OP)
    first = F.row_number().over(same.orderBy(POSITION)) == 1
    return (
        once.withColumn(_LAST, first | (_lsn(F.col(POSITION)) == _NO_LSN)).where(_LAST).drop(_LAST)
    )


def _unlike_before(changes: DataFrame, shape: TableShape) -> DataFrame:
    """Without deletes of what is gone: a tombstone must not outlive the delete that it follows."""
    before = F.lag(OP).over(by_key(shape).orderBy(POSITION))
    again = F.coalesce((F.col(OP) == DELETE) & (before == DELETE), F.lit(False))
    return changes.withColumn(_LAST, again).where(~F.col(_LAST)).drop(_LAST)


def _behind_history(changes: DataFrame, shape: TableShape, history: DataFrame) -> DataFrame:
    """The changes that come after the one of their row that the history has last."""
    first = changes.agg(F.min(F.unix_micros(TIME))).first()
    assert first is not None  # noqa: S101 (an aggregate returns a row)
    since = F.timestamp_micros(F.lit(first[0]).cast("bigint"))
    event = F.struct(
        F.coalesce(END, POSITION).alias("position"), F.coalesce(VALID_TO, VALID_FROM).alias("time")
    )
    last = (
        history.where(F.col(END).isNull() | (F.col(VALID_TO) >= since))
        .groupBy(*map(quoted, shape.keys))
        .agg(F.max(event).alias(_LAST))
    )
    is_last = (_lsn(F.col(POSITION)) == _lsn(F.col(_LAST)["position"])) & (
        F.col(TIME) == F.col(_LAST)["time"]
    )
    last_position = F.max(F.when(is_last, F.col(POSITION))).over(by_key(shape))
    return (
        changes.join(last, shape.keys, "left")
        .withColumn(_LAST, last_position)
        .where(F.col(_LAST).isNull() | (F.col(POSITION) > F.col(_LAST)))
        .select(*map(quoted, changes.columns))
    )


def _lsn(position: SparkColumn) -> SparkColumn:
    return F.substring(position, -_LSN_CHARS, _LSN_CHARS)

"""Events of a table without a key → without those that a connector that crashed has written again.

It goes on from where it last said that it was, so that what came after that is in the topic once
more, in the same order. Events of one LSN and commit time are a *run*: one event, or the rows of
one INSERT or COPY that PostgreSQL has written together. A run that comes again behind others is
repeated, as far as it was sent before. Where the last run before these records comes again, all up
to its end is. Only a run of inserts that comes again at once looks like one that goes on.

In a topic of one partition only: in several no event is known to be behind another.
"""

from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.names import DELETE, END, OP, POSITION, TIME, VALID_FROM, VALID_TO, quoted
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.debezium.described import Described
from sinks.debezium.envelope import LETTER, enveloped, told_lsn, told_us

_PLACE: Final = "_millrace_place"
_RUN: Final = "_millrace_run"
_NTH: Final = "_millrace_nth"
_CHANGES: Final = "_millrace_changes"
_THERE: Final = "_millrace_there"
_OUT_OF_ORDER_US: Final = 100_000
"""Commits that come together may have times that are out of order, but not by so much."""
_MORE_TO_COME: Final = (
    "the connector has begun to repeat events, and hasn't come to new ones yet: the next run that "
    "finds such goes on"
)


Snapshot = tuple[int, int]
"""LSN, and time (µs since 1970)."""
_LAST: Final = "_millrace_last"
_LSN_CHARS: Final = 16
_NO_LSN: Final = "0" * _LSN_CHARS
"""A tombstone's."""


class Reached(NamedTuple):
    """The last run that was read: its LSN and commit time (µs since 1970), how many events."""

    lsn: int
    time_us: int
    events: int

    def is_at(self, place: SparkColumn) -> SparkColumn:
        """Whether a place is that of this run."""
        return (place["lsn"] == self.lsn) & (place["us"] == self.time_us)


def spliced(raw: DataFrame, topic: Described, before: Reached | None) -> DataFrame:
    """Records as they would be if nothing were repeated; ``before`` is what was read last.

    They end the job where they begin among what is repeated, and not behind it: more of them will.
    """
    rows = _in_runs(raw, topic)
    if before is not None:
        rows = _behind(rows, before)
    earlier = Window.partitionBy("partition", _PLACE).orderBy(_RUN)
    sent = F.max(_NTH).over(earlier.rangeBetween(Window.unboundedPreceding, -1))
    alike = Window.partitionBy("partition", _RUN, LETTER).orderBy("offset")
    again = F.col(_CHANGES) & (F.row_number().over(alike) > 1)
    return _without(rows, again | (F.col(_NTH) <= F.coalesce(sent, F.lit(0)))).select(*raw.columns)


def reached(raw: DataFrame, topic: Described, before: Reached | None) -> Reached | None:
    """The last run of the records; the one before them where they have none.

    Raises SinkError where more is to come of what is repeated: it can only be told as a whole.
    """
    rows = _in_runs(raw, topic)
    row = _counted(rows).orderBy(F.desc(_RUN)).first()
    if row is None:
        return before
    first = Window.partitionBy(_PLACE).orderBy(_RUN)
    sent = _counted(rows if before is None else _unread(rows, before)).withColumns({
        "first": F.first(_RUN).over(first),
        "sent": F.first("events").over(first),
    })  # fmt: skip
    newest = sent.orderBy(F.desc("first"), F.desc(_RUN)).first()
    if newest is not None and (newest[_RUN] != row[_RUN] or newest["events"] < newest["sent"]):
        raise SinkError(_MORE_TO_COME, where=f"table {topic.schema.name}")
    lsn, time_us, events = row[_PLACE]["lsn"], row[_PLACE]["us"], row["events"]
    if before is not None and row[_RUN] == 1 and before[:2] == (lsn, time_us):
        events += before.events
    return Reached(lsn, time_us, events)


def _counted(rows: DataFrame) -> DataFrame:
    """The runs, with their places and how many events each has."""
    runs = rows.where(F.col(_PLACE).isNotNull()).groupBy(_RUN, _PLACE)
    return runs.agg(F.count(F.lit(1)).alias("events"))


def _in_runs(raw: DataFrame, topic: Described) -> DataFrame:
    """The records with the place and number of their run, and whether it changes old rows."""
    lsn, time_us = told_lsn(topic).alias("lsn"), told_us(topic).alias("us")
    is_event = F.col(LETTER).isin("c", "u", "d", "t") & (told_lsn(topic) > 0)
    order = Window.partitionBy("partition").orderBy("offset")
    of_run = Window.partitionBy("partition", _RUN)
    goes_on = F.coalesce(F.lag(_PLACE).over(order) == F.col(_PLACE), F.lit(False))
    return (
        enveloped(raw, topic)
        .select(*raw.columns, LETTER, F.when(is_event, F.struct(lsn, time_us)).alias(_PLACE))
        .withColumn(_RUN, (~goes_on).cast("int"))
        .withColumn(_RUN, F.sum(_RUN).over(order))
        .withColumn(_CHANGES, F.max(F.col(LETTER).isin("u", "d", "t")).over(of_run))
        .withColumn(_NTH, F.row_number().over(of_run.orderBy("offset")))
    )


def _unread(rows: DataFrame, before: Reached) -> DataFrame:
    """What comes after the last run that was read, where that comes again.

    Where records begin with that run they go on with it, if its rows were only inserted.
    """
    here = before.is_at(F.col(_PLACE)) & ((F.col(_RUN) > 1) | F.col(_CHANGES))
    end = F.max(F.when(here, F.col(_RUN))).over(Window.partitionBy("partition"))
    read = (F.col(_RUN) < end) | ((F.col(_RUN) == end) & (F.col(_NTH) <= before.events))
    return _without(rows, read)


def _behind(rows: DataFrame, before: Reached) -> DataFrame:
    """What wasn't read before; the end of the job where that begins with what is older."""
    place = F.col(_PLACE)
    older = (place["lsn"] < before.lsn) & (place["us"] < before.time_us - _OUT_OF_ORDER_US)
    more_to_come = refuse(F.coalesce(older, F.lit(False)), F.lit(_MORE_TO_COME), "boolean")
    return _unread(rows, before).where(F.coalesce(more_to_come, F.lit(True)))


def _without(rows: DataFrame, gone: SparkColumn) -> DataFrame:
    """The rows but for those events; what isn't one stays."""
    there = F.col(_PLACE).isNull() | ~F.coalesce(gone, F.lit(False))
    return rows.withColumn(_THERE, there).where(_THERE).drop(_THERE)


class Reads(NamedTuple):
    """The snapshot whose rows a table has, if of any; and whether there are rows of another one."""

    snapshot: Snapshot | None = None
    again: bool = False


def reads(
    raw: DataFrame, topic: Described, partitions: int, known: Snapshot | None, begins: bool
) -> Reads:
    """Look for rows of snapshots in the records of one topic.

    ``known`` is the snapshot that the table has rows of; one that doesn't begin here and has none
    began with changes. Several partitions are in the order in which Kafka got their records.
    """
    of_snapshot = F.col(LETTER) == "r"
    change = F.col(LETTER).isin("c", "u", "d")
    place = F.col("offset" if partitions == 1 else "timestamp")
    snapshot = F.struct(
        F.coalesce(told_lsn(topic), F.lit(0)).alias("lsn"),
        F.coalesce(told_us(topic), F.lit(0)).alias("us"),
    )
    row = (
        enveloped(raw, topic)
        .agg(
            F.min(F.when(of_snapshot, snapshot)).alias("first"),
            F.max(F.when(of_snapshot, snapshot)).alias("last"),
            F.max(F.when(of_snapshot, place)).alias("last_place"),
            F.min(F.when(change, place)).alias("change"),
        )
        .first()
    )
    if row is None or row["first"] is None:
        return Reads(known)
    found = (row["first"]["lsn"], row["first"]["us"])
    several = row["first"] != row["last"] or (known is not None and known != found)
    behind = row["change"] is not None and row["change"] < row["last_place"]
    return Reads(found, several or behind or (known is None and not begins))


def unrepeated(changes: DataFrame, shape: TableShape, history: DataFrame | None) -> DataFrame:
    """Parsed changes (timed) but for repeated ones, of which the ``history`` may have the first.

    It has what a row became, and not every event: so of a row all goes that stands before, or is,
    the event that the history has last. A run that ends before that one makes versions of what is
    repeated; rows are right again with the next.
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
    before = F.lag(OP).over(_keyed(shape).orderBy(POSITION))
    again = F.coalesce((F.col(OP) == DELETE) & (before == DELETE), F.lit(False))
    return changes.withColumn(_LAST, again).where(~F.col(_LAST)).drop(_LAST)


def _behind_history(changes: DataFrame, shape: TableShape, history: DataFrame) -> DataFrame:
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


def _keyed(shape: TableShape) -> WindowSpec:
    return Window.partitionBy(*map(quoted, shape.keys))

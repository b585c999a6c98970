"""Events of a table without a key → without those that a connector that crashed has written again.

It goes on from the offset that it last stored, so that all later events are in the topic once more,
in the same order. Events of one LSN and commit time are a *run*: one event, or the rows of
one INSERT or COPY that PostgreSQL has written together. A run that comes again behind others is
repeated, as far as it was sent before. Where the last run before these records comes again, all up
to its end is. Only a run of inserts that comes again at once looks like one that goes on.

In a topic of one partition only: in several no event is known to be behind another.
"""

from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.latest import by_key
from sinks.changes.names import DELETE, END, OP, POSITION, TIME, VALID_FROM, VALID_TO, quoted
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.debezium.described import TopicLayout
from sinks.debezium.envelope import ENVELOPE_OP, enveloped, source_lsn, source_time_us

_RUN_ID: Final = "_millrace_run_id"
_RUN: Final = "_millrace_run"
_NTH: Final = "_millrace_nth"
_CHANGES: Final = "_millrace_changes"
_STAYS: Final = "_millrace_stays"
_OUT_OF_ORDER_US: Final = 100_000
"""Commits that come together may have times that are out of order, but not by so much."""
_MORE_TO_COME: Final = (
    "the connector has begun to repeat events, and hasn't come to new ones yet: the next run that "
    "finds such goes on"
)


SnapshotId = tuple[int, int]
"""Its LSN and time (µs since 1970), which all its rows have."""
_LAST: Final = "_millrace_last"
_LSN_CHARS: Final = 16
_NO_LSN: Final = "0" * _LSN_CHARS
"""A tombstone's."""


class LastEvents(NamedTuple):
    """The last run of events: its LSN and commit time (µs since 1970), how many events."""

    lsn: int
    time_us: int
    events: int

    def is_of(self, run_id: SparkColumn) -> SparkColumn:
        """Whether an event is of this run."""
        return (run_id["lsn"] == self.lsn) & (run_id["us"] == self.time_us)


def without_repeated_records(
    raw: DataFrame, topic: TopicLayout, before: LastEvents | None
) -> DataFrame:
    """The records without repeated events; ``before`` are the events that were read last.

    The job ends where all of the records are repeated events, and more of these are to come.
    """
    rows = _in_runs(raw, topic)
    if before is not None:
        rows = _behind(rows, before)
    earlier = Window.partitionBy("partition", _RUN_ID).orderBy(_RUN)
    sent = F.max(_NTH).over(earlier.rangeBetween(Window.unboundedPreceding, -1))
    alike = Window.partitionBy("partition", _RUN, ENVELOPE_OP).orderBy("offset")
    again = F.col(_CHANGES) & (F.row_number().over(alike) > 1)
    return _without(rows, again | (F.col(_NTH) <= F.coalesce(sent, F.lit(0)))).select(*raw.columns)


def last_events(raw: DataFrame, topic: TopicLayout, before: LastEvents | None) -> LastEvents | None:
    """The last run of the records; the one before them where they have none.

    Raises SinkError where more repeated events are to come: only all of them can be recognized.
    """
    rows = _in_runs(raw, topic)
    row = _event_counts(rows).orderBy(F.desc(_RUN)).first()
    if row is None:
        return before
    first = Window.partitionBy(_RUN_ID).orderBy(_RUN)
    sent = _event_counts(rows if before is None else _unread(rows, before)).withColumns({
        "first": F.first(_RUN).over(first),
        "sent": F.first("events").over(first),
    })  # fmt: skip
    newest = sent.orderBy(F.desc("first"), F.desc(_RUN)).first()
    if newest is not None and (newest[_RUN] != row[_RUN] or newest["events"] < newest["sent"]):
        raise SinkError(_MORE_TO_COME, where=f"table {topic.schema.name}")
    lsn, time_us, events = row[_RUN_ID]["lsn"], row[_RUN_ID]["us"], row["events"]
    if before is not None and row[_RUN] == 1 and (before.lsn, before.time_us) == (lsn, time_us):
        events += before.events
    return LastEvents(lsn, time_us, events)


def _event_counts(rows: DataFrame) -> DataFrame:
    """The runs, with their LSN and time, and how many events each has."""
    runs = rows.where(F.col(_RUN_ID).isNotNull()).groupBy(_RUN, _RUN_ID)
    return runs.agg(F.count(F.lit(1)).alias("events"))


def _in_runs(raw: DataFrame, topic: TopicLayout) -> DataFrame:
    """The records with the id and number of their run, and whether it changes old rows."""
    lsn, time_us = source_lsn(topic).alias("lsn"), source_time_us(topic).alias("us")
    is_event = F.col(ENVELOPE_OP).isin("c", "u", "d", "t") & (source_lsn(topic) > 0)
    order = Window.partitionBy("partition").orderBy("offset")
    of_run = Window.partitionBy("partition", _RUN)
    goes_on = F.coalesce(F.lag(_RUN_ID).over(order) == F.col(_RUN_ID), F.lit(False))
    return (
        enveloped(raw, topic)
        .select(*raw.columns, ENVELOPE_OP, F.when(is_event, F.struct(lsn, time_us)).alias(_RUN_ID))
        .withColumn(_RUN, (~goes_on).cast("int"))
        .withColumn(_RUN, F.sum(_RUN).over(order))
        .withColumn(_CHANGES, F.max(F.col(ENVELOPE_OP).isin("u", "d", "t")).over(of_run))
        .withColumn(_NTH, F.row_number().over(of_run.orderBy("offset")))
    )


def _unread(rows: DataFrame, before: LastEvents) -> DataFrame:
    """The records after the run that was read last, where that run comes again.

    Records that begin with that run continue it, if its rows were only inserted.
    """
    here = before.is_of(F.col(_RUN_ID)) & ((F.col(_RUN) > 1) | F.col(_CHANGES))
    end = F.max(F.when(here, F.col(_RUN))).over(Window.partitionBy("partition"))
    read = (F.col(_RUN) < end) | ((F.col(_RUN) == end) & (F.col(_NTH) <= before.events))
    return _without(rows, read)


def _behind(rows: DataFrame, before: LastEvents) -> DataFrame:
    """The records that weren't read before; the job ends where these begin with older ones."""
    run_id = F.col(_RUN_ID)
    older = (run_id["lsn"] < before.lsn) & (run_id["us"] < before.time_us - _OUT_OF_ORDER_US)
    more_to_come = refuse(F.coalesce(older, F.lit(False)), F.lit(_MORE_TO_COME), "boolean")
    return _unread(rows, before).where(F.coalesce(more_to_come, F.lit(True)))


def _without(rows: DataFrame, gone: SparkColumn) -> DataFrame:
    """The rows without those events; a record that is no event stays."""
    stays = F.col(_RUN_ID).isNull() | ~F.coalesce(gone, F.lit(False))
    return rows.withColumn(_STAYS, stays).where(_STAYS).drop(_STAYS)


class SnapshotRows(NamedTuple):
    """The snapshot whose rows a table has, if any; and whether another one has read rows again."""

    snapshot: SnapshotId | None = None
    is_repeated: bool = False


def snapshot_rows(
    raw: DataFrame,
    topic: TopicLayout,
    partitions: int,
    before: SnapshotId | None,
    begins: bool,
) -> SnapshotRows:
    """Look for rows of snapshots in the records of one topic.

    ``before`` is the snapshot that the table has rows of; a table that has none, and doesn't begin
    here, began with changes. Several partitions are in the order in which Kafka got their records.
    """
    of_snapshot = F.col(ENVELOPE_OP) == "r"
    change = F.col(ENVELOPE_OP).isin("c", "u", "d")
    order = F.col("offset" if partitions == 1 else "timestamp")
    snapshot = F.struct(
        F.coalesce(source_lsn(topic), F.lit(0)).alias("lsn"),
        F.coalesce(source_time_us(topic), F.lit(0)).alias("us"),
    )
    row = (
        enveloped(raw, topic)
        .agg(
            F.min(F.when(of_snapshot, snapshot)).alias("first"),
            F.max(F.when(of_snapshot, snapshot)).alias("last"),
            F.max(F.when(of_snapshot, order)).alias("last_row"),
            F.min(F.when(change, order)).alias("change"),
        )
        .first()
    )
    if row is None or row["first"] is None:
        return SnapshotRows(before)
    snapshot_id = (row["first"]["lsn"], row["first"]["us"])
    several = row["first"] != row["last"] or (before is not None and before != snapshot_id)
    behind = row["change"] is not None and row["change"] < row["last_row"]
    return SnapshotRows(snapshot_id, several or behind or (before is None and not begins))


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

"""A table's plan, over a topic of a real Debezium → its changes, in the forms of targets.

The table's plan determines the records' schemas, whether this run or an interrupted one made the
plan. So both read the same records in the same way.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.records.schema import TableSchema
from sinks.changes.ended import Older, older
from sinks.changes.names import DELETE, END, OP, POSITION, TIME, VALID_FROM, VALID_TO, quoted
from sinks.changes.newest import Newest, by_key, contenders, newest_of_changes
from sinks.changes.shape import TableShape
from sinks.debezium.described import RecordSource, TopicLayout, describe
from sinks.debezium.log import read_records, topic_of
from sinks.debezium.parse import parse, parse_events
from sinks.debezium.records import RecordGroup, discover
from sinks.run.plan import TablePlan


class DebeziumChanges:
    """The changes of one table that its plan applies.

    ``groups`` are those of the records, if this run has inspected them.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: RecordSource,
        table: TablePlan,
        groups: Sequence[RecordGroup] | None,
    ) -> None:
        self.versions: Sequence[TableSchema] = topic_of(table).schemas
        self._table = table
        start, end = {table.topic: table.start}, {table.topic: table.end}
        self._raw = read_records(spark, source.kafka, start, end)
        self._topic = _layout(table, source, discover(self._raw) if groups is None else groups)

    def parsed(self, shape: TableShape, *, snapshot: bool = False) -> DataFrame:
        """Return the changes in their order, without those that a TRUNCATE undoes."""
        del snapshot
        changes, truncated = parse(self._raw, self._topic, shape), self._table.truncated
        return changes if truncated is None else changes.where(F.col(POSITION) > str(truncated))

    def newest(self, shape: TableShape, *, ranges: bool = False) -> AbstractContextManager[Newest]:
        """Return the newest state of each key."""
        return newest_of_changes(self.parsed(shape), shape, ranges=ranges)

    @contextmanager
    def contenders(self, shape: TableShape) -> Iterator[DataFrame]:
        """Yield the input of that, for a target that reads it once."""
        yield contenders(self.parsed(shape), shape)

    def older(self, shape: TableShape) -> Older | None:
        """Return the stored rows to remove if no change has them."""
        if self._table.rebuilds:
            # No offset is after those of all partitions, so a removed row keeps its own.
            return Older(lambda _: F.lit(True), lambda row: row(POSITION))
        return older(self._table.ends, shape)

    def are_newer(self, newest: Newest) -> bool:
        """Never known: events that come again have later offsets, and so later positions."""
        del newest
        return False

    def timed(self, shape: TableShape, stored: DataFrame | None) -> DataFrame:
        """Return the changes with their commit times, without repeated ones."""
        changes = parse(self._raw, self._topic, shape, timed=True)
        if self._table.ends:  # rows are repeated after a repeated TRUNCATE, too
            return changes
        return without_repeated_changes(changes, shape, stored)

    def behind_gap(self, shape: TableShape) -> DataFrame | None:
        """Return None: gaps aren't marked (``can_mark_gaps``)."""
        del shape
        return None

    def events(self, shape: TableShape, *, records: bool) -> DataFrame:
        """Return every event, once: no earlier plan had this plan's offsets."""
        return parse_events(self._raw, self._topic, shape, records=records)

    def images(self, shape: TableShape) -> DataFrame:
        """Never called, as a table without a key is refused (sinks/debezium/inspection.py)."""
        raise AssertionError(f"a table without a key has a plan: {self._table.source}, {shape}")


def _layout(table: TablePlan, source: RecordSource, groups: Sequence[RecordGroup]) -> TopicLayout:
    """Return the table as the plan has it, and how to read its records."""
    planned = topic_of(table).schemas[-1]
    topic = describe(planned.name, groups, source, before=planned)
    if topic is None or topic.schema.columns != planned.columns:
        raise SinkError(
            "the records no longer have the columns for which the run was planned",
            where=f"table {planned.name}",
            remedy="if the configuration was changed during an unfinished run, restore it for one"
            " run; otherwise remove the Delta table: the next run rebuilds it",
        )
    return topic


_LAST: Final = "_millrace_last"
_LSN_CHARS: Final = 16
_NO_LSN: Final = "0" * _LSN_CHARS
"""The LSN of a tombstone."""


def without_repeated_changes(
    changes: DataFrame, shape: TableShape, history: DataFrame | None
) -> DataFrame:
    """Drop repeated changes from parsed ones (timed). The ``history`` may have the first of them.

    The history has a row's states, not every event. So all events of a row are dropped up to the
    last one in the history. A merge that ends before that one makes versions of repeated events,
    and the next merge corrects the rows.
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
    """Drop deletes of deleted rows: a tombstone must not outlive the delete before it."""
    before = F.lag(OP).over(by_key(shape).orderBy(POSITION))
    again = F.coalesce((F.col(OP) == DELETE) & (before == DELETE), F.lit(False))
    return changes.withColumn(_LAST, again).where(~F.col(_LAST)).drop(_LAST)


def _behind_history(changes: DataFrame, shape: TableShape, history: DataFrame) -> DataFrame:
    """Return the changes after the row's last one in the history."""
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

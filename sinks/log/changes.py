"""A table's plan, over Millrace's own log → its changes, in the forms of targets.

The plan selects the log's records: those newer than the table, up to the cut. Their positions order
them. The schema versions in the log determine how each is parsed.

The newest changes of a large table may be read before there is a plan (``read_early``): one read of
the log gives them and the census. This serves the usual case: no end of rows, and no value among
the claims. In any other case, or if a record is refused, its result is dropped, and the table gets
the ordinary census and read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from cdc.records.position import Position
from cdc.records.schema import TableSchema
from sinks.changes.ended import Older, older, without_ended
from sinks.changes.ends import RowsEnd
from sinks.changes.generations import of_newest
from sinks.changes.names import LOST
from sinks.changes.newest import (
    Newest,
    contenders,
    newest_of_changes,
    newest_of_contenders,
    within,
)
from sinks.changes.shape import TableShape
from sinks.log.counts import FACTS, PARTITIONS_MAX, census_of, observe_census
from sinks.log.ends import is_copy
from sinks.log.parse import parse, parse_events, parse_images
from sinks.log.records import Records, with_values
from sinks.run.plan import RunPlan, TablePlan
from sinks.run.topics import PartitionCensus
from sinks.spark.jvm import in_session, observed, release
from sinks.spark.session import RECORDS_FEW, jvm_ended


class MillraceChanges:
    """The changes of one table that its plan applies.

    ``early`` are its contenders, if they were read already. ``archived`` are raw records from
    before those of the log. Records up to ``floor`` belong to an older history of the source.
    """

    def __init__(
        self,
        spark: SparkSession,
        records: Records,
        plan: RunPlan,
        table: TablePlan,
        versions: Sequence[TableSchema],
        *,
        early: DataFrame | None = None,
        archived: DataFrame | None = None,
        floor: Position | None = None,
    ) -> None:
        self.versions = versions
        self._spark = spark
        self._plan = plan
        self._table = table
        self._early = early
        self._keyed = bool(versions[-1].key)
        self._log = records.of(spark, {table.topic: table})
        raw = with_values(self._applicable(floor), records.kafka, table, plan)
        raw = raw if archived is None else self._behind(archived, raw)
        self._raw = of_newest(raw, versions) if table.kind == "current" else raw

    def parsed(self, shape: TableShape, *, snapshot: bool = False) -> DataFrame:
        """Return the changes in their order.

        ``snapshot`` adds a column that marks snapshots' rows.
        """
        changes = parse(self._raw, shape, snapshot=snapshot)
        return without_ended(changes, shape, self._table.ended)

    def newest(self, shape: TableShape, *, ranges: bool = False) -> AbstractContextManager[Newest]:
        """Return the newest state of each key."""
        if self._early is not None:
            early = in_session(self._spark, self._early)
            return newest_of_contenders(early, shape, ranges=ranges)
        return newest_of_changes(self.parsed(shape), shape, ranges=ranges)

    @contextmanager
    def contenders(self, shape: TableShape) -> Iterator[DataFrame]:
        """Yield the input of that, for a target that reads it once."""
        if self._early is None:
            yield contenders(self.parsed(shape), shape)
        else:
            yield in_session(self._spark, self._early)

    def older(self, shape: TableShape) -> Older | None:
        """Return the stored rows to remove if no change has them."""
        rebuilt = RowsEnd(position=self._plan.cut, ts_us=self._plan.cut_ts_us)
        return older((rebuilt,) if self._table.rebuilds else self._table.ends, shape)

    def are_newer(self, newest: Newest) -> bool:
        """Whether no stored row can be as new, as all are from before the table's position."""
        after = self._table.after
        return after is not None and (newest.oldest is None or newest.oldest > str(after))

    def timed(self, shape: TableShape, stored: DataFrame | None) -> DataFrame:
        """Return the changes with their commit times. None is repeated, whatever is stored.

        They are those with the key of the ``shape``'s newest version.
        """
        del stored
        raw = of_newest(self._raw, shape.versions, self.versions[-1].version)
        return parse(raw, shape, timed=True)

    def behind_gap(self, shape: TableShape) -> DataFrame | None:
        """Return everything left in the log, if it has lost changes that the table lacks."""
        if self._table.gap is None:
            return None
        log = of_newest(self._log, shape.versions, self.versions[-1].version)
        changes = parse(within(log, None, self._plan.cut, None, keyed=True), shape)
        return without_ended(changes, shape, self._table.ends)

    def events(self, shape: TableShape, *, records: bool) -> DataFrame:
        """Return every event, once. ``records`` adds the raw key and value."""
        once = _once(self._raw) if self._table.gap is None else _once_behind_gap(self._raw)
        return parse_events(once, shape, records=records)

    def images(self, shape: TableShape) -> DataFrame:
        """Return the rows that changes add and remove, for a table without a key."""
        return parse_images(self._raw, shape)

    def _applicable(self, floor: Position | None) -> DataFrame:
        """Return the records that the run applies. An archive uses offsets, not its cut."""
        table, cut = self._table, self._plan.cut
        if table.kind == "changes":
            upto = within(self._log, None, cut, None, keyed=self._keyed)
            return upto.where(~is_archived(table))
        truncated = table.truncated if table.kind == "current" else None
        lower = max(filter(None, (truncated, floor)), default=None)
        return within(self._log, table.after, cut, lower, keyed=self._keyed)

    def _behind(self, archived: DataFrame, raw: DataFrame) -> DataFrame:
        """Return archived records, and later ones from the log, without those before a TRUNCATE.

        Records that this run itself, which may be a repetition, has archived are read from the log.
        """
        table = self._table
        assert table.replay is not None  # noqa: S101 (what else would have been archived)
        if table.kind == "current" and table.truncated is not None:
            archived = archived.where(F.col("position") > str(table.truncated))
        if LOST in raw.columns:
            archived = archived.withColumn(LOST, F.lit(None).cast("string"))
        before = is_archived(self._plan.all_tables[table.replay])
        return archived.where(before).unionByName(raw.where(~before))


def is_archived(table: TablePlan) -> Column:
    """Whether a run before the archive's plan has archived a raw record.

    Records that an earlier run has read and left are above its cut.
    """
    was_read = F.lit(False)
    for partition, offset in table.read_end.items():
        was_read |= (F.col("partition") == partition) & (F.col("offset") < offset)
    upto = F.lit(False) if table.after is None else F.col("position") <= str(table.after)
    return was_read & F.coalesce(upto, F.lit(False))


def _once(raw: DataFrame) -> DataFrame:
    """Return one record of each event: no tombstone of a delete, and no copies of an end."""
    return raw.where(F.col("value").isNotNull() & ~is_copy())


def _once_behind_gap(raw: DataFrame) -> DataFrame:
    """Return the same, and tombstones if compaction has left nothing else of a delete."""
    event = Window.partitionBy("partition", "position", "key")
    events = raw.withColumn("has_value", F.count("value").over(event) > 0)
    lonely = events.where(F.col("value").isNull() & ~F.col("has_value")).drop("has_value")
    return raw.transform(_once).unionByName(lonely)


class EarlyRead(NamedTuple):
    """The result of a read before the plan: kept ``contenders``, and the census by partition."""

    rows: DataFrame
    census: Mapping[int, PartitionCensus]


def is_read_early(table: TablePlan) -> bool:
    """Whether a plan's table may be read before there is a plan."""
    plain = table.kind == "current" and not (table.rebuilds or table.replay)
    return plain and table.unread >= RECORDS_FEW and len(table.start) <= PARTITIONS_MAX


def read_early(
    spark: SparkSession, records: Records, table: TablePlan, cut: Position, columns: TableShape
) -> EarlyRead | None:
    """Read a table's records, parsed by these ``columns``. None: it takes the ordinary way."""
    raw = observe_census(records.of(spark, {table.topic: table}), [table], cut)
    raw = of_newest(within(raw, table.after, cut, None, keyed=True), columns.versions)
    changes = parse(raw, columns)
    newest = contenders(changes, columns)
    rows = census = None
    try:
        # With adaptive execution this call isn't lazy: it runs everything before the last shuffle.
        rows = newest.localCheckpoint(eager=False)
        rows.count()
        census = census_of(observed(newest, FACTS), [table])
    except (PySparkException, Py4JError) as error:
        if jvm_ended(error):
            raise
    if rows is not None and census is not None:
        return EarlyRead(rows, census[table.topic])
    if rows is not None:
        release(rows)
    return None

"""The new records of all topics → the plan of each table.

Derived tables of one captured table share the search for schemas if they begin at the same offsets.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from cdc.errors import MillraceError, SinkError, SinkUnreachableError
from cdc.records.position import FIRST_EPOCH, Lsn, Position
from cdc.records.schema import Column, TableName
from sinks.changes.ends import RowsEnd
from sinks.changes.names import ABSENT, OWN, POSITION, quoted
from sinks.changes.shape import plain_shape
from sinks.debezium.described import RecordSource, TopicLayout, describe
from sinks.debezium.envelope import LSN, committed_at, enveloped, is_truncate, table_of
from sinks.debezium.log import read_records, topic_of
from sinks.debezium.members import doubt_of, newest_rows
from sinks.debezium.parse import parse
from sinks.debezium.records import RecordGroup, discover
from sinks.run.debezium_topic import MemberDoubt
from sinks.run.plan import TablePlan
from sinks.spark.errors import spark_error
from sinks.spark.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_WORDS: Final = re.compile(r"\w+|\W+")
_NULL: Final = "VOID"
"""Spark's name of the type of a null member."""


@dataclass(slots=True)
class PlannedTopics:
    """The tables with a plan, why others have none, and the groups of the records."""

    tables: dict[str, TablePlan] = field(default_factory=dict)
    refused: dict[str, MillraceError] = field(default_factory=dict)
    groups: dict[str, list[RecordGroup]] = field(default_factory=dict)


def plan_tables(
    spark: "SparkSession",
    source: RecordSource,
    types: Mapping[str, Mapping[str, Column]],
    compacted: Collection[str],
    tables: Mapping[str, TablePlan],
) -> PlannedTopics:
    """Plan tables that have something to read. ``types`` are by topic and column.

    A table's error stops no other table. A table that doesn't exist yet has no plan before its
    first row, which shows its columns.
    """
    planned = PlannedTopics()
    left = dict(tables)
    while left:
        by_topic = {table.topic: table for table in left.values()}
        of_all_topics = _discovered(_records(spark, source, *by_topic.values()))
        for name, table in tuple(left.items()):
            other = by_topic[table.topic]
            if (table.start, table.end) != (other.start, other.end):
                continue
            del left[name]
            read = partial(_records, spark, source, table)
            try:
                groups = _groups(table, of_all_topics, read)
                plan = _planned(table, groups, read, source, types.get(table.topic, {}))
                if plan is not None:
                    _require_order(plan, is_compacted=table.topic in compacted)
                    planned.tables[name], planned.groups[name] = plan, groups
            except MillraceError as error:
                planned.refused[name] = error
                topic = topic_of(table).told([*types.get(table.topic, {}).values()])
                if table.base or topic.types:  # --types-from-source is asked once
                    kept = table.model_copy(update={"debezium": topic})
                    planned.tables[name] = kept.left_alone()
    return planned


def _records(spark: "SparkSession", source: RecordSource, *tables: TablePlan) -> DataFrame:
    """Return the records that the tables have to read."""
    start = {table.topic: table.start for table in tables}
    return read_records(spark, source.kafka, start, {table.topic: table.end for table in tables})


def _discovered(raw: DataFrame) -> list[RecordGroup] | None:
    """Return the groups of all topics. None: one of the topics can't be read."""
    try:
        return discover(raw)
    except PySparkException as error:
        if "TimeoutException" not in str(error):
            return None
        raise SinkUnreachableError(f"Kafka failed: {first_line(error)}") from None


def _groups(
    table: TablePlan, of_all_topics: list[RecordGroup] | None, read: Callable[[], DataFrame]
) -> list[RecordGroup]:
    """Return the groups of the table's topic. Read it alone if a topic can't be read."""
    if of_all_topics is None:
        with _as_table_error(table):
            return discover(read())
    return [group for group in of_all_topics if group.topic == table.topic]


@contextmanager
def _as_table_error(table: TablePlan) -> Iterator[None]:
    """Turn Spark's error about unreadable records into an error of this table only."""
    try:
        yield
    except PySparkException as error:
        raise spark_error(
            "its records can't be read", error, where=f"table {table.source}"
        ) from None


def _planned(
    table: TablePlan,
    groups: list[RecordGroup],
    read: Callable[[], DataFrame],
    source: RecordSource,
    types: Mapping[str, Column],
) -> TablePlan | None:
    """Return the plan from the records' schemas and TRUNCATEs. None: there is no row."""
    topic = topic_of(table)
    # A rebuilt table may have another key. Its columns' types are still known.
    before = topic.schemas if table.base else ()
    columns_known = topic.types if table.base else topic.known_columns
    described = describe(
        TableName.parse(table.source),
        groups,
        source,
        declared={column.name: column for column in columns_known} | dict(types),
        before=before[-1] if before else None,
    )
    if described is None:
        return None
    events = sum(group.events for group in groups)
    keyless = sum(group.events for group in groups if group.key is None)
    ends: tuple[RowsEnd, ...] = ()
    if keyless:
        with _as_table_error(table):
            ends = truncates(read(), described)
        if not before and len(ends) == events:
            return None  # it is unknown yet whether the table has a key
        if keyless > len(ends):
            _require_keys(table, described)
    schema = described.schema
    earlier = [older for older in before if older.version != schema.version]
    update = {
        "schemas": (*earlier, schema),
        "key_forms": _key_forms(table, groups),
        "types": (),  # the schema has them
        "rows": newest_rows(groups, described, topic.rows),
        "doubt": _doubt(table, groups, described, read),
    }
    return table.model_copy(
        update={
            "next": table.end,
            "events": events,
            "schema_version": schema.version,
            "first_version": schema.version if table.begins else table.first_version,
            "ends": ends if table.kind == "history" else ends[-1:],
            "debezium": topic.model_copy(update=update),
        }
    )


def _doubt(
    table: TablePlan, groups: list[RecordGroup], topic: TopicLayout, read: Callable[[], DataFrame]
) -> MemberDoubt | None:
    """Return the table's doubt, including these records.

    An update that leaves out a large value covers a row only if an earlier record has it whole.
    """
    before = topic_of(table)
    doubt = doubt_of(groups, topic, before.rows, max(table.start.values(), default=0))
    if before.doubt is not None:
        doubt = before.doubt if doubt is None else before.doubt.and_then(doubt)
    if doubt is None or not topic.schema.key:
        return doubt
    shape = plain_shape([topic.schema], OWN)
    columns = [name for name in doubt.columns if name in shape.patchy]
    if not columns:
        return doubt
    offset = F.conv(F.substring(POSITION, 10, 16), 16, 10).cast("bigint")
    lacks = F.arrays_overlap(ABSENT, F.array(*map(F.lit, columns)))
    row = Window.partitionBy(*map(quoted, shape.keys)).orderBy("offset")
    with _as_table_error(table):
        last = (
            parse(read(), topic, shape)
            .select(*map(quoted, shape.keys), offset.alias("offset"), lacks.alias("lacks"))
            .where(F.col("offset") >= doubt.since)
            .withColumn("still_lacks", F.min("lacks").over(row))
            .where("still_lacks")  # neither it nor an earlier one has the values
            .agg(F.max("offset"))
            .first()
        )
    if last is None or last[0] is None:
        return doubt
    return doubt.model_copy(update={"since": last[0] + 1})


def truncates(raw: DataFrame, topic: TopicLayout) -> tuple[RowsEnd, ...]:
    """Return the TRUNCATEs among one topic's records, in order.

    Raise SinkError if one belongs to another table.
    """
    of_table = F.lit(topic.schema.topic).endswith(F.concat(F.lit("."), table_of(topic)))
    time_us = F.unix_micros(committed_at(topic))
    rows = (
        enveloped(raw, topic)
        .where(is_truncate())
        .select("offset", F.coalesce(LSN, F.lit(0)), time_us, of_table)
        .collect()
    )
    if not all(is_of_table for *_, is_of_table in rows):
        raise SinkError(
            "a TRUNCATE emptied one of several tables that share the topic: their rows can't be"
            " told apart",
            where=f"topic {topic.schema.topic}",
            remedy='give each table its own topic, or skip TRUNCATE (skipped.operations = "t")',
        )
    return tuple(
        RowsEnd(position=Position(FIRST_EPOCH, Lsn(offset), lsn), ts_us=us)
        for offset, lsn, us, _ in sorted(rows)
    )


def _key_forms(table: TablePlan, groups: list[RecordGroup]) -> tuple[str, ...]:
    """Return all forms of keys so far, in the order of appearance."""
    before = topic_of(table).key_forms if table.base else ()
    new = sorted((group.last, group.key_form) for group in groups if group.key is not None)
    return tuple(dict.fromkeys((*before, *(form for _, form in new))))


def _require_keys(table: TablePlan, described: TopicLayout) -> None:
    """Raise SinkError for records without a key: a repeated event would look new.

    An archive has each record under its offset, including repeated ones. So it needs no keys,
    unless some of its records have them.
    """
    some = "some of " if described.schema.key else ""
    if table.kind == "changes" and not some:
        return
    raise SinkError(
        f"{some}the table's records have no key: an event that Debezium sends again looks like a"
        " new one",
        where=f"topic {table.topic}",
        remedy="give the table a primary key, or set message.key.columns in the connector; then"
        " have Debezium write to a new topic, take a snapshot of the table (a signal), and"
        " remove the Delta table. Or leave the table out (table.exclude.list)",
    )


def _require_order(table: TablePlan, *, is_compacted: bool) -> None:
    """Raise SinkError if the plan needs an order of records that offsets don't show.

    A TRUNCATE has no key. In a topic of several partitions it is unknown which records of the
    others precede it. Keys with other bytes are different keys to Kafka's partitioning and
    compaction.
    """
    partitions = len(table.start)
    if partitions > 1 and table.ends and table.kind != "changes":
        raise SinkError(
            f"the topic has {partitions} partitions and records of TRUNCATE: the order between"
            " them is unknown, and so are the rows that it deleted",
            where=f"topic {table.topic}",
            remedy="have Debezium write the table to a new topic, of one partition or without "
            'TRUNCATE (skipped.operations = "t"), and remove the Delta table',
        )
    forms = topic_of(table).key_forms
    others = [form for form in forms[1:] if not _alike(forms[0], form)]
    if others and (partitions > 1 or is_compacted):
        raise SinkError(
            f"keys are written in another form than before ({forms[0]} → {others[-1]}): "
            + (
                "a row's events are in several partitions"
                if partitions > 1
                else "compaction keeps both"
            ),
            where=f"topic {table.topic}",
            remedy="have Debezium write to a new topic, or take a new snapshot of the table (a"
            " signal) once records of the old keys are gone; then remove the Delta table",
        )


def _alike(form: str, other: str) -> bool:
    """Whether two forms of keys differ only in nulls, which match any type."""
    words = zip_longest(_WORDS.findall(form), _WORDS.findall(other))
    return all(left == right or _NULL in {left, right} for left, right in words)

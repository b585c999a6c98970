"""The new records of all topics → the plan of each table.

Derived tables of one captured table share the inspection where they go on from the same offsets.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from cdc.errors import MillraceError, SinkError, SinkUnreachableError
from cdc.records.position import Position
from cdc.records.schema import Column, TableName, TableSchema
from sinks.debezium.described import ConnectorOptions, RecordSource, TopicLayout, describe
from sinks.debezium.log import read_records, topic_of
from sinks.debezium.records import RecordGroup, discover
from sinks.debezium.truncate import Truncations, last_of, truncations, went_back
from sinks.run.options import SchemaOf
from sinks.run.plan import TablePlan, Truncation
from sinks.spark.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_WORDS: Final = re.compile(r"\w+|\W+")
_NULL: Final = "VOID"
"""How Spark calls the type of a member that is null."""


@dataclass(frozen=True, slots=True)
class TableTopic:
    """A table's topic, its ``declared`` columns, and its state ``before``, by the last run."""

    name: TableName
    topic: str
    partitions: int
    declared: Mapping[str, Column]
    before: TableSchema | None = None
    truncation: Truncation | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """The new records of a table; without a description there is nothing to apply.

    ``truncated`` is the last TRUNCATE of all, ``ends`` are the positions of the new ones, with
    their times. The source ``went_back`` if its LSNs don't order rows any more. ``keyless`` are the
    records without a key that aren't TRUNCATEs.
    """

    events: int = 0
    described: TopicLayout | None = None
    truncated: Truncation | None = None
    ends: tuple[tuple[Position, int], ...] = ()
    groups: tuple[RecordGroup, ...] = ()
    went_back: bool = False
    keyless: int = 0
    error: MillraceError | None = None


def inspect_topics(
    raw: DataFrame,
    topics: Sequence[TableTopic],
    read: Callable[[str], DataFrame],
    connector: ConnectorOptions,
    schema_of: SchemaOf | None = None,
) -> dict[TableName, Inspection]:
    """Inspect the new records of all topics (``raw``); ``read`` gives those of one.

    A table's error is in its inspection, and stops no other table.
    """
    of_all_topics = _discovered(raw)
    inspections: dict[TableName, Inspection] = {}
    for topic in topics:
        groups: list[RecordGroup] = []
        try:
            with _as_table_error(topic):
                discovered = discover(read(topic.topic)) if of_all_topics is None else of_all_topics
            groups = [group for group in discovered if group.topic == topic.topic]
            inspections[topic.name] = _inspect_topic(topic, groups, read, connector, schema_of)
        except MillraceError as error:
            events = sum(group.events for group in groups)
            inspections[topic.name] = Inspection(events, error=error)
    return inspections


def _discovered(raw: DataFrame) -> list[RecordGroup] | None:
    """The groups of all topics; None where one of the topics can't be read."""
    try:
        return discover(raw)
    except PySparkException as error:
        if "TimeoutException" not in str(error):
            return None
        raise SinkUnreachableError(f"Kafka failed: {first_line(error)}") from None


@contextmanager
def _as_table_error(topic: TableTopic) -> Iterator[None]:
    """Spark's error where records can't be read or decoded → an error of this table alone."""
    try:
        yield
    except PySparkException as error:
        raise SinkError(
            f"its records can't be read: {first_line(error)}", where=f"table {topic.name}"
        ) from None


def _inspect_topic(
    topic: TableTopic,
    groups: list[RecordGroup],
    read: Callable[[str], DataFrame],
    connector: ConnectorOptions,
    schema_of: SchemaOf | None,
) -> Inspection:
    events = sum(group.events for group in groups)
    described = describe(
        topic.name,
        groups,
        connector,
        schema_of=schema_of,
        declared=topic.declared,
        before=topic.before,
    )
    if described is None:
        return Inspection(events)
    without_key = sum(group.events for group in groups if group.key_encoding is None)
    truncated = Truncations(0, None)
    if without_key:
        with _as_table_error(topic):
            truncated = truncations(read(topic.topic), described, topic.partitions)
            if topic.before is None and truncated.count == events:
                return Inspection(events)  # nobody knows yet whether the table has a key
    last = last_of(topic.truncation, truncated.last)
    back = False
    if last is not None and last.time_us and topic.partitions > 1:
        with _as_table_error(topic):
            back = went_back(read(topic.topic), described, last)
    keyless = without_key - truncated.count
    return Inspection(events, described, last, truncated.ends, tuple(groups), back, keyless)


@dataclass(slots=True)
class PlannedTopics:
    """The tables that have a plan, why others have none, and the groups of the records."""

    tables: dict[str, TablePlan] = field(default_factory=dict)
    refused: dict[str, MillraceError] = field(default_factory=dict)
    groups: dict[str, tuple[RecordGroup, ...]] = field(default_factory=dict)


def plan_tables(
    spark: "SparkSession",
    source: RecordSource,
    types: Mapping[str, Mapping[str, Column]],
    compacted: Collection[str],
    tables: Mapping[str, TablePlan],
) -> PlannedTopics:
    """Plan tables that have something to read; ``types`` are by topic and column.

    A table's error stops no other table. A table that isn't there yet has no plan before its first
    row has come, which shows its columns.
    """
    planned = PlannedTopics()
    left = dict(tables)
    while left:
        first = {table.topic: table for table in left.values()}
        together = {
            name: table for name, table in left.items() if _is_same(table, first[table.topic])
        }
        inspections = _inspect_all(spark, source, types, first)
        for name, table in together.items():
            inspection = inspections[TableName.parse(table.source)]
            _plan(planned, name, table, inspection, is_compacted=table.topic in compacted)
        left = {name: table for name, table in left.items() if name not in together}
    return planned


def _is_same(table: TablePlan, other: TablePlan) -> bool:
    return _inspected_by(table) == _inspected_by(other)


def _inspected_by(table: TablePlan) -> tuple[object, ...]:
    """All of a plan that its inspection depends on."""
    return (
        table.start,
        table.end,
        topic_of(table).last_truncation,
        _schemas_before(table),
    )


def _schemas_before(table: TablePlan) -> tuple[TableSchema, ...]:
    """The schemas that a table has had; one that is built again may have other keys."""
    return topic_of(table).schemas if table.base else ()


def _inspect_all(
    spark: "SparkSession",
    source: RecordSource,
    types: Mapping[str, Mapping[str, Column]],
    tables: Mapping[str, TablePlan],
) -> dict[TableName, Inspection]:
    def read(*topics: str) -> DataFrame:
        start = {topic: tables[topic].start for topic in topics}
        end = {topic: tables[topic].end for topic in topics}
        return read_records(spark, source.kafka, start, end)

    topics = [
        TableTopic(
            TableName.parse(table.source),
            topic,
            len(table.start),
            _types(table) | dict(types.get(topic, {})),
            next(reversed(_schemas_before(table)), None),
            topic_of(table).last_truncation,
        )
        for topic, table in tables.items()
    ]
    return inspect_topics(read(*tables), topics, read, source.connector, source.schema_of)


def _types(table: TablePlan) -> dict[str, Column]:
    """The columns that the table had before its Delta table was removed."""
    schemas = topic_of(table).schemas
    if table.base or not schemas:
        return {}
    return {column.name: column for column in schemas[-1].columns}


def _plan(
    planned: PlannedTopics,
    name: str,
    table: TablePlan,
    inspection: Inspection,
    *,
    is_compacted: bool,
) -> None:
    forms = _key_forms(table, inspection)
    error = (
        inspection.error
        or _without_key(table, inspection)
        or _unordered(table, inspection)
        or _moved(table, forms, is_compacted)
    )
    if error is not None:
        planned.refused[name] = error
        if table.base:
            stays = {"end": table.start, "next": table.start}
            planned.tables[name] = table.model_copy(update=stays)
        return
    if inspection.described is None:
        return
    schema = inspection.described.schema
    before = [older for older in _schemas_before(table) if older.version != schema.version]
    planned.groups[name] = inspection.groups
    debezium = {
        "schemas": (*before, schema),
        "key_forms": forms,
        "last_truncation": inspection.truncated,
    }
    planned.tables[name] = table.model_copy(
        update={
            "next": table.end,
            "events": inspection.events,
            "schema_version": schema.version,
            "first_version": table.first_version if table.base else schema.version,
            "ends": inspection.ends if table.kind == "history" else inspection.ends[-1:],
            "debezium": topic_of(table).model_copy(update=debezium),
        }
    )


def _key_forms(table: TablePlan, inspection: Inspection) -> tuple[str, ...]:
    """All forms that keys have had, in the order in which they came up."""
    before = topic_of(table).key_forms if table.base else ()
    new = sorted(
        (group.last, group.key_form)
        for group in inspection.groups
        if group.key_encoding is not None
    )
    return tuple(dict.fromkeys((*before, *(form for _, form in new))))


def _alike(form: str, other: str) -> bool:
    """Whether two forms of keys differ in nothing but nulls, which are of any type."""
    words = zip_longest(_WORDS.findall(form), _WORDS.findall(other))
    return all(left == right or _NULL in {left, right} for left, right in words)


def _moved(table: TablePlan, forms: tuple[str, ...], is_compacted: bool) -> MillraceError | None:
    """A key of other bytes is another one to Kafka: in its partitions, and to compaction."""
    others = [form for form in forms[1:] if not _alike(forms[0], form)]
    if not others or (len(table.start) == 1 and not is_compacted):
        return None
    several = len(table.start) > 1
    return SinkError(
        f"keys are written in another way than before ({forms[0]} → {others[-1]}): "
        + ("a row's events are in several partitions" if several else "compaction keeps both"),
        where=f"topic {table.topic}",
        remedy="have Debezium write to a new topic, or take a snapshot of the table once more (a "
        "signal) when records of the old keys are gone; then remove the Delta table",
    )


def _without_key(table: TablePlan, inspection: Inspection) -> MillraceError | None:
    """An error where records have no key: an event that comes again looks like a new one.

    An archive has each record under its offset, and those that come again, too. So it needs no
    keys, unless some of its records have them.
    """
    if not inspection.keyless or inspection.described is None:
        return None
    some = "some of " if inspection.described.keyed else ""
    if table.kind == "changes" and not some:
        return None
    return SinkError(
        f"{some}the table's records have no key: an event that Debezium sends again can't be told "
        "from a new one",
        where=f"topic {table.topic}",
        remedy="give the table a primary key, or set message.key.columns in the connector; then "
        "have Debezium write to a new topic and take a snapshot of the table (a signal), and "
        "remove the Delta table. Or leave the table out (table.exclude.list)",
    )


def _unordered(table: TablePlan, inspection: Inspection) -> MillraceError | None:
    """An error where the records' order isn't known, and the table depends on it.

    A history needs to know where in each partition a TRUNCATE stands, which no record says. A
    table of current rows needs to know which rows were there before it.
    """
    if table.kind == "current" and inspection.went_back:
        return SinkError(
            f"the source was restored, and the topic has {len(table.start)} partitions and a "
            "TRUNCATE from before: by the LSNs, which have begun lower, new rows count as older",
            where=f"topic {table.topic}",
            remedy="have Debezium write the table to a new topic, and remove the Delta table",
        )
    if table.kind != "history" or len(table.start) == 1 or not inspection.ends:
        return None
    return SinkError(
        f"the topic has {len(table.start)} partitions, and a TRUNCATE among its records: in which "
        "order a history can't tell",
        where=f"topic {table.topic}",
        remedy="have Debezium write the table to a topic of one partition, or leave TRUNCATE out "
        '(skipped.operations = "t")',
    )

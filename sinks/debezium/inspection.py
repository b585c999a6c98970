"""A look at the new records of all topics → what the plan says of each table.

Derived tables of one captured table share the look where they go on from the same place.
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
from sinks.debezium.described import Described, Reading, describe
from sinks.debezium.duplicates import Reached, Reads, Snapshot, reached, reads, spliced
from sinks.debezium.log import read_records
from sinks.debezium.records import Seen, discover
from sinks.debezium.truncate import Truncation, Truncations, last_of, truncations, went_back
from sinks.run.options import SchemaOf
from sinks.run.plan import TablePlan
from sinks.spark.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PARTS: Final = re.compile(r"\w+|\W+")
_NULL: Final = "VOID"
"""How Spark calls the type of a member that is null."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A table's topic, and what is known: ``told`` by the user, ``before`` by the last run."""

    name: TableName
    topic: str
    partitions: int
    told: Mapping[str, Column]
    before: TableSchema | None = None
    emptied: Truncation | None = None
    snapshot: Snapshot | None = None
    behind: Reached | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a run has found of a table; without a description there is nothing to apply.

    ``truncated`` is the last TRUNCATE of all, ``ends`` are the places of the new ones, with their
    times. It ``went_back`` if by LSNs nobody can tell what was there before. ``reads``
    and ``reached`` are of a table without a key.
    """

    events: int = 0
    described: Described | None = None
    truncated: Truncation | None = None
    ends: tuple[tuple[Position, int], ...] = ()
    seen: tuple[Seen, ...] = ()
    went_back: bool = False
    reads: Reads = Reads()  # noqa: RUF009 (immutable)
    reached: Reached | None = None
    error: MillraceError | None = None


def look(
    raw: DataFrame,
    topics: Sequence[Topic],
    read: Callable[[str], DataFrame],
    reading: Reading,
    schema_of: SchemaOf | None = None,
) -> dict[TableName, Look]:
    """Look at the new records of all topics (``raw``); ``read`` gives those of one.

    What is wrong with a table is in its look, and holds up no other.
    """
    together = _discovered(raw)
    found: dict[TableName, Look] = {}
    for topic in topics:
        new: list[Seen] = []
        try:
            with _of_one_table(topic):
                seen = discover(read(topic.topic)) if together is None else together
            new = [one for one in seen if one.topic == topic.topic]
            found[topic.name] = _look(topic, new, read, reading, schema_of)
        except MillraceError as error:
            found[topic.name] = Look(sum(one.events for one in new), error=error)
    return found


def _discovered(raw: DataFrame) -> list[Seen] | None:
    """What all topics have; None where one of them can't be read, and has to be found."""
    try:
        return discover(raw)
    except PySparkException as error:
        if "TimeoutException" not in str(error):
            return None
        raise SinkUnreachableError(f"Kafka failed: {first_line(error)}") from None


@contextmanager
def _of_one_table(topic: Topic) -> Iterator[None]:
    """What can't be read, or decoded, ends the job: of this table alone."""
    try:
        yield
    except PySparkException as error:
        raise SinkError(
            f"its records can't be read: {first_line(error)}", where=f"table {topic.name}"
        ) from None


def _look(
    topic: Topic,
    seen: list[Seen],
    read: Callable[[str], DataFrame],
    reading: Reading,
    schema_of: SchemaOf | None,
) -> Look:
    events = sum(one.events for one in seen)
    described = describe(
        topic.name, seen, reading, schema_of=schema_of, told=topic.told, before=topic.before
    )
    if described is None:
        return Look(events)
    keyless = sum(one.events for one in seen if one.key_kind is None)
    emptied, rows, last_run = Truncations(0, None), Reads(topic.snapshot), topic.behind
    if keyless:
        with _of_one_table(topic):
            raw = read(topic.topic)
            emptied = truncations(raw, described, topic.partitions)
            if topic.before is None and emptied.count == events:
                return Look(events)  # nobody knows yet whether the table has a key
            if not described.keyed:
                known = topic.snapshot, topic.before is None
                rows = reads(raw, described, topic.partitions, *known)
            if not described.keyed and topic.partitions == 1:
                last_run = reached(raw, described, topic.behind)
                if emptied.count:
                    once = spliced(raw, described, topic.behind)
                    emptied = truncations(once, described, topic.partitions)
    last = last_of(topic.emptied, emptied.last)
    back = False
    if last is not None and last.time_us and topic.partitions > 1:
        with _of_one_table(topic):
            back = went_back(read(topic.topic), described, last)
    return Look(events, described, last, emptied.ends, tuple(seen), back, rows, last_run)


@dataclass(frozen=True, slots=True)
class Asked:
    """Where records are, and what is known of them; ``types`` by topic and column."""

    kafka: Mapping[str, str]
    reading: Reading
    schema_of: SchemaOf | None
    types: Mapping[str, Mapping[str, Column]]
    compacted: Collection[str]


@dataclass(slots=True)
class Planned:
    """The tables that have a plan, why others have none, and which schemas records have."""

    tables: dict[str, TablePlan] = field(default_factory=dict)
    refused: dict[str, MillraceError] = field(default_factory=dict)
    seen: dict[str, tuple[Seen, ...]] = field(default_factory=dict)


def looked_at(spark: "SparkSession", asked: Asked, tables: Mapping[str, TablePlan]) -> Planned:
    """Plan tables that have something to read.

    What is wrong with one holds up no other. A table that isn't there yet has no plan before a row
    of it has come: until then nobody knows its columns.
    """
    planned = Planned()
    left = dict(tables)
    while left:
        first = {table.topic: table for table in left.values()}
        together = {
            name: table for name, table in left.items() if _is_same(table, first[table.topic])
        }
        found = _look_at_all(spark, asked, first)
        for name, table in together.items():
            look = found[TableName.parse(table.source)]
            _plan(planned, name, table, look, is_compacted=table.topic in asked.compacted)
        left = {name: table for name, table in left.items() if name not in together}
    return planned


def _is_same(one: TablePlan, other: TablePlan) -> bool:
    return _asked(one) == _asked(other)


def _asked(table: TablePlan) -> tuple[object, ...]:
    return table.start, table.end, table.emptied, _rows_of(table), behind(table), _known(table)


def behind(table: TablePlan) -> Reached | None:
    """The events, of a table without a key, that were read last."""
    return Reached(*table.behind) if table.base and table.behind is not None else None


def _rows_of(table: TablePlan) -> Snapshot | None:
    """The snapshot that a table without a key has rows of."""
    return table.rows_of if table.base else None


def _known(table: TablePlan) -> tuple[TableSchema, ...]:
    """The schemas that a table has had; one that begins anew may have other keys."""
    return table.schemas if table.base else ()


def _look_at_all(
    spark: "SparkSession", asked: Asked, tables: Mapping[str, TablePlan]
) -> dict[TableName, Look]:
    def read(*topics: str) -> DataFrame:
        start = {topic: tables[topic].start for topic in topics}
        end = {topic: tables[topic].end for topic in topics}
        return read_records(spark, asked.kafka, start, end)

    topics = [
        Topic(
            TableName.parse(table.source),
            topic,
            len(table.start),
            _types(table) | dict(asked.types.get(topic, {})),
            _known(table)[-1] if _known(table) else None,
            Truncation(*table.emptied) if table.emptied is not None else None,
            _rows_of(table),
            behind(table),
        )
        for topic, table in tables.items()
    ]
    return look(read(*tables), topics, read, asked.reading, asked.schema_of)


def _types(table: TablePlan) -> dict[str, Column]:
    """What was told of columns before the Delta table was removed."""
    gone = table.schemas[-1:] if not table.base else ()
    return {column.name: column for schema in gone for column in schema.columns}


def _plan(
    planned: Planned, name: str, table: TablePlan, found: Look, *, is_compacted: bool
) -> None:
    forms = _key_forms(table, found)
    error = found.error or _unordered(table, found) or _moved(table, forms, is_compacted)
    if error is not None:
        planned.refused[name] = error
        if table.base:
            stays = {"end": table.start, "next": table.start}
            planned.tables[name] = table.model_copy(update=stays)
        return
    if found.described is None:
        return
    schema = found.described.schema
    before = [one for one in _known(table) if one.version != schema.version]
    planned.seen[name] = found.seen
    planned.tables[name] = table.model_copy(
        update={
            "next": table.end,
            "events": found.events,
            "schemas": (*before, schema),
            "schema_version": schema.version,
            "first_version": table.first_version if table.base else schema.version,
            "key_forms": forms,
            "emptied": found.truncated,
            "rows_of": found.reads.snapshot,
            "reached": found.reached,
            "truncated": max((place for place, _ in found.ends), default=None),
            "ends": found.ends if table.kind == "history" else (),
        }
    )


def _key_forms(table: TablePlan, found: Look) -> tuple[str, ...]:
    """All forms that keys have had, in the order in which they came up."""
    known = table.key_forms if table.base else ()
    new = sorted((one.last, one.key_form) for one in found.seen if one.key_kind is not None)
    return tuple(dict.fromkeys((*known, *(form for _, form in new))))


def _alike(one: str, other: str) -> bool:
    """Whether two forms of keys differ in nothing but nulls, which are of any type."""
    parts = zip_longest(*(_PARTS.findall(form) for form in (one, other)))
    return all(left == right or _NULL in {left, right} for left, right in parts)


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


def _unordered(table: TablePlan, found: Look) -> MillraceError | None:
    """A history has to know where in each partition a TRUNCATE stands, which no record says.

    Rows as they are have to know what was there before it, and, without a key, before a snapshot.
    """
    if table.kind == "current" and found.reads.again:
        return SinkError(
            "the table has no key, and a snapshot has read rows of it that are there already: "
            "they can't be told from copies",
            where=f"topic {table.topic}",
            remedy="remove the topic and the Delta table, then have Debezium take one snapshot of "
            "the table (a signal); with message.key.columns its rows have a key",
        )
    if table.kind == "current" and found.went_back:
        return SinkError(
            f"the source was restored, and the topic has {len(table.start)} partitions and a "
            "TRUNCATE from before: by the LSNs, which have begun lower, new rows count as older",
            where=f"topic {table.topic}",
            remedy="have Debezium write the table to a new topic, and remove the Delta table",
        )
    if table.kind != "history" or len(table.start) == 1 or not found.ends:
        return None
    return SinkError(
        f"the topic has {len(table.start)} partitions, and a TRUNCATE among its records: in which "
        "order a history can't tell",
        where=f"topic {table.topic}",
        remedy="have Debezium write the table to a topic of one partition, or leave TRUNCATE out "
        '(skipped.operations = "t")',
    )

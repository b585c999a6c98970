"""New records of all tables → each table's description and last TRUNCATE, before any is applied.

One job for all tables. A table with records that have no key is looked at once more: they may be
TRUNCATEs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from cdc.errors import MillraceError, SinkError, SinkUnreachableError
from cdc.records.position import Position
from cdc.records.schema import Column, TableName, TableSchema
from sinks.debezium.described import Described, Reading, describe
from sinks.debezium.discovery import Seen, discover
from sinks.debezium.duplicates import Reached, reached, spliced
from sinks.debezium.snapshots import Reads, Snapshot, reads
from sinks.debezium.truncate import (
    Truncation,
    Truncations,
    last_of,
    truncations,
    went_back,
)
from sinks.run.options import SchemaOf
from sinks.spark.session import first_line


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

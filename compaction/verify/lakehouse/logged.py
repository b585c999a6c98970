"""An archive's events, and those that the log surely has → missing, extra, different ones.

The log keeps every event for ``log.keep``. Its events have a place in the topic, partition and
offset, which the archive has, too. The positions, operations and records of both must be the same.
For the newest schema version, the columns that an archive has made of a record must be, too.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from cdc.records.position import Position
from compaction.verify.lakehouse.archives import Archive
from compaction.verify.lakehouse.versions import BrokenRows
from compaction.verify.slices import SlicedKeys
from sinks.changes.names import (
    OP,
    POSITION,
    RAW_KEY,
    RAW_VALUE,
    RECORD_OFFSET,
    RECORD_PARTITION,
    VERSION,
    quoted,
)
from sinks.changes.shape import TableShape
from sinks.delta.archive import GAP
from sinks.log.ends import is_copy
from sinks.log.parse import parse_events

MISSING: Final = "an event of the log is missing"
EXTRA: Final = "an event isn't in the log"
TWICE: Final = "an event exists twice"
DIFFERENT: Final = "an event differs from the log's"
_THERE: Final = "_millrace_in_log"
_HERE: Final = "_millrace_in_archive"
_COPY: Final = "_millrace_copy"
_WHY: Final = "_millrace_why"
_PLACE: Final = (RECORD_PARTITION, RECORD_OFFSET)


class LoggedRecords(NamedTuple):
    """The records that the log surely has of a topic, by partition from an offset on.

    They are those since a time (ms since 1970). None: every record that the topic ever had, or
    still has.
    """

    raw: DataFrame
    starts: Mapping[int, int]
    since_ms: int | None


def compared_events(
    archive: Archive,
    log: LoggedRecords,
    instant: Position,
    sliced: SlicedKeys | None,
    limit: int,
) -> BrokenRows:
    """Return the events that aren't the same on both sides, and how many were compared."""
    pairs = _pairs(_in_log(archive, log, instant), _in_archive(archive, log.starts))
    keys = [_either(name) for name in archive.shape.keys]
    found = pairs.withColumn(_WHY, _why())
    if sliced is not None:
        is_within = sliced.condition(_either)
        found = found.where(F.coalesce(is_within, F.lit(True)))  # a TRUNCATE has no key
    is_logged = F.coalesce(F.col(_THERE)["is_event"], F.lit(False))
    counted = found.groupBy(_WHY).agg(F.count("*"), F.count_if(is_logged)).collect()
    counts = {row[0]: row[1] for row in sorted(counted, key=str) if row[0] is not None}
    names, texts = [*archive.shape.keys, POSITION], [*keys, _either(POSITION)]
    first = found.where(F.col(_WHY).isNotNull()).select(
        _WHY, *(text.cast("string").alias(f"_key{n}") for n, text in enumerate(texts))
    )
    broken = [
        (row[0], dict(zip(names, row[1:], strict=True)))
        for row in (first.limit(limit).collect() if counts and limit else ())
    ]
    events = sum(row[2] for row in counted)
    since = "all that it has" if log.since_ms is None else f"since {utc(log.since_ms)}"
    beside = f"{events:,} events compared with the log ({since})"
    return BrokenRows(counts, tuple(broken), (beside,))


def utc(ms: int) -> str:
    """Return a time as people read it."""
    return datetime.fromtimestamp(ms / 1e3, UTC).isoformat(" ", "seconds")


def _in_log(archive: Archive, log: LoggedRecords, instant: Position) -> DataFrame:
    """Return each record's place, and its expected form in the archive.

    The value of a claimed record is elsewhere: only its place and position count.
    """
    raw = log.raw.where(F.col("position") <= str(instant))
    is_event = (F.col("value").isNotNull() | F.col("claim").isNotNull()) & ~is_copy()
    is_parsed = is_event & F.col("claim").isNull()
    parsed = parse_events(raw.where(is_parsed), archive.shape, records=True)
    keyed = [field for field in archive.shape.fields if field.name in archive.shape.keys]
    others = raw.where(~is_parsed).select(
        F.col("partition").alias(RECORD_PARTITION),
        F.col("offset").alias(RECORD_OFFSET),
        F.struct(
            *(F.lit(None).cast(field.type).alias(field.name) for field in keyed),
            F.col("position").alias(POSITION),
            F.col("schema_version").alias(VERSION),
            is_event.alias("is_event"),
            F.lit(None).cast("string").alias(OP),
            F.lit(None).cast("bigint").alias("record"),
            F.lit(None).cast("array<bigint>").alias("values"),
        ).alias(_THERE),
    )
    events = parsed.select(
        *_PLACE,
        F.struct(
            *(F.col(quoted(field.name)).alias(field.name) for field in keyed),
            F.col(POSITION),
            F.col(VERSION),
            F.lit(True).alias("is_event"),
            F.col(OP),
            F.xxhash64(RAW_KEY, RAW_VALUE).alias("record"),
            _values(archive.shape).alias("values"),
        ).alias(_THERE),
    )
    return events.unionByName(others).withColumn(_COPY, F.lit(1))


def _in_archive(archive: Archive, starts: Mapping[int, int]) -> DataFrame:
    """Return the archive's events of these places, and events without a place in the topic."""
    before = reduce(
        or_,
        (
            (F.col(RECORD_PARTITION) == partition) & (F.col(RECORD_OFFSET) < offset)
            for partition, offset in starts.items()
        ),
        F.lit(False),
    )
    record = F.lit(None).cast("bigint")
    if RAW_VALUE in archive.events.columns:
        record = F.when(F.col(RAW_VALUE).isNotNull(), F.xxhash64(RAW_KEY, RAW_VALUE))
    copies = Window.partitionBy(*_PLACE).orderBy(F.lit(0))
    return archive.events.where(
        ~F.col(OP).eqNullSafe(GAP) & ~F.coalesce(before, F.lit(False))
    ).select(
        *_PLACE,
        F.row_number().over(copies).alias(_COPY),
        F.struct(
            *map(quoted, archive.shape.keys),
            F.col(POSITION),
            F.col(VERSION),
            F.col(OP),
            record.alias("record"),
            _values(archive.shape).alias("values"),
        ).alias(_HERE),
    )


def _values(shape: TableShape) -> SparkColumn:
    """Return each column's hash.

    Null in an older schema version, as types may have changed since.
    """
    values = [F.col(quoted(name)) for name in shape.names]
    hashes = F.array(*(F.when(value.isNotNull(), F.xxhash64(value)) for value in values))
    return F.when(F.col(VERSION) == shape.versions[-1].version, hashes)


def _pairs(log: DataFrame, archive: DataFrame) -> DataFrame:
    """Return both sides of each place."""
    return log.join(archive, [*_PLACE, _COPY], "full_outer")


def _either(name: str) -> SparkColumn:
    return F.coalesce(F.col(_THERE).getField(name), F.col(_HERE).getField(name))


def _why() -> SparkColumn:
    """Return why the sides of a place differ. Null: they don't.

    If compaction has kept only the tombstone of a delete, an archive has the delete after a gap.
    """
    there, here = F.col(_THERE), F.col(_HERE)
    is_event = there["is_event"]
    return (
        F.when(here.isNull(), F.when(is_event, F.lit(MISSING)))
        .when(there.isNull() & (F.col(_COPY) > 1) & F.col(RECORD_OFFSET).isNotNull(), TWICE)
        .when(there.isNull() | (~is_event & (here[OP] != "d")), EXTRA)
        .when(_differs(), DIFFERENT)
    )


def _differs() -> SparkColumn:
    """Return whether an event differs. A column that the archive got later is null there."""
    there, here = F.col(_THERE), F.col(_HERE)
    values = F.zip_with(
        there["values"], here["values"], lambda a, b: b.isNotNull() & ~a.eqNullSafe(b)
    )
    differs = [
        ~there[POSITION].eqNullSafe(here[POSITION]),
        ~there[VERSION].eqNullSafe(here[VERSION]),
        there[OP] != here[OP],
        there["record"] != here["record"],
        F.exists(values, lambda each: each),
    ]
    return reduce(or_, (F.coalesce(each, F.lit(False)) for each in differs))

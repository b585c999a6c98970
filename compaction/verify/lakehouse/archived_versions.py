"""A history's versions, and an archive of the same table → the versions that differ.

The source doesn't have earlier versions. An archive has every event, so it shows which versions
existed. A version may be removed without a trace in the history, as the version before it ends
where the removed one began.

Both must have everything. Only versions count that began after both tables were created. If either
lacks something, or has lost a column, only versions after a row's first event since then count.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.records.position import Position
from compaction.verify.lakehouse.archives import Archive, why_no_rows
from compaction.verify.lakehouse.logged import utc
from compaction.verify.lakehouse.versions import NONE, BrokenRows, is_newest
from compaction.verify.slices import SlicedKeys
from sinks.changes.names import (
    ABSENT,
    CREATED,
    DELETE,
    END,
    FILLED,
    OP,
    POSITION,
    TIME,
    UPSERT,
    VALID_FROM,
    quoted,
)
from sinks.changes.shape import DerivedField, TableShape, column_lines
from sinks.changes.versions import versions

MISSING: Final = "a version is missing that the archive has"
EXTRA: Final = "a version isn't in the archive"
DIFFERENT: Final = "a version differs from the archive's"
_ENDS_MAX: Final = 1_000
"""Each event is compared with each end of many rows."""
_IN_ARCHIVE: Final = "_millrace_in_archive"
_ROW: Final = "_millrace_row_hash"
_FIRST: Final = "_millrace_first"
_IS_NEW: Final = "_millrace_is_new"
_WHY: Final = "_millrace_why"


class WholeSince(NamedTuple):
    """When a table became complete: a time (ms since 1970), and a position. None: always."""

    since_ms: int
    position: Position | None = None

    def with_other(self, other: "WholeSince") -> "WholeSince":
        """Return when both tables became complete."""
        positions = [each.position for each in (self, other) if each.position is not None]
        return WholeSince(max(self.since_ms, other.since_ms), max(positions, default=None))


def shown_since(shape: TableShape) -> Position | None:
    """Return the position from which a table's columns show every change of events. None: always.

    If the source has dropped a column, a version that it made is no change of the other columns.
    """
    lines, newest = column_lines(shape.versions), shape.versions[-1].version
    named = {field.column.name for field in shape.fields}
    told = {(number, of.name) for field in shape.fields for number, of in field.sources.items()}
    told |= {
        (number, of.name)
        for line in lines
        if newest in line.sources and line.sources[newest].name not in named
        for number, of in line.sources.items()
    }
    for before, after in reversed([*pairwise(shape.versions)]):
        if any((before.version, column.name) not in told for column in before.event_columns):
            return Position.parse(after.since)
    return None


class HistoryVersions(NamedTuple):
    """The versions of a history, and its expected columns."""

    shape: TableShape
    rows: DataFrame


class _SameColumn(NamedTuple):
    """A column of a history, and the same one in the archive."""

    here: DerivedField
    there: DerivedField


def compared_versions(
    history: HistoryVersions,
    archive: Archive,
    whole: WholeSince,
    sliced: SlicedKeys | None,
    limit: int,
) -> BrokenRows:
    """Return the versions that aren't the same on both sides, or why they can't be compared."""
    shape, name = history.shape, archive.derived.name
    keys = [field for field in shape.fields if field.name in shape.keys]
    if not keys or any(key.nulled or key.unfit_is_null for key in keys):
        return NONE
    if why := why_not_compared(shape, archive):
        return BrokenRows({}, (), (f"versions not compared with {name}: {why}",))
    pairs, ends = _pairs(shape, archive.shape), archive.ends()
    if len(ends) > _ENDS_MAX:
        why = f"it has {len(ends):,} TRUNCATEs and dropped partitions, more than {_ENDS_MAX:,}"
        return BrokenRows({}, (), (f"versions not compared with {name}: {why}",))
    events = archive.of_rows()
    names = frozenset(archive.lacked(events))
    lacked = [pair for pair in pairs if pair.there.name in names]
    own = replace(shape, fields=tuple(pair.here for pair in pairs))
    expected = versions(_changes(archive, events, pairs, lacked), None, own, ends)
    values = [pair.here.name for pair in pairs if pair.there.name not in names]
    found = _sides(history, expected, whole, values, sliced)
    if whole.position is not None:
        found = _behind_first(found, events, pairs, shape.keys, whole.position)
    found = found.withColumn(_WHY, _why()).where(F.col(_WHY).isNotNull())
    counts = {row[0]: row[1] for row in found.groupBy(_WHY).count().orderBy(_WHY).collect()}
    texts = [F.col(quoted(key)).cast("string") for key in [*shape.keys, POSITION]]
    first = found.select(_WHY, *texts).limit(limit).collect() if counts and limit else ()
    broken = [(row[0], dict(zip([*shape.keys, POSITION], row[1:], strict=True))) for row in first]
    since = f"versions compared with {name}, since {utc(whole.since_ms)}"
    if lacked:  # some event lacks a value of its own
        since += f", without {', '.join(pair.here.name for pair in lacked)}"
    return BrokenRows(counts, tuple(broken), (since,))


def why_not_compared(shape: TableShape, archive: Archive) -> str:
    """Return why an archive doesn't show a history's versions. Empty: it does."""
    if why := why_no_rows(archive.shape):
        return why
    there = {pair.here.name for pair in _pairs(shape, archive.shape)}
    lacking = [f.name for f in shape.fields if not f.nulled and f.name not in there]
    if lacking:
        return f"it lacks columns, or has them otherwise: {', '.join(lacking)}"
    return ""


def _pairs(shape: TableShape, archive: TableShape) -> list[_SameColumn]:
    """Return the columns that both have in the same form."""
    there = {field.id: field for field in archive.fields}
    return [
        _SameColumn(field, other)
        for field in shape.fields
        if (other := there.get(field.id)) is not None
        and not field.nulled
        and _form(field) == _form(other)
    ]


def _form(field: DerivedField) -> tuple[str, bool, bool, bool]:
    return field.type, field.hashed, field.nulled, field.unfit_is_null


def _changes(
    archive: Archive, events: DataFrame, pairs: Sequence[_SameColumn], lacked: Sequence[_SameColumn]
) -> DataFrame:
    """Return the events in the form of a run's parsed records."""

    def names(is_so: list[SparkColumn]) -> SparkColumn:
        named = [F.when(each, F.lit(p.here.name)) for each, p in zip(is_so, lacked, strict=True)]
        return F.array_compact(F.array(*named).cast("array<string>"))

    is_delete = F.col(OP) == "d"
    return events.select(
        *(F.col(quoted(pair.there.name)).alias(pair.here.name) for pair in pairs),
        F.col(POSITION),
        F.when(is_delete, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(OP),
        names([~is_delete & archive.is_absent(pair.there) for pair in lacked]).alias(ABSENT),
        names([archive.was_read(pair.there) for pair in lacked]).alias(FILLED),
        F.col(TIME),
        (F.col(OP) == "c").alias(CREATED),
    )


def _sides(
    history: HistoryVersions,
    expected: DataFrame,
    whole: WholeSince,
    values: Sequence[str],
    sliced: SlicedKeys | None,
) -> DataFrame:
    """Return each version's key, position and hash, of both sides."""
    keys = history.shape.keys

    def side(rows: DataFrame, *, is_archive: bool) -> DataFrame:
        rows = rows.where(F.col(VALID_FROM) >= F.timestamp_millis(F.lit(whole.since_ms)))
        if sliced is not None:
            rows = rows.where(sliced.here())
        hashed = F.xxhash64(*(F.col(quoted(name)) for name in values), F.col(END))
        return rows.select(
            *map(quoted, keys), POSITION, hashed.alias(_ROW), F.lit(is_archive).alias(_IN_ARCHIVE)
        )

    stored = history.rows.where(is_newest(history.shape))
    return (
        side(expected, is_archive=True)
        .unionByName(side(stored, is_archive=False))
        .groupBy(*map(quoted, keys), POSITION)
        .agg(
            F.max(F.when(F.col(_IN_ARCHIVE), F.col(_ROW))).alias("there"),
            F.max(F.when(~F.col(_IN_ARCHIVE), F.col(_ROW))).alias("here"),
        )
    )


def _behind_first(
    found: DataFrame,
    events: DataFrame,
    pairs: Sequence[_SameColumn],
    keys: Sequence[str],
    position: Position,
) -> DataFrame:
    """Keep versions after their row's first event since the position, or that begin with it.

    The row's state before that event isn't known on both sides.
    """
    named = [F.col(quoted(p.there.name)).alias(p.here.name) for p in pairs if p.here.name in keys]
    order = F.struct(F.col(POSITION), F.col("is_there"))
    firsts = (
        events.where(F.col(POSITION) > str(position))
        .withColumns({_IS_NEW: F.col(OP) == "c", "is_there": F.col(OP) != "d"})
        .select(*named, POSITION, _IS_NEW, "is_there")
        .groupBy(*map(quoted, keys))
        .agg(F.min(POSITION).alias(_FIRST), F.min_by(_IS_NEW, order).alias(_IS_NEW))
    )
    is_behind = F.coalesce(F.col(POSITION) > F.col(_FIRST), F.lit(True))
    begins = F.coalesce((F.col(POSITION) == F.col(_FIRST)) & F.col(_IS_NEW), F.lit(False))
    joined = found.where(F.col(POSITION) > str(position)).join(firsts, [*keys], "left")
    return joined.where(is_behind | begins)


def _why() -> SparkColumn:
    there, here = F.col("there"), F.col("here")
    return (
        F.when(here.isNull(), F.lit(MISSING))
        .when(there.isNull(), F.lit(EXTRA))
        .when(there != here, F.lit(DIFFERENT))
    )

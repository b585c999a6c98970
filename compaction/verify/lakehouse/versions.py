"""A history's rows → the versions that contradict each other, independent of the source.

The versions of a row follow each other: none overlaps the next one, and at most one is current. The
source doesn't have earlier versions, so this needs no second instant. ``valid_from`` isn't compared
with ``valid_to``, as a snapshot's row has the time of its read.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from cdc.records.position import Position
from compaction.verify.slices import SlicedKeys
from sinks.changes.generations import newest_generation
from sinks.changes.names import END, IS_CURRENT, POSITION, VALID_TO, quoted
from sinks.changes.shape import TableShape

_NEXT: Final = "_millrace_next"
_WHY: Final = "_millrace_why"


class BrokenRows(NamedTuple):
    """The number of impossible versions or events by reason, and the keys of the first of them.

    ``beside`` names what else they were compared with, or why they weren't.
    """

    counts: Mapping[str, int]
    keys: tuple[tuple[str, Mapping[str, str | None]], ...]
    beside: tuple[str, ...] = ()

    def with_more(self, more: "BrokenRows") -> "BrokenRows":
        """Return both, which have different reasons."""
        counts = {**self.counts, **more.counts}
        return BrokenRows(counts, self.keys + more.keys, self.beside + more.beside)


NONE: Final = BrokenRows({}, ())


def broken(
    versions: DataFrame,
    shape: TableShape,
    instant: Position,
    limit: int,
    sliced: SlicedKeys | None = None,
) -> BrokenRows:
    """Return the broken versions of the newest generation.

    Under another key, rows are other rows.
    """
    keys = [field for field in shape.fields if field.name in shape.keys]
    if not keys or any(key.nulled or key.unfit_is_null for key in keys):
        return NONE  # the table's keys don't identify rows
    names = list(map(quoted, shape.keys))
    if sliced is not None:
        versions = versions.where(sliced.here())
    found = (
        versions.where(is_newest(shape))
        .select(*names, POSITION, END, VALID_TO, IS_CURRENT)
        .withColumn(_NEXT, F.lead(POSITION).over(Window.partitionBy(*names).orderBy(POSITION)))
        .withColumn(_WHY, _why(str(instant)))
        .where(F.col(_WHY).isNotNull())
    )
    counts = {row[0]: row[1] for row in found.groupBy(_WHY).count().orderBy(_WHY).collect()}
    if not counts:
        return NONE
    texts = [F.col(name).cast("string") for name in names]
    first = found.select(_WHY, *texts).limit(limit).collect()
    return BrokenRows(
        counts, tuple((row[0], dict(zip(shape.keys, row[1:], strict=True))) for row in first)
    )


def is_newest(shape: TableShape) -> SparkColumn:
    """Return whether a version begins in the newest generation."""
    begins = newest_generation(shape.versions)
    if begins == shape.versions[0].version:
        return F.lit(True)
    since = next(version.since for version in shape.versions if version.version == begins)
    return F.col(POSITION) >= F.lit(since)


def _why(instant: str) -> SparkColumn:
    """Return why a version is impossible. Null: it isn't. It may end where it begins."""
    position, end, after = F.col(POSITION), F.col(END), F.col(_NEXT)
    ended = end.isNotNull()
    is_marked = (F.col(IS_CURRENT) == ended) | (F.col(VALID_TO).isNotNull() != ended)
    return (
        F.when((position > instant) | (end > instant), "a version is newer than the instant")
        .when(position == after, "a version exists twice")
        .when(end.isNull() & after.isNotNull(), "another version follows the current one")
        .when(end > after, "versions overlap")
        .when(end < position, "a version ends before it begins")
        .when(is_marked, "a version's marks contradict each other")
    )

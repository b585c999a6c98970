"""Changes of a table → the newest state of each key, read from the log once and kept for a merge.

The executors keep it, in memory or on their disks. When an executor ends, what it kept is gone, and
a job that needs it fails.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from cdc.records.position import Position
from sinks.changes.latest import PATCHY, contenders, latest
from sinks.changes.names import LOST, POSITION, quoted
from sinks.changes.shape import TableShape
from sinks.spark.jvm import release

_ORDERED: Final = ("bigint", "int", "smallint", "decimal", "string")
"""Types whose least and greatest values Delta's statistics tell, and Python holds all of."""
_KEYS_MAX: Final = 10_000
_RANGES_MAX: Final = 100


Within = Callable[[Callable[[str], SparkColumn]], SparkColumn]
"""A function from the name of a key's column to that column → the condition of its range."""


class Older(NamedTuple):
    """The stored rows that go if no change speaks of them: by a TRUNCATE, or in a rebuild.

    Both are functions of a stored row's position: whether it goes, and the position of the delete.
    """

    goes: Callable[[SparkColumn], SparkColumn]
    deleted_at: Callable[[SparkColumn], SparkColumn]


def up_to(position: Position) -> Older:
    """All rows up to a position."""
    text = str(position)
    return Older(lambda stored: stored <= text, lambda _: F.lit(text))


class Newest(NamedTuple):
    """The newest state of each key: those that are ``whole``, and those combined from several.

    ``oldest`` is the least of their positions (text; None: there is nothing).
    """

    whole: DataFrame
    patched: DataFrame | None
    oldest: str | None
    within: Within | None
    """A condition that holds for all keys; None: the keys have no known range."""

    def all(self) -> DataFrame:
        """All of them."""
        return self.whole if self.patched is None else self.whole.unionByName(self.patched)


@contextmanager
def newest_of_changes(
    changes: DataFrame, shape: TableShape, *, ranges: bool = False
) -> Iterator[Newest]:
    """Read parsed changes and keep the newest of each key; ``ranges``: the keys' ranges, too."""
    rows = contenders(changes, shape).localCheckpoint(eager=False)
    try:
        with newest_of_contenders(rows, shape, ranges=ranges) as newest:
            yield newest
    finally:
        release(rows)


@contextmanager
def newest_of_contenders(
    rows: DataFrame, shape: TableShape, *, ranges: bool = False
) -> Iterator[Newest]:
    """The newest of each key among ``contenders`` that the caller keeps."""
    lead = _lead(shape) if ranges else None
    facts = rows.agg(
        F.count("*").alias("rows"),
        F.count_if(PATCHY).alias("patchy"),
        F.min(POSITION).alias("oldest"),
        *([] if lead is None else [F.min(lead).alias("least"), F.max(lead).alias("greatest")]),
    ).first()
    assert facts is not None  # noqa: S101 (an aggregate returns a row)
    patched: DataFrame | None = None
    if facts["patchy"]:
        of_several = rows.where(PATCHY).drop(PATCHY)
        patched = latest(of_several, shape).localCheckpoint(eager=False)
    try:
        yield Newest(
            rows.where(~F.col(PATCHY)).drop(PATCHY, LOST),
            patched,
            facts["oldest"],
            None if lead is None else _within(rows, facts, shape),
        )
    finally:
        if patched is not None:
            release(patched)


def _within(rows: DataFrame, facts: Row, shape: TableShape) -> Within | None:
    """Ranges that hold the first column of all keys: many of them where the keys are few."""
    key = shape.keys[0]
    if not facts["rows"]:
        return None
    ranges = [(facts["least"], facts["greatest"])]
    if facts["rows"] <= _KEYS_MAX:
        keys = sorted({row[0] for row in rows.select(quoted(key)).collect()})
        size = math.ceil(len(keys) / _RANGES_MAX)
        starts = range(0, len(keys), size)
        ranges = [(keys[start], keys[start : start + size][-1]) for start in starts]

    def condition(column: Callable[[str], SparkColumn]) -> SparkColumn:
        return reduce(or_, (column(key).between(*ends) for ends in ranges))

    return condition


def _lead(shape: TableShape) -> SparkColumn | None:
    """The key's first column, if statistics of files tell its range."""
    name = shape.keys[0]
    kind = next(field.type for field in shape.fields if field.name == name)
    return F.col(quoted(name)) if kind.startswith(_ORDERED) else None

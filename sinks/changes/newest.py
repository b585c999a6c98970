"""Changes of a table → the newest state of each key, column by column if a value is absent.

In any case it takes one shuffle by key. A change that has all its values is the newest state alone,
so if most are, ``contenders`` leaves little to combine. The newest change wins by position. A key
-0 that becomes 0 is a delete and an upsert at one position, and Spark takes both for one key. A
column that the newest change lacks comes from the newest change that has it. It stays in
``_millrace_absent`` if none of the batch does. A filled value (docs/decisions/0007) counts only if
the batch has no exact one. It stays in ``_millrace_filled``, since a target that has the row knows
the exact value.

Data that a merge needs several times (``Newest``) is read from the log once. The executors keep it,
in memory or on their disks. When an executor ends, its data is lost, and a job that needs it fails.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Row, Window, WindowSpec
from pyspark.sql import functions as F

from cdc.records.position import Position
from sinks.changes.ended import ColumnOf
from sinks.changes.names import ABSENT, DELETE, FILLED, LOST, OP, POSITION, quoted
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse
from sinks.spark.jvm import release

PATCHY = "_millrace_patchy"
_RANK = "_millrace_rank"
_NEWEST = "_millrace_newest"
_FILLED = "_millrace_newest_filled"
_DELETED_AT = "_millrace_deleted_at"
_ORDERED: Final = ("bigint", "int", "smallint", "decimal", "string")
"""Types with ranges in Delta's statistics, and with values that Python can represent."""
_UNASKED_MAX: Final = 16
"""With up to this many columns, a query for the lacking ones takes longer than it saves."""
_KEYS_MAX: Final = 10_000
_RANGES_MAX: Final = 100


Within = Callable[[ColumnOf], SparkColumn]
"""A function from the name of a key's column to that column → the condition of its range."""


class Newest(NamedTuple):
    """The newest state of each key: those that are ``whole``, and those combined from several.

    ``oldest`` is the least of their positions (text; None: there are none).
    """

    whole: DataFrame
    patched: DataFrame | None
    oldest: str | None
    within: Within | None
    """A condition that holds for all keys. None: there are no keys, or no known range."""

    def all(self) -> DataFrame:
        """Return all of them."""
        return self.whole if self.patched is None else self.whole.unionByName(self.patched)


def by_key(shape: TableShape) -> WindowSpec:
    """Return a window over the rows of one key."""
    return Window.partitionBy(*map(quoted, shape.keys))


def within(
    raw: DataFrame,
    after: Position | None,
    cut: Position,
    truncated: Position | None,
    *,
    keyed: bool,
) -> DataFrame:
    """Return the raw records that this run must apply.

    These are up to the cut, newer than the table's previous cut (``after``), and newer than its
    last TRUNCATE (``truncated``) if the batch has one. If rows have keys, those of chunks may be at
    exactly that cut, and a second application changes nothing. Records without a position stay, so
    that parse refuses them.
    """
    position = F.col("position")
    applicable = position <= str(cut)
    if after is not None:
        applicable &= position >= str(after) if keyed else position > str(after)
    if truncated is not None:
        applicable &= position > str(truncated)
    return raw.where(position.isNull() | applicable)


def is_patchy(changes: DataFrame) -> SparkColumn:
    """Whether a parsed change lacks its own values: they are left out, filled, or lost."""
    lacks = (F.size(ABSENT) > 0) | (F.size(FILLED) > 0)
    return lacks | F.col(LOST).isNotNull() if LOST in changes.columns else lacks


def contenders(changes: DataFrame, shape: TableShape) -> DataFrame:
    """Return the newest parsed change of each key, or all of them if it isn't whole.

    Adds ``_millrace_patchy``: whether ``latest`` must combine them.
    """
    newest_first = (
        by_key(shape)
        .orderBy(F.desc(POSITION), F.desc(OP))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return (
        changes.withColumns({
            _RANK: F.row_number().over(newest_first),
            PATCHY: F.first(is_patchy(changes)).over(newest_first),
        })
        .where((F.col(_RANK) == 1) | F.col(PATCHY))
        .drop(_RANK)
    )  # fmt: skip


def lacking(changes: DataFrame, shape: TableShape) -> list[str]:
    """Return the columns that any of the parsed changes lacks a value for.

    If the table has only few such columns, return those without a query.
    """
    patchy = shape.patchy
    if len(patchy) <= _UNASKED_MAX:
        return patchy
    names = changes.select(F.explode(F.array_union(ABSENT, FILLED))).distinct().collect()
    lacked = {row[0] for row in names}
    return [name for name in patchy if name in lacked]


def latest(changes: DataFrame, shape: TableShape, patchy: Sequence[str] | None = None) -> DataFrame:
    """Return one row per key of parsed changes, in the same columns.

    A value from before a delete doesn't count, as a later row is a different row. ``patchy`` are
    the columns that changes may lack values for, if known: each costs two aggregates.
    """
    keys = shape.keys
    patchy = shape.patchy if patchy is None else patchy
    others = [name for name in shape.names if name not in keys and name not in patchy]
    deleted = F.col(OP) == DELETE
    grouped = changes.groupBy(*map(quoted, keys)).agg(
        F.max_by(F.struct(*map(quoted, others), OP, ABSENT, FILLED), F.struct(POSITION, OP)).alias(
            _NEWEST
        ),
        F.max(POSITION).alias(POSITION),
        F.max(F.when(deleted, F.col(POSITION))).alias(_DELETED_AT),
        *([_newest_lost()] if LOST in changes.columns else []),
        *(_newest_exact(name).alias(f"{_NEWEST}_{i}") for i, name in enumerate(patchy)),
        *(_newest_filled(name).alias(f"{_FILLED}_{i}") for i, name in enumerate(patchy)),
    )
    winner, gone = F.col(_NEWEST), F.col(_DELETED_AT)
    exact: dict[str, SparkColumn] = {}
    filled: dict[str, SparkColumn] = {}
    for i, name in enumerate(patchy):
        for values, newest in (
            (exact, F.col(f"{_NEWEST}_{i}")),
            (filled, F.col(f"{_FILLED}_{i}")),
        ):
            values[name] = F.when(gone.isNull() | (newest["position"] >= gone), newest)
    # A value large enough to be left out isn't null. Null means that the column didn't exist.
    for name in patchy:
        stale = exact[name]["value"].isNull() & (filled[name]["position"] > exact[name]["position"])
        exact[name] = F.when(~F.coalesce(stale, F.lit(False)), exact[name])
    either = {name: F.coalesce(exact[name], filled[name]) for name in patchy}
    columns = {
        **{name: F.col(quoted(name)) for name in keys},
        **{name: winner.getField(name) for name in others},
        **{name: either[name]["value"] for name in patchy},
    }
    # After a delete the target's row is a different row.
    unchanged = F.when(gone.isNull(), F.array_union(winner[ABSENT], winner[FILLED]))
    absent = _without(winner[ABSENT], either)
    unknown = gone.isNotNull() & (F.size(absent) > 0)
    position = F.col(POSITION)
    if LOST in changes.columns:
        # A newer whole change replaces it, and may be the reason why compaction removed it.
        newest_lost = F.col(LOST)
        matters = (newest_lost[POSITION] == position) | (F.size(winner[ABSENT]) > 0)
        counts = (
            newest_lost.isNotNull() & matters & (gone.isNull() | (newest_lost[POSITION] > gone))
        )
        position = F.coalesce(refuse(counts, newest_lost[LOST], "string"), position)
    return grouped.select(
        *(columns[name].alias(name) for name in shape.names),
        position.alias(POSITION),
        winner[OP].alias(OP),
        F.coalesce(refuse(unknown, lost(absent), "array<string>"), absent).alias(ABSENT),
        F.array_except(_without(unchanged, exact), absent).alias(FILLED),
    )


def lost(absent: SparkColumn) -> SparkColumn:
    """Return the message for a new row whose key the log has no values for in some columns."""
    return F.concat(
        F.lit("a row's key has changed, and the log has no value for its unchanged columns "),
        F.concat_ws(", ", absent),
        F.lit(
            " (yet, if the row no longer exists). If the next run repeats this: set REPLICA"
            " IDENTITY FULL and take a new snapshot of the table"
        ),
    )


def _newest_lost() -> SparkColumn:
    newest = F.struct(F.col(POSITION), F.col(LOST))
    return F.max(F.when(F.col(LOST).isNotNull(), newest)).alias(LOST)


def _newest_exact(name: str) -> SparkColumn:
    """Return the newest value that a change had."""
    brought = ~F.array_contains(ABSENT, name) & ~F.array_contains(FILLED, name)
    return _newest(name, (F.col(OP) != DELETE) & brought)


def _newest_filled(name: str) -> SparkColumn:
    """Return the newest value that was read for a change that lacked it."""
    return _newest(name, F.array_contains(FILLED, name))


def _newest(name: str, counts: SparkColumn) -> SparkColumn:
    """Return the value of the newest change that counts, in a struct, so null differs from none."""
    position = F.when(counts, F.col(POSITION))
    value = F.struct(F.col(quoted(name)).alias("value"), F.col(POSITION).alias("position"))
    return F.max_by(value, position)


def _without(names: SparkColumn, values: dict[str, SparkColumn]) -> SparkColumn:
    """Return the names that have no value."""
    none = F.array().cast("array<string>")
    if not values:
        return none
    missing = (
        F.when(F.array_contains(names, name) & value.isNull(), F.lit(name))
        for name, value in values.items()
    )
    return F.when(F.size(names) > 0, F.array_compact(F.array(*missing))).otherwise(none)


@contextmanager
def newest_of_changes(
    changes: DataFrame, shape: TableShape, *, ranges: bool = False
) -> Iterator[Newest]:
    """Read parsed changes and keep the newest of each key. ``ranges`` adds the keys' ranges."""
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
    """Return the newest of each key among ``contenders`` that the caller keeps."""
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
        patchy = lacking(of_several, shape)
        patched = latest(of_several, shape, patchy).localCheckpoint(eager=False)
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
    """Return ranges of the first column of all keys: many of them if the keys are few."""
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
    """Return the key's first column, if files' statistics have its range."""
    name = shape.keys[0]
    kind = next(field.type for field in shape.fields if field.name == name)
    return F.col(quoted(name)) if kind.startswith(_ORDERED) else None

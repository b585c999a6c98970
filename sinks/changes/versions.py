"""Changes of a table and its current versions of rows → versions that end, and new ones.

A version is a row's state from one commit to the next that changes it. If a transaction gives a row
several states, which no other transaction sees, only the last one is a version. A row that is read
again, or written unchanged, has no new version. Columns that a change lacks come from the version
before, as in sinks/changes/newest.py: an exact value takes precedence over a filled one.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from cdc.records.position import INDEX_MAX
from sinks.changes.ended import as_struct, changed, is_within
from sinks.changes.ends import RowsEnd
from sinks.changes.names import (
    ABSENT,
    CREATED,
    DELETE,
    END,
    FILLED,
    IS_CURRENT,
    LOST,
    OP,
    POSITION,
    TIME,
    VALID_FROM,
    VALID_TO,
    quoted,
)
from sinks.changes.newest import by_key, lost
from sinks.changes.shape import TableShape
from sinks.changes.types import refuse

_STANDS: Final = "stands"
"""The operation of a current version. Sorts after delete, and before upsert."""
_LIFE: Final = "_millrace_life"
_COMMIT: Final = "_millrace_commit"
_LAST: Final = "_millrace_last"
_END_POSITION: Final = "_millrace_end_position"
_END_US: Final = "_millrace_end_us"
_BEGINS_SNAPSHOT: Final = "_millrace_begins_snapshot"
_IS_WITHIN: Final = "_millrace_is_within"
_IS_NEW: Final = "_millrace_is_new"
_COMMIT_CHARS: Final = 25
"""The part of a position with epoch and commit LSN."""


def versions(
    changes: DataFrame,
    standing: DataFrame | None,
    shape: TableShape,
    ends: Sequence[RowsEnd],
    *,
    behind_gap: bool = False,
) -> DataFrame:
    """Return the versions that the changes begin and end, with the columns of a history.

    ``standing`` are the table's current versions of the changed keys. Those that end are returned
    with their end. Those that continue are returned only if rows ended at some position (``ends``),
    or ``behind_gap``: then it is unknown what happened between the two.
    """
    keeps = behind_gap or bool(ends)
    rows = changes if standing is None else changes.unionByName(_as_changes(standing, shape))
    rows = rows.transform(lambda all_: _with_ends(all_, shape, ends))
    return (
        rows.transform(lambda all_: _newer(all_, shape))
        .transform(lambda all_: _filled_in(all_, shape, behind_gap=behind_gap))
        .transform(lambda all_: _last_of_commit(all_, shape))
        .transform(lambda all_: _changed(all_, shape))
        .transform(lambda all_: _with_validity(all_, shape, all_standing=keeps))
    )


def _as_changes(standing: DataFrame, shape: TableShape) -> DataFrame:
    none = F.array().cast("array<string>")
    return standing.select(
        *map(quoted, shape.names),
        POSITION,
        F.lit(_STANDS).alias(OP),
        none.alias(ABSENT),
        none.alias(FILLED),
        F.col(VALID_FROM).alias(TIME),
        F.lit(False).alias(CREATED),
    )


def _with_ends(rows: DataFrame, shape: TableShape, ends: Sequence[RowsEnd]) -> DataFrame:
    """Add a delete of every key at each position where rows ended, its own included.

    The start of a whole new snapshot doesn't end a row that the snapshot has.
    """
    if not ends:
        return rows
    all_ends = F.array(
        *(
            F.struct(
                as_struct(end)["position"].alias(_END_POSITION),
                as_struct(end)["ts_us"].alias(_END_US),
                F.lit(_begins_snapshot(end)).alias(_BEGINS_SNAPSHOT),
                is_within(end, shape, changed).alias(_IS_WITHIN),
            )
            for end in ends
        )
    )
    ended = F.filter(all_ends, lambda end: end[_IS_WITHIN])
    behind = F.col(_BEGINS_SNAPSHOT) & (F.col(POSITION) > F.col(_END_POSITION))
    first = F.min_by(CREATED, F.when(behind, F.col(POSITION)))
    keys = (
        rows.select(*map(quoted, shape.keys), POSITION, CREATED, F.inline(ended))
        .groupBy(*map(quoted, shape.keys), _END_POSITION, _END_US)
        .agg(first.alias(_IS_NEW))
        .where(F.coalesce(_IS_NEW, F.lit(True)))
    )
    deletes = keys.select(
        *(
            F.col(quoted(field.name))
            if field.name in shape.keys
            else _null(field.type).alias(field.name)
            for field in shape.fields
        ),
        F.col(_END_POSITION).alias(POSITION),
        F.lit(DELETE).alias(OP),
        F.array().cast("array<string>").alias(ABSENT),
        F.array().cast("array<string>").alias(FILLED),
        F.timestamp_micros(_END_US).alias(TIME),
        F.lit(False).alias(CREATED),
    )
    return rows.unionByName(deletes)


def _begins_snapshot(end: RowsEnd) -> bool:
    """Whether it isn't a frame of a transaction: the daemon writes it before a snapshot's rows."""
    position = end.position
    return not end.bounds and (position.commit_lsn == 0 or position.index == INDEX_MAX)


def _null(kind: str) -> SparkColumn:
    return F.lit(None).cast(kind)


def _newer(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Drop changes that the current version already has."""
    stands = F.max(F.when(F.col(OP) == _STANDS, F.col(POSITION))).over(by_key(shape))
    rows = rows.withColumn("_millrace_stands", stands)
    newer = F.col("_millrace_stands").isNull() | (F.col(POSITION) > F.col("_millrace_stands"))
    return rows.where((F.col(OP) == _STANDS) | newer).drop("_millrace_stands")


def _filled_in(rows: DataFrame, shape: TableShape, *, behind_gap: bool) -> DataFrame:
    """Return every change with all of its values. Raise in Spark if the log never had one.

    A state that another one follows is an exception: such states precede a table's first snapshot,
    and the history of a row begins where all of it is known.
    """
    lives = F.sum(F.when(F.col(OP) == DELETE, 1).otherwise(0)).over(_ordered(shape))
    if behind_gap:  # the current version doesn't show values that a later change left
        lives += F.when(F.col(OP) == _STANDS, 0).otherwise(1)
    rows = rows.withColumn(_LIFE, lives)
    life = Window.partitionBy(*map(quoted, shape.keys), _LIFE).orderBy(POSITION, OP)
    last = {name: f"_millrace_value_{number}" for number, name in enumerate(shape.patchy)}
    rows = rows.withColumns(
        {column: _last_value(name, life) for name, column in last.items()}
        | {_LAST: F.lead(OP).over(_ordered(shape)).isNull()}
    )
    here = F.col(OP) != DELETE
    unknown = F.array_compact(
        F.array(
            *(
                F.when(F.array_contains(ABSENT, name) & F.col(column).isNull(), F.lit(name))
                for name, column in last.items()
            )
        ).cast("array<string>")
    )
    incomplete = here & (F.size(unknown) > 0)
    refused = refuse(incomplete, lost(unknown), "string")
    return rows.where(~incomplete | F.col(_LAST)).select(
        *(
            F.when(here, F.col(last[name])["value"]).alias(name)
            if name in last
            else F.col(quoted(name))
            for name in shape.names
        ),
        F.coalesce(refused, F.col(POSITION)).alias(POSITION),
        OP,
        TIME,
    )


def _last_value(name: str, life: WindowSpec) -> SparkColumn:
    """Return the row's newest exact value in this life, else the newest filled one."""
    value = F.struct(F.col(quoted(name)).alias("value"), F.col(POSITION).alias("position"))
    here = F.col(OP) != DELETE
    filled = F.array_contains(FILLED, name)
    exact = F.when(here & ~F.array_contains(ABSENT, name) & ~filled, value)
    last_exact = F.last(exact, ignorenulls=True).over(life)
    last_filled = F.last(F.when(here & filled, value), ignorenulls=True).over(life)
    stale = last_exact["value"].isNull() & (last_filled["position"] > last_exact["position"])
    return F.when(stale, last_filled).otherwise(F.coalesce(last_exact, last_filled))


def _last_of_commit(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Return the state after each transaction that has changed the row."""
    commit = F.substring(POSITION, 1, _COMMIT_CHARS)
    last = Window.partitionBy(*map(quoted, shape.keys), _COMMIT).orderBy(
        F.desc(POSITION), F.desc(OP)
    )
    return (
        rows.withColumn(_COMMIT, commit)
        .withColumn("_millrace_rank", F.row_number().over(last))
        .where(F.col("_millrace_rank") == 1)
        .drop(_COMMIT, "_millrace_rank")
    )


def _changed(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Drop states that equal the one before."""
    before = _ordered(shape)
    values = [name for name in shape.names if name not in shape.keys]
    state = F.struct(OP, *map(quoted, values))
    rows = rows.withColumn("_millrace_before", F.lag(state).over(before))
    was = F.col("_millrace_before")
    gone = F.col(OP) == DELETE
    was_gone = was.isNull() | (was[OP] == DELETE)
    same = reduce(
        and_, (F.col(quoted(name)).eqNullSafe(was.getField(name)) for name in values), F.lit(True)
    )
    return rows.where(F.when(gone, ~was_gone).otherwise(was_gone | ~same)).drop("_millrace_before")


def _with_validity(rows: DataFrame, shape: TableShape, *, all_standing: bool) -> DataFrame:
    """Add the end of each version, and drop deletes, which only end one."""
    after = _ordered(shape)
    is_news = (F.col(OP) != _STANDS) | F.col(END).isNotNull() | F.lit(all_standing)
    return (
        rows.withColumns(
            {
                END: F.lead(POSITION).over(after),
                VALID_TO: F.lead(TIME).over(after),
            }
        )
        .where((F.col(OP) != DELETE) & is_news)
        .select(
            *map(quoted, shape.names),
            POSITION,
            F.col(TIME).alias(VALID_FROM),
            VALID_TO,
            END,
            F.col(END).isNull().alias(IS_CURRENT),
        )
    )


def _ordered(shape: TableShape) -> WindowSpec:
    return by_key(shape).orderBy(POSITION, OP)


def whole(changes: DataFrame) -> DataFrame:
    """Return the changes. End the job if one lacks a value that its record should have."""
    if LOST not in changes.columns:
        return changes
    refused = refuse(F.col(LOST).isNotNull(), F.col(LOST), "string")
    return changes.withColumn(POSITION, F.coalesce(refused, F.col(POSITION))).drop(LOST)

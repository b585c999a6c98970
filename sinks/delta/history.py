"""Changes of a table → one commit that ends versions of rows, and adds the next ones.

A version is identified by its key and its first position, so a second application changes nothing.
If the table's key has changed, the versions of each key are found by that key, and the last version
of each row ended where the table began to be read again.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from delta.tables import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sinks.changes.ended import first_end, older
from sinks.changes.ends import RowsEnd
from sinks.changes.generations import earlier_shapes, ends_under, forgotten_end
from sinks.changes.names import (
    END,
    IS_CURRENT,
    OP,
    POSITION,
    TIME,
    UPSERT,
    VALID_FROM,
    VALID_TO,
    quoted,
)
from sinks.changes.shape import TableShape
from sinks.changes.versions import versions, whole
from sinks.delta.commit import execute, write_whole
from sinks.delta.evolution import columns_with_ids, stored_names
from sinks.delta.keyed import same_key, source, stored
from sinks.delta.table import DerivedDeltaTable
from sinks.run.plan import RunPlan
from sinks.run.summary import Rows
from sinks.run.topics import TableChanges

_OWN = (POSITION, VALID_FROM, VALID_TO, END, IS_CURRENT)


def write_history(
    target: DerivedDeltaTable, plan: RunPlan, changes: TableChanges, shape: TableShape
) -> Rows:
    """End versions of rows, and add new ones; or create the table with all versions.

    After a gap, rows that the log doesn't have were removed in between. Runs inside ``commit``.
    """
    table = plan.tables[target.name]
    names = {} if table.begins else stored_names(target)
    applied = 0 if table.begins else table.applied_version
    options = target.derived.options
    earlier = earlier_shapes(shape, applied, names, options, table.first_version)
    shapes = (*earlier, shape)
    ends = [_ends(plan, target.name, changes, shapes[place:]) for place in range(len(shapes))]
    if table.begins:
        made = [
            versions(whole(changes.timed(each, None)), None, each, of_each)
            for each, of_each in zip(shapes, ends, strict=True)
        ]
        rows = _together(made, shape.names)
        return write_whole(target, table, rows.select(*columns_with_ids(shape), *_OWN), shape)
    into = DeltaTable.forPath(target.spark, target.path)
    stands, *later = shapes
    rows = _versions(into.toDF(), plan, target.name, changes, stands, ends[0])
    made = [
        versions(whole(changes.timed(each, None)), None, each, of_each)
        for each, of_each in zip(later, ends[1:], strict=True)
    ]
    columns = [name for name in stands.names if name in names.values()]
    columns = list(dict.fromkeys([*shape.names, *columns]))
    rows = _together([rows, *made], columns)
    builder = (
        into.alias("t")
        .merge(
            rows.alias("s"),
            (_same_row(stands) if later else same_key(stands))
            & stored(END).isNull()
            & (stored(POSITION) == source(POSITION)),
        )
        .whenMatchedUpdate(set={name: source(name) for name in (END, VALID_TO, IS_CURRENT)})
        .whenNotMatchedInsert(values={quoted(name): source(name) for name in (*columns, *_OWN)})
    )
    ends_here = [*ends[0], *_gap_end(plan, target.name, changes, stands)]
    if (older_rows := older(ends_here, stands)) is not None:
        end = first_end(ends_here, stands, stored)
        ended: dict[str, str | SparkColumn] = {
            END: end["position"],
            VALID_TO: F.timestamp_micros(end["ts_us"]),
            IS_CURRENT: F.lit(False),
        }
        # A version that a later row of its key has ended since had an earlier end, within bounds.
        stood = stored(END).isNull() | (stored(END) > end["position"])
        builder = builder.whenNotMatchedBySourceUpdate(older_rows.goes(stored) & stood, set=ended)
    return execute(builder)


def _ends(
    plan: RunPlan, name: str, changes: TableChanges, shapes: Sequence[TableShape]
) -> list[RowsEnd]:
    """Return where rows with the first shape's key ended. The other shapes have later keys.

    If the log no longer has an end, it is the next key's first change.
    """
    shape, *later = shapes
    ends = ends_under(shape.versions, plan.tables[name].ends)
    position = forgotten_end(changes.versions, shape.versions[-1], ends)
    if position is None:
        return ends
    timed = changes.timed(later[0], None)
    first = timed.agg(F.min_by(F.unix_micros(TIME), POSITION).alias("ts_us")).first()
    assert first is not None  # noqa: S101 (an aggregate returns a row)
    ts_us = plan.cut_ts_us if first["ts_us"] is None else first["ts_us"]
    return sorted([*ends, RowsEnd(position=position, ts_us=ts_us)], key=lambda end: end.position)


def _versions(
    rows: DataFrame,
    plan: RunPlan,
    name: str,
    changes: TableChanges,
    shape: TableShape,
    ends: Sequence[RowsEnd],
) -> DataFrame:
    """Return versions with the key of the table's ``rows``. Current ones continue or end."""
    timed = changes.timed(shape, rows)
    keys = timed.select(*map(quoted, shape.keys)).distinct()
    in_log = changes.behind_gap(shape)
    behind_gap = in_log is not None and plan.tables[name].gap is not None
    if in_log is not None and behind_gap:
        keys = keys.union(_alive(in_log, shape)).distinct()
    standing = rows.where(F.col(END).isNull()).join(keys, shape.keys, "left_semi")
    return versions(whole(timed), standing, shape, ends, behind_gap=behind_gap)


def _gap_end(plan: RunPlan, name: str, changes: TableChanges, shape: TableShape) -> list[RowsEnd]:
    """Return the end of rows that the log doesn't have after a gap."""
    gap = plan.tables[name].gap
    if gap is None or changes.behind_gap(shape) is None:
        return []
    return [RowsEnd(position=gap, ts_us=plan.ts_ms * 1000)]


def _together(made: Sequence[DataFrame], columns: Sequence[str]) -> DataFrame:
    """Combine versions under several keys, with the same columns, null if one had none."""
    if len(made) == 1:
        return made[0]
    every = reduce(lambda rows, more: rows.unionByName(more, allowMissingColumns=True), made)
    return every.select(*map(quoted, columns), *_OWN)


def _same_row(shape: TableShape) -> SparkColumn:
    """Whether a source row is one of the target. A row with a later key matches none."""
    return reduce(and_, (stored(key).eqNullSafe(source(key)) for key in shape.keys))


def _alive(in_log: DataFrame, shape: TableShape) -> DataFrame:
    """Return the keys of rows in the log."""
    rows = in_log.groupBy(*map(quoted, shape.keys)).agg(F.max_by(OP, POSITION).alias(OP))
    return rows.where(F.col(OP) == UPSERT).select(*map(quoted, shape.keys))

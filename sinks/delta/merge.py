"""The newest state of each key → one commit to the Delta table: written whole, or merged.

The commit carries the run's number (an application transaction), so a run that is repeated
changes nothing; inside it a row changes only to a newer position.
"""

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Any, Final, NamedTuple

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.errors import SinkError
from cdc.records.position import Position
from cdc.records.schema import TableSchema
from sinks.delta.table import DeltaTarget, creation_properties, evolve
from sinks.latest import lost
from sinks.parse import ABSENT, DELETE, FILLED, OP, POSITION, UPSERT, quoted, target_names
from sinks.types import can_be_absent, refuse

ATTEMPTS_MAX: Final = 5
"""How often a commit is tried that another writer (OPTIMIZE, a second run) gets in the way of."""


class Rows(NamedTuple):
    """How many rows of a derived table a run touched."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def write_new(target: DeltaTarget, newest: DataFrame, schema: TableSchema) -> Rows:
    """Create the Delta table with the rows; inside of ``commit``."""
    names = list(target_names(schema).values())
    incomplete = refuse(F.size(ABSENT) > 0, lost(F.col(ABSENT)), "string")
    rows = newest.where(F.col(OP) == UPSERT).select(
        *map(quoted, names), F.coalesce(incomplete, F.col(POSITION)).alias(POSITION)
    )
    return create(target, rows, schema)


def create(target: DeltaTarget, rows: DataFrame, schema: TableSchema) -> Rows:
    """Write a Delta table that isn't there yet."""
    properties = creation_properties(schema)
    rows.write.format("delta").options(**properties).mode("errorifexists").save(target.path)
    history = DeltaTable.forPath(target.spark, target.path).history(1).first()
    metrics = history["operationMetrics"] if history is not None else {}
    return Rows(inserted=int(metrics.get("numOutputRows", 0)))


def merge(
    target: DeltaTarget, newest: DataFrame, schema: TableSchema, truncated: Position | None
) -> Rows:
    """Apply upserts, deletes and a TRUNCATE to an existing table; inside of ``commit``."""
    names = list(target_names(schema).values())
    keys = [target_names(schema)[column.name] for column in schema.key]
    patchy = {target_names(schema)[c.name] for c in schema.columns if can_be_absent(c)}
    here = {field.name.lower(): field.name for field in target.columns()}
    dropped = set(here.values()) - {here[name.lower()] for name in names} - {POSITION}
    newer = _source(POSITION) > _target(POSITION)
    incomplete = refuse(F.size(_source(ABSENT)) > 0, lost(_source(ABSENT)), "string")
    same_key = reduce(and_, (_target(key) == _source(key) for key in keys))
    updated: dict[str, str | SparkColumn] = {
        **{
            quoted(name): _unless_unchanged(name) if name in patchy else _source(name)
            for name in names
        },
        **{quoted(name): F.lit(None) for name in dropped},
        POSITION: _source(POSITION),
    }
    inserted: dict[str, str | SparkColumn] = {
        **{quoted(name): _source(name) for name in names},
        POSITION: F.coalesce(incomplete, _source(POSITION)),
    }
    builder = (
        DeltaTable.forPath(target.spark, target.path)
        .alias("t")
        .merge(newest.alias("s"), same_key)
        .whenMatchedDelete(newer & (_source(OP) == DELETE))
        .whenMatchedUpdate(newer & (_source(OP) == UPSERT), set=updated)
        .whenNotMatchedInsert(_source(OP) == UPSERT, values=inserted)
    )
    return execute(remove_older(builder, truncated))


def remove_older(builder: DeltaMergeBuilder, truncated: Position | None) -> DeltaMergeBuilder:
    """Let a TRUNCATE remove all older rows that the batch doesn't speak of."""
    if truncated is None:
        return builder
    return builder.whenNotMatchedBySourceDelete(_target(POSITION) <= str(truncated))


def execute(builder: DeltaMergeBuilder) -> Rows:
    """Run a MERGE and count what it did."""
    done: Any = builder.execute()
    counts = done.first() if done is not None else None
    if counts is None:
        return Rows()
    return Rows(
        int(counts["num_inserted_rows"]),
        int(counts["num_updated_rows"]),
        int(counts["num_deleted_rows"]),
    )


def commit(
    target: DeltaTarget,
    run: int,
    base: int,
    schema: TableSchema,
    write: Callable[[], Rows],
) -> Rows:
    """Make ``write``'s commit the run's, once; raises SinkError if another run was there.

    ``base`` is the run that the table must have before. After the commit the table must have this
    one: Delta skips a lower number than it has without a word.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        there = target.applied_run() if target.exists() else None
        if there == run:
            return Rows()
        if (there or 0) != base or (there is None) != (base == 0):
            raise _foreign(target, there, base)
        if base:
            evolve(target, schema)
        try:
            with target.transaction(run):
                rows = write()
        except DeltaConcurrentModificationException as error:
            if attempt == ATTEMPTS_MAX:
                raise SinkError(
                    f"another writer got in the way {ATTEMPTS_MAX} times: {error}",
                    where=str(target.name),
                    remedy="the next run tries again",
                ) from None
            continue
        if target.applied_run() != run:
            raise _foreign(target, target.applied_run(), run)
        return rows
    raise AssertionError("the last attempt returns or raises")


def _foreign(target: DeltaTarget, there: int | None, expected: int) -> SinkError:
    found = "isn't there" if there is None else f"has run {there}" if there else "isn't ours"
    return SinkError(
        f"the Delta table {found}, but the plan goes on from run {expected}",
        where=target.path,
        remedy="if no other run is under way, remove the Delta table: the next run rebuilds it",
    )


def _unless_unchanged(name: str) -> SparkColumn:
    """The row's own value where the change left it as it was, whether it was filled or not."""
    unchanged = F.array_contains(_source(ABSENT), name) | F.array_contains(_source(FILLED), name)
    return F.when(unchanged, _target(name)).otherwise(_source(name))


def _source(name: str) -> SparkColumn:
    return F.col(f"s.{quoted(name)}")


def _target(name: str) -> SparkColumn:
    return F.col(f"t.{quoted(name)}")

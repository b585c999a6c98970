"""A run's writes to a Delta table → exactly one commit of the run.

The commit has the run's number (an application transaction), so a repeated run changes nothing. If
the source's columns have changed, another commit before it changes the table's.
"""

from collections.abc import Callable
from typing import Any, Final

from delta.tables import DeltaMergeBuilder
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from cdc.faults import FaultPoint, reach
from sinks.changes.shape import TableShape
from sinks.delta.evolution import (
    creation_properties,
    evolve,
    prepare_replacement,
    require_clusterable,
    settle,
)
from sinks.delta.table import DerivedDeltaTable
from sinks.delta.transaction import CONFLICTS, DeltaTransaction
from sinks.run.options import Report
from sinks.run.owner import foreign_table
from sinks.run.plan import TablePlan
from sinks.run.summary import Rows, TableVersion

ATTEMPTS_MAX: Final = 5
"""How often a commit is retried when another writer (OPTIMIZE, a second run) interferes."""


def write_whole(
    target: DerivedDeltaTable, table: TablePlan, rows: DataFrame, shape: TableShape
) -> Rows:
    """Write all rows of a table, new or existing. Runs inside ``commit``."""
    return (_replace_all if table.base else _create)(target, rows, shape)


def _create(target: DerivedDeltaTable, rows: DataFrame, shape: TableShape) -> Rows:
    options = target.derived.options
    require_clusterable(target, shape, [*shape.names, *target.derived.reserved])
    writer = rows.write.format("delta").options(**creation_properties(target, shape))
    if partition := shape.still(options.partition):
        writer = writer.partitionBy(*partition)
    writer.mode("errorifexists").save(target.path)
    return Rows(inserted=target.added())


def _replace_all(target: DerivedDeltaTable, rows: DataFrame, shape: TableShape) -> Rows:
    """Replace all rows and columns of the table. Runs inside ``commit``."""
    require_clusterable(target, shape, [*shape.names, *target.derived.reserved])
    before = target.rows()
    writer = rows.write.format("delta").option("overwriteSchema", "true")
    if partition := shape.still(target.derived.options.partition):
        writer = writer.partitionBy(*partition)
    writer.mode("overwrite").save(target.path)
    return Rows(inserted=target.added(), deleted=before)


def execute(builder: DeltaMergeBuilder) -> Rows:
    """Run a MERGE and count its changes."""
    done: Any = builder.execute()
    counts = done.first() if done is not None else None
    if counts is None:
        return Rows()
    return Rows(
        int(counts["num_inserted_rows"]),
        int(counts["num_updated_rows"]),
        int(counts["num_deleted_rows"]),
    )


def write_nothing(target: DerivedDeltaTable, run: int) -> Rows:
    """Record the run in a table whose rows stay unchanged. Runs inside ``commit``."""
    if DeltaTransaction.is_supported(target):  # without a Spark job
        return DeltaTransaction(target, run).commit(0, 0, 0)
    none = target.spark.read.format("delta").load(target.path).where(F.lit(False))
    none.write.format("delta").mode("append").save(target.path)
    return Rows()


def clone(source: DerivedDeltaTable, version: int, target: DerivedDeltaTable, run: int) -> None:
    """Create a table from the files of a version, as the commit of a run."""
    if DeltaTransaction.is_supported(source) and not source.is_coordinated():
        DeltaTransaction.clone(source, version, target, run)
        return
    target.spark.sql(
        f"CREATE TABLE {target.sql_name} SHALLOW CLONE {source.sql_name} VERSION AS OF {version}"
    )
    with target.transaction(run):
        write_nothing(target, run)


def commit(
    target: DerivedDeltaTable,
    run: int,
    base: int,
    shape: TableShape,
    write: Callable[[], Rows],
    report: Report,
    *,
    replaces: bool = False,
) -> Rows:
    """Make ``write``'s commit the run's, once. Raise SinkError if another run has committed.

    ``base`` is the run that the table must have before. If ``write`` ``replaces`` the columns as
    well, they aren't changed one by one. After the commit the table must have this run, as Delta
    silently skips a lower number than its own. The returned version has this run and no later one.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        if (has_run := _applied(target, run, base)) is not None:
            if replaces:  # it may have died before
                settle(target, shape)
            return Rows(version=has_run)
        try:
            if base:
                change = prepare_replacement if replaces else evolve
                change(target, run, shape, report)
            with target.transaction(run):
                rows = write()
        except CONFLICTS as error:
            if attempt == ATTEMPTS_MAX:
                raise SinkError(
                    f"another writer committed first, {ATTEMPTS_MAX} times: {error}",
                    where=target.name,
                    remedy="the next run tries again",
                ) from None
            continue
        reach(FaultPoint.TABLE_COMMITTED)
        after = target.applied()
        if after.run != run:
            raise foreign_table(target.path, after.run, run)
        if replaces or not base:
            settle(target, shape)
        return rows._replace(version=after.at)
    raise AssertionError("the last attempt returns or raises")


def _applied(target: DerivedDeltaTable, run: int, base: int) -> TableVersion | None:
    """Return the version that has the run. None: the table is as ``base`` has left it."""
    applied = target.read_applied()
    if (applied.run if applied else 0) not in {base, run}:
        applied = target.read_applied(listed=True)
    if applied is not None and applied.run == run:
        return applied.at
    if (applied.run if applied else 0) != base or (applied is None) != (base == 0):
        raise foreign_table(target.path, applied.run if applied else None, base)
    return None

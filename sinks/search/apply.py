"""One table's part of a plan → its documents at the server, then its progress record.

A crash between the two repeats the part: the same documents at the same versions, into the same
index, or into a new one where the index wasn't published yet.
"""

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.position import Lsn, Position
from cdc.records.schema import TableSchema
from cdc.settings import SearchSettings, Settings
from sinks.batch import read_raw
from sinks.claims import with_values
from sinks.delta.apply import explained
from sinks.delta.newest import newest_of
from sinks.latest import latest, within
from sinks.names import OWN
from sinks.parse import parse
from sinks.plan import Plan, TablePlan
from sinks.search.bulk import Counts
from sinks.search.documents import mapping
from sinks.search.executors import write_documents
from sinks.search.indexes import MisfitError, TableIndex
from sinks.search.progress import Ledger, TableLoading, TableRecord
from sinks.search.rows import documents
from sinks.shape import Shape, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def apply_table(
    spark: "SparkSession",
    settings: Settings,
    target: TableIndex,
    ledger: Ledger,
    table: TablePlan,
    plan: Plan,
    versions: Sequence[TableSchema],
    early: "DataFrame | None" = None,
) -> Counts:
    """Write what the plan says to the table's index, unless this run has recorded it already.

    ``early`` are the table's contenders, if they were read already.
    """
    if settings.search is None:
        raise AssertionError("run_search needs [search]")
    shape = plain(versions, OWN)
    newest = versions[-1]
    before = ledger.tables([newest.name]).get(newest.name)
    if before is not None and before.run == plan.run and target.uuid(before.index) == before.uuid:
        return Counts()
    if table.base:
        before = _fitting(target, ledger, before, newest)
    index = before.index if table.base and before else _made(target, before, newest)
    uuid = target.uuid(index)
    counts = Counts()
    if table.events:
        with explained(str(newest.name), settings.log.keep):
            counts += (
                _written(spark, settings, settings.search, index, table, plan, shape)
                if early is None
                else _written_early(early, settings.search, index, shape)
            )
            if before is not None and before.loading is not None and before.loading.done:
                new, done = before.loading.index, before.loading.done
                _written(spark, settings, settings.search, new, table, plan, shape, done)
    # What a TRUNCATE leaves is written first, so that the index is never empty in between.
    if table.base and table.truncated is not None:
        counts += Counts(deleted=target.truncate(index, table.truncated))
        if before is not None and before.loading is not None:
            target.truncate(before.loading.index, table.truncated)
    if uuid is None or target.uuid(index) != uuid:
        raise target.lost(index)
    if table.base:
        target.refresh(index)
    else:
        target.publish(index)
    record = TableRecord(
        run=plan.run,
        index=index,
        uuid=uuid,
        generation=generation_of(index),
        epoch=table.snapshot.epoch,
        cut=str(plan.cut),
        offsets=table.next,
        schema_version=newest.version,
        ts_ms=time.time_ns() // 1_000_000,
        loading=before.loading if table.base and before else None,
    )
    ledger.write_table(newest.name, record)
    return counts


def load_part(
    spark: "SparkSession",
    settings: Settings,
    table: TablePlan,
    plan: Plan,
    versions: Sequence[TableSchema],
    index: str,
) -> Counts:
    """Load what a part of the log says, as of a cut that is applied, into another index."""
    if settings.search is None:
        raise AssertionError("run_search needs [search]")
    shape = plain(versions, OWN)
    with explained(str(versions[-1].name), settings.log.keep):
        return _written(spark, settings, settings.search, index, table, plan, shape)


def _fitting(
    target: TableIndex, ledger: Ledger, before: TableRecord | None, newest: TableSchema
) -> TableRecord:
    """The record of an index that the table's columns fit, or beside which one is loaded."""
    if before is None or target.uuid(before.index) != before.uuid:
        raise target.lost(before.index if before else target.alias)
    if before.loading is not None and target.uuid(before.loading.index) != before.loading.uuid:
        before = before.model_copy(update={"loading": None})
    if before.schema_version == newest.version:
        return before
    wanted = mapping(newest)
    if before.loading is not None:
        try:
            target.extend(before.loading.index, wanted)
        except MisfitError:
            before = before.model_copy(update={"loading": None})
    try:
        target.extend(before.index, wanted)
    except MisfitError:
        return before if before.loading is not None else begin_load(target, ledger, before, newest)
    return before


def begin_load(
    target: TableIndex, ledger: Ledger, before: TableRecord, newest: TableSchema
) -> TableRecord:
    """Make another index, to be loaded beside the one that serves; returns the record of both."""
    index = _made(target, before, newest)
    uuid = target.uuid(index)
    if uuid is None:
        raise target.lost(index)
    loading = TableLoading(index=index, uuid=uuid)
    record = before.model_copy(update={"loading": loading})
    ledger.write_table(newest.name, record)
    return record


def history_of(table: TablePlan) -> Position:
    """Where it begins: a load must not see what the log still has of an older one of the source."""
    return Position(table.snapshot.epoch, Lsn(0), 0)


def generation_of(index: str) -> int:
    """The number of an index of ours."""
    return int(index.rpartition("-")[2])


def _made(target: TableIndex, before: TableRecord | None, newest: TableSchema) -> str:
    return target.make(mapping(newest), before.generation + 1 if before else 1)


def _written_early(early: "DataFrame", search: SearchSettings, index: str, shape: Shape) -> Counts:
    with newest_of(early, shape) as newest:
        return write_documents(documents(newest.all(), shape), search, index)


def _written(
    spark: "SparkSession",
    settings: Settings,
    search: SearchSettings,
    index: str,
    table: TablePlan,
    plan: Plan,
    shape: Shape,
    partitions: Collection[int] | None = None,
) -> Counts:
    """Write to an index; only what these ``partitions`` of the topic have, where they are named."""
    history = history_of(table)
    floor = max(table.truncated or history, history)
    raw = read_raw(spark, settings.kafka, {table.topic: table.start}, {table.topic: table.end})
    if partitions is not None:
        raw = raw.where(F.col("partition").isin(list(partitions)))
    rows = (
        raw.transform(lambda records: within(records, table.after, plan.cut, floor, keyed=True))
        .transform(lambda records: with_values(records, settings.kafka, table, plan))
        .transform(lambda records: parse(records, shape))
        .transform(lambda changes: latest(changes, shape))
        .transform(lambda newest_rows: documents(newest_rows, shape))
    )
    return write_documents(rows, search, index)

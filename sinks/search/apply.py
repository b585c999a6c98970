"""One table's part of a plan → its documents at the server, then its progress record.

A crash between the two repeats the part: the same documents at the same versions, into the same
index, or into a new one where the index wasn't published yet.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdc.errors import SinkError
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableSchema
from cdc.settings import SearchSettings, Settings
from sinks.batch import read_raw
from sinks.claims import with_values
from sinks.delta.apply import explained
from sinks.latest import latest, within
from sinks.names import OWN
from sinks.parse import parse
from sinks.plan import Plan, TablePlan
from sinks.search.bulk import Counts
from sinks.search.documents import mapping
from sinks.search.executors import write_documents
from sinks.search.indexes import TableIndex, write_alias
from sinks.search.progress import Ledger, TableRecord
from sinks.search.rows import documents
from sinks.shape import Shape, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def apply_table(
    spark: "SparkSession",
    settings: Settings,
    target: TableIndex,
    ledger: Ledger,
    table: TablePlan,
    plan: Plan,
    versions: Sequence[TableSchema],
) -> Counts:
    """Write what the plan says to the table's index, unless this run has recorded it already."""
    if settings.search is None:
        raise AssertionError("run_search needs [search]")
    shape = plain(versions, OWN)
    newest = versions[-1]
    before = ledger.tables([newest.name]).get(newest.name)
    if before is not None and before.run == plan.run and target.uuid(before.index) == before.uuid:
        return Counts()
    index = _opened(target, before, table, newest)
    uuid = target.uuid(index)
    counts = Counts()
    if table.events:
        with explained(str(newest.name), settings.log.keep):
            counts += _written(spark, settings, settings.search, index, table, plan, shape)
    # What a TRUNCATE leaves is written first, so that the index is never empty in between.
    if table.base and table.truncated is not None:
        counts += Counts(deleted=target.truncate(index, table.truncated))
    if uuid is None or target.uuid(index) != uuid:
        raise _lost(newest, index)
    if table.base:
        target.refresh(index)
    else:
        target.publish(index)
    record = TableRecord(
        run=plan.run,
        index=index,
        uuid=uuid,
        generation=int(index.rpartition("-")[2]),
        epoch=table.snapshot.epoch,
        cut=str(plan.cut),
        offsets=table.next,
        schema_version=newest.version,
        ts_ms=time.time_ns() // 1_000_000,
    )
    ledger.write_table(newest.name, record)
    return counts


def _opened(
    target: TableIndex, before: TableRecord | None, table: TablePlan, newest: TableSchema
) -> str:
    """The index to write to: a new one for a table's first load, else the one it has."""
    if not table.base:
        return target.make(mapping(newest), before.generation + 1 if before else 1)
    if before is None or target.uuid(before.index) != before.uuid:
        raise _lost(newest, before.index if before else target.alias)
    if before.schema_version != newest.version:
        target.extend(before.index, mapping(newest))
    return before.index


def _written(
    spark: "SparkSession",
    settings: Settings,
    search: SearchSettings,
    index: str,
    table: TablePlan,
    plan: Plan,
    shape: Shape,
) -> Counts:
    # A first load must not see what the log still has of an older history of the source.
    history = Position(table.snapshot.epoch, Lsn(0), 0)
    floor = max(table.truncated or history, history)
    raw = read_raw(spark, settings.kafka, {table.topic: table.start}, {table.topic: table.end})
    rows = (
        raw.transform(lambda records: within(records, table.after, plan.cut, floor, keyed=True))
        .transform(lambda records: with_values(records, settings.kafka, table, plan))
        .transform(lambda records: parse(records, shape))
        .transform(lambda changes: latest(changes, shape))
        .transform(lambda newest_rows: documents(newest_rows, shape))
    )
    return write_documents(rows, search, write_alias(index))


def _lost(schema: TableSchema, index: str) -> SinkError:
    return SinkError(
        "the index was deleted while a run wrote to it",
        where=f"table {schema.name}, index {index}",
        remedy="nothing to do: the next run loads a new one from the log",
    )

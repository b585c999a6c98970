"""A table's plan, of a topic that a real Debezium wrote → its commit.

The records' schemas are read again by the table's plan, whether the plan was made just now or by a
run that was killed: both read the same records the same way.
"""

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.names import ABSENT, DELETE, DELETED, FILLED, OP, POSITION, quoted
from sinks.changes.shape import TableShape
from sinks.debezium.described import RecordSource, TopicLayout, describe
from sinks.debezium.duplicates import without_repeated_changes
from sinks.debezium.log import read_records, topic_of
from sinks.debezium.parse import parse, parse_events
from sinks.debezium.records import RecordGroup, discover
from sinks.debezium.truncate import is_older, newer, position_of
from sinks.delta.apply import columns_of
from sinks.delta.archive import add_events, keeps_records
from sinks.delta.commit import Rows, commit
from sinks.delta.current import merge, write_new
from sinks.delta.history import merge_history, write_new_history
from sinks.delta.newest import Newest, newest_of_changes
from sinks.delta.table import DeltaTarget
from sinks.run.plan import RunPlan, TablePlan, Truncation

_NAMES = "array<string>"
_OFFSET_CHARS = 26
"""Of a position's text: epoch and offset, with the dot behind them."""


def apply_topic(
    target: DeltaTarget,
    plan: RunPlan,
    source: RecordSource,
    groups: tuple[RecordGroup, ...] | None,
) -> Rows:
    """Commit what the plan says to the table, unless the table has it already.

    ``groups`` are those of the records, if this run has inspected them.
    """
    table = plan.tables[target.name]
    columns = columns_of(target.derived, table, topic_of(table).schemas)
    start, end = {table.topic: table.start}, {table.topic: table.end}
    raw = read_records(target.spark, source.kafka, start, end)
    topic = _describe(table, source, discover(raw) if groups is None else groups)
    return commit(
        target, plan.run, table.base, columns, lambda: _write(target, raw, topic, columns, table)
    )


def _describe(table: TablePlan, source: RecordSource, groups: Sequence[RecordGroup]) -> TopicLayout:
    """The table as the plan has it, and how to read its records."""
    planned = topic_of(table).schemas[-1]
    topic = describe(
        planned.name, groups, source.connector, schema_of=source.schema_of, before=planned
    )
    if topic is None or topic.schema.columns != planned.columns:
        raise SinkError(
            "the records don't have the columns any more that the plan was made for",
            where=f"table {planned.name}",
            remedy="was the configuration changed while a run was unfinished? Set it back for one "
            "run; else remove the Delta table, so that the next run rebuilds it",
        )
    return topic


def _write(
    target: DeltaTarget,
    raw: DataFrame,
    topic: TopicLayout,
    columns: TableShape,
    table: TablePlan,
) -> Rows:
    if table.kind == "changes":  # no earlier plan had this plan's offsets
        events = parse_events(raw, topic, columns, records=keeps_records(target, table))
        return add_events(target, events, columns, table)
    if table.kind == "history":
        changes = parse(raw, topic, columns, timed=True)
        if not table.ends:  # behind a TRUNCATE that is repeated, rows are, too
            history = target.spark.read.format("delta").load(target.path) if table.base else None
            changes = without_repeated_changes(changes, columns, history)
        if not table.base:
            return write_new_history(target, changes, columns, table)
        return merge_history(target, changes, columns, table, None)
    return _write_rows(target, parse(raw, topic, columns), columns, table)


def _write_rows(
    target: DeltaTarget,
    changes: DataFrame,
    columns: TableShape,
    table: TablePlan,
) -> Rows:
    truncation = topic_of(table).last_truncation
    if truncation is not None:
        changes = newer(truncation, changes)
    with newest_of_changes(changes, columns) as newest:
        if not table.base:
            return write_new(target, newest.all(), columns)
        rows = _with_gone(target, newest, columns, table, truncation)
        return merge(target, rows, columns, None, rebuilds=table.rebuilds)


def _with_gone(
    target: DeltaTarget,
    newest: Newest,
    columns: TableShape,
    table: TablePlan,
    truncation: Truncation | None,
) -> Newest:
    """With deletes of rows that go without a record: by a TRUNCATE, or a rebuild."""
    if table.rebuilds:
        gone = _gone(target, newest.all(), columns, F.lit(True), _just_behind("f" * 16))
    elif truncation is not None and table.truncated is not None:
        older = is_older(truncation, F.col(POSITION))
        gone = _gone(target, newest.all(), columns, older, _delete_position(truncation))
    else:
        return newest
    others = gone if newest.patched is None else newest.patched.unionByName(gone)
    return newest._replace(patched=others, within=None)


def _delete_position(truncation: Truncation) -> SparkColumn:
    position = position_of(truncation)
    if position is not None:
        return F.lit(str(position))
    return _just_behind(f"{truncation.lsn:016x}")


def _just_behind(lsn: str) -> SparkColumn:
    """A position that is newer than the row's own, and older than any later one of its key."""
    return F.concat(F.substring(POSITION, 1, _OFFSET_CHARS), F.lit(lsn))


def _gone(
    target: DeltaTarget,
    rows: DataFrame,
    columns: TableShape,
    older: SparkColumn,
    position: SparkColumn,
) -> DataFrame:
    """A delete of every older row of the table whose key isn't among the rows."""
    stored_rows = target.spark.read.format("delta").load(target.path).where(older)
    if target.derived.marks_deletes:
        stored_rows = stored_rows.where(~F.col(DELETED))
    keys = rows.select(*map(quoted, columns.keys))
    gone = stored_rows.join(keys, columns.keys, "left_anti")
    none = F.array().cast(_NAMES)
    return gone.select(
        *(
            F.col(quoted(field.name))
            if field.name in columns.keys
            else _null(field.type, field.name)
            for field in columns.fields
        ),
        position.alias(POSITION),
        F.lit(DELETE).alias(OP),
        none.alias(ABSENT),
        none.alias(FILLED),
    )


def _null(kind: str, name: str) -> SparkColumn:
    return F.lit(None).cast(kind).alias(name)

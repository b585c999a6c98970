"""One table's part of a plan, of a topic that a real Debezium wrote → its commit.

The records' schemas are looked up again by what the plan knows of the table, whether the plan was
made just now or by a run that was killed: both read the same records the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.names import ABSENT, DELETE, DELETED, FILLED, OP, POSITION, RAW_VALUE, quoted
from sinks.changes.shape import TableShape
from sinks.debezium.described import Described, Reading, describe
from sinks.debezium.duplicates import spliced, unrepeated
from sinks.debezium.inspection import behind
from sinks.debezium.log import read_records
from sinks.debezium.parse import parse, parse_events, parse_images
from sinks.debezium.records import Seen, discover
from sinks.debezium.truncate import Truncation
from sinks.delta.apply import columns_of, require_key
from sinks.delta.commit import Rows, commit, create
from sinks.delta.current import merge, stored, write_new
from sinks.delta.evolution import columns_with_ids
from sinks.delta.history import merge_history, write_new_history
from sinks.delta.keyless import merge_keyless, write_new_keyless
from sinks.delta.newest import Newest, newest_of_changes
from sinks.delta.table import DeltaTarget
from sinks.log.records import let_go
from sinks.run.options import SchemaOf
from sinks.run.plan import Plan, TablePlan

_NAMES = "array<string>"
_PLACE_CHARS = 26
"""Of a position's text: epoch and offset, with the dot behind them."""


@dataclass(frozen=True, slots=True)
class Means:
    """How records are read; ``seen`` is what a look at them has told, if there was one just now."""

    kafka: Mapping[str, str]
    reading: Reading
    schema_of: SchemaOf | None
    seen: tuple[Seen, ...] | None


def apply_topic(target: DeltaTarget, plan: Plan, means: Means) -> Rows:
    """Commit what the plan says to the table, unless the table has it already."""
    table = plan.tables[target.name]
    require_key(target, keyed=bool(table.schemas[-1].key))
    columns = columns_of(target.derived, table, table.schemas)
    start, end = {table.topic: table.start}, {table.topic: table.end}
    raw = read_records(target.spark, means.kafka, start, end)
    topic = _described(raw, table, means)
    return commit(
        target, plan.run, table.base, columns, lambda: _write(target, raw, topic, columns, table)
    )


def _described(raw: DataFrame, table: TablePlan, means: Means) -> Described:
    """The table as the plan knows it, and how to read its records."""
    known = table.schemas[-1]
    seen = discover(raw) if means.seen is None else means.seen
    found = describe(known.name, seen, means.reading, schema_of=means.schema_of, before=known)
    if found is None or found.schema.columns != known.columns:
        raise SinkError(
            "the records don't have the columns any more that the plan was made for",
            where=f"table {known.name}",
            remedy="was the configuration changed while a run was unfinished? Set it back for one "
            "run; else remove the Delta table, so that the next run rebuilds it",
        )
    return found


def _write(
    target: DeltaTarget, raw: DataFrame, topic: Described, columns: TableShape, table: TablePlan
) -> Rows:
    if table.kind == "changes":
        return _add(target, raw, topic, columns, table)
    if table.kind == "history":
        changes = parse(raw, topic, columns, timed=True)
        if not table.ends:  # behind a TRUNCATE that is repeated, rows are, too
            there = target.spark.read.format("delta").load(target.path) if table.base else None
            changes = unrepeated(changes, columns, there)
        if not table.base:
            return write_new_history(target, changes, columns, table)
        return merge_history(target, changes, columns, table, None)
    emptied = Truncation(*table.emptied) if table.emptied is not None else None
    if columns.keys:
        return _write_rows(target, parse(raw, topic, columns), columns, table, emptied)
    if len(table.start) > 1:
        return _write_bag(target, parse_images(raw, topic, columns), columns, table, emptied)
    events = spliced(raw, topic, behind(table)).localCheckpoint(eager=False)
    try:
        return _write_bag(target, parse_images(events, topic, columns), columns, table, emptied)
    finally:
        let_go(events)


def _add(
    target: DeltaTarget, raw: DataFrame, topic: Described, columns: TableShape, table: TablePlan
) -> Rows:
    """Every event, once: the plan's offsets are those that no plan before had."""
    keeps = target.derived.keeps_records
    if table.base:  # one that has begun without the records goes on so
        keeps = keeps and RAW_VALUE in target.columns().names
    events = parse_events(raw, topic, columns, records=keeps)
    own = [name for name in events.columns if name not in columns.names]
    rows = events.select(*columns_with_ids(columns), *map(quoted, own))
    if not table.base:
        return create(target, rows, columns)
    rows.write.format("delta").mode("append").save(target.path)
    return Rows(inserted=target.added())


def _behind(changes: DataFrame, emptied: Truncation | None) -> DataFrame:
    return changes if emptied is None else emptied.newer(changes)


def _write_rows(
    target: DeltaTarget,
    changes: DataFrame,
    columns: TableShape,
    table: TablePlan,
    emptied: Truncation | None,
) -> Rows:
    with newest_of_changes(_behind(changes, emptied), columns) as newest:
        if not table.base:
            return write_new(target, newest.all(), columns)
        rows = _with_gone(target, newest, columns, table, emptied)
        return merge(target, rows, columns, None, rebuilds=table.rebuilds)


def _with_gone(
    target: DeltaTarget,
    newest: Newest,
    columns: TableShape,
    table: TablePlan,
    emptied: Truncation | None,
) -> Newest:
    """With the rows that go although no record speaks of them: by a TRUNCATE, or a rebuild."""
    if table.rebuilds:
        gone = _gone(target, newest.all(), columns, F.lit(True), _just_behind("f" * 16))
    elif emptied is not None and table.truncated is not None:
        older = emptied.is_older(F.col(POSITION))
        gone = _gone(target, newest.all(), columns, older, _place(emptied))
    else:
        return newest
    others = gone if newest.patched is None else newest.patched.unionByName(gone)
    return newest._replace(patched=others, within=None)


def _place(emptied: Truncation) -> SparkColumn:
    if emptied.position is not None:
        return F.lit(str(emptied.position))
    return _just_behind(f"{emptied.lsn:016x}")


def _just_behind(lsn: str) -> SparkColumn:
    """A position that is newer than the row's own, and older than any later one of its key."""
    return F.concat(F.substring(POSITION, 1, _PLACE_CHARS), F.lit(lsn))


def _write_bag(
    target: DeltaTarget,
    images: DataFrame,
    columns: TableShape,
    table: TablePlan,
    emptied: Truncation | None,
) -> Rows:
    images = _behind(images, emptied)
    if not table.base:
        return write_new_keyless(target, images, columns)
    if emptied is None or table.truncated is None:
        return merge_keyless(target, images, columns, None)
    return merge_keyless(target, images, columns, None, older=emptied.is_older(stored(POSITION)))


def _gone(
    target: DeltaTarget,
    rows: DataFrame,
    columns: TableShape,
    older: SparkColumn,
    place: SparkColumn,
) -> DataFrame:
    """A delete of every older row of the table that the rows don't speak of."""
    there = target.spark.read.format("delta").load(target.path).where(older)
    if target.derived.marks_deletes:
        there = there.where(~F.col(DELETED))
    keys = rows.select(*map(quoted, columns.keys))
    gone = there.join(keys, columns.keys, "left_anti")
    none = F.array().cast(_NAMES)
    return gone.select(
        *(
            F.col(quoted(one.name)) if one.name in columns.keys else _null(one.type, one.name)
            for one in columns.fields
        ),
        place.alias(POSITION),
        F.lit(DELETE).alias(OP),
        none.alias(ABSENT),
        none.alias(FILLED),
    )


def _null(kind: str, name: str) -> SparkColumn:
    return F.lit(None).cast(kind).alias(name)

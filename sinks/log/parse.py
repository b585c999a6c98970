"""Raw records of one table → its columns, typed, with position, operation and absent columns.

An envelope is read with the columns of all schema versions, so one batch may have several. Each
value is then converted by the version of its record. A record that can't be read raises an error in
Spark, which fails only its table.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.records.schema import Column, TableSchema
from sinks.changes.names import (
    ABSENT,
    COUNT,
    CREATED,
    DELETE,
    FILLED,
    LOST,
    OP,
    POSITION,
    RAW_KEY,
    RAW_VALUE,
    RECORD_OFFSET,
    RECORD_PARTITION,
    ROW,
    SNAPSHOT,
    TIME,
    UPSERT,
    VERSION,
)
from sinks.changes.shape import DerivedField, TableShape
from sinks.changes.types import (
    can_be_absent,
    from_text,
    is_as_in_json,
    partition_value,
    refuse,
)
from sinks.log.ends import ENDING, ends_rows
from sinks.log.envelope import BROKEN, EnvelopeSchema
from sinks.spark.jvm import json_rows, texts

_READ: Final = ("_millrace_envelope", "_millrace_key")
_ROW: Final = "_millrace_image"


def parse(
    raw: DataFrame, shape: TableShape, *, timed: bool = False, snapshot: bool = False
) -> DataFrame:
    """Return one row per change of a table with a key, with the columns of a derived table.

    Adds ``_millrace_position`` (text), ``_millrace_op`` (upsert or delete), ``_millrace_absent``
    (columns that the record has no value for) and ``_millrace_filled`` (columns that the change
    left unchanged, with values read at another time). ``timed`` adds ``_millrace_time`` and
    ``_millrace_created`` (op c), ``snapshot`` adds ``_millrace_snapshot`` (op r). A delete and its
    tombstone both appear, with only the key. Records that end rows don't.
    """
    envelope, key = F.col(_READ[0]), F.col(_READ[1])
    form, row = EnvelopeSchema.of(shape), envelope["after"]
    deleted, named = row.isNull(), _as_in_json(shape, form)
    plain = set(named.values())
    created, read = (F.coalesce(envelope["op"] == op, F.lit(False)) for op in ("c", "r"))
    records = _read(raw, shape, form, timed=timed).withColumn(_ROW, form.named(row, named))
    changes = records.select(
        f"{_ROW}.*",
        *(
            _value(field, _value_in_row_or_key(row, key, form), shape, form).alias(field.name)
            for field in shape.fields
            if field.name not in plain
        ),
        F.col("position").alias(POSITION),
        F.when(deleted, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(OP),
        _absent(row, shape, form).alias(ABSENT),
        _filled(envelope["op"], shape).alias(FILLED),
        *([committed_at(envelope).alias(TIME), created.alias(CREATED)] if timed else []),
        *([read.alias(SNAPSHOT)] if snapshot else []),
        *([F.when(~deleted, F.col(LOST)).alias(LOST)] if LOST in raw.columns else []),
    )
    return changes.drop(*form.unnamed(named))


def _as_in_json(shape: TableShape, form: EnvelopeSchema) -> dict[str, str]:
    """Return columns in a row → fields whose values equal JSON's in every schema version."""

    def is_plain(field: DerivedField) -> bool:
        changes = field.hashed or field.nulled or field.unfit_is_null or field.partitions
        sources = [field.sources.get(version.version) for version in shape.versions]
        return not changes and all(
            source is not None
            and source.name == field.column.name
            and is_as_in_json(source, field.type)
            and form.types[source.name] == field.type
            and source.key is None
            for source in sources
        )

    return {field.column.name: field.name for field in shape.fields if is_plain(field)}


def _value_in_row_or_key(
    row: SparkColumn, key: SparkColumn, form: EnvelopeSchema
) -> Callable[[Column], SparkColumn]:
    """Return a column's value in the row. A deleted row has its key's values only in the key."""

    def value(column: Column) -> SparkColumn:
        own = form.value(row, column)
        return own if column.key is None else F.coalesce(own, form.value(key, column))

    return value


def committed_at(envelope: SparkColumn) -> SparkColumn:
    """Return the commit time of the change. A tombstone's alone: when the log received it."""
    committed_us = F.coalesce(envelope["source"]["ts_us"], envelope["source"]["ts_ms"] * 1000)
    return F.timestamp_micros(F.coalesce(committed_us, F.col("ts_ms") * 1000))


def parse_events(raw: DataFrame, shape: TableShape, *, records: bool) -> DataFrame:
    """Return one row per event: the new row, or a delete's old row.

    Adds position, ``_millrace_op`` (c, u, d, r; t: TRUNCATE; p: a partition was dropped), time,
    absent columns (names), filled ones (their ordinals in the schema version), that version, and
    the record's offset. ``records`` adds its key and value.
    """
    envelope, key = F.col(_READ[0]), F.col(_READ[1])
    form = EnvelopeSchema.of(shape)
    row = F.when(envelope["op"] == "d", envelope["before"]).otherwise(envelope["after"])
    read = partial(_read, timed=True, ends=True, before=True)
    events = raw.transform(lambda all_: read(all_, shape, form)).withColumn(_ROW, row)
    row = F.col(_ROW)
    return events.select(
        *(
            _value(field, _value_in_row_or_key(row, key, form), shape, form).alias(field.name)
            for field in shape.fields
        ),
        _unless_lost(raw).alias(POSITION),
        F.when(F.col("value").isNull(), "d").otherwise(envelope["op"]).alias(OP),
        committed_at(envelope).alias(TIME),
        _absent(F.when(envelope["op"] != "d", row), shape, form).alias(ABSENT),
        F.col("filled").alias(FILLED),
        F.col("schema_version").alias(VERSION),
        F.col("partition").alias(RECORD_PARTITION),
        F.col("offset").alias(RECORD_OFFSET),
        *([F.col("key").alias(RAW_KEY), F.col("value").alias(RAW_VALUE)] if records else []),
    )


def parse_images(raw: DataFrame, shape: TableShape) -> DataFrame:
    """Return at most two rows per change of a table without key: the removed and the added row.

    Adds ``_millrace_position``, ``_millrace_count`` (-1: removed, 1: added) and ``_millrace_row``
    (the record's topic, partition and offset, which identify the added row). A value that an update
    leaves out comes from the row's old image.
    """
    envelope, form = F.col(_READ[0]), EnvelopeSchema.of(shape)
    before = F.when(envelope["op"].isin("u", "d"), envelope["before"])
    after = F.when(envelope["op"] != "d", envelope["after"])
    images = F.filter(
        F.array(
            F.struct(F.lit(-1).alias("count"), before.alias("row"), before.alias("old")),
            F.struct(F.lit(1).alias("count"), after.alias("row"), before.alias("old")),
        ),
        lambda image: image["row"].isNotNull(),
    )
    record_id = F.concat_ws(":", "topic", "partition", "offset")
    image = F.col("image")
    return (
        raw.transform(lambda records: _read(records, shape, form, before=True))
        .withColumn("image", F.explode(images))
        .select(
            *(
                _value(field, _value_in_images(image, form), shape, form).alias(field.name)
                for field in shape.fields
            ),
            _unless_lost(raw).alias(POSITION),
            image["count"].alias(COUNT),
            record_id.alias(ROW),
        )
    )


def _value_in_images(image: SparkColumn, form: EnvelopeSchema) -> Callable[[Column], SparkColumn]:
    """Return a column's value in the row's new image, or in the old one if the new one lacks it."""

    def value(column: Column) -> SparkColumn:
        own, old = (form.value(image[name], column) for name in ("row", "old"))
        return F.when(form.lacks(image["row"], column), old).otherwise(own)

    return value


def _unless_lost(raw: DataFrame) -> SparkColumn:
    """Return the position. End the job if a record's value is lost."""
    position = F.col("position")
    if LOST not in raw.columns:
        return position
    return F.coalesce(refuse(F.col(LOST).isNotNull(), F.col(LOST), "string"), position)


def _read(
    raw: DataFrame,
    shape: TableShape,
    form: EnvelopeSchema,
    *,
    timed: bool = False,
    ends: bool = False,
    before: bool = False,
) -> DataFrame:
    """Return envelope and key as structs. End the job at a record that isn't this table's."""
    versions = [version.version for version in shape.versions]
    envelope = json_rows(F.col("value"), form.schema(timed=timed, before=before))
    rows = (raw if ends else raw.where(~ends_rows())).withColumn(_READ[0], envelope)
    # The row itself has its key. A delete's record has it only in the key.
    gone = F.col(_READ[0])["after"].isNull()
    keys = {column.name: column for version in shape.versions for column in version.key}
    if keys:
        key = json_rows(F.col("key"), form.key_schema(keys.values()))
        rows = rows.withColumn(_READ[1], F.when(gone, key))
    op = F.col(_READ[0])["op"]
    image = (op == "d") == gone
    whole = F.col(_READ[0])[BROKEN].isNull()
    readable = F.col("value").isNull() | (op.isin("c", "r", "u", "d") & image & whole)
    if ends:
        readable |= op.isin(*ENDING)
    good = F.coalesce(
        readable & F.col("position").isNotNull() & F.col("schema_version").isin(versions),
        F.lit(False),
    )
    message = F.concat(
        F.lit("record at "),
        F.concat_ws(":", "topic", "partition", "offset"),
        F.when(
            F.col(_READ[0])[BROKEN].isNull(),
            F.lit(" isn't a Millrace record, or has a newer schema version: "),
        ).otherwise(" isn't a Millrace record, or has a value that its column can't hold: "),
        F.concat_ws("/", "position", "schema_version"),
    )
    # Not a filter, which Spark would push below, and then read each envelope once per reference.
    return rows.withColumn(
        "position", F.coalesce(refuse(~good, message, "string"), F.col("position"))
    )


def _value(
    field: DerivedField,
    value: Callable[[Column], SparkColumn],
    shape: TableShape,
    form: EnvelopeSchema,
) -> SparkColumn:
    """Return the value by the column's type in the record's schema version."""
    if field.nulled:
        return F.lit(None).cast(field.type)
    branches: dict[tuple[object, ...] | None, tuple[Column | None, list[int]]] = {}
    for version in shape.versions:
        source = field.sources.get(version.version)
        alike = None if source is None else (source.name, *_form(source), source.key is None)
        branches.setdefault(alike, (source, []))[1].append(version.version)

    def branch(source: Column | None) -> SparkColumn:
        if source is None:
            return F.lit(None).cast(field.type)
        if field.hashed:
            return F.sha2(F.concat(F.lit(shape.salt), value(source)), 256)
        return from_text(
            source,
            value(source),
            field.type,
            read=form.read(source),
            unfit_is_null=field.unfit_is_null,
        )

    newest = (field.column.name, *_form(field.column), field.column.key is None)
    made = reduce(
        lambda rest, item: F.when(F.col("schema_version").isin(item[1]), branch(item[0])).otherwise(
            rest
        ),
        (item for alike, item in branches.items() if alike != newest),
        branch(field.column),
    )
    if not field.partitions:
        return made
    return partition_value(field.column, made, field.type, unfit_is_null=field.unfit_is_null)


def _form(column: Column) -> tuple[object, ...]:
    """Return the properties that determine the form of the column's values in a record."""
    return column.type, column.array, column.time_precision <= 3, column.precision_scale


def _absent(row: SparkColumn, shape: TableShape, form: EnvelopeSchema) -> SparkColumn:
    """Return the names of the columns that a record leaves out."""
    none = F.array().cast("array<string>")

    def lacking(version: TableSchema) -> SparkColumn:
        here = {
            source.name: field.name
            for field in shape.fields
            if (source := field.sources.get(version.version)) is not None and can_be_absent(source)
        }
        return F.coalesce(form.lacking(row, here), none) if here else none

    return F.when(row.isNull(), none).otherwise(_by_version(shape, lacking, none))


def _filled(operation: SparkColumn, shape: TableShape) -> SparkColumn:
    """Return the names of the columns for which an update has filled values.

    A row that is new under its key (its key changed) has only the filled value.
    """
    none = F.array().cast("array<string>")
    ordinals = F.split("filled", ",")

    def named(version: TableSchema) -> SparkColumn:
        names = {
            source.name: field.name
            for field in shape.fields
            if (source := field.sources.get(version.version)) is not None
        }
        by_ordinal = texts([names.get(column.name) for column in version.columns])
        return F.array_compact(
            F.transform(ordinals, lambda ordinal: F.get(by_ordinal, ordinal.cast("int") - 1))
        )

    updated = F.col("filled").isNotNull() & (operation == "u")
    return F.when(updated, _by_version(shape, named, none)).otherwise(none)


def _by_version(
    shape: TableShape, of_version: Callable[[TableSchema], SparkColumn], otherwise: SparkColumn
) -> SparkColumn:
    """Return the column that ``of_version`` makes for the record's schema version."""
    return reduce(
        lambda rest, version: F.when(
            F.col("schema_version") == version.version, of_version(version)
        ).otherwise(rest),
        shape.versions,
        otherwise,
    )

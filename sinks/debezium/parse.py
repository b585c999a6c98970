"""Records of a Debezium topic → typed changes, in the columns of sinks/log/parse.py.

A record that can't be read raises an error in Spark, which fails only its table. Without a shape
the columns are all of the topic's, as in its newest schema.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.records.schema import Column
from sinks.changes.names import (
    ABSENT,
    CREATED,
    DELETE,
    FILLED,
    OP,
    OWN,
    POSITION,
    RAW_KEY,
    RAW_VALUE,
    RECORD_OFFSET,
    RECORD_PARTITION,
    TIME,
    UPSERT,
    VERSION,
)
from sinks.changes.shape import DerivedField, TableShape, plain_shape
from sinks.changes.types import fraction_fits, holds, partition_value, refused, spark_type
from sinks.debezium.decoders import is_placeholder
from sinks.debezium.described import Layout, TopicLayout
from sinks.debezium.envelope import (
    ENVELOPE_OP,
    Choice,
    Which,
    by_mark,
    decoder_of,
    member_column,
    with_members,
)
from sinks.debezium.records import KEY_MARK, VALUE_MARK
from sinks.debezium.values import typed, typed_masked

_NAMES: Final = "array<string>"


def as_field_type(value: SparkColumn, own: Column, field: DerivedField, salt: str) -> SparkColumn:
    """Convert a value of its record's ``own`` column to the field's type, or raise."""
    kind = spark_type(own)
    if field.hashed:
        return F.sha2(F.concat(F.lit(salt), _text(value, kind)), 256)
    if kind == field.type:
        return value
    if holds(field.type, kind):
        return value.cast(field.type)
    made = _converted(value, kind, field.type)
    return made if field.unfit_is_null else F.coalesce(made, refused(own, value, field.type))


def _text(value: SparkColumn, kind: str) -> SparkColumn:
    if kind == "binary":
        return F.base64(value)
    return F.to_json(value) if kind.startswith("array") else value.cast("string")


def _converted(value: SparkColumn, kind: str, to: str) -> SparkColumn:
    """Convert through the text, which must be valid for the other type. Nothing is rounded."""
    text = _text(value, kind)
    if to == "string":
        return text
    if kind.startswith("array") or to.startswith("array"):
        both = kind.startswith("array") and to.startswith("array")
        return value.try_cast(to) if both else F.lit(None).cast(to)
    made = text.try_cast(to)
    if not to.startswith("decimal"):
        return made
    if kind in {"float", "double"}:
        return F.when(made.cast(kind) == value, made)
    return F.when(fraction_fits(text, to), made)


def parse(
    raw: DataFrame, topic: TopicLayout, shape: TableShape | None = None, *, timed: bool = False
) -> DataFrame:
    """Return one row per change of a table with a key, as ``sinks.log.parse.parse`` does.

    ``raw`` has topic, partition, offset, key and value as bytes, and timestamp. A key's values come
    only from the record's key, as a mask of a row's values doesn't mask a key's.
    """
    shape = shape or plain_shape([topic.schema], OWN)
    deleted = F.col("tombstone") | (F.col(ENVELOPE_OP) == "d")
    none = F.array().cast(_NAMES)
    created = F.coalesce(F.col(ENVELOPE_OP) == "c", F.lit(False))
    return raw.transform(
        lambda records: with_members(records, topic, "key", "after", timed=timed)
    ).select(
        *(
            _value(topic, shape, field, "key").alias(field.name)
            if field.column.key is not None
            else F.when(~deleted, _value(topic, shape, field, "after")).alias(field.name)
            for field in shape.fields
        ),
        POSITION,
        F.when(deleted, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(OP),
        F.when(deleted, none).otherwise(F.coalesce(_absent(topic, shape), none)).alias(ABSENT),
        none.alias(FILLED),
        *([F.col(TIME), created.alias(CREATED)] if timed else []),
    )


def parse_events(
    raw: DataFrame, topic: TopicLayout, shape: TableShape, *, records: bool
) -> DataFrame:
    """Return one row per event, as ``sinks.log.parse.parse_events`` does, without tombstones.

    The schema version is the newest one of the run. Records stay bytes.
    """
    deleted = F.col(ENVELOPE_OP) == "d"
    none = F.array().cast(_NAMES)
    keep = ("key", "value") if records else ()

    def value(field: DerivedField) -> SparkColumn:
        if field.column.key is not None:
            return _value(topic, shape, field, "key")
        before, after = (_value(topic, shape, field, which) for which in ("before", "after"))
        return F.when(deleted, before).otherwise(after)

    return (
        raw.where(F.col("value").isNotNull())
        .transform(
            lambda events: with_members(
                events, topic, "key", "before", "after", timed=True, truncates=True, keep=keep
            )
        )
        .select(
            *(value(field).alias(field.name) for field in shape.fields),
            POSITION,
            F.col(ENVELOPE_OP).alias(OP),
            TIME,
            F.when(deleted, none).otherwise(F.coalesce(_absent(topic, shape), none)).alias(ABSENT),
            F.lit(None).cast("string").alias(FILLED),
            F.lit(topic.schema.version).alias(VERSION),
            F.col("partition").alias(RECORD_PARTITION),
            F.col("offset").alias(RECORD_OFFSET),
            *([F.col("key").alias(RAW_KEY), F.col("value").alias(RAW_VALUE)] if records else []),
        )
    )


def _value(topic: TopicLayout, shape: TableShape, field: DerivedField, which: Which) -> SparkColumn:
    """Return a column's value in the derived table, by each record's own schema."""
    if field.nulled:
        return F.lit(None).cast(field.type)
    name, modes = field.column.name, topic.connector.modes
    choices: list[Choice] = []
    for layout in topic.keys if which == "key" else topic.values:
        schema = layout.members.get(name)
        if schema is None:
            continue
        value = member_column(topic, layout, which, name)
        unchanged = _is_unchanged(topic, shape, field, layout) if which == "after" else None
        if unchanged is not None:
            value = F.when(~unchanged, value)
        own, decoder = layout.columns[name], decoder_of(layout, topic.connector)
        # Equal JSON schemas are read in the same way, and appear in the plan once.
        same = layout.mark if layout.envelope is not None else repr((schema, own))
        if field.hashed and not field.unfit_is_null:
            read = typed_masked(own, schema, decoder, value, modes)
        else:
            read = typed(own, schema, decoder, value, modes, unfit_is_null=field.unfit_is_null)
        choices.append(Choice(layout.mark, same, as_field_type(read, own, field, shape.salt)))
    made = by_mark(KEY_MARK if which == "key" else VALUE_MARK, choices, field.type)
    if not field.partitions:
        return made
    return partition_value(field.column, made, field.type, unfit_is_null=field.unfit_is_null)


def _absent(topic: TopicLayout, shape: TableShape) -> SparkColumn:
    """Return the names of the columns whose value is a placeholder of an unchanged one."""
    choices: list[Choice] = []
    for layout in topic.values:
        names = [
            F.when(unchanged, F.lit(field.name))
            for field in shape.fields
            if (unchanged := _is_unchanged(topic, shape, field, layout)) is not None
        ]
        absent = F.array_compact(F.array(*names)) if names else F.array()
        same = layout.mark if layout.envelope is not None else repr(layout.members)
        choices.append(Choice(layout.mark, same, absent.cast(_NAMES)))
    return by_mark(VALUE_MARK, choices, _NAMES)


def _is_unchanged(
    topic: TopicLayout, shape: TableShape, field: DerivedField, layout: Layout
) -> SparkColumn | None:
    schema = layout.members.get(field.column.name)
    if schema is None or field.name not in shape.patchy:
        return None
    value = member_column(topic, layout, "after", field.column.name)
    decoder, modes = decoder_of(layout, topic.connector), topic.connector.modes
    return is_placeholder(schema, decoder, value, modes.placeholder)

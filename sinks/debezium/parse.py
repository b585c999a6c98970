"""Records of a topic that Debezium wrote → typed changes, in the columns of sinks/log/parse.py.

What can't be read raises an error inside Spark, which fails its table and no other. Without a
shape the columns are all of the topic's, as its newest schema has them.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.records.schema import Column
from sinks.changes.names import (
    ABSENT,
    COUNT,
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
    ROW,
    TIME,
    UPSERT,
    VERSION,
)
from sinks.changes.shape import DerivedField, TableShape, plain_shape
from sinks.changes.types import holds, partition_value, spark_type
from sinks.debezium.described import Described, Layout
from sinks.debezium.encodings import is_placeholder
from sinks.debezium.envelope import (
    EXISTS,
    LETTER,
    Choice,
    Which,
    by_mark,
    carrier_of,
    member,
    with_members,
)
from sinks.debezium.records import KEY_MARK, VALUE_MARK
from sinks.debezium.values import refused, typed, untold

_DECIMAL = "decimal"


_NAMES: Final = "array<string>"


def fitted(value: SparkColumn, own: Column, field: DerivedField, salt: str) -> SparkColumn:
    """A value of its record's ``own`` column as one of the field's; raises where it doesn't fit."""
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
    """By way of its text, which has to be one of the other type's: nothing is rounded."""
    text = _text(value, kind)
    if to == "string":
        return text
    if kind.startswith("array") or to.startswith("array"):
        both = kind.startswith("array") and to.startswith("array")
        return value.try_cast(to) if both else F.lit(None).cast(to)
    made = text.try_cast(to)
    if not to.startswith(_DECIMAL):
        return made
    if kind in {"float", "double"}:
        return F.when(made.cast(kind) == value, made)
    digits = F.regexp_extract(text, r"\.(\d*?)0*$", 1)
    return F.when(F.length(digits) <= int(to.rpartition(",")[2].removesuffix(")")), made)


def parse(
    raw: DataFrame, topic: Described, shape: TableShape | None = None, *, timed: bool = False
) -> DataFrame:
    """One row per change of a table with a key: what ``sinks.log.parse.parse`` gives.

    ``raw`` has topic, partition, offset, key and value as bytes, and timestamp. A key's values are
    read from the record's key alone: what masks a row's doesn't mask a key's.
    """
    shape = shape or plain_shape([topic.schema], OWN)
    deleted = F.col("tombstone") | (F.col(LETTER) == "d")
    none = F.array().cast(_NAMES)
    created = F.coalesce(F.col(LETTER) == "c", F.lit(False))
    return raw.transform(
        lambda records: with_members(records, topic, "key", "after", timed=timed)
    ).select(
        *(
            _value(topic, shape, one, "key").alias(one.name)
            if one.column.key is not None
            else F.when(~deleted, _value(topic, shape, one, "after")).alias(one.name)
            for one in shape.fields
        ),
        POSITION,
        F.when(deleted, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(OP),
        F.when(deleted, none).otherwise(F.coalesce(_absent(topic, shape), none)).alias(ABSENT),
        none.alias(FILLED),
        *([F.col(TIME), created.alias(CREATED)] if timed else []),
    )


def parse_events(
    raw: DataFrame, topic: Described, shape: TableShape, *, records: bool
) -> DataFrame:
    """One row per event: what ``sinks.log.parse.parse_events`` gives, but for tombstones.

    The schema version is the newest one that the run knew; records stay bytes.
    """
    deleted = F.col(LETTER) == "d"
    none = F.array().cast(_NAMES)
    keep = ("key", "value") if records else ()

    def value(one: DerivedField) -> SparkColumn:
        if one.column.key is not None:
            return _value(topic, shape, one, "key")
        before, after = (_value(topic, shape, one, which) for which in ("before", "after"))
        return F.when(deleted, before).otherwise(after)

    return (
        raw.where(F.col("value").isNotNull())
        .transform(
            lambda events: with_members(
                events, topic, "key", "before", "after", timed=True, truncates=True, keep=keep
            )
        )
        .select(
            *(value(one).alias(one.name) for one in shape.fields),
            POSITION,
            F.col(LETTER).alias(OP),
            TIME,
            F.when(deleted, none).otherwise(F.coalesce(_absent(topic, shape), none)).alias(ABSENT),
            F.lit(None).cast("string").alias(FILLED),
            F.lit(topic.schema.version).alias(VERSION),
            F.col("partition").alias(RECORD_PARTITION),
            F.col("offset").alias(RECORD_OFFSET),
            *([F.col("key").alias(RAW_KEY), F.col("value").alias(RAW_VALUE)] if records else []),
        )
    )


def parse_images(raw: DataFrame, topic: Described, shape: TableShape | None = None) -> DataFrame:
    """Two rows at most per change of a table without key: as ``sinks.log.parse.parse_images``.

    A value that only stands for an unchanged one is that of the row's old image.
    """
    fields = (shape := shape or plain_shape([topic.schema], OWN)).fields
    images = F.filter(
        F.array(
            _image(topic, shape, -1, "before", F.col(LETTER).isin("u", "d")),
            _image(topic, shape, 1, "after", F.col(LETTER) != "d"),
        ),
        lambda one: one["row"].isNotNull(),
    )
    image = F.col("image")
    return (
        raw.transform(lambda records: with_members(records, topic, "before", "after"))
        .withColumn("image", F.explode(images))
        .select(
            *(image["row"][f"c{place}"].alias(one.name) for place, one in enumerate(fields)),
            POSITION,
            image["count"].alias(COUNT),
            F.concat_ws(":", "topic", "partition", "offset").alias(ROW),
        )
    )


def _image(
    topic: Described, shape: TableShape, count: int, which: Which, applies: SparkColumn
) -> SparkColumn:
    row = F.struct(
        *(
            _value(topic, shape, one, which).alias(f"c{place}")
            for place, one in enumerate(shape.fields)
        )
    )
    there = applies & F.col(EXISTS.format(which))
    return F.struct(F.lit(count).alias("count"), F.when(there, row).alias("row"))


def _value(topic: Described, shape: TableShape, one: DerivedField, which: Which) -> SparkColumn:
    """A column's value, by each record's own schema, as the derived table has it."""
    if one.nulled:
        return F.lit(None).cast(one.type)
    name, place = one.column.name, _place(topic, one)
    modes, choices = topic.reading.modes, list[Choice]()
    for layout in topic.keys if which == "key" else topic.values:
        schema = layout.members.get(name)
        if schema is None:
            continue
        value = member(which, place, layout)
        if which == "after":
            value = _unless_unchanged(topic, shape, one, layout)
        own, carrier = layout.columns[name], carrier_of(layout, topic.reading)
        # What schemas of JSON say alike is read alike, and put into the plan once.
        same = layout.mark if layout.envelope is not None else repr((schema, own))
        if one.hashed and not one.unfit_is_null:
            read = untold(own, schema, carrier, value, modes)
        else:
            read = typed(own, schema, carrier, value, modes, unfit_is_null=one.unfit_is_null)
        choices.append(Choice(layout.mark, same, fitted(read, own, one, shape.salt)))
    made = by_mark(KEY_MARK if which == "key" else VALUE_MARK, choices, one.type)
    if not one.partitions:
        return made
    return partition_value(one.column, made, one.type, unfit_is_null=one.unfit_is_null)


def _place(topic: Described, one: DerivedField) -> int:
    """Where the field's column stands among the topic's."""
    names = [column.name for column in topic.schema.columns]
    return names.index(one.column.name)


def _unless_unchanged(
    topic: Described, shape: TableShape, one: DerivedField, layout: Layout
) -> SparkColumn:
    """A member that isn't a placeholder; in a table without keys the old row has the value."""
    place = _place(topic, one)
    value = member("after", place, layout)
    unchanged = _is_unchanged(topic, shape, one, layout)
    if unchanged is None:
        return value
    kept = F.when(~unchanged, value)
    return kept if topic.keyed else kept.otherwise(member("before", place, layout))


def _absent(topic: Described, shape: TableShape) -> SparkColumn:
    """Names of the columns whose value only stands for an unchanged one."""
    choices: list[Choice] = []
    for layout in topic.values:
        found = [
            F.when(unchanged, F.lit(one.name))
            for one in shape.fields
            if (unchanged := _is_unchanged(topic, shape, one, layout)) is not None
        ]
        absent = F.array_compact(F.array(*found)) if found else F.array()
        same = layout.mark if layout.envelope is not None else repr(layout.members)
        choices.append(Choice(layout.mark, same, absent.cast(_NAMES)))
    return by_mark(VALUE_MARK, choices, _NAMES)


def _is_unchanged(
    topic: Described, shape: TableShape, one: DerivedField, layout: Layout
) -> SparkColumn | None:
    schema = layout.members.get(one.column.name)
    if schema is None or one.name not in shape.patchy:
        return None
    carrier, placeholder = carrier_of(layout, topic.reading), topic.reading.modes.placeholder
    value = member("after", _place(topic, one), layout)
    found = is_placeholder(schema, carrier, value, placeholder)
    return None if found is None else F.coalesce(found, F.lit(False))

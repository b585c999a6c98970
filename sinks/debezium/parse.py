"""Records of a topic that Debezium wrote → typed changes, in the columns of sinks/parse.py.

What can't be read raises an error inside Spark, which fails its table and no other.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.schema import Column
from sinks.debezium.described import Described, Layout
from sinks.debezium.envelope import LETTER, Choice, by_mark, carrier_of
from sinks.debezium.members import EXISTS, Which, member, with_members
from sinks.debezium.placeholders import is_placeholder
from sinks.debezium.records import KEY_MARK, VALUE_MARK
from sinks.debezium.values import typed
from sinks.names import ABSENT, COUNT, DELETE, FILLED, OP, OWN, POSITION, ROW, UPSERT
from sinks.shape import plain
from sinks.types import can_be_absent, spark_type

_NAMES: Final = "array<string>"


def parse(raw: DataFrame, topic: Described) -> DataFrame:
    """One row per change of a table with a key: what ``sinks.parse.parse`` gives.

    ``raw`` has topic, partition, offset, and key and value as bytes. A key's values are read from
    the record's key alone: what masks a row's doesn't mask a key's.
    """
    names = {one.column.name: one.name for one in plain([topic.schema], OWN).fields}
    deleted = F.col("tombstone") | (F.col(LETTER) == "d")
    columns = (
        _value(topic, place, column, "key")
        if column.key is not None
        else F.when(~deleted, _value(topic, place, column, "after"))
        for place, column in enumerate(topic.schema.columns)
    )
    none = F.array().cast(_NAMES)
    return raw.transform(lambda records: with_members(records, topic, "key", "after")).select(
        *(value.alias(name) for name, value in zip(names.values(), columns, strict=True)),
        POSITION,
        F.when(deleted, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(OP),
        F.when(deleted, none).otherwise(F.coalesce(_absent(topic, names), none)).alias(ABSENT),
        none.alias(FILLED),
    )


def parse_images(raw: DataFrame, topic: Described) -> DataFrame:
    """Two rows at most per change of a table without key: what ``sinks.parse.parse_images`` gives.

    A value that only stands for an unchanged one is that of the row's old image.
    """
    names = {one.column.name: one.name for one in plain([topic.schema], OWN).fields}
    images = F.filter(
        F.array(
            _image(topic, -1, "before", F.col(LETTER).isin("u", "d")),
            _image(topic, 1, "after", F.col(LETTER) != "d"),
        ),
        lambda one: one["row"].isNotNull(),
    )
    one = F.col("image")
    return (
        raw.transform(lambda records: with_members(records, topic, "before", "after"))
        .withColumn("image", F.explode(images))
        .select(
            *(one["row"][f"c{place}"].alias(name) for place, name in enumerate(names.values())),
            POSITION,
            one["count"].alias(COUNT),
            F.concat_ws(":", "topic", "partition", "offset").alias(ROW),
        )
    )


def _image(topic: Described, count: int, which: Which, applies: SparkColumn) -> SparkColumn:
    row = F.struct(
        *(
            _value(topic, place, column, which).alias(f"c{place}")
            for place, column in enumerate(topic.schema.columns)
        )
    )
    there = applies & F.col(EXISTS.format(which))
    return F.struct(F.lit(count).alias("count"), F.when(there, row).alias("row"))


def _value(topic: Described, place: int, column: Column, which: Which) -> SparkColumn:
    """A column's value, by each record's own schema, as the newest type of the column."""
    kind = spark_type(column)
    choices: list[Choice] = []
    for layout in topic.keys if which == "key" else topic.values:
        schema = layout.members.get(column.name)
        if schema is None:
            continue
        value = member(which, place, layout)
        if which == "after":
            value = _unless_unchanged(topic, place, column, layout)
        own = layout.columns[column.name]
        carrier, modes = carrier_of(layout, topic.reading), topic.reading.modes
        # What schemas of JSON say alike is read alike, and put into the plan once.
        same = layout.mark if layout.envelope is not None else repr((schema, own))
        read = typed(own, schema, carrier, value, modes)
        choices.append(Choice(layout.mark, same, read.cast(kind)))
    return by_mark(KEY_MARK if which == "key" else VALUE_MARK, choices, kind)


def _unless_unchanged(topic: Described, place: int, column: Column, layout: Layout) -> SparkColumn:
    """A member that isn't a placeholder; in a table without keys the old row has the value."""
    value = member("after", place, layout)
    unchanged = _is_unchanged(topic, place, column, layout)
    if unchanged is None:
        return value
    kept = F.when(~unchanged, value)
    return kept if topic.keyed else kept.otherwise(member("before", place, layout))


def _absent(topic: Described, names: dict[str, str]) -> SparkColumn:
    """Names of the columns whose value only stands for an unchanged one."""
    choices: list[Choice] = []
    for layout in topic.values:
        found = [
            F.when(unchanged, F.lit(names[column.name]))
            for place, column in enumerate(topic.schema.columns)
            if (unchanged := _is_unchanged(topic, place, column, layout)) is not None
        ]
        absent = F.array_compact(F.array(*found)) if found else F.array()
        same = layout.mark if layout.envelope is not None else repr(layout.members)
        choices.append(Choice(layout.mark, same, absent.cast(_NAMES)))
    return by_mark(VALUE_MARK, choices, _NAMES)


def _is_unchanged(
    topic: Described, place: int, column: Column, layout: Layout
) -> SparkColumn | None:
    schema = layout.members.get(column.name)
    if schema is None or not can_be_absent(column):
        return None
    carrier, placeholder = carrier_of(layout, topic.reading), topic.reading.modes.placeholder
    found = is_placeholder(schema, carrier, member("after", place, layout), placeholder)
    return None if found is None else F.coalesce(found, F.lit(False))

"""Enveloped records → one column per member of their keys and rows, and whether they are whole.

A stage of its own, so that what decodes a value, which mentions it several times, finds it looked
up already: texts of JSON in one column, whatever its schema, and Avro's in one per schema.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Final, Literal

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.records.position import FIRST_EPOCH
from sinks.changes.names import POSITION, TIME
from sinks.changes.types import refuse
from sinks.debezium.described import Described, Layout
from sinks.debezium.envelope import (
    LETTER,
    LSN,
    Choice,
    by_mark,
    committed_at,
    enveloped,
    image,
    is_truncate,
    key_member,
    row_member,
)
from sinks.debezium.records import BODY, KEY, KEY_MARK, VALUE_MARK

Which = Literal["key", "before", "after"]

EXISTS: Final = "_millrace_has_{}"
_PLACE: Final = ("topic", "partition", "offset")


def with_members(
    raw: DataFrame,
    topic: Described,
    *which: Which,
    timed: bool = False,
    truncates: bool = False,
    keep: Sequence[str] = (),
) -> DataFrame:
    """Records with their position and the members of their key or rows; with their time if asked.

    The position is the end of the job for what isn't a record of this table. TRUNCATEs are there
    only if asked for; ``keep`` are columns of ``raw`` to be kept as they are.
    """
    images = [one for one in which if one != "key"]
    found: dict[str, SparkColumn] = {}
    for one in which:
        found |= _members(topic, one)
    kept = F.lit(True) if truncates else ~is_truncate()
    if not topic.keyed:  # a delete's tombstone has no key there, so that it says nothing at all
        kept &= F.col("key").isNotNull() | F.col("value").isNotNull()
    return (
        enveloped(raw, topic)
        .where(kept)
        .select(
            *_PLACE,
            *keep,
            _position(topic, truncates=truncates).alias(POSITION),
            *([committed_at(topic).alias(TIME)] if timed else []),
            F.col("value").isNull().alias("tombstone"),
            LETTER,
            KEY_MARK,
            VALUE_MARK,
            *(_exists(topic, one).alias(EXISTS.format(one)) for one in images),
            *(column.alias(name) for name, column in found.items()),
        )
    )


def member(which: Which, place: int, layout: Layout) -> SparkColumn:
    """The member that is the value of the table's column at a place."""
    return F.col(_name(which, place, layout))


def _name(which: Which, place: int, layout: Layout) -> str:
    carrier = f"_{layout.mark}" if layout.envelope is not None else ""
    return f"_millrace_{which}_{place}{carrier}"


def _members(topic: Described, which: Which) -> dict[str, SparkColumn]:
    found: dict[str, SparkColumn] = {}
    for layout in topic.keys if which == "key" else topic.values:
        for place, column in enumerate(topic.schema.columns):
            if column.name not in layout.members:
                continue
            if which != "key":
                value = row_member(layout, image(layout, which), column.name)
            elif column.key is not None:
                value = key_member(layout, column.name)
            else:
                continue
            found[_name(which, place, layout)] = value
    return found


def _position(topic: Described, *, truncates: bool) -> SparkColumn:
    """Offset and LSN as a position's text."""
    row = F.when(F.col(LETTER) == "d", F.lit(True)).otherwise(_exists(topic, "after"))
    if not topic.keyed:
        row &= F.when(F.col(LETTER).isin("u", "d"), _exists(topic, "before")).otherwise(F.lit(True))
    known = F.col(LETTER).isin("c", "r", "u", "d") & _is_one_of(VALUE_MARK, topic.values)
    good = F.col("value").isNull() | (known & row & _is_told(topic))
    if topic.keyed:
        good &= _is_one_of(KEY_MARK, topic.keys) & _has_key(topic)
    else:
        good &= F.col("key").isNull() & F.col("value").isNotNull()
    if truncates:
        good |= is_truncate()
    message = F.concat(
        F.lit("record at "),
        F.concat_ws(":", *_PLACE),
        F.lit(" is not one of Debezium's, or has other members than its table was said to have"),
    )
    text = F.concat(
        F.lit(f"{FIRST_EPOCH:08x}."),
        _hexadecimal(F.col("offset")),
        F.lit("."),
        _hexadecimal(F.coalesce(F.col(LSN), F.lit(0).cast("bigint"))),
    )
    return F.coalesce(refuse(~F.coalesce(good, F.lit(False)), message, "string"), text)


def _hexadecimal(number: SparkColumn) -> SparkColumn:
    return F.lpad(F.lower(F.hex(number)), 16, F.lit("0"))


def _is_one_of(mark: str, layouts: tuple[Layout, ...]) -> SparkColumn:
    return F.col(mark).isin([layout.mark for layout in layouts])


def _has_key(topic: Described) -> SparkColumn:
    """Whether a key of JSON has values of the key's columns, and no other; Avro's always has."""
    avro = [layout.mark for layout in topic.keys if layout.kind == "avro"]
    there = reduce(and_, (F.col(KEY)[column.name].isNotNull() for column in topic.schema.key))
    alone = F.size(F.map_keys(KEY)) == len(topic.schema.key)
    return F.col(KEY_MARK).isin(avro) | (there & alone)


def _is_told(topic: Described) -> SparkColumn:
    """Whether a row without a schema has no member that nobody described."""
    plain = [layout for layout in topic.values if layout.kind == "plain"]
    if not plain:
        return F.lit(True)
    told = F.array(*(F.lit(name) for name in plain[0].members))
    row = F.coalesce(F.col(BODY)["after"], F.col(BODY)["before"])
    unknown = F.size(F.array_except(F.map_keys(row), told)) > 0
    return (F.col(VALUE_MARK) != plain[0].mark) | ~unknown


def _exists(topic: Described, which: str) -> SparkColumn:
    """Whether a record has a row before, or after, the change."""
    choices = [
        Choice(
            layout.mark,
            layout.mark if layout.envelope is not None else None,
            image(layout, which).isNotNull(),
        )
        for layout in topic.values
    ]
    return by_mark(VALUE_MARK, choices, "boolean")

"""Opened records, and the schemas that they were written by → their envelopes' members.

An Avro record is decoded once, by its own schema: one column of the frame per schema, null in the
rows of others. ``with_members`` then gives each member of keys and rows a column: what decodes a
value mentions it several times, and finds it looked up already. Texts of JSON are in one column,
whatever their schema, and Avro's in one per schema.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Final, Literal, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SparkMissingError
from cdc.records.connect import Schema
from cdc.records.position import FIRST_EPOCH
from sinks.changes.names import POSITION, TIME
from sinks.changes.types import refuse
from sinks.debezium.described import Described, Layout, Reading
from sinks.debezium.encodings import Avro, Carrier, Json, place_of
from sinks.debezium.records import AVRO, BODY, KEY, KEY_MARK, VALUE_MARK, opened

LETTER: Final = "_millrace_letter"
LSN: Final = "_millrace_lsn"
Which = Literal["key", "before", "after"]

EXISTS: Final = "_millrace_has_{}"
_PLACE: Final = ("topic", "partition", "offset")


def enveloped(raw: DataFrame, topic: Described) -> DataFrame:
    """Records with all that their schemas say, their operation's letter and their LSN.

    The LSN is null where a record has no value. A row of an incremental snapshot has none of its
    own: it comes behind the last one that its connector had read then.
    """
    records = opened(raw, decimal_numbers=topic.reading.decimal_numbers)
    decoded = with_avro(records, topic)
    sequence = _member(topic, "source", "sequence")
    return decoded.withColumns(
        {
            LETTER: _member(topic, "op"),
            LSN: F.coalesce(
                told_lsn(topic),
                F.get_json_object(sequence, "$[1]").try_cast("bigint"),
                F.get_json_object(sequence, "$[0]").try_cast("bigint"),
            ),
        }
    )


def with_avro(records: DataFrame, topic: Described) -> DataFrame:
    """Opened records with what Avro says; raises SparkMissingError where Spark can't read it."""
    sides = (("key", KEY_MARK, topic.keys), ("value", VALUE_MARK, topic.values))
    decoded = {
        _decoded(side, layout): F.when(F.col(mark) == layout.mark, _from_avro(side, layout.text))
        for side, mark, layouts in sides
        for layout in layouts
        if layout.kind == "avro"
    }
    try:
        return records.withColumns(decoded)
    except AnalysisException as error:
        if "AVRO_NOT_LOADED" not in str(error):
            raise
        raise SparkMissingError(
            "Spark's Avro decoder is not on its class path",
            remedy="make setup, or give spark-submit --packages "
            "org.apache.spark:spark-avro_2.13:4.2.0",
        ) from None


def committed_at(topic: Described) -> SparkColumn:
    """When an enveloped record's change was committed; of a tombstone, when the topic took it."""
    return F.timestamp_micros(F.coalesce(told_us(topic), F.unix_micros("timestamp")))


def told_us(topic: Described) -> SparkColumn:
    """When the source says that it was committed (µs since 1970).

    Connectors before 2.5 tell milliseconds only.
    """
    return F.coalesce(_member(topic, "source", "ts_us"), _member(topic, "source", "ts_ms") * 1_000)


def told_lsn(topic: Described) -> SparkColumn:
    """The LSN of an enveloped record's own; null in rows of an incremental snapshot."""
    return _member(topic, "source", "lsn")


def is_truncate() -> SparkColumn:
    """Whether an enveloped record says TRUNCATE; looks at the value where there is no key only."""
    return F.col("key").isNull() & (F.coalesce(F.col(LETTER), F.lit("")) == "t")


def table_of(topic: Described) -> SparkColumn:
    """The source's table that a record is of, as topics spell it."""
    names = F.concat_ws(".", _member(topic, "source", "schema"), _member(topic, "source", "table"))
    return F.regexp_replace(names, "[^a-zA-Z0-9._-]", "_")


def carrier_of(layout: Layout, reading: Reading) -> Carrier:
    """How values are taken out of its records."""
    if layout.kind == "avro":
        return Avro()
    return Json(decimal_numbers=reading.decimal_numbers)


def key_member(layout: Layout, name: str) -> SparkColumn:
    """A member of the key."""
    if layout.envelope is None:
        return F.col(KEY)[name]
    return F.col(_decoded("key", layout))[place_of(layout.envelope, name)]


def image(layout: Layout, which: str) -> SparkColumn:
    """The row before or after the change."""
    if layout.envelope is None:
        return F.col(BODY)[which]
    return F.col(_decoded("value", layout))[place_of(layout.envelope, which)]


def row_member(layout: Layout, row: SparkColumn, name: str) -> SparkColumn:
    """A member of a row."""
    if layout.envelope is None:
        return row[name]
    return row[place_of(_of(layout.envelope, "after"), name)]


def _member(topic: Described, *path: str) -> SparkColumn:
    """A member of the envelope, whatever a record was written in; null where it has none."""
    found = [reduce(lambda value, name: value[name], path, F.col(BODY))]
    for layout in topic.values:
        if layout.envelope is not None and _has(layout.envelope, path):
            value, schema = F.col(_decoded("value", layout)), layout.envelope
            for name in path:
                value, schema = value[place_of(schema, name)], _of(schema, name)
            found.append(value)
    return F.coalesce(*found)


def _has(schema: Schema, path: Sequence[str]) -> bool:
    if not path:
        return True
    found = schema.of_field(path[0])
    return found is not None and _has(found, path[1:])


def _of(schema: Schema, name: str) -> Schema:
    found = schema.of_field(name)
    if found is None:
        raise TypeError(f"a struct without a member {name}")
    return found


def _decoded(side: str, layout: Layout) -> str:
    return f"{AVRO}_{side}_{layout.mark}"


def _from_avro(side: str, text: str) -> SparkColumn:
    """What stands behind the registry's id."""
    mode = F.create_map(F.lit("mode"), F.lit("FAILFAST"))
    return F.call_function("from_avro", F.expr(f"substring({side}, 6)"), F.lit(text), mode)


class Choice(NamedTuple):
    """What one mark chooses; choices that have ``same`` in common are one."""

    mark: int
    same: object
    column: SparkColumn


def by_mark(mark: str, choices: Sequence[Choice], kind: str) -> SparkColumn:
    """What a record's mark chooses; null for a mark without a choice."""
    shared: dict[object, tuple[SparkColumn, list[int]]] = {}
    for one in choices:
        shared.setdefault(one.same, (one.column, []))[1].append(one.mark)
    return reduce(
        lambda rest, choice: F.when(F.col(mark).isin(choice[1]), choice[0]).otherwise(rest),
        shared.values(),
        F.lit(None).cast(kind),
    )


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

"""Opened records and their schemas → the members of their envelopes.

An Avro record is decoded once, by its own schema: one column of the frame per schema, null in other
rows. ``with_members`` then gives each member of keys and rows a column. The decoding of a value
refers to it several times, and Spark then computes it once. JSON's texts share one column, whatever
their schema. Avro has one column per schema.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_, getitem
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
from sinks.debezium.decoders import AvroDecoder, ValueDecoder, member_of
from sinks.debezium.described import ConnectorOptions, Layout, TopicLayout
from sinks.debezium.records import AVRO, BODY, KEY, KEY_MARK, VALUE_MARK, opened

ENVELOPE_OP: Final = "_millrace_envelope_op"
LSN: Final = "_millrace_lsn"
Which = Literal["key", "before", "after"]

EXISTS: Final = "_millrace_has_{}"
_COORDINATES: Final = ("topic", "partition", "offset")
"""Columns that identify a record in Kafka."""


def enveloped(raw: DataFrame, topic: TopicLayout) -> DataFrame:
    """Add the members of their schemas, their operation and their LSN to records.

    The LSN is null if a record has no value. A row of an incremental snapshot has none of its own,
    and gets the last one that its connector had read then.
    """
    records = opened(raw, decimal_numbers=topic.connector.decimal_numbers)
    decoded = with_avro(records, topic)
    sequence = _member(topic, "source", "sequence")
    return decoded.withColumns(
        {
            ENVELOPE_OP: _member(topic, "op"),
            LSN: F.coalesce(
                _member(topic, "source", "lsn"),
                F.get_json_object(sequence, "$[1]").try_cast("bigint"),
                F.get_json_object(sequence, "$[0]").try_cast("bigint"),
            ),
        }
    )


def with_avro(records: DataFrame, topic: TopicLayout) -> DataFrame:
    """Return opened records with decoded Avro. Raise SparkMissingError without Spark's decoder."""
    sides = (("key", KEY_MARK, topic.keys), ("value", VALUE_MARK, topic.values))
    decoded = {
        _decoded(side, layout): F.when(F.col(mark) == layout.mark, _from_avro(side, layout.text))
        for side, mark, layouts in sides
        for layout in layouts
        if layout.encoding == "avro"
    }
    try:
        return records.withColumns(decoded)
    except AnalysisException as error:
        if "AVRO_NOT_LOADED" not in str(error):
            raise
        raise SparkMissingError(
            "Spark's class path lacks the Avro decoder",
            remedy="run make setup, or give spark-submit --packages"
            " org.apache.spark:spark-avro_2.13:4.2.0",
        ) from None


def committed_at(topic: TopicLayout) -> SparkColumn:
    """Return the commit time of a record's change. A tombstone's: when the topic received it.

    Connectors before 2.5 write only milliseconds.
    """
    ms = _member(topic, "source", "ts_ms")
    us = F.coalesce(_member(topic, "source", "ts_us"), ms * 1_000)
    return F.timestamp_micros(F.coalesce(us, F.unix_micros("timestamp")))


def is_truncate() -> SparkColumn:
    """Whether an enveloped record is a TRUNCATE. Reads the value only if there is no key."""
    return F.col("key").isNull() & (F.coalesce(F.col(ENVELOPE_OP), F.lit("")) == "t")


def table_of(topic: TopicLayout) -> SparkColumn:
    """Return the record's source table, in the spelling of topics."""
    names = F.concat_ws(".", _member(topic, "source", "schema"), _member(topic, "source", "table"))
    return F.regexp_replace(names, "[^a-zA-Z0-9._-]", "_")


def decoder_of(layout: Layout, connector: ConnectorOptions) -> ValueDecoder:
    """Return the decoder of its records' values."""
    if layout.encoding == "avro":
        return AvroDecoder()
    return ValueDecoder(decimal_numbers=connector.decimal_numbers)


def _member(topic: TopicLayout, *path: str) -> SparkColumn:
    """Return a member of the envelope, in any encoding. Null: the record has none."""
    of_json = reduce(getitem, path, F.col(BODY))
    of_avro = (
        _inside(layout, "value", *path)
        for layout in topic.values
        if layout.envelope is not None and _has(layout.envelope, path)
    )
    return F.coalesce(of_json, *of_avro)


def _inside(layout: Layout, side: str, *path: str) -> SparkColumn:
    """Return a member of the records' keys, or of their envelopes."""
    if layout.envelope is None:
        return reduce(getitem, path, F.col(KEY if side == "key" else BODY))
    value, schema = F.col(_decoded(side, layout)), layout.envelope
    for name in path:
        value, schema = member_of(value, schema, name)
    return value


def _has(schema: Schema, path: Sequence[str]) -> bool:
    if not path:
        return True
    field = schema.of_field(path[0])
    return field is not None and _has(field, path[1:])


def _decoded(side: str, layout: Layout) -> str:
    return f"{AVRO}_{side}_{layout.mark}"


def _from_avro(side: str, text: str) -> SparkColumn:
    """Return the decoded record after the registry's id."""
    mode = F.create_map(F.lit("mode"), F.lit("FAILFAST"))
    return F.call_function("from_avro", F.expr(f"substring({side}, 6)"), F.lit(text), mode)


class Choice(NamedTuple):
    """The column of records with a mark. Choices with an equal ``same`` have an equal column."""

    mark: int
    same: object
    column: SparkColumn


def by_mark(mark: str, choices: Sequence[Choice], kind: str) -> SparkColumn:
    """Return the column that a record's mark selects. Null: the mark has none."""
    shared: dict[object, tuple[SparkColumn, list[int]]] = {}
    for choice in choices:
        _, marks = shared.setdefault(choice.same, (choice.column, []))
        marks.append(choice.mark)
    chosen = F.lit(None).cast(kind)
    for column, marks in shared.values():
        chosen = F.when(F.col(mark).isin(marks), column).otherwise(chosen)
    return chosen


def with_members(
    raw: DataFrame,
    topic: TopicLayout,
    *which: Which,
    timed: bool = False,
    truncates: bool = False,
    keep: Sequence[str] = (),
) -> DataFrame:
    """Add the position and the members of key or row to records. ``timed`` adds the time.

    The job ends at a record that doesn't belong to this table. TRUNCATEs are included only with
    ``truncates``. ``keep`` are columns of ``raw`` to keep unchanged.
    """
    images = [side for side in which if side != "key"]
    members: dict[str, SparkColumn] = {}
    for side in which:
        members |= _members(topic, side)
    kept = F.lit(True) if truncates else ~is_truncate()
    return (
        enveloped(raw, topic)
        .where(kept)
        .select(
            *_COORDINATES,
            *keep,
            _position(topic, truncates=truncates).alias(POSITION),
            *([committed_at(topic).alias(TIME)] if timed else []),
            F.col("value").isNull().alias("tombstone"),
            ENVELOPE_OP,
            KEY_MARK,
            VALUE_MARK,
            *(_exists(topic, side).alias(EXISTS.format(side)) for side in images),
            *(column.alias(name) for name, column in members.items()),
        )
    )


def member_column(topic: TopicLayout, layout: Layout, which: Which, name: str) -> SparkColumn:
    """Return the member with the value of a column of the table."""
    return F.col(_alias(topic, layout, which, name))


def _alias(topic: TopicLayout, layout: Layout, which: Which, name: str) -> str:
    """Return the name of the member's own column. JSON's texts share one, for any schema."""
    index = next(i for i, column in enumerate(topic.schema.columns) if column.name == name)
    schema = f"_{layout.mark}" if layout.envelope is not None else ""
    return f"_millrace_{which}_{index}{schema}"


def _members(topic: TopicLayout, which: Which) -> dict[str, SparkColumn]:
    is_key = which == "key"
    path = ("key",) if is_key else ("value", which)
    names = [column.name for column in (topic.schema.key if is_key else topic.schema.columns)]
    return {
        _alias(topic, layout, which, name): _inside(layout, *path, name)
        for layout in (topic.keys if is_key else topic.values)
        for name in names
        if name in layout.members
    }


def _position(topic: TopicLayout, *, truncates: bool) -> SparkColumn:
    """Return offset and LSN as a position's text."""
    row = F.when(F.col(ENVELOPE_OP) == "d", F.lit(True)).otherwise(_exists(topic, "after"))
    is_change = F.col(ENVELOPE_OP).isin("c", "r", "u", "d") & _is_in(VALUE_MARK, topic.values)
    good = F.col("value").isNull() | (is_change & row & _is_described(topic))
    good &= _has_key(topic) if topic.schema.key else F.col("key").isNull()
    if truncates:
        good |= is_truncate()
    message = F.concat(
        F.lit("record at "),
        F.concat_ws(":", *_COORDINATES),
        F.lit(" isn't a Debezium record, or has other fields than the description of its table"),
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


def _is_in(mark: str, layouts: tuple[Layout, ...]) -> SparkColumn:
    return F.col(mark).isin([layout.mark for layout in layouts])


def _has_key(topic: TopicLayout) -> SparkColumn:
    """Whether a key is one of the topic's. One in JSON has values only for the key's columns."""
    avro = [layout.mark for layout in topic.keys if layout.encoding == "avro"]
    complete = reduce(and_, (F.col(KEY)[column.name].isNotNull() for column in topic.schema.key))
    alone = F.size(F.map_keys(KEY)) == len(topic.schema.key)
    return _is_in(KEY_MARK, topic.keys) & (F.col(KEY_MARK).isin(avro) | (complete & alone))


def _is_described(topic: TopicLayout) -> SparkColumn:
    """Whether all members of a row without a schema are declared columns."""
    plain = [layout for layout in topic.values if layout.encoding == "plain"]
    if not plain:
        return F.lit(True)
    declared = F.array(*(F.lit(name) for name in plain[0].members))
    row = F.coalesce(F.col(BODY)["after"], F.col(BODY)["before"])
    unknown = F.size(F.array_except(F.map_keys(row), declared)) > 0
    return (F.col(VALUE_MARK) != plain[0].mark) | ~unknown


def _exists(topic: TopicLayout, which: str) -> SparkColumn:
    """Whether a record has a row before, or after, the change."""
    choices = [
        Choice(
            layout.mark,
            layout.mark if layout.envelope is not None else None,
            _inside(layout, "value", which).isNotNull(),
        )
        for layout in topic.values
    ]
    return by_mark(VALUE_MARK, choices, "boolean")

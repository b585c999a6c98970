"""Opened records, and the schemas that they were written by → their envelopes' members.

An Avro record is decoded once, by its own schema: one column of the frame per schema, null in the
rows of others.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SparkMissingError
from cdc.records.connect import Schema
from sinks.debezium.described import Described, Layout, Reading
from sinks.debezium.encodings import Avro, Carrier, Json, place_of
from sinks.debezium.records import AVRO, BODY, KEY, KEY_MARK, VALUE_MARK, opened

LETTER: Final = "_millrace_letter"
LSN: Final = "_millrace_lsn"


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

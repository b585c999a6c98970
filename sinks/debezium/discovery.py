"""New records of all topics → which schemas they were written by, and how many there are of each.

One Spark job for all of them; what comes back to the driver is a row per topic and schema.
"""

from typing import Final, Literal, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from sinks.debezium.records import (
    KEY_MARK,
    KEY_SCHEMA,
    PLAIN,
    VALUE_MARK,
    VALUE_SCHEMA,
    kind,
    opened,
)

Kind = Literal["avro", "json", "plain"]
_NUMBER: Final = r"\b(BIGINT|DOUBLE|DECIMAL\(\d+,\d+\))"
"""How Spark calls one number and another of the same column."""


class Seen(NamedTuple):
    """Records of a topic whose keys have one schema, and whose values have one.

    A kind is None where there is no key, or no value (a tombstone). The text of a plain key is
    that of one of the keys. ``key_form`` is what of a key's bytes isn't its values, by which its
    partition changes, too. ``last`` is when and where the last one stands: time (ms), offset.
    """

    topic: str
    events: int
    last: tuple[int, int]
    key_kind: Kind | None = None
    key_mark: int = 0
    key_text: str = ""
    key_form: str = ""
    value_kind: Kind | None = None
    value_mark: int = 0
    value_text: str = ""


def discover(raw: DataFrame) -> list[Seen]:
    """Look at all records, which need a ``timestamp`` too."""
    marks = ("topic", "key_kind", KEY_MARK, "key_form", "value_kind", VALUE_MARK)
    found = (
        opened(raw)
        .withColumns({"key_kind": kind("key"), "value_kind": kind("value")})
        .withColumn("key_form", _key_form())
        .groupBy(*marks)
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.max(F.struct(F.unix_millis("timestamp").alias("ms"), "offset")).alias("last"),
            F.first(F.coalesce(KEY_SCHEMA, _plain_key())).alias("key_text"),
            F.first(VALUE_SCHEMA).alias("value_text"),
        )
        .collect()
    )
    return [
        Seen(
            topic=row["topic"],
            events=row["events"],
            last=(row["last"]["ms"], row["last"]["offset"]),
            key_kind=row["key_kind"],
            key_mark=row[KEY_MARK] or 0,
            key_text=row["key_text"] or "",
            key_form=row["key_form"] or "",
            value_kind=row["value_kind"],
            value_mark=row[VALUE_MARK] or 0,
            value_text=row["value_text"] or "",
        )
        for row in found
    ]


def _plain_key() -> SparkColumn:
    """The key itself, which names its members."""
    return F.when(F.col(KEY_MARK) == PLAIN, F.col("key").cast("string"))


def _key_form() -> SparkColumn:
    """The key's schema; of a plain one its members in their order, and what JSON has for each."""
    types = F.schema_of_variant(F.try_parse_json(_plain_key()))
    numbers = F.regexp_replace(types, _NUMBER, "NUMBER")
    plain = F.concat_ws(" ", F.to_json(F.json_object_keys(_plain_key())), numbers)
    schema = F.col(KEY_MARK).cast("string")
    return F.concat_ws(" ", "key_kind", F.when(F.col(KEY_MARK) == PLAIN, plain).otherwise(schema))

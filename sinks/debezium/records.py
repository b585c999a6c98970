"""Binary keys and values of records → what JSON says, and which schema each was written by.

A *mark* names a schema: the hash of its text in JSON, the registry's id in Avro, 0 where there is
none. All three kinds may stand in one topic, before and after its connector's options changed. A
schema of JSON is cut off as text, since it is many times as long as what it describes.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

KEY_MARK: Final = "_millrace_key_mark"
VALUE_MARK: Final = "_millrace_value_mark"
KEY_SCHEMA: Final = "_millrace_key_schema"
VALUE_SCHEMA: Final = "_millrace_value_schema"
KEY: Final = "_millrace_key"
BODY: Final = "_millrace_body"
AVRO: Final = "_millrace_avro"
PLAIN: Final = 0
"""The mark of JSON without a schema."""
_ROW: Final = "map<string,string>"
_HEAD: Final = (
    "op string, source struct<lsn: bigint, sequence: string, `schema`: string, `table`: string, "
    "ts_us: bigint, ts_ms: bigint>"
)
_SCHEMA: Final = '{"schema":'
_PAYLOAD: Final = ',"payload":'
"""What Connect's JsonConverter writes before a schema, and between it and what it describes; in a
text of JSON's its quotes would be escaped."""


def opened(raw: DataFrame, *, decimal_numbers: bool = False) -> DataFrame:
    """Records with the marks of their key and value, and the maps and members that JSON has.

    ``raw`` has topic, partition, offset, key and value (binary), as Spark's Kafka source gives
    them. ``decimal_numbers``: Decimals are JSON's numbers, whose digits a map of texts would lose.
    Each step is a frame of its own: Spark then computes what it adds once per record.
    """
    found = raw.withColumns({f"_head_{side}": _head(side) for side in ("key", "value")})
    key, value = _payload("key"), _payload("value")
    return found.select(
        *raw.columns,
        (_map(key, "$") if decimal_numbers else F.from_json(key, _ROW)).alias(KEY),
        _schema("key").alias(KEY_SCHEMA),
        _mark("key").alias(KEY_MARK),
        _body(value, decimal_numbers).alias(BODY),
        _schema("value").alias(VALUE_SCHEMA),
        _mark("value").alias(VALUE_MARK),
    )


def kind(side: str) -> SparkColumn:
    """What a key or value is: avro, json (with its schema) or plain; null where there is none."""
    mark = F.col(KEY_MARK if side == "key" else VALUE_MARK)
    return (
        F.when(mark.isNull(), F.lit(None).cast("string"))
        .when(_is_avro(side), F.lit("avro"))
        .when(mark == PLAIN, F.lit("plain"))
        .otherwise(F.lit("json"))
    )


def _is_avro(side: str) -> SparkColumn:
    """Confluent's wire format: a zero byte, the schema's id in four, the value."""
    return F.substring(F.col(side), 1, 1) == F.lit(bytearray(1))


def _head(side: str) -> SparkColumn:
    """The record up to its schema's end, or all of it where that isn't found; else null."""
    text = F.when(~_is_avro(side), F.col(side).cast("string"))
    head = F.substring_index(text, f"{_PAYLOAD}{{", 1)
    return F.when(text.startswith(f"{_SCHEMA}{{"), head)


def _has_schema(side: str) -> SparkColumn:
    return F.octet_length(f"_head_{side}") < F.octet_length(F.col(side))


def _schema(side: str) -> SparkColumn:
    return F.when(_has_schema(side), F.substr(f"_head_{side}", F.lit(len(_SCHEMA) + 1)))


def _payload(side: str) -> SparkColumn:
    """What the schema describes, or the whole record; by bytes, so that nobody counts letters."""
    whole = F.col(side)
    start = F.octet_length(f"_head_{side}") + len(_PAYLOAD)
    payload = F.substr(whole, start + 1, F.octet_length(whole) - start - 1)
    return F.when(_has_schema(side), payload).when(~_is_avro(side), whole).cast("string")


def _mark(side: str) -> SparkColumn:
    number = F.conv(F.hex(F.substring(F.col(side), 2, 4)), 16, 10).cast("bigint")
    return (
        F.when(F.col(side).isNull(), F.lit(None).cast("bigint"))
        .when(_is_avro(side), number)
        .when(_has_schema(side), F.xxhash64(f"_head_{side}"))
        .otherwise(F.lit(PLAIN).cast("bigint"))
    )


def _body(text: SparkColumn, decimal_numbers: bool) -> SparkColumn:
    if not decimal_numbers:
        return F.from_json(text, f"{_HEAD}, before {_ROW}, after {_ROW}")
    head = F.from_json(text, _HEAD)
    rows = (_map(text, f"$.{name}").alias(name) for name in ("before", "after"))
    return F.struct(head["op"], head["source"], *rows)


def _map(text: SparkColumn, path: str) -> SparkColumn:
    """A map of texts that keep a number's 38 digits: from_json would make a double of it."""
    return F.try_variant_get(F.try_parse_json(text), path, _ROW)

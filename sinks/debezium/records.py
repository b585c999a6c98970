"""Binary keys and values of records → the maps of JSON, and the schemas that wrote them.

A *mark* identifies a schema: the hash of its text in JSON, the registry's id in Avro, 0 without
one. One topic may have all three encodings, before and after a change of its connector's options. A
JSON schema is cut off as text, since it is many times as long as its payload.
"""

from typing import Final, Literal, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
"""Connect's JsonConverter writes the first before a schema, and the second before the payload. In a
text inside JSON the quotes would be escaped.
"""


RecordEncoding = Literal["avro", "json", "plain"]
_NUMBER: Final = r"\b(BIGINT|DOUBLE|DECIMAL\(\d+,\d+\))"
"""Spark's names of the types that numbers of one column may have."""


def opened(raw: DataFrame, *, decimal_numbers: bool = False) -> DataFrame:
    """Add the marks of key and value, and JSON's maps and members, to records.

    ``raw`` has topic, partition, offset, key and value (binary), as from Spark's Kafka source.
    ``decimal_numbers``: Decimals are JSON's numbers, which would lose digits in a map of texts.
    Each step is a frame of its own, so that Spark computes its result once per record.
    """
    with_heads = raw.withColumns({f"_head_{side}": _head(side) for side in ("key", "value")})
    key, value = _payload("key"), _payload("value")
    return with_heads.select(
        *raw.columns,
        (_map(key, "$") if decimal_numbers else F.from_json(key, _ROW)).alias(KEY),
        _schema("key").alias(KEY_SCHEMA),
        _mark("key").alias(KEY_MARK),
        _body(value, decimal_numbers).alias(BODY),
        _schema("value").alias(VALUE_SCHEMA),
        _mark("value").alias(VALUE_MARK),
    )


def encoding_of(side: str) -> SparkColumn:
    """Return the encoding of a key or value: avro, json (with its schema) or plain; null: none."""
    mark = F.col(KEY_MARK if side == "key" else VALUE_MARK)
    return (
        F.when(mark.isNull(), F.lit(None).cast("string"))
        .when(_is_avro(side), F.lit("avro"))
        .when(mark == PLAIN, F.lit("plain"))
        .otherwise(F.lit("json"))
    )


def _is_avro(side: str) -> SparkColumn:
    """Check for Confluent's wire format: a zero byte, the schema's id in four bytes, the value."""
    return F.substring(F.col(side), 1, 1) == F.lit(bytearray(1))


def _head(side: str) -> SparkColumn:
    """Return the record up to its schema's end, or all of it without one; else null."""
    text = F.when(~_is_avro(side), F.col(side).cast("string"))
    head = F.substring_index(text, f"{_PAYLOAD}{{", 1)
    return F.when(text.startswith(f"{_SCHEMA}{{"), head)


def _has_schema(side: str) -> SparkColumn:
    return F.octet_length(f"_head_{side}") < F.octet_length(F.col(side))


def _schema(side: str) -> SparkColumn:
    return F.when(_has_schema(side), F.substr(f"_head_{side}", F.lit(len(_SCHEMA) + 1)))


def _payload(side: str) -> SparkColumn:
    """Return the payload after the schema, or the whole record, by bytes, without decoding."""
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
    """Return a map of texts that keep a number's 38 digits, which from_json would round."""
    return F.try_variant_get(F.try_parse_json(text), path, _ROW)


class Written(NamedTuple):
    """The form of keys, or of values, with the text of their schema.

    Without a schema, a key's text is one of the keys, and a value's has the names of a row's
    members.
    """

    encoding: RecordEncoding
    mark: int
    text: str


class RecordGroup(NamedTuple):
    """Records of a topic with one schema of keys, and one of values.

    ``key`` is None without one, and ``value`` is None in tombstones. ``key_form`` is all of a key's
    bytes except its values: keys of another form go to other partitions. ``last`` is the last
    record's time (ms) and offset, ``first_ms`` the first one's time. They are in one partition,
    before the offset ``end``. Rows of plain values have one list of members.
    """

    topic: str
    events: int
    last: tuple[int, int]
    key: Written | None
    value: Written | None
    key_form: str = ""
    first_ms: int = 0
    end: int = 0


def discover(raw: DataFrame) -> list[RecordGroup]:
    """Return the groups of all records with their ``timestamp``."""
    marks = (
        "topic", "partition", "key_encoding", KEY_MARK, "key_form", "value_encoding", VALUE_MARK,
        "row_form",
    )  # fmt: skip
    rows = (
        opened(raw)
        .withColumns({"key_encoding": encoding_of("key"), "value_encoding": encoding_of("value")})
        .withColumns({"key_form": _key_form(), "row_form": _row_form()})
        .groupBy(*marks)
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.max(F.struct(F.unix_millis("timestamp").alias("ms"), "offset")).alias("last"),
            F.min(F.unix_millis("timestamp")).alias("first_ms"),
            (F.max("offset") + 1).alias("end"),
            F.first(F.coalesce(KEY_SCHEMA, _plain_key())).alias("key_text"),
            F.first(VALUE_SCHEMA).alias("value_text"),
        )
        .collect()
    )
    return [
        RecordGroup(
            topic=row["topic"],
            events=row["events"],
            last=(row["last"]["ms"], row["last"]["offset"]),
            key=_written(row["key_encoding"], row[KEY_MARK], row["key_text"]),
            value=_written(
                row["value_encoding"], row[VALUE_MARK], row["value_text"] or row["row_form"]
            ),
            key_form=row["key_form"],
            first_ms=row["first_ms"],
            end=row["end"],
        )
        for row in rows
    ]


def _written(encoding: RecordEncoding | None, mark: int, text: str | None) -> Written | None:
    return None if encoding is None else Written(encoding, mark, text or "")


def _plain_key() -> SparkColumn:
    """Return the key itself, which has the names of its members."""
    return F.when(F.col(KEY_MARK) == PLAIN, F.col("key").cast("string"))


def _row_form() -> SparkColumn:
    """Return the names of a plain row's members, in order, as JSON."""
    row = F.coalesce(F.col(BODY)["after"], F.col(BODY)["before"])
    return F.when(F.col(VALUE_MARK) == PLAIN, F.to_json(F.map_keys(row)))


def _key_form() -> SparkColumn:
    """Return the key's schema; for a plain key, its members in order, with their JSON types."""
    types = F.schema_of_variant(F.try_parse_json(_plain_key()))
    numbers = F.regexp_replace(types, _NUMBER, "NUMBER")
    plain = F.concat_ws(" ", F.to_json(F.json_object_keys(_plain_key())), numbers)
    schema = F.col(KEY_MARK).cast("string")
    return F.concat_ws(
        " ", "key_encoding", F.when(F.col(KEY_MARK) == PLAIN, plain).otherwise(schema)
    )

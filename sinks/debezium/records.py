"""Binary keys and values of records → what JSON says, and which schema each was written by.

A *mark* names a schema: the hash of its text in JSON, the registry's id in Avro, 0 where there is
none. All three kinds may stand in one topic, before and after its connector's options changed.
Columns added here are read many times; Spark keeps them apart from what reads them, since parsing
is dear and each is mentioned more than once.
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
_BODY: Final = (
    "op string, source struct<lsn: bigint, sequence: string, `schema`: string, `table`: string>"
)
_ENVELOPE: Final = f"{_BODY}, before {_ROW}, after {_ROW}"
_RECORD: Final = "schema string, payload struct<{0}>, {0}"
_STRUCT: Final = '{"type":"struct"'
"""How a key's schema begins, as JsonConverter writes it."""


def opened(raw: DataFrame, *, decimal_numbers: bool = False) -> DataFrame:
    """Records with the marks of their key and value, and the maps and members that JSON has.

    ``raw`` has topic, partition, offset, key and value (binary), as Spark's Kafka source gives
    them. ``decimal_numbers``: Decimals are JSON's numbers, whose digits a map of texts would lose.
    """
    key, value = F.col("key").cast("string"), F.col("value").cast("string")
    parsed = raw.select(
        "*",
        F.when(~_is_avro("key"), F.from_json(key, _ROW)).alias("_millrace_outer"),
        F.when(~_is_avro("value"), _parsed(value, decimal_numbers)).alias("_millrace_parsed"),
    )
    outer, record = F.col("_millrace_outer"), F.col("_millrace_parsed")
    wrapped = outer["schema"].startswith(_STRUCT) & outer["payload"].isNotNull()
    members = ("op", "source", "before", "after")
    return parsed.select(
        *raw.columns,
        F.when(wrapped, F.from_json(outer["payload"], _ROW)).otherwise(outer).alias(KEY),
        F.when(wrapped, outer["schema"]).when(~_is_avro("key"), key).alias(KEY_SCHEMA),
        _mark("key", F.when(wrapped, outer["schema"])).alias(KEY_MARK),
        F.coalesce(record["payload"], F.struct(*(record[name] for name in members))).alias(BODY),
        record["schema"].alias(VALUE_SCHEMA),
        _mark("value", record["schema"]).alias(VALUE_MARK),
    )


def _parsed(text: SparkColumn, decimal_numbers: bool) -> SparkColumn:
    if not decimal_numbers:
        return F.from_json(text, _RECORD.format(_ENVELOPE))
    # A variant keeps a number's 38 digits; as text, from_json would make a double of it.
    read = F.from_json(text, _RECORD.format(_BODY))
    variant = F.try_parse_json(text)

    def body(members: SparkColumn, path: str) -> SparkColumn:
        return F.struct(
            members["op"],
            members["source"],
            *(
                F.try_variant_get(variant, f"{path}.{name}", _ROW).alias(name)
                for name in ("before", "after")
            ),
        )

    return F.struct(
        read["schema"].alias("schema"),
        F.when(read["payload"].isNotNull(), body(read["payload"], "$.payload")).alias("payload"),
        *(body(read, "$")[name].alias(name) for name in ("op", "source", "before", "after")),
    )


def _is_avro(side: str) -> SparkColumn:
    """Confluent's wire format: a zero byte, the schema's id in four, the value."""
    return F.substring(F.col(side), 1, 1) == F.lit(bytearray(1))


def _mark(side: str, schema: SparkColumn) -> SparkColumn:
    number = F.conv(F.hex(F.substring(F.col(side), 2, 4)), 16, 10).cast("bigint")
    return (
        F.when(F.col(side).isNull(), F.lit(None).cast("bigint"))
        .when(_is_avro(side), number)
        .when(schema.isNotNull(), F.xxhash64(schema))
        .otherwise(F.lit(PLAIN).cast("bigint"))
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

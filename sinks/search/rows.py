"""Latest rows of a table → key texts and JSON documents, by Spark functions only.

Afterwards, Python in the executor only prepends an id and a version. A null field is left out of
its document: that makes no difference to a search, and makes a wide table smaller.
"""

from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.records.schema import Column
from sinks.changes.names import ABSENT, FILLED, OP, OWN, POSITION, UPSERT, quoted
from sinks.changes.shape import TableShape
from sinks.search.documents import POSITION_FIELD, field_names
from sinks.spark.jvm import struct_of

JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Spark's options to write a document."""
_KEY: Final = "_millrace_key"
RESERVED: Final = (*OWN, _KEY)
"""Names that no column of the source can have in rows that become documents."""
_HOUR_US: Final = 3_600_000_000
_MINUTE_US: Final = 60_000_000
_SECOND_US: Final = 1_000_000


def documents(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Return columns key (array of text), version, source (JSON, null: delete), absent, filled.

    Filled fields have values that count only if the index has no document of the row.
    """
    schema = shape.versions[-1]
    fields = field_names(schema)
    targets = {field.column.name: field.name for field in shape.fields}
    values = {
        column.name: value_in_json(column, F.col(quoted(targets[column.name])))
        for column in schema.event_columns
        if column.key is not None or _is_changed(column)
    }
    changed = {targets[name]: value for name, value in values.items()}
    named = {field: quoted(targets[name]) for name, field in fields.items()}
    source = struct_of({**named, POSITION_FIELD: quoted(POSITION)})
    renamed = {targets[name]: field for name, field in fields.items()}
    key = F.array(*(key_text(column, values[column.name]) for column in schema.key))
    return (
        rows.withColumn(_KEY, key)
        .withColumns(changed)
        .select(
            F.col(_KEY).alias("key"),
            F.conv(F.substring(POSITION, 10, 16), 16, 10).cast("bigint").alias("version"),
            F.when(F.col(OP) == UPSERT, F.to_json(source, JSON)).alias("source"),
            _renamed(F.col(ABSENT), renamed).alias("absent"),
            _renamed(F.col(FILLED), renamed).alias("filled"),
        )
    )


def _is_changed(column: Column) -> bool:
    """Whether a value in JSON differs from Spark's."""
    return column.type in {"numeric", "time"} or (column.type == "point" and not column.array)


def value_in_json(column: Column, value: SparkColumn) -> SparkColumn:
    """Convert a value for JSON, as Spark's own JSON would change decimals and times of day.

    Points also change: a search server reads them as well-known text.
    """
    kind = "array<string>" if column.array else "string"
    if column.type == "numeric":
        return value.cast(kind)
    if column.type == "point" and not column.array:
        return F.concat(F.lit("POINT "), F.translate(value, ",", " "))
    if column.type == "time":
        return F.transform(value, _time_of_day) if column.array else _time_of_day(value)
    return value


def _time_of_day(value: SparkColumn) -> SparkColumn:
    """Return microseconds since midnight as PostgreSQL writes them.

    24:00:00 is a time of day, too.
    """
    return F.when(
        value.isNotNull(),
        F.format_string(
            "%02d:%02d:%02d.%06d",
            F.floor(value / _HOUR_US),
            F.floor(value % _HOUR_US / _MINUTE_US),
            F.floor(value % _MINUTE_US / _SECOND_US),
            value % _SECOND_US,
        ),
    )


def key_text(column: Column, value: SparkColumn) -> SparkColumn:
    """Return a key value in the form of documents."""
    if column.array:
        return F.to_json(value, JSON)
    if column.type == "bytea":
        return F.base64(value)
    if column.type in {"timestamp", "timestamptz"}:
        zone = "timestampFormat" if column.type == "timestamptz" else "timestampNTZFormat"
        return F.date_format(value, JSON[zone])
    if column.type in {"float4", "float8"}:  # both zeros are one key
        value = F.when(value == 0, F.abs(value)).otherwise(value)
    return value.cast("string")


def _renamed(columns: SparkColumn, fields: dict[str, str]) -> SparkColumn:
    """Convert names of target columns to names of fields, if any differs."""
    renamed = {target: field for target, field in fields.items() if target != field}
    if renamed:
        by_column = F.create_map(*(F.lit(name) for pair in renamed.items() for name in pair))
        return F.transform(columns, lambda name: F.coalesce(by_column[name], name))
    return columns

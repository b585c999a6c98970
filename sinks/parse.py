"""Raw records of one table → its columns, typed, with position, operation and absent columns.

An envelope is read as maps from column name to text, whatever the schema version, so that one
batch may hold several versions, a missing name is told from a null, and names are never Spark
identifiers (which ignore case). Each value is then converted by the version of its record. A
record that can't be read raises an error inside Spark, which fails its table and no other.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from cdc.records.schema import Column, TableSchema
from cdc.records.topics import TRUNCATE_KEY
from sinks.types import from_text, refuse, spark_type

POSITION: Final = "_millrace_position"
OP: Final = "_millrace_op"
ABSENT: Final = "_millrace_absent"
FILLED: Final = "_millrace_filled"
COUNT: Final = "_millrace_count"
ROW: Final = "_millrace_row"
LOST: Final = "_millrace_lost"
"""Why a change lacks values that its record should have; there where records had claims."""
UPSERT: Final = "upsert"
DELETE: Final = "delete"

_OWN: Final = (POSITION, OP, ABSENT, FILLED, COUNT, ROW, LOST)
_ENVELOPE: Final = "op string, before map<string,string>, after map<string,string>"
_READ: Final = ("_millrace_envelope", "_millrace_key")


def target_names(schema: TableSchema) -> dict[str, str]:
    """Column name in the source → name in a derived table, where case doesn't tell names apart.

    A name that differs from an earlier one by case only, or is one of ours, gets ``__2`` appended
    (``__3`` and so on if that is taken as well).
    """
    taken = set(_OWN) | {column.name.lower() for column in schema.columns}
    used = set(_OWN)
    names: dict[str, str] = {}
    for column in schema.columns:
        name, number = column.name, 2
        while name.lower() in used or (name != column.name and name.lower() in taken):
            name, number = f"{column.name}__{number}", number + 1
        used.add(name.lower())
        names[column.name] = name
    return names


def quoted(name: str) -> str:
    """A column's name as part of an SQL expression."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def parse(raw: DataFrame, versions: Sequence[TableSchema]) -> DataFrame:
    """One row per change of a table with a key, with the columns of its newest version.

    Adds ``_millrace_position`` (text), ``_millrace_op`` (upsert or delete) and
    ``_millrace_absent`` (columns that the record has no value for), ``_millrace_filled`` (columns
    that the change left as they were: their values were read at another time). A delete and its
    tombstone both come, with nothing but the key. TRUNCATE records don't.
    """
    newest = versions[-1]
    names = target_names(newest)
    envelope, key = F.col(_READ[0]), F.col(_READ[1])
    deleted = F.col("value").isNull() | (envelope["op"] == "d")
    row = F.when(~deleted, envelope["after"])
    columns = [
        _value(
            column,
            row[column.name]
            if column.key is None
            else F.coalesce(row[column.name], key[column.name]),
            versions,
        ).alias(names[column.name])
        for column in newest.columns
    ]
    return raw.transform(lambda records: _read(records, versions)).select(
        *columns,
        F.col("position").alias(POSITION),
        F.when(deleted, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(OP),
        _absent(row, versions, names).alias(ABSENT),
        _filled(envelope["op"], versions, names).alias(FILLED),
        *([F.when(~deleted, F.col(LOST)).alias(LOST)] if LOST in raw.columns else []),
    )


def parse_images(raw: DataFrame, versions: Sequence[TableSchema]) -> DataFrame:
    """Two rows at most per change of a table without key: what goes, and what comes.

    Adds ``_millrace_position``, ``_millrace_count`` (-1: a row goes, 1: it comes) and
    ``_millrace_row`` (the record's place in the log, which names the row that comes).
    A value that an update leaves out is the one of the row's old image.
    """
    newest = versions[-1]
    names = target_names(newest)
    envelope = F.col(_READ[0])
    before = F.when(envelope["op"].isin("u", "d"), envelope["before"])
    after = F.when(envelope["op"] != "d", F.map_concat(
        F.map_filter(
            F.coalesce(before, F.create_map().cast("map<string,string>")),
            lambda name, _: ~F.map_contains_key(envelope["after"], name),
        ),
        envelope["after"],
    ))  # fmt: skip
    images = F.filter(
        F.array(
            F.struct(F.lit(-1).alias("count"), before.alias("row")),
            F.struct(F.lit(1).alias("count"), after.alias("row")),
        ),
        lambda image: image["row"].isNotNull(),
    )
    place = F.concat_ws(":", "topic", "partition", "offset")
    image = F.col("image")
    return (
        raw.transform(lambda records: _read(records, versions))
        .withColumn("image", F.explode(images))
        .select(
            *(
                _value(column, image["row"][column.name], versions).alias(names[column.name])
                for column in newest.columns
            ),
            _unless_lost(raw).alias(POSITION),
            image["count"].alias(COUNT),
            place.alias(ROW),
        )
    )


def _unless_lost(raw: DataFrame) -> SparkColumn:
    """The position; where a record's value is lost, the end of the job."""
    place = F.col("position")
    if LOST not in raw.columns:
        return place
    return F.coalesce(refuse(F.col(LOST).isNotNull(), F.col(LOST), "string"), place)


def is_truncate(raw: DataFrame) -> SparkColumn:
    """Whether a raw record says TRUNCATE; parses the value of a record without a key only."""
    reserved = raw["key"] == TRUNCATE_KEY.decode()
    keyless = F.when(
        raw["key"].isNull() & raw["value"].isNotNull(),
        F.get_json_object(raw["value"], "$.op") == "t",
    )
    return F.coalesce(reserved, keyless, F.lit(False))


def _read(raw: DataFrame, versions: Sequence[TableSchema]) -> DataFrame:
    """Envelope and key as maps; anything that isn't a record of this table ends the job."""
    known = [version.version for version in versions]
    rows = raw.where(~is_truncate(raw)).select(
        "*",
        F.from_json("value", _ENVELOPE).alias(_READ[0]),
        F.from_json("key", "map<string,string>").alias(_READ[1]),
    )
    op = F.col(_READ[0])["op"]
    image = F.when(op == "d", True).otherwise(F.col(_READ[0])["after"].isNotNull())
    readable = F.col("value").isNull() | (op.isin("c", "r", "u", "d") & image)
    good = F.coalesce(
        readable & F.col("position").isNotNull() & F.col("schema_version").isin(known),
        F.lit(False),
    )
    place = F.concat(
        F.lit("record at "),
        F.concat_ws(":", "topic", "partition", "offset"),
        F.lit(" is not one of Millrace's, or of a newer schema version: "),
        F.concat_ws("/", "position", "schema_version"),
    )
    # Not a filter: Spark would push that below, and read each envelope once per mention there.
    return rows.withColumn(
        "position", F.coalesce(refuse(~good, place, "string"), F.col("position"))
    )


def _value(column: Column, text: SparkColumn, versions: Sequence[TableSchema]) -> SparkColumn:
    """The value by the type that the column had in the record's schema version."""
    kind = spark_type(column)
    branches: dict[Column | None, list[int]] = {}
    for version in versions:
        found = next((c for c in version.columns if c.name == column.name), None)
        if found is not None and spark_type(found) == kind and _same_form(found, column):
            found = column
        branches.setdefault(found, []).append(version.version)

    def branch(found: Column | None) -> SparkColumn:
        return F.lit(None).cast(kind) if found is None else from_text(found, text).cast(kind)

    return reduce(
        lambda rest, item: F.when(F.col("schema_version").isin(item[1]), branch(item[0])).otherwise(
            rest
        ),
        ((found, numbers) for found, numbers in branches.items() if found != column),
        branch(column),
    )


def _same_form(one: Column, other: Column) -> bool:
    """Whether values of both have the same form in a record."""
    return one.type == other.type and (one.time_precision <= 3) == (other.time_precision <= 3)


def _absent(
    row: SparkColumn, versions: Sequence[TableSchema], names: dict[str, str]
) -> SparkColumn:
    """Names of the columns that the record's schema version has and its row lacks."""
    none = F.array().cast("array<string>")

    def lacking(version: TableSchema) -> SparkColumn:
        here = [column.name for column in version.columns if column.name in names]
        missing = (F.when(~F.map_contains_key(row, name), F.lit(names[name])) for name in here)
        return F.when(
            F.size(row) < len(version.columns), F.array_compact(F.array(*missing))
        ).otherwise(none)

    by_version = reduce(
        lambda rest, version: F.when(
            F.col("schema_version") == version.version, lacking(version)
        ).otherwise(rest),
        versions,
        none,
    )
    return F.when(row.isNull(), none).otherwise(by_version)


def _filled(
    operation: SparkColumn, versions: Sequence[TableSchema], names: dict[str, str]
) -> SparkColumn:
    """Names of the columns that an update has filled values of.

    A row that is new under its key (its key changed) has no other value than the filled one.
    """
    none = F.array().cast("array<string>")
    ordinals = F.split("filled", ",")

    def named(version: TableSchema) -> SparkColumn:
        known = F.array(
            *(F.lit(names.get(column.name)).cast("string") for column in version.columns)
        )
        return F.array_compact(
            F.transform(ordinals, lambda ordinal: F.get(known, ordinal.cast("int") - 1))
        )

    by_version = reduce(
        lambda rest, version: F.when(
            F.col("schema_version") == version.version, named(version)
        ).otherwise(rest),
        versions,
        none,
    )
    updated = F.col("filled").isNotNull() & (operation == "u")
    return F.when(updated, by_version).otherwise(none)

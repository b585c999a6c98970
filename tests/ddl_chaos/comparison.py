"""The source's tables and the derived ones → those that differ, row by row."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from tests.ddl_chaos.shapes import SHAPES
from tests.ddl_chaos.source import Source
from tests.ddl_chaos.stand import full_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXAMPLES: Final = 3
_EXAMPLE_CHARACTERS: Final = 150
Rows = Counter[str]
"""A table's rows as texts, and how often each is there; a column that is missing is one, too."""


def differences(source: Source, spark: "SparkSession", lakehouse: str) -> dict[str, str]:
    """Tables that differ, and in what; nobody changes the source meanwhile."""
    columns = {table: _columns(source, table) for table in SHAPES}
    derived = _derived(spark, lakehouse, columns)
    different = {}
    for table in SHAPES:
        expected = _expected(source, table, columns[table])
        if expected != derived[table]:
            different[table] = _told(expected, derived[table])
    return different


def _told(expected: Rows, derived: Rows) -> str:
    lacks, more = expected - derived, derived - expected
    return f"lacks {lacks.total()} rows ({_some(lacks)}), has {more.total()} others ({_some(more)})"


def _some(rows: Rows) -> str:
    return ", ".join(row[:_EXAMPLE_CHARACTERS] for row in sorted(rows)[:_EXAMPLES])


def _columns(source: Source, table: str) -> dict[str, str]:
    """The columns, and what each is written by."""
    rows = source.ask(
        "SELECT attname, typtype = 'c' FROM pg_attribute JOIN pg_type t ON t.oid = atttypid"
        f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return {name: f"{name}::text" if is_composite else name for name, is_composite in rows}


def _expected(source: Source, table: str, columns: dict[str, str]) -> Rows:
    chosen = ", ".join(f"{text} AS {name}" for name, text in columns.items())
    rows = source.ask(f"SELECT to_jsonb(r) FROM (SELECT {chosen} FROM {table}) r")
    return Counter(_text(row) for (row,) in rows)


def _derived(
    spark: "SparkSession", lakehouse: str, columns: dict[str, dict[str, str]]
) -> dict[str, Rows]:
    from pyspark.sql import functions as F

    found: dict[str, Rows] = {table: Counter() for table in columns}
    queries = []
    for table, wanted in columns.items():
        path = table_path(lakehouse, TableName.parse(full_name(table)))
        if not Path(path, "_delta_log").is_dir():
            found[table]["no table"] = 1
            continue
        rows = spark.read.format("delta").load(path)
        there = [name for name in wanted if name in rows.columns]
        if len(there) < len(wanted):
            found[table][f"no columns {wanted.keys() - {*there}}"] = 1
        text = F.to_json(F.struct(*there))
        queries.append(rows.select(F.lit(table).alias("name"), text.alias("row")))
    if queries:
        every = queries[0]
        for query in queries[1:]:
            every = every.unionAll(query)
        for name, row in every.collect():
            found[name][_text(json.loads(row))] += 1
    return found


def _text(row: dict[str, Any]) -> str:
    """Without nulls, which Spark leaves out."""
    return json.dumps({name: row[name] for name in sorted(row) if row[name] is not None})

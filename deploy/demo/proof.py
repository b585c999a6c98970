"""Source, Delta table and index of one table → their differences, row by row.

Deliberately uses another way than the pipeline: PostgreSQL itself writes each row as JSON
(row_to_json). Spark reads that file with the Delta table's own column types, and counts rows that
only one side has. Python compares documents with the same JSON.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from cdc.records.schema import TableName

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from pyspark.sql import SparkSession

_PLAIN: Final = {
    "int2",
    "int4",
    "int8",
    "oid",
    "float4",
    "float8",
    "numeric",
    "bool",
    "date",
    "text",
    "varchar",
    "bpchar",
    "name",
    "timestamp",
    "timestamptz",
}
"""Types that row_to_json writes in a form that Spark reads back exactly."""
_EXACT: Final = Context(prec=150_000)
"""More digits than PostgreSQL's numeric has."""
_SCAN_SIZE: Final = 5_000


class Comparison(NamedTuple):
    """How many rows or documents were compared, how many of them differ, and examples."""

    total: int
    differences: int
    examples: list[str]


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column in the source's catalog. ``type`` is an array's element type."""

    name: str
    type: str
    array: bool
    key: bool


def source_columns(connection: psycopg.Connection, table: TableName) -> list[SourceColumn]:
    """Return the table's columns in order."""
    rows = connection.execute(
        """
        SELECT attname, coalesce(element.typname, type.typname), element.oid IS NOT NULL,
               coalesce(attnum = ANY (indkey), false)
        FROM pg_attribute
        JOIN pg_type type ON type.oid = atttypid
        LEFT JOIN pg_type element ON element.oid = type.typelem AND type.typcategory = 'A'
        LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
        WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass
          AND attnum > 0 AND NOT attisdropped
        ORDER BY attnum
        """,
        table,
    ).fetchall()
    return [SourceColumn(*row) for row in rows]


def _as_json(column: SourceColumn, *, text: bool) -> sql.Composable:
    name = sql.Identifier(column.name)
    if column.type == "bytea":
        return sql.SQL("replace(encode({0}, 'base64'), E'\\n', '') AS {0}").format(name)
    if column.type in {"time", "timetz"} and not column.array:
        return sql.SQL("(extract(epoch FROM {0}) * 1000000)::bigint AS {0}").format(name)
    if column.type == "bpchar" or (column.type in _PLAIN and not text) or column.array:
        return name
    return sql.SQL("{0}::text AS {0}").format(name)


def export(
    connection: psycopg.Connection,
    table: TableName,
    file: Path,
    *,
    as_text: Callable[[SourceColumn], bool] = lambda _column: False,
) -> int:
    """Write the table's rows as JSON lines. Return their number."""
    columns = source_columns(connection, table)
    query = sql.SQL(
        "COPY (SELECT row_to_json(r.*) FROM (SELECT {} FROM {}) r) TO STDOUT "
        "(FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"
    ).format(
        sql.SQL(", ").join(_as_json(column, text=as_text(column)) for column in columns),
        sql.Identifier(*table),
    )
    rows = 0
    with file.open("wb") as lines, connection.cursor().copy(query) as copy:
        for block in copy:
            lines.write(block)
            rows += bytes(block).count(b"\n")
    return rows


def lakehouse_differences(
    spark: "SparkSession",
    connection: psycopg.Connection,
    table: TableName,
    delta_path: str,
    folder: Path,
) -> Comparison:
    """Return the number of the source's rows, and those that only one side has."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    spark = spark.newSession()  # the session's owner keeps its own configuration
    spark.conf.set("spark.sql.caseSensitive", "true")
    target = spark.read.format("delta").load(delta_path)
    names = [column.name for column in source_columns(connection, table)]
    types = {field.name: field for field in target.schema if field.name in names}
    file = folder / f"{table}.json"
    rows = export(
        connection,
        table,
        file,
        as_text=lambda column: isinstance(types[column.name].dataType, StringType),
    )
    chosen = [f"`{name.replace('`', '``')}`" for name in names]
    source = spark.read.schema(StructType([types[name] for name in names])).json(
        str(file), mode="FAILFAST"
    )
    difference = (
        source.select(*chosen, F.lit(1).alias("_side"))
        .union(target.select(*chosen, F.lit(-1).alias("_side")))
        .groupBy(*chosen)
        .agg(F.sum("_side").alias("_side"))
        .where("_side <> 0")
    )
    ((count,),) = difference.agg(F.coalesce(F.sum(F.abs("_side")), F.lit(0))).collect()
    examples = [row.asDict() for row in difference.limit(3).collect()] if count else []
    file.unlink()
    texts = [json.dumps(example, default=str) for example in examples]
    return Comparison(rows, int(count), texts)


def _canonical(column: SourceColumn) -> Callable[[Any], Any] | None:
    """Return a function that makes equal values of the column equal, in any notation."""
    if column.array:
        return str
    if column.type == "numeric":
        return lambda value: str(Decimal(str(value)).normalize(_EXACT))
    if column.type in {"timestamp", "timestamptz"}:
        return _moment
    if column.type in {"float4", "float8"}:
        return float
    return None


def _moment(value: str) -> str:
    moment = datetime.fromisoformat(value)
    return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()


def _rows_by_key(
    rows: Iterable[Mapping[str, Any]], columns: list[SourceColumn]
) -> tuple[dict[tuple[Any, ...], bytes], int]:
    """Return (key → digest of the whole row, number of rows with a repeated key)."""
    digests: dict[tuple[Any, ...], bytes] = {}
    repeated = 0
    canonical = [(column.name, _canonical(column)) for column in columns]
    keys = [number for number, column in enumerate(columns) if column.key]
    for row in rows:
        values = [
            value if (value := row.get(name)) is None or same is None else same(value)
            for name, same in canonical
        ]
        key = tuple(values[number] for number in keys)
        repeated += key in digests
        digests[key] = hashlib.blake2b(repr(values).encode(), digest_size=16).digest()
    return digests, repeated


def index_differences(
    client: "OpenSearch",
    connection: psycopg.Connection,
    table: TableName,
    index: str,
    folder: Path,
) -> Comparison:
    """Compare an index's documents by key. The table must have a key."""
    columns = source_columns(connection, table)
    file = folder / f"{table}.documents.json"
    export(connection, table, file)
    with file.open(encoding="utf-8") as lines:
        exactly = json.JSONDecoder(parse_float=Decimal)
        expected, _ = _rows_by_key(map(exactly.decode, lines), columns)
    file.unlink()
    hits = _hits(client, index)
    indexed, repeated = _rows_by_key((hit["_source"] for hit in hits), columns)
    return _compared(expected, indexed, repeated)


def document_differences(
    client: "OpenSearch", connection: psycopg.Connection, query: LiteralString, index: str
) -> Comparison:
    """Compare joined documents. The query returns each id's JSON array, and the document."""
    with connection.transaction(), connection.cursor("documents") as rows:
        rows.execute(query)
        expected = {_canonical_text(key): _digest(text) for key, text in rows}
    indexed = {
        _canonical_text(hit["_id"]): _digest(json.dumps(hit["_source"]))
        for hit in _hits(client, index)
    }
    return _compared(expected, indexed)


def _hits(client: "OpenSearch", index: str) -> Iterator[Any]:
    from opensearchpy.helpers import scan

    client.indices.refresh(index=index)
    yield from scan(client, index=index, size=_SCAN_SIZE, query={"query": {"match_all": {}}})


def _compared(
    expected: Mapping[Any, bytes], indexed: Mapping[Any, bytes], repeated: int = 0
) -> Comparison:
    keys = expected.keys() | indexed.keys()
    different = [str(key) for key in keys if expected.get(key) != indexed.get(key)]
    return Comparison(len(indexed) + repeated, len(different) + repeated, different[:3])


def _canonical_text(text: str) -> str:
    return json.dumps(json.loads(text))


def _digest(document: str) -> bytes:
    """Digest a document without our own fields, whether a number is 1 or 1.0."""
    fields = json.loads(document, parse_int=float).items()
    own = {name: value for name, value in fields if not name.startswith("_millrace")}
    same = json.dumps(own, sort_keys=True)
    return hashlib.blake2b(same.encode(), digest_size=16).digest()


def connect(conninfo: Mapping[str, str]) -> closing[psycopg.Connection]:
    """Return a connection to the source that prints times in UTC."""
    connection = psycopg.connect(**dict(conninfo), autocommit=True)  # type: ignore[arg-type]
    connection.execute("SET TimeZone = 'UTC'")
    return closing(connection)

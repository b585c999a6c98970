"""Tables that merges have made → the rows that readers other than Spark see.

docs/reference/lakehouse.md has the promises. It also names the tables that are read wrong, or
refused; these aren't tested.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.rows import dict_row

from cdc.errors import ExitCode
from cdc.settings import Settings
from cdc.settings.lakehouse import LakehouseSettings
from deploy.demo.proof import connect
from sinks.job import run_lakehouse
from sinks.spark import session
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import READERS, Rows
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]

SCHEMAS: Final = {
    "every": """
        CREATE TABLE every (id int PRIMARY KEY, yes bool, small smallint, big bigint, r real,
            d double precision, price numeric(10, 2), wide numeric(38, 9), free numeric,
            "Näme" text, doc jsonb, raw bytea, day date, at time, made timestamp, seen timestamptz,
            numbers int[], texts text[], days date[], moments timestamptz[]);
        INSERT INTO every SELECT i, i % 2 = 0, -i, i::bigint << 40, i / 8.0, i / 7.0, i / 3.0,
            10 ^ 20 + i / 9.0, i / 9.0, 'name ' || i, jsonb_build_object('n', i),
            decode('00ff', 'hex'),
            date '2024-02-29' + i, time '23:59:59.999999' - i * interval '1 s',
            timestamp '2024-02-29 12:00:00.000001' + i * interval '1 day',
            timestamptz '2024-02-29 12:00:00.000001+02' + i * interval '1 day',
            ARRAY[i, NULL, -i], ARRAY['a' || i, NULL, '', 'with "quotes", {}'],
            ARRAY[date '1500-02-28', '9999-12-31'], ARRAY[timestamptz '0001-01-01 00:00Z', NULL]
        FROM generate_series(1, 20) i;
        INSERT INTO every (id) VALUES (30);
        INSERT INTO every (id, r, d, "Näme", raw, day, at, made, seen, numbers, texts)
        VALUES (31, 'NaN', '-Infinity', '', '', '0001-01-01', '24:00',
                '0001-01-01', '0001-01-01 00:00Z', '{}', '{}'),
               (32, '-0', 'Infinity', E'\\u2028\\t', NULL, '9999-12-31', '00:00',
                '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999999Z', NULL, NULL),
               (33, NULL, NULL, NULL, NULL, '1582-10-10', NULL,
                '1676-12-31 23:59:59.999999', '2262-04-12 00:00Z', '{NULL}', '{NULL}'),
               (34, NULL, NULL, NULL, NULL, '1900-01-01', NULL,
                '1582-10-04 23:59:59.999999', '1582-10-15 00:00Z', NULL, NULL);
    """,
    "plain": """
        CREATE TABLE plain (id int PRIMARY KEY, region text, n int);
        INSERT INTO plain SELECT i, (ARRAY['eu', 'us', NULL])[1 + i % 3], i
        FROM generate_series(1, 30) i;
    """,
    "signs": """
        CREATE TABLE signs (id int PRIMARY KEY, region text, n int);
        INSERT INTO signs SELECT i, (ARRAY['with space', 'a/b=c%20', 'ü?&', NULL])[1 + i % 4], i
        FROM generate_series(1, 40) i;
    """,
    "wider": """
        CREATE TABLE wider (id int PRIMARY KEY, n int, f real, "the price" numeric(10, 2));
        INSERT INTO wider SELECT i, i, i / 8.0, i / 4.0 FROM generate_series(1, 20) i;
    """,
}
ALL: Final = tuple(SCHEMAS)
CHANGES: Final = {
    "every": """
        UPDATE every SET "Näme" = 'new', made = '1677-01-01' WHERE id % 5 = 0;
        DELETE FROM every WHERE id IN (7, 31);
        INSERT INTO every (id, seen) VALUES (40, '0001-01-01 00:00Z');
    """,
    "plain": """
        UPDATE plain SET n = -n, region = 'us' WHERE id % 4 = 0;
        DELETE FROM plain WHERE id = 3;
    """,
    "signs": """
        UPDATE signs SET n = -n, region = 'a+b c' WHERE id % 5 = 0;
        DELETE FROM signs WHERE id = 3;
    """,
}
ALTERED: Final = """
    ALTER TABLE every RENAME "Näme" TO named;
    UPDATE every SET named = 'renamed', price = 0.01 WHERE id < 4;
    DELETE FROM every WHERE id = 32;
    ALTER TABLE plain RENAME n TO number;
    UPDATE plain SET number = 0, region = 'eu' WHERE id % 7 = 0;
    ALTER TABLE wider ALTER n TYPE bigint, ALTER f TYPE double precision,
        ALTER "the price" TYPE numeric(12, 2);
    UPDATE wider SET n = 1::bigint << 40, f = 1e300, "the price" = 9999999999.99 WHERE id % 3 = 0;
"""
IN_DELTA: Final = {
    "doc": "doc::text",
    "free": "free::text",
    "at": "(extract(epoch FROM at) * 1000000)::bigint",
    "r": "r::float8",
    "f": "f::float8",
}
"""Columns that have another type in Delta, or fewer digits as text than they have there."""
AS_MADE: Final = ("QueryBuilder", "DuckDB", "Polars")
MAPPED: Final = ("QueryBuilder", "DuckDB")
PLAIN: Final = {"the_price": "the price"}
OWN: Final = {
    "tables": [
        {"source": "public.plain", "partition": ["region"]},
        {"source": "public.signs", "partition": ["region"]},
    ]
}


WAYS: Final[dict[str, dict[str, Any]]] = {
    "vectors": {"deletion_vectors": True},
    "none": {"deletion_vectors": False},
    "readers": {"compatibility": "readers"},
}
"""What the configuration says of what other readers know."""


class Open:
    """A lakehouse of a pipeline's, in one of these ways."""

    def __init__(self, pipeline: RunningPipeline, spark: "SparkSession", way: str) -> None:
        self.folder = pipeline.folder / way
        own = {**OWN, "path": str(self.folder), **WAYS[way]}
        lakehouse = LakehouseSettings.model_validate(own)
        self._settings: Settings = pipeline.settings.model_copy(update={"lakehouse": lakehouse})
        self._spark = spark

    def merge(self) -> None:
        """Run once."""
        summary = run_once(run_lakehouse, self._settings, self._spark, print)
        assert summary.exit_code == ExitCode.OK

    def path(self, table: str) -> Path:
        """Where a derived table is."""
        return self.folder / "public" / table

    def has_vectors(self, table: str) -> bool:
        """Whether rows of the table are marked as gone."""
        commits = (self.path(table) / "_delta_log").glob("*.json")
        return any('"deletionVector"' in commit.read_text() for commit in commits)


def quoted(name: str) -> str:
    return f'"{name}"'


def rows_of(connection: psycopg.Connection[Any], table: str) -> Rows:
    """What the source has, in Delta's types (docs/reference/types.md)."""
    columns = connection.execute(f"SELECT * FROM {table} LIMIT 0").description or []
    names = [one.name for one in columns]
    chosen = [f"{IN_DELTA.get(one, quoted(one))} AS {quoted(one)}" for one in names]
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(f"SELECT {', '.join(chosen)} FROM {table}".encode()).fetchall()


def comparable(rows: Rows, names: Iterable[str]) -> Rows:
    """These columns of them in one order, in which NaN is itself."""

    def same(value: Any) -> Any:
        return "NaN" if isinstance(value, float) and math.isnan(value) else value

    chosen = [{name: same(row[name]) for name in names} for row in rows]
    return sorted(chosen, key=lambda row: row["id"])


def assert_read(
    connection: psycopg.Connection[Any], lake: Open, table: str, readers: Iterable[str]
) -> None:
    """Each of them reads the source's rows, and no other column but ours."""
    source = rows_of(connection, table)
    for reader in readers:
        found = READERS[reader](str(lake.path(table)))
        if table == "wider":  # where names are to suit all readers
            found = [{PLAIN.get(name, name): row[name] for name in row} for row in found]
        own = [name for name in found[0] if not name.startswith("_millrace")]
        assert sorted(own) == sorted(source[0])
        assert comparable(found, own) == comparable(source, own), (reader, table)


@pytest.mark.parametrize(
    ("way", "tables"),
    [
        pytest.param("vectors", ("every", "signs"), id="vectors"),
        pytest.param("vectors", ALL, id="vectors, altered", marks=pytest.mark.proof),
        pytest.param("none", ALL, id="none, altered", marks=pytest.mark.proof),
        pytest.param("readers", ALL, id="readers, altered", marks=pytest.mark.proof),
    ],
)
def test_others_read_what_the_source_has(
    pipeline: Callable[..., RunningPipeline],
    spark: "SparkSession",
    database: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    tables: tuple[str, ...],
) -> None:
    """Where all tables are there, they are altered in the end."""
    # Tables of a few rows are written anew, or merged into without deletion vectors, otherwise.
    monkeypatch.setattr("sinks.delta.keyed.SMALL_BYTES", 0)
    monkeypatch.delitem(session._FEW, "spark.databricks.delta.merge.deletionVectors.persistent")
    made = pipeline()
    lake = Open(made, spark, way)
    vectors = way == "vectors"
    mapped = AS_MADE if way == "readers" else MAPPED

    def merged(statements: str) -> None:
        connection.execute(statements.encode())
        made.wait_until_logged(made.wal_end(), daemon)
        lake.merge()

    with connect(database) as connection:
        connection.execute("".join(SCHEMAS[table] for table in tables).encode())
        daemon = made.start()
        merged("SELECT 1")
        merged("".join(CHANGES.get(table, "") for table in tables))
        assert lake.has_vectors("every") == vectors
        readers = {"wider": mapped, "signs": MAPPED if vectors else AS_MADE}
        for table in tables:
            assert_read(connection, lake, table, readers.get(table, AS_MADE))

        if tables != ALL:
            return
        merged(ALTERED)
        assert_read(connection, lake, "every", mapped)
        assert_read(connection, lake, "plain", mapped if way == "readers" else ("QueryBuilder",))
        assert_read(connection, lake, "wider", mapped if way == "readers" else ("DuckDB",))

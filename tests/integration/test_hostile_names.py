"""Names that their owners chose to do harm → tables and indexes like any other, and no secrets."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.search.client import connect
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),  # the pipeline asks for it later than groups are made
    pytest.mark.spark,
]
VARIABLE: Final = "${env:PATH}"
"""In the JVM's environment, too, whoever has started it."""
NAMES: Final = (
    "two\nlines",
    VARIABLE,
    "'; DROP TABLE x; --",
    "`back` \\ticks",
    "../../up",
    "\x1b[31mred",
    '"quoted" $1 %s %24 {0}',
)


def all_of(database: Conninfo, statement: str, names: tuple[str, ...] = NAMES) -> None:
    """Run a statement for each name: ``{name}`` is it, quoted, ``{text}`` as a text."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        for name in names:
            made = sql.SQL(statement).format(name=sql.Identifier(name), text=sql.Literal(name))
            connection.execute(made)


def written_below(folder: Path) -> str:
    """All that is text in the files below a folder, and their names."""
    return "".join(
        f"{path}\n{path.read_text(encoding='utf-8', errors='replace')}"
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in {".json", ".crc"}
    )


def test_tables_columns_and_types_may_have_any_name(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    run(database, "CREATE SCHEMA kinds")
    all_of(database, "CREATE TYPE kinds.{name} AS ENUM ({text})")
    all_of(database, "CREATE TABLE {name} (id int PRIMARY KEY, {name} kinds.{name})")
    all_of(database, "COMMENT ON TABLE {name} IS {text}; COMMENT ON COLUMN {name}.id IS {text}")
    all_of(database, "INSERT INTO {name} VALUES (1, {text})")
    made = pipeline(search=True)
    daemon = made.catch_up()
    for sink in (run_lakehouse, run_search):
        run_once(sink, made.settings, spark)
    all_of(database, "ALTER TABLE {name} ADD COLUMN x int")
    all_of(database, 'ALTER TABLE {name} RENAME x TO "x${{env:PATH}}"')
    all_of(database, "INSERT INTO {name} VALUES (2, {text}, 3)")
    made.wait_until_logged(made.wal_end(), daemon)
    for sink in (run_lakehouse, run_search):
        run_once(sink, made.settings, spark)
    assert made.stop(daemon) == 0
    assert made.settings.search is not None
    client, lakehouse = connect(made.settings.search), made.folder / "lakehouse"
    for name in NAMES:
        added = f"x{VARIABLE}"
        path = table_path(str(lakehouse), TableName("public", name))
        rows = sorted((row["id"], row[name], row[added]) for row in query_builder(path))
        assert rows == [(1, name, None), (2, name, 3)]
        assert Path(path).resolve().is_relative_to(lakehouse.resolve())
    assert os.environ["PATH"] not in written_below(lakehouse)
    # Not those of Millrace itself, which are seen within a second.
    counted = client.count(index=f"{made.settings.search.index_prefix}public.*")
    assert counted["count"] == 2 * len(NAMES)

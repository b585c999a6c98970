"""Names that attackers chose → tables and indexes like any other, and no secrets."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.search.client import connect
from sinks.search.documents import field_name, index_name
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import Conninfo
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
WORST: Final = f'../../up\n\x1b[31m{VARIABLE}\'; DROP TABLE x; -- `b` \\t "q"$1%s{{0}}'
"""63 bytes, of which each has done harm somewhere."""
MORE_NAMES: Final = (
    "two\nlines \x1b[31m", "'; DROP TABLE x; -- `back` \\ticks", '../../up "quoted" $1 %s %24 {0}',
    VARIABLE, ".", "..", "/etc/passwd", "a/../../b", "\\..\\up", "_millrace", "_delta_log", "runs",
    "~", "-rf", "*", "?", "a,b", "<logstash>", "%2e%2e", "=2E", "$(id)", "x` UNION SELECT 1", "{0}",
    "%s", "\r", "\t", "\x7f", "\u202eleft to right", "é" * 31, "\U0001f4a9" * 15,
)  # fmt: skip
"""Columns of one table, with the worst."""


def run_named(database: Conninfo, *statements: str) -> None:
    """Run statements in which ``{name}`` is the worst of names, quoted, and ``{text}`` a text."""
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        for statement in statements:
            made = sql.SQL(statement).format(name=sql.Identifier(WORST), text=sql.Literal(WORST))
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
    run_named(
        database,
        "CREATE SCHEMA kinds",
        "CREATE TYPE kinds.{name} AS ENUM ({text})",
        "CREATE TABLE {name} (id int PRIMARY KEY, {name} kinds.{name})",
        "COMMENT ON TABLE {name} IS {text}; COMMENT ON COLUMN {name}.id IS {text}",
        "INSERT INTO {name} VALUES (1, {text})",
    )
    made = pipeline(search=True)
    daemon = made.catch_up()
    for sink in (run_lakehouse, run_search):
        run_once(sink, made.settings, spark)
    run_named(
        database,
        "ALTER TABLE {name} ADD COLUMN x int",
        'ALTER TABLE {name} RENAME x TO "x${{env:PATH}}"',
        "INSERT INTO {name} VALUES (2, {text}, 3)",
    )
    made.wait_until_logged(made.wal_end(), daemon)
    for sink in (run_lakehouse, run_search):
        run_once(sink, made.settings, spark)
    assert made.stop(daemon) == 0
    assert made.settings.search is not None
    client, lakehouse = connect(made.settings.search), made.folder / "lakehouse"
    added = f"x{VARIABLE}"
    path = table_path(str(lakehouse), TableName("public", WORST))
    rows = sorted((row["id"], row[WORST], row[added]) for row in query_builder(path))
    assert rows == [(1, WORST, None), (2, WORST, 3)]
    assert Path(path).resolve().is_relative_to(lakehouse.resolve())
    assert os.environ["PATH"] not in written_below(lakehouse)
    assert client.count(index=f"{made.settings.search.index_prefix}public.*")["count"] == 2


def identifiers() -> st.SearchStrategy[str]:
    """What PostgreSQL takes as an identifier: any text of 1 to 63 bytes but for NUL.

    U+FFFD stands for what isn't UTF-8: such names are refused
    (docs/guides/postgresql.md, Encodings).
    """
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufffd")
    odd = "\n\r\t\x1b\x7f\u202e\ufeff$`'\"\\{}[]()<>.,;:*?/%&|#@!-_ aA0\U0010ffff"
    texts = st.lists(st.sampled_from(odd) | letters, min_size=1, max_size=20).map("".join)
    return texts.filter(lambda text: len(text.encode()) <= 63)


def drawn_names(count: int) -> list[list[str]]:
    """For each table a name, and its columns' names; no two of these are alike to Delta."""
    drawn: list[list[str]] = []

    @seed(30)
    @settings(max_examples=count, database=None, phases=[Phase.generate])
    @given(st.lists(identifiers(), min_size=10, max_size=30, unique_by=alike))
    def draw(names: list[str]) -> None:
        drawn.append([f"{len(drawn)}{names[0]}"[:15], *names])

    draw()
    return drawn


def alike(name: str) -> str:
    """What column names, of Delta or of fields, are told apart by."""
    return field_name(name).lower()


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_whatever_postgresql_takes_as_a_name_comes_to_a_delta_table_and_an_index(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    tables = {TableName("public", table): names for table, *names in drawn_names(10)}
    chosen = {alike(name): name for name in (WORST, *MORE_NAMES)}
    tables[TableName("public", "..")] = [*chosen.values()]
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        for table, names in tables.items():
            columns = [sql.SQL("{} text").format(sql.Identifier(name)) for name in names]
            create = sql.SQL("CREATE TABLE {} (the_key int PRIMARY KEY, {})")
            insert = sql.SQL("INSERT INTO {} VALUES (1, {})")
            to = sql.Identifier(*table)
            connection.execute(create.format(to, sql.SQL(", ").join(columns)))
            connection.execute(insert.format(to, sql.SQL(", ").join(map(sql.Literal, names))))
    made = pipeline(search=True)
    daemon = made.catch_up()
    for sink in (run_lakehouse, run_search):
        assert run_once(sink, made.settings, spark).exit_code == ExitCode.OK
    assert made.stop(daemon) == 0
    assert made.settings.search is not None
    client = connect(made.settings.search)
    for table, names in tables.items():
        same = dict(zip(names, names, strict=True))
        (row,) = query_builder(table_path(str(made.folder / "lakehouse"), table))
        assert {name: row[name] for name in names} == same
        found = client.search(index=index_name(made.settings.search.index_prefix, table))
        (document,) = (hit["_source"] for hit in found["hits"]["hits"])
        assert {name: document[field_name(name)] for name in names} == same

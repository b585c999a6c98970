"""Columns dropped, added again and swapped under a real daemon → derived columns, and values."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from cdc.records.schema import TableName
from deploy.local.processes import Process
from sinks.changes.derived import table_path
from sinks.changes.names import IS_CURRENT
from sinks.job import run_lakehouse
from sinks.search.client import connect
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once
from tests.integration.snapshots.test_while_streaming import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
    pytest.mark.spark,
]
SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "lakehouse": {"column.drop.policy": "remove", "kinds": ["current", "history"]},
    "search": {"documents": [{"name": "items", "table": "public.item"}]},
}
OWN: Final = ("_millrace", "valid_", IS_CURRENT)
Row = dict[str, Any]


class Item:
    """A table, and all that is derived of it."""

    def __init__(self, made: RunningPipeline, source: Conninfo, spark: "SparkSession") -> None:
        self.made = made
        self.daemon: Process = made.catch_up()
        self._source = source
        self._spark = spark
        assert made.settings.search is not None
        self._client = connect(made.settings.search)
        self._prefix = made.settings.search.index_prefix

    def alter(self, *statements: str) -> None:
        """Change columns, and wait until the log has them, and rows that are read again."""
        run(self._source, *statements)
        names = [*self.expected()[0]]
        end = self.made.wal_end()
        self.made.wait_until_logged(end, self.daemon)
        wait_for(lambda: self.made.columns("public.item") == names and self._is_calm())

    def _is_calm(self) -> bool:
        (state,) = self.made.tables()
        return not state.requests and state.doubt is None

    def expected(self) -> list[Row]:
        with psycopg.connect(make_conninfo(**self._source), row_factory=dict_row) as source:
            return source.execute("SELECT * FROM item ORDER BY id").fetchall()

    def check(self) -> None:
        """Every form has what the source has by its own SELECT: these columns, and no other."""
        for sink in (run_lakehouse, run_search):
            summary = run_once(sink, self.made.settings, self._spark, print)
            assert [str(table.error) for table in summary.tables if table.error] == []
        expected = self.expected()
        whole = {"current": self._delta("item"), "history": self._delta("item_history")}
        assert whole == dict.fromkeys(whole, expected)
        without_nulls = [{n: v for n, v in row.items() if v is not None} for row in expected]
        found = {"index": self._index("public.item"), "joined": self._index("items")}
        assert found == dict.fromkeys(found, without_nulls)

    def _delta(self, name: str) -> list[Row]:
        path = table_path(str(self.made.folder / "lakehouse"), TableName("public", name))
        rows = [row for row in query_builder(path) if row.get(IS_CURRENT, True)]
        return _sorted({n: row[n] for n in row if not n.startswith(OWN)} for row in rows)

    def _index(self, name: str) -> list[Row]:
        hits = self._client.search(index=f"{self._prefix}{name}")["hits"]["hits"]
        sources = (hit["_source"] for hit in hits)
        return _sorted({n: row[n] for n in row if not n.startswith(OWN)} for row in sources)


def _sorted(rows: Any) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


def begun(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> Item:
    """A table of three rows, merged."""
    run(
        database,
        "CREATE TABLE item (id int PRIMARY KEY, a text, b text, n int, secret text)",
        "INSERT INTO item SELECT i, 'a' || i, 'b' || i, i, 's' || i FROM generate_series(1, 3) i",
    )
    item = Item(pipeline(search=True, sections=SECTIONS), database, spark)
    item.check()
    return item


@pytest.mark.proof
def test_what_is_derived_has_the_sources_columns_and_their_values_alone(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    item = begun(pipeline, database, spark)
    swap = "ALTER TABLE item RENAME a TO t; ALTER TABLE item RENAME b TO a;"
    item.alter("ALTER TABLE item DROP secret", f"{swap} ALTER TABLE item RENAME t TO b")
    item.alter("ALTER TABLE item DROP n, ADD n text", "UPDATE item SET n = 'new' WHERE id = 2")
    item.check()
    assert item.made.stop(item.daemon) == 0


@pytest.mark.proof
def test_what_was_done_while_the_daemon_was_away_is_derived_as_well(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    item = begun(pipeline, database, spark)
    assert item.made.stop(item.daemon) == 0
    run(database, "ALTER TABLE item DROP secret", "UPDATE item SET a = 'x' WHERE id = 1")
    item.daemon = item.made.catch_up()
    item.alter("UPDATE item SET a = 'y' WHERE id = 2")
    item.check()
    assert item.made.stop(item.daemon) == 0
    run(
        database,
        "ALTER TABLE item RENAME a TO t; ALTER TABLE item RENAME b TO a;"
        " ALTER TABLE item RENAME t TO b",
        "UPDATE item SET a = 'z' WHERE id = 3",
    )
    item.daemon = item.made.catch_up()
    item.alter("UPDATE item SET b = 'w' WHERE id = 3")
    item.check()
    assert item.made.stop(item.daemon) == 0
    for number, names in enumerate(("a TO t", "b TO a", "t TO b")):
        run(database, f"ALTER TABLE item RENAME {names}", f"UPDATE item SET n = {number}0")
        run(database, "UPDATE item SET n = id WHERE id > 1")
    item.daemon = item.made.catch_up()
    item.alter()
    item.check()
    assert item.made.stop(item.daemon) == 0
    run(database, "ALTER TABLE item DROP n, ADD n text", "UPDATE item SET n = '1' WHERE id = 1")
    item.daemon = item.made.catch_up()
    item.alter("UPDATE item SET n = '2' WHERE id = 2")
    item.check()
    assert item.made.stop(item.daemon) == 0


@pytest.mark.proof
def test_a_column_that_is_captured_no_more_goes_like_one_that_was_dropped(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    item = begun(pipeline, database, spark)
    assert item.made.stop(item.daemon) == 0
    exclude: dict[str, Any] = {"column.exclude.list": "public.item.secret"}
    item.made = pipeline(search=True, sections=SECTIONS, **exclude)
    item.daemon = item.made.catch_up()
    run(database, "UPDATE item SET a = 'x' WHERE id = 1")
    item.made.wait_until_logged(item.made.wal_end(), item.daemon)
    seen = item.expected
    item.expected = lambda: [{n: v for n, v in row.items() if n != "secret"} for row in seen()]  # type: ignore[method-assign]
    item.check()
    assert item.made.stop(item.daemon) == 0

"""Indexes that are right while changes go on, and documents that are planted behind their back."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cdc.records.state import TableState
from compaction.verify.both_sides import VerifyOptions
from compaction.verify.report import VerifiedTable
from compaction.verify.run import verify
from sinks.run.options import RunContext, RunOptions
from sinks.search.client import connect
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once
from tests.integration.compaction.verify.test_verify import KINDS, ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
]
OTHERS = """
CREATE TABLE odd (
    "a.b" text, "_c" timestamptz, d bytea, n numeric(38,10), PRIMARY KEY ("a.b", "_c", d)
);
CREATE TABLE big (id int PRIMARY KEY, t text, n int);
ALTER TABLE big ALTER t SET STORAGE EXTERNAL;
CREATE TABLE emptied (id int PRIMARY KEY, n int);
INSERT INTO odd SELECT 'x' || repeat('"', g * 200), '2024-02-29 13:14:15.5+02', '\\x00ff', 0
    FROM generate_series(0, 3) g;
INSERT INTO big SELECT g, repeat('x', 9000) || g, 0 FROM generate_series(1, 20) g;
INSERT INTO emptied SELECT g, 0 FROM generate_series(1, 20) g
"""
CHANGES = """
UPDATE kinds SET t = 'later', i4 = 7, af = NULL WHERE id = 1;
DELETE FROM kinds WHERE id = 3;
UPDATE big SET n = 1 WHERE id < 10;
UPDATE big SET id = 100 WHERE id = 20;
TRUNCATE emptied;
INSERT INTO emptied VALUES (3, 3)
"""


def context_of(made: RunningPipeline, spark: "SparkSession") -> RunContext:
    return RunContext(made.settings, lambda _records=0: spark, print, RunOptions())


def verified(
    made: RunningPipeline, spark: "SparkSession", *tables: str
) -> dict[str, VerifiedTable]:
    """What a verify of the indexes finds, by table."""
    options = VerifyOptions(frozenset(tables), frozenset({"search"}))
    report = verify(context_of(made, spark), options)
    assert {table.sink for table in report.tables} == {"search"}
    return {table.name: table for table in report.tables}


def merge(made: RunningPipeline, spark: "SparkSession") -> None:
    ended = run_once(run_search, made.settings, spark)
    assert not [table.error for table in ended.tables if table.error]


def emptied(made: RunningPipeline) -> TableState:
    """A table that is read again behind a TRUNCATE."""
    return next(state for state in made.tables() if state.name.name == "emptied")


@contextmanager
def changing(database: Conninfo) -> Iterator[None]:
    """Transactions that go on, one by one."""
    ended = threading.Event()

    def change() -> None:
        number = 0
        while not ended.wait(0.1):
            number += 1
            row = f"({1000 + number}, repeat('y', 9000), {number})"
            run(
                database,
                f"UPDATE big SET n = {number} WHERE id = {number % 30}",
                f"INSERT INTO big VALUES {row}",
                f"DELETE FROM emptied WHERE id = {number % 7}",
                f"INSERT INTO emptied VALUES ({number % 7}, {number})",
            )

    changes = threading.Thread(target=change)
    changes.start()
    try:
        yield
    finally:
        ended.set()
        changes.join()


def test_right_indexes_have_no_difference_whatever_their_types(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    run(database, *KINDS.strip().split(";\n"), ROWS.strip(), "INSERT INTO kinds (id) VALUES (2)")
    run(database, *OTHERS.strip().split(";\n"))
    made = pipeline(search=True)
    daemon = made.catch_up()
    merge(made, spark)
    run(database, *CHANGES.strip().split(";\n"))
    made.wait_until_logged(made.wal_end(), daemon)
    daemon.wait_until(lambda: any(gap for gap in emptied(made).gaps))
    with changing(database):
        found = verified(made, spark)
    rows = {"public.kinds": 2, "public.odd": 4}
    for table in found.values():
        assert (table.unverified, table.left_out, table.keys) == ("", {}, ()), table.name
        assert (table.differing, table.healed, table.derived_rows) == (0, 0, table.rows)
        assert table.rows == rows.get(table.name, table.rows)
    assert found.keys() == {*rows, "public.big", "public.emptied"}


def test_documents_that_were_changed_behind_its_back_are_found_by_key_and_field(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    run(database, "CREATE TABLE item (id int PRIMARY KEY, name text, at timestamptz, size text)")
    run(
        database,
        "INSERT INTO item SELECT g, 'item ' || g, '2024-01-01', g FROM generate_series(1, 3000) g",
        "UPDATE item SET size = 'huge' WHERE id = 55",
    )
    index = {"table": "public.item", "mapping": {"size": {"type": "integer"}}}
    made = pipeline(search=True, sections={"search": {"indexes": [index]}})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    merge(made, spark)
    run(database, "UPDATE item SET name = 'newer', size = '5' WHERE id IN (56, 57)")
    made.wait_until_logged(made.wal_end(), daemon)
    search = made.settings.require_search()
    client, alias = connect(search), f"{search.index_prefix}public.item"

    def stored(id_: int) -> dict[str, Any]:
        return dict(client.get(index=alias, id=str(id_))["_source"])

    older = stored(56)
    merge(made, spark)
    client.delete(index=alias, id="17")
    client.index(index=alias, id="400", body=stored(400) | {"name": 7, "at": "2024-01-01"})
    client.index(index=alias, id="9000", body=stored(1) | {"id": 9000})
    client.delete(index=alias, id="56")
    client.index(index=alias, id="56", body=older)
    one, other = stored(71), stored(72)
    client.index(index=alias, id="71", body=other)
    client.index(index=alias, id="72", body=one)
    above = {"version": 1 << 60, "version_type": "external"}
    client.index(index=alias, id="90", body=stored(90), params=above)
    table = verified(made, spark)["public.item"]
    assert {(key.key["id"], key.difference, key.columns) for key in table.keys} == {
        ("17", "missing", ()),
        ("55", "refused", ()),
        ("56", "different", ("name", "size")),
        ("71", "different", ("_id",)),
        ("72", "different", ("_id",)),
        ("90", "different", ("_version",)),
        ("400", "different", ("name", "at")),
        ("9000", "extra", ()),
    }
    assert (table.missing, table.extra, table.different, table.refused) == (1, 1, 5, 1)

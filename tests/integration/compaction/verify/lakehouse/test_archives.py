"""Right archives and histories, and events and versions that another program has changed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from compaction.verify.lakehouse import archived_versions, logged
from sinks.changes.derived import table_path
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import replace_rows
from tests.integration.compaction.verify.test_verify import merge, verified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]
LAKEHOUSE = {
    "kinds": [],
    "tables": [
        *({"source": "public.item", "kind": kind} for kind in ("current", "history", "changes")),
        *({"source": "public.emptied", "kind": kind} for kind in ("history", "changes")),
        {"source": "public.bag", "kind": "changes"},
    ],
}
TABLES = """
CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2), big text);
ALTER TABLE item ALTER big SET STORAGE EXTERNAL;
INSERT INTO item SELECT g, 'item ' || g, g / 4.0, repeat('x', 9000) FROM generate_series(1, 40) g;
CREATE TABLE bag (a int);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1), (1);
CREATE TABLE emptied (id int PRIMARY KEY, a int);
INSERT INTO emptied VALUES (1, 1), (2, 2)
"""
CHANGES = """
UPDATE item SET name = name || '!' WHERE id <= 30;
UPDATE item SET id = id + 100, price = 0 WHERE id IN (7, 8);
DELETE FROM item WHERE id = 9;
BEGIN; UPDATE item SET price = 1 WHERE id = 10; UPDATE item SET price = 2 WHERE id = 10; COMMIT;
UPDATE item SET name = name WHERE id = 11;
INSERT INTO item VALUES (9, 'again', 1, 'y');
INSERT INTO bag VALUES (2);
TRUNCATE emptied;
INSERT INTO emptied VALUES (2, 3), (3, 3)
"""
MORE = """
ALTER TABLE item ADD COLUMN more int;
ALTER TABLE item RENAME COLUMN name TO called;
UPDATE item SET called = called || '?', more = id WHERE id BETWEEN 20 AND 35;
UPDATE item SET price = price + 1 WHERE id BETWEEN 1 AND 25;
UPDATE emptied SET a = 4 WHERE id = 2;
DELETE FROM emptied WHERE id = 3
"""
NUMBERED = """
WITH numbered AS (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY _millrace_position) AS number,
        count(*) OVER (PARTITION BY id) AS last FROM {0}
)
"""
EVENTS = """
SELECT {}, IF(id = 14 AND number = last, 'another', called) AS called FROM numbered
WHERE NOT (id = 12 AND number = last) AND NOT (id = 13 AND _millrace_op = 'u')
UNION ALL SELECT {}, called FROM numbered WHERE id = 15 AND number = last
UNION ALL SELECT {}, called FROM numbered WHERE id = 16 AND number = last
"""
"""One is another, some are missing, one is there twice, and one more isn't in the log."""
VERSIONS = """
SELECT {}, IF(id = 22 AND number = 2, 'x', called) AS called FROM numbered
WHERE NOT (id = 21 AND number = 2)
"""


NO_STATE = {
    "public.bag_changes": {
        "the state that its events leave": "the table has no key, so its events have none of their"
        " rows' keys"
    },
}


def without_called(spark: "SparkSession", path: str) -> list[str]:
    """The columns of a Delta table but for one."""
    return [name for name in spark.read.format("delta").load(path).columns if name != "called"]


def lake_path(made: RunningPipeline, name: str) -> str:
    return table_path(str(made.folder / "lakehouse"), TableName("public", name))


@pytest.fixture
def archived(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> RunningPipeline:
    """Histories and archives through changes of rows, keys and columns, and several merges."""
    run(database, *TABLES.strip().split(";\n"))
    made = pipeline(sections={"lakehouse": LAKEHOUSE})
    daemon = made.start()
    for statements in ("SELECT 1", f"{CHANGES.strip()};\n{MORE}"):
        run(database, *statements.strip().split(";\n"))
        made.wait_until_logged(made.wal_end(), daemon)
        merge(made, spark)
    run(database, "UPDATE item SET price = price + 1 WHERE id < 12")
    return made


def test_changed_events_and_missing_versions_are_found_and_right_ones_do_not_differ(
    archived: RunningPipeline, spark: "SparkSession"
) -> None:
    report, tables = verified(archived, spark)
    for name, table in tables.items():
        counted = (table.differing, table.healed, table.broken, table.unverified)
        assert (name, *counted) == (name, 0, 0, {}, "")
    assert {name: table.left_out for name, table in tables.items() if table.left_out} == NO_STATE
    assert report.exit_code == ExitCode.NOT_COMPARED
    assert tables["public.item_changes"].rows == tables["public.item"].rows == 40
    assert tables["public.bag_changes"].beside == (
        "3 events compared with the log (all that it has)",
    )
    require_found_versions(archived, spark)
    require_found_events(archived, spark)


def require_found_versions(archived: RunningPipeline, spark: "SparkSession") -> None:
    """A version that is missing leaves no trace in a history, but in the archive."""
    path = lake_path(archived, "item_history")
    columns = ", ".join(without_called(spark, path))
    replace_rows(spark, path, NUMBERED + VERSIONS.format(columns))
    _, tables = verified(archived, spark, "public.item_history")
    assert [*tables] == ["public.item_history"], "the archive is read, and not compared"
    table = tables["public.item_history"]
    assert table.beside[0].startswith("versions compared with public.item_changes, since ")
    assert (table.differing_rows, table.broken) == (
        0,
        {archived_versions.DIFFERENT: 1, archived_versions.MISSING: 1},
    )
    assert {(key.key["id"], key.why) for key in table.broken_keys} == {
        ("22", archived_versions.DIFFERENT),
        ("21", archived_versions.MISSING),
    }


def require_found_events(archived: RunningPipeline, spark: "SparkSession") -> None:
    """Rows that the events leave are repaired; the events aren't."""
    path = lake_path(archived, "item_changes")
    columns = ", ".join(without_called(spark, path))
    elsewhere = columns.replace("_millrace_offset", "_millrace_offset + 1000000")
    replace_rows(spark, path, NUMBERED + EVENTS.format(columns, columns, elsewhere))
    report, tables = verified(archived, spark, "public.item_changes", repair=True)
    table = tables["public.item_changes"]
    assert table.broken == {
        logged.DIFFERENT: 1,
        logged.EXTRA: 1,
        logged.MISSING: 3,
        logged.TWICE: 1,
    }
    found = {(key.key["id"], key.difference, key.columns) for key in table.keys}
    assert found == {
        ("12", "different", ("price",)),
        ("13", "different", ("called", "price")),
        ("14", "different", ("called",)),
    }
    assert (table.repaired, report.exit_code) == (3, ExitCode.NOT_REPAIRED)
    assert "events aren't repaired" in table.unrepaired

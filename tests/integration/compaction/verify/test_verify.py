"""A right pipeline, and differences that tests plant in it, found and repaired."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from compaction.verify.options import VerifyOptions
from compaction.verify.report import VerifiedTable, VerifyReport
from compaction.verify.run import verify
from sinks.changes.derived import table_path
from sinks.job import run_lakehouse
from sinks.run.options import RunContext, RunOptions
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import replace_rows, run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]
KINDS = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE kinds (
    id bigint PRIMARY KEY, i2 smallint, i4 int, b boolean, f4 real, f8 double precision,
    n numeric, n2 numeric(12,3), n38 numeric(38,10), t text, v varchar(20), c char(5),
    d date, ts timestamp, ts3 timestamp(3), tz timestamptz, tm time, tmtz timetz, iv interval,
    by bytea, j json, jb jsonb, u uuid, m mood, mo money, ip inet, bits bit varying,
    ai int[], at text[], af float8[], ad timestamptz[], r int4range, p point
)
"""
ROWS = r"""
INSERT INTO kinds VALUES
(1, -1, 2147483647, true, 0.1, 1e20, 1.50, 1.5, 12345678901234567890.0123456789,
 E'tab\there\\ é\n', 'v', 'c', '2024-02-29', '2024-02-29 13:14:15.123456',
 '2024-02-29 13:14:15.5', '1999-12-31 23:59:59.999999+02', '24:00:00', '13:14:15.5+02',
 '1 year -2 days 03:04:05.6', '\x00ff5c', '{"a":  1}', '{"a":  1}',
 '11111111-2222-3333-4444-555555555555', 'sad', '-1234.5', '10.0.0.1/8', '101', '{1,NULL,3}',
 ARRAY['a', NULL, '', 'q"\,{}', 'NULL'], '{1.5,NaN,-Infinity}', '{"2024-01-01 00:00:00+00"}',
 '[1,5)', '(1.5,2)'),
(3, 0, 0, false, '-0', 'NaN', 0, 0, 0, '', '', '', '0001-01-01', '0001-01-01 00:00:00',
 '9999-12-31 23:59:59.999', '9999-12-31 23:59:59.999999+00', '00:00:00', '00:00:00+00', '0', '',
 'null', 'null', '00000000-0000-0000-0000-000000000000', 'ok', 0, '::1', '', '{}', '{}', '{}', '{}',
 'empty', '(0,0)')
"""

OTHERS = """
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 'x'), (1, 'x');
CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2));
INSERT INTO item SELECT g, 'item ' || g, g / 4.0 FROM generate_series(1, 5000) g
"""
ITEMS = 5000
PLANTED = """
SELECT id,
    CASE id WHEN 4000 THEN 'another' WHEN 5 THEN 'above' ELSE name END AS name,
    CASE id WHEN 4000 THEN 9.99BD ELSE price END AS price,
    CASE WHEN id IN (5, 6) THEN 'f' || substr(_millrace_position, 2)
        ELSE _millrace_position END AS _millrace_position
FROM {0} WHERE id <> 17
UNION ALL SELECT 9000, name, price, _millrace_position FROM {0} WHERE id = 1
"""
"""Two rows are newer than all that will ever come, of which one is right."""


def verified(
    made: RunningPipeline, spark: "SparkSession", *tables: str, repair: bool = False
) -> tuple[VerifyReport, dict[str, VerifiedTable]]:
    """What a verify finds, by table."""
    options = VerifyOptions(frozenset(tables), repair=repair)
    context = RunContext(made.settings, lambda _records=0: spark, print, RunOptions())
    report = verify(context, options)
    return report, {table.name: table for table in report.tables}


def merge(made: RunningPipeline, spark: "SparkSession") -> None:
    ended = run_once(run_lakehouse, made.settings, spark)
    assert not [table.error for table in ended.tables if table.error]


def test_what_is_right_is_said_to_be_and_what_was_changed_is_found_and_repaired(
    pipeline: Callable[..., RunningPipeline],
    database: Conninfo,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("compaction.verify.run.LOOKS_MAX", 1)  # two rows can't be repaired
    run(database, *KINDS.strip().split(";\n"), ROWS.strip(), "INSERT INTO kinds (id) VALUES (2)")
    run(database, *OTHERS.strip().split(";\n"))
    made = pipeline()
    made.wait_until_logged(made.wal_end(), made.start())
    merge(made, spark)
    run(
        database,
        "UPDATE kinds SET t = 'later', i4 = 7 WHERE id = 1",
        "DELETE FROM kinds WHERE id = 3",
    )
    run(database, "INSERT INTO bag VALUES (2, NULL)", "DELETE FROM bag WHERE ctid = '(0,1)'")
    path = table_path(str(made.folder / "lakehouse"), TableName("public", "item"))
    replace_rows(spark, path, PLANTED)
    report, tables = verified(made, spark, repair=True)
    for name in ("public.kinds", "public.bag"):
        table = tables[name]
        assert (table.unverified, table.left_out, table.keys) == ("", {}, ())
        assert (table.differing, table.healed, table.rows, table.derived_rows) == (0, 0, 2, 2)
    item = tables["public.item"]
    assert (item.rows, item.derived_rows) == (ITEMS, ITEMS)
    assert (item.missing, item.extra, item.different) == (1, 1, 3)
    assert {(key.key["id"], key.difference, key.columns) for key in item.keys} == {
        ("17", "missing", ()),
        ("4000", "different", ("name", "price")),
        ("9000", "extra", ()),
        ("5", "different", ("name", "_millrace_position")),
        ("6", "different", ("_millrace_position",)),
    }
    assert item.repaired == 3
    assert "they still differ" in item.unrepaired
    assert report.exit_code == ExitCode.NOT_REPAIRED
    merge(made, spark)
    rows = spark.sql(f"SELECT id, name FROM delta.`{path}` WHERE id IN (5, 17, 4000, 9000)")
    assert {row["id"]: row["name"] for row in rows.collect()} == {
        **{id_: f"item {id_}" for id_ in (17, 4000)},
        5: "above",
    }

"""Slices of tables and indexes: all rows are in one of them, and the values that differ."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from cdc.records.schema import TableName
from compaction.verify.options import VerifyOptions
from compaction.verify.report import SinkTable, VerifiedTable
from compaction.verify.run import verify
from compaction.verify.slices import Slice
from deploy.commands.verify import lines
from sinks.changes.derived import table_path
from sinks.run.options import RunContext, RunOptions
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import replace_rows, run_once
from tests.integration.compaction.verify.documents.test_indexes import Planted
from tests.integration.compaction.verify.test_verify import merge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
]
TABLES = r"""
CREATE TABLE item (id int PRIMARY KEY, name text, secret text, at timestamptz);
INSERT INTO item SELECT g, 'item ' || g, 's' || g, now() FROM generate_series(1, 60) g;
CREATE TABLE keyed (
    "a.b" text, c char(5), d date, ts timestamp(3), tz timestamptz, b bytea, n numeric(8,2),
    m numeric, o boolean, u uuid, i bigint,
    PRIMARY KEY ("a.b", c, d, ts, tz, b, n, m, o, u, i)
);
INSERT INTO keyed SELECT 'é"' || g, 'c', '2024-02-28'::date + g, '2024-02-29 13:14:15.5',
    '1999-12-31 23:59:59.999999+02', '\x00ff', g / 4.0, g / 3.0, g % 2 = 0, gen_random_uuid(), g
FROM generate_series(1, 40) g;
CREATE TABLE rated (k float8 PRIMARY KEY);
INSERT INTO rated VALUES (1.5)
"""
LAKEHOUSE = {
    "salt": "s",
    "tables": [{"source": "public.item", "kind": "current", "mask": {"secret": "hash"}}],
}
PLANTED = """
SELECT id, IF(id = 5, 'another\n', name) AS name, IF(id = 5, 'x', secret) AS secret, at,
    _millrace_position
FROM {0} WHERE id <> 17 UNION ALL SELECT 9000, name, secret, at, _millrace_position
FROM {0} WHERE id = 1
"""


def test_each_row_is_compared_in_one_slice_and_values_are_shown_but_no_masked_ones(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    run(database, *TABLES.strip().split(";\n"))
    made = pipeline(search=True, sections={"lakehouse": LAKEHOUSE})
    made.wait_until_logged(made.wal_end(), made.start())
    merge(made, spark)
    run_once(run_search, made.settings, spark)
    run(database, "UPDATE item SET name = 'later' WHERE id > 55", "DELETE FROM item WHERE id = 50")
    path = table_path(str(made.folder / "lakehouse"), TableName("public", "item"))
    replace_rows(spark, path, PLANTED)
    planted = Planted(made)
    planted.put("public.item", 7, planted.of_item(7) | {"name": "planted"})
    planted.show()
    context = RunContext(made.settings, lambda _records=0: spark, lambda _: None, RunOptions())
    found, rows = list[tuple[int, VerifiedTable]](), dict[SinkTable, int]()
    shown = list[str]()
    for number in (1, 2):
        report = verify(context, VerifyOptions(slice_=Slice(number, 2), values=True))
        shown += lines(report)
        assert f", slice {number}/2, " in next(iter(lines(report)))
        for table in report.tables:
            place = SinkTable(table.sink, table.name)
            rows[place] = rows.get(place, 0) + table.rows
            if table.name == "public.rated":
                assert "k has another text here" in table.unverified
            else:
                assert (table.name, table.unverified) == (table.name, "")
                found.append((number, table))
    for sink in ("lakehouse", "search"):
        assert rows[SinkTable(sink, "public.item")] == 59
        assert rows[SinkTable(sink, "public.keyed")] == 40
    differing = {
        (table.sink, key.key["id"], key.difference, key.columns, number)
        for number, table in found
        for key in table.keys
    }
    slice_of = {id_: 1 if Slice(1, 2).holds([id_]) else 2 for id_ in ("5", "7", "17", "9000")}
    assert differing == {
        ("lakehouse", "5", "different", ("name", "secret"), slice_of["5"]),
        ("lakehouse", "17", "missing", (), slice_of["17"]),
        ("lakehouse", "9000", "extra", (), slice_of["9000"]),
        ("search", "7", "different", ("name",), slice_of["7"]),
    }
    assert [line for line in shown if "different in" in line] == [
        '  id=5: different in name ("item 5" at the source, "another\\n" here), secret',
        '  id=7: different in name ("item 7" at the source, "planted" here)',
    ]

"""A real Debezium's output, record by record, with some runs in between → its source's rows.

The records are those of tests/golden, whose SQL defines the source's final rows.
"""

import pytest

from cdc.errors import ExitCode
from tests.fixtures.debezium_lake import DebeziumLake
from tests.fixtures.debezium_topics import recorded

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LARGE = {
    "id": "int", "n": "int", "t": "text", "vc": "varchar", "jb": "jsonb", "j": "json",
    "ba": "bytea", "ta": "text[]", "ia": "int[]", "hs": "hstore", "nn": "text",
}  # fmt: skip
KEPT = (
    "id", "n", "left(t, 9)", "length(t)", "length(vc)", "length(jb)", "length(ba)", "size(ia)",
    "length(nn)",
)  # fmt: skip


@pytest.mark.proof
def test_large_values_that_updates_left_unchanged_stay(lake: DebeziumLake) -> None:
    table = "public.to_default"
    lake.configure(types={table: LARGE})
    lake.topic(table)
    records = recorded("toast_default", "to_default")

    def merged(first: int, last: int) -> ExitCode:
        lake.write(records[first:last], table)
        return lake.merge().exit_code

    def rows() -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in lake.table(table).selectExpr(*KEPT).collect())

    short = (2, 2, "short", 5, 5, 2, 1, 1, 2)
    assert merged(0, 2) == ExitCode.OK
    assert rows() == [(1, 1, "ttttttttt", 3000, 3000, 3009, 3000, 800, 3000), short]
    assert merged(2, 4) == ExitCode.OK
    assert rows() == [(1, 100, "now short", 9, 3000, 3009, 3000, 800, 3000), short]
    assert merged(4, 7) == ExitCode.OK
    assert rows() == [
        (1, 101, "now short", 9, 3000, 8, None, 800, 3000),
        (2, 200, "TTTTTTTTT", 2500, 5, 2, 1, 1, 2),
    ]
    # The row's key changes: under the new one nothing has what this record lacks.
    assert merged(7, 10) == ExitCode.SINK
    assert len(rows()) == 2
    assert merged(10, 14) == ExitCode.OK
    assert rows() == []
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO


@pytest.mark.proof
def test_each_truncate_takes_away_what_there_was(lake: DebeziumLake) -> None:
    table = "public.tr_a"
    lake.configure(types={table: {"id": "int", "v": "text"}}, kinds=["current", "history"])
    lake.topic(table)
    seen = []
    records = recorded("truncate_none_skipped", "tr_a")
    for some in (records[:2], records[2:3], records[3:]):  # rows, a TRUNCATE, one between two
        lake.write(some, table)
        assert lake.merge().exit_code == ExitCode.OK
        seen.append([row[0] for row in lake.rows(table)])
    assert seen == [[1, 2], [], [4]]
    history = lake.table(f"{table}_history").where("valid_to is not null")
    assert sorted(row["id"] for row in history.collect()) == [1, 2, 3]

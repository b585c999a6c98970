"""``millrace rebuild lakehouse`` of tables whose topics a real Debezium wrote."""

from pathlib import Path

import pytest

from cdc.errors import ExitCode
from sinks.changes.names import END, VALID_FROM
from sinks.run.options import RunOptions
from tests.fixtures.debezium_lake import DebeziumLake, event, tombstone
from tests.integration.sinks.debezium.test_limits import TYPES, forget, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.proof]
HISTORY = ("public.t_history", "id", "v", VALID_FROM, END)


def test_a_table_is_rebuilt_from_a_topic_that_is_whole_and_else_stays(lake: DebeziumLake) -> None:
    lake.configure(types=TYPES, kinds=["current", "history"])
    lake.topic()
    lake.write([event("c", row(number), lsn=number) for number in (1, 2, 3)])
    assert lake.merge().exit_code == ExitCode.OK
    lake.write([event("u", row(1, "b"), lsn=4), event("d", None, row(2), lsn=5), tombstone(id=2)])
    assert lake.merge().exit_code == ExitCode.OK
    current, history = lake.rows(), lake.rows(*HISTORY)
    assert current == [(1, "b", 1), (3, "a", 3)]
    for folder in ("t", "t_history"):
        for file in Path(lake.folder, "public", folder).glob("*.parquet"):
            file.unlink()
    every = RunOptions(rebuilds_all=True)
    assert lake.merge(every).exit_code == ExitCode.OK
    assert (lake.rows(), lake.rows(*HISTORY)) == (current, history)
    assert lake.merge().exit_code == ExitCode.NOTHING_TO_DO

    forget(lake, 2)
    summary = lake.merge(RunOptions(rebuilt=frozenset({"public.t"})))
    assert summary.exit_code == ExitCode.LOG_FORGOTTEN
    assert "have Debezium write the table to a new topic" in str(summary.tables[0].error)
    lake.write([event("c", row(6), lsn=6)])
    assert lake.merge(every).exit_code == ExitCode.OK, "they go on as they are"
    assert lake.rows() == [*current, (6, "a", 6)]

"""A topic that has lost records, and later reads → whether the log has all rows."""

from typing import Any

import pytest

from cdc.log.offsets import LogState
from cdc.records.bounds import Bound
from cdc.records.position import Lsn
from cdc.records.state import TableState
from sinks.changes.ends import RowsEnd
from sinks.run.plan import TablePlan
from sinks.run.retained import is_read_again, lacks_rows, read_again
from sinks.run.topics import PartitionCensus
from tests.fixtures.made_plans import NAME, TOPIC, table_plan
from tests.fixtures.made_states import streaming, table_state
from tests.fixtures.spark import at, column, table_schema

READ = RowsEnd(position=at(10), ts_us=0)
PART = RowsEnd(position=at(10), ts_us=0, bounds=(Bound(columns=("id",), values=(1,)),))
BOTH = {0: PartitionCensus(None, 9, (READ,)), 1: PartitionCensus(None, 9, (READ, PART))}
ONE = {**BOTH, 1: PartitionCensus(None, 9)}


def captured(read_at: int = 10, **more: Any) -> TableState:
    return table_state(
        NAME, topic=TOPIC, **{"cleanup": "delete", "snapshot_lsn": Lsn(read_at), **more}
    )


def rebuilt(**more: Any) -> TablePlan:
    stands = table_plan(base=3, after=at(9), debezium=None)
    return stands.rebuilt({0: 5, 1: 5}).model_copy(update={"ends": (READ,), **more})


@pytest.mark.parametrize(
    ("after", "state", "is_read"),
    [
        (at(9), captured(10), True),
        (at(9), captured(9), False),
        (at(9), captured(10, cleanup="compact"), False),
        (None, captured(10), False),
        (None, captured(10, was_whole=True), True),
    ],
)
def test_a_read_counts_that_came_since(after: Any, state: TableState, is_read: bool) -> None:
    assert is_read_again(table_plan(after=after), state) == is_read


@pytest.mark.parametrize(
    ("table", "partitions", "starts", "lacks"),
    [
        (rebuilt(), BOTH, {0: 5, 1: 5}, False),
        (rebuilt(), ONE, {0: 5, 1: 5}, True),
        (rebuilt(), ONE, {0: 5, 1: 0}, False),
        (rebuilt(), {}, {0: 5, 1: 5}, True),
        (rebuilt(ends=(PART,)), {0: PartitionCensus(None, 9, (PART,))}, {0: 5}, True),
        (rebuilt(ends=()), BOTH, {0: 5}, True),
        (rebuilt(replay="a"), ONE, {0: 5, 1: 5}, False),
        (rebuilt(kind="changes"), ONE, {0: 5, 1: 5}, False),
        (table_plan(ends=(READ,)), ONE, {0: 5, 1: 5}, True),
        (table_plan(ends=(READ,), lacks="before"), ONE, {0: 5, 1: 5}, False),
        (table_plan(base=3, after=at(9)), ONE, {0: 5, 1: 5}, False),
        (table_plan(base=3, after=at(9), lacks="now", kind="history"), {}, {0: 5}, True),
    ],
)
def test_each_partition_that_has_lost_records_needs_the_last_end_of_all_rows(
    table: TablePlan, partitions: dict[int, PartitionCensus], starts: dict[int, int], lacks: bool
) -> None:
    assert lacks_rows(table, partitions, captured(), starts) == lacks
    assert not lacks_rows(table, partitions, captured(cleanup="compact"), starts)


def test_what_the_user_types_depends_on_the_key() -> None:
    def said(*key: int) -> str:
        schema = table_schema("p", "Odd name", column("id", "int4", *key))
        source = "public.Odd name"
        return read_again(source, LogState(streaming(at(9)), {}, {source: (schema,)}, {}, {}))

    assert "`millrace snapshot --reset 'public.Odd name'`" in said(1)
    assert said().startswith("the table has no key, so stop the daemon")
    assert "`millrace snapshot 'public.Odd name'`" in said()

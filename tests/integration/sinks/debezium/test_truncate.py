"""TRUNCATE in a topic -> the rows left, or why they are unknown."""

from typing import TYPE_CHECKING

import pytest

from cdc.errors import SinkError
from sinks.changes.names import OP, OWN
from sinks.changes.newest import latest
from sinks.changes.shape import plain_shape
from sinks.debezium.changes import DebeziumChanges
from sinks.debezium.described import ConnectorOptions, RecordSource, declared_column
from sinks.debezium.inspection import plan_tables, truncates
from sinks.run.plan import TablePlan
from tests.fixtures.debezium_topics import (
    DEBEZIUM,
    MadeRegistry,
    Raw,
    as_avro,
    described,
    frame,
    made_record,
    recorded,
)
from tests.fixtures.made_plans import NAME, table_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def event(op: str, key: int | None, lsn: int, offset: int, *, table: str = "t") -> Raw:
    after = "null" if op == "t" else f'{{"id":{key},"v":"{op}{lsn}"}}'
    value = (
        f'{{"before":null,"after":{after},"op":"{op}",'
        f'"source":{{"schema":"public","table":"{table}","lsn":{lsn}}}}}'
    )
    said = None if op == "t" else f'{{"id":{key}}}'.encode()
    return Raw(said, value.encode(), 0, offset)


class Read:
    """What a run reads: the records of a frame."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, raw: "DataFrame") -> None:
        self.raw = raw
        for module in ("changes", "inspection"):
            monkeypatch.setattr(f"sinks.debezium.{module}.read_records", lambda *_: raw)

    def left(
        self, table: TablePlan, types: dict[str, str], registry: MadeRegistry | None = None
    ) -> tuple[TablePlan, list[int]]:
        """The table's plan, and the rows that its changes leave."""
        source = RecordSource(
            {}, ConnectorOptions(DEBEZIUM), registry.text_of if registry is not None else None
        )
        columns = {name: declared_column(name, text) for name, text in types.items()}
        name, spark = str(NAME), self.raw.sparkSession
        planned = plan_tables(spark, source, {table.topic: columns}, (), {name: table})
        assert planned.refused == {}
        plan = planned.tables[name]
        changes = DebeziumChanges(spark, source, plan, planned.groups[name])
        shape = plain_shape(changes.versions, OWN)
        rows = latest(changes.parsed(shape), shape).where(f"{OP} = 'upsert'").collect()
        return plan, sorted(row["id"] for row in rows)


RECORDED: dict[str, tuple[dict[str, str], list[int]]] = {
    "tr_a": ({"id": "int", "v": "text"}, [4]),
    "tr_b": ({"id": "int", "a_id": "int"}, []),
}


@pytest.mark.proof
@pytest.mark.parametrize("table", RECORDED)
def test_recorded_truncates(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    types, rows = RECORDED[table]
    records = recorded("truncate_none_skipped", table)
    read = Read(monkeypatch, frame(spark, records))
    topic = records[0].topic
    plan = table_plan(topic=topic, source=f"public.{table}")
    assert read.left(plan, types)[1] == rows


def test_the_offset_tells_what_was_there_before(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = frame(
        spark,
        [
            event("c", 1, 10, 0),
            event("t", None, 20, 1),
            event("r", 2, 99, 2),  # a snapshot's LSN says nothing here
            event("t", None, 50, 3),
            event("c", 3, 0, 4),
        ],
    )
    read, types = Read(monkeypatch, raw), {"id": "int", "v": "text"}
    plan, rows = read.left(table_plan(), types)
    assert (rows, plan.events) == ([3], 5)
    assert str(plan.truncated) == "00000001.0000000000000003.0000000000000032"
    assert len(plan.ends) == 1, "the last one"
    assert len(read.left(table_plan(kind="history"), types)[0].ends) == 2, "all"


def test_a_table_that_shares_its_topic_must_not_be_emptied(spark: "SparkSession") -> None:
    raw = frame(spark, [event("c", 1, 10, 0), event("t", None, 20, 1, table="another")])
    topic = described(raw, types={"id": "int", "v": "text"})
    with pytest.raises(SinkError, match="share the topic"):
        truncates(raw, topic)


@pytest.mark.proof
@pytest.mark.usefixtures("has_avro")
def test_truncates_in_avro(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"id": ({"type": "int32"}, 1), "v": ({"type": "string"}, "x")}
    registry = MadeRegistry()
    emptied = made_record(fields, op="t")._replace(key=None)
    assert emptied.value is not None
    emptied = emptied._replace(
        value=emptied.value.replace(b'"after":{"id":1,"v":"x"}', b'"after":null')
    )
    raw = frame(
        spark,
        [
            as_avro(made_record(fields), registry),
            as_avro(emptied, registry),
            as_avro(made_record(fields | {"id": ({"type": "int32"}, 2)}), registry),
        ],
    )
    plan, rows = Read(monkeypatch, raw).left(table_plan(), {}, registry)
    assert (rows, len(plan.ends)) == ([2], 1)

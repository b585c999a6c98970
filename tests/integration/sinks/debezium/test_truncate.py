"""TRUNCATE in topics of one partition and of several -> which rows are left."""

from typing import TYPE_CHECKING, Any

import pytest

from cdc.errors import SinkError
from sinks.changes.latest import latest
from sinks.changes.names import OP, OWN
from sinks.changes.shape import plain_shape
from sinks.debezium.parse import parse
from sinks.debezium.truncate import is_older, last_of, newer, position_of, truncations
from sinks.run.plan import Truncation
from tests.fixtures.debezium_topics import (
    MadeRegistry,
    Raw,
    as_avro,
    described,
    frame,
    made_record,
    recorded,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TOLD = {"id": "int", "a_id": "int", "v": "text"}


def event(
    op: str, key: int | None, lsn: int, partition: int, offset: int, *, table: str = "t"
) -> Raw:
    after = "null" if op == "t" else f'{{"id":{key},"v":"{op}{lsn}"}}'
    value = (
        f'{{"before":null,"after":{after},"op":"{op}",'
        f'"source":{{"schema":"public","table":"{table}","lsn":{lsn}}}}}'
    )
    said = None if op == "t" else f'{{"id":{key}}}'.encode()
    return Raw(said, value.encode(), partition, offset)


def left(raw: "DataFrame", partitions: int, before: Truncation | None = None) -> Any:
    topic = described(raw, types={"id": "int", "v": "text"})
    found = truncations(raw, topic, partitions)
    last = found.last or before
    changes = parse(raw, topic)
    changes = changes if last is None else newer(last, changes)
    rows = latest(changes, plain_shape([topic.schema], OWN)).where(f"{OP} = 'upsert'").collect()
    return sorted(row["id"] for row in rows), found


RECORDED: dict[str, tuple[dict[str, str], list[int]]] = {
    "tr_a": ({"id": "int", "v": "text"}, [4]),
    "tr_b": ({"id": "int", "a_id": "int"}, []),
}


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("table", RECORDED)
def test_recorded_truncates(spark: "SparkSession", table: str, partitions: int) -> None:
    types, rows = RECORDED[table]
    raw = frame(spark, recorded("truncate_none_skipped", table))
    topic = described(raw, types=types)
    last = truncations(raw, topic, partitions).last
    assert last is not None
    kept = latest(newer(last, parse(raw, topic)), plain_shape([topic.schema], OWN)).where(
        f"{OP} = 'upsert'"
    )
    assert [row["id"] for row in kept.collect()] == rows


def test_in_one_partition_the_offset_tells(spark: "SparkSession") -> None:
    raw = frame(
        spark,
        [
            event("c", 1, 10, 0, 0),
            event("r", 2, 99, 0, 1),  # a snapshot's LSN says nothing here
            event("t", None, 50, 0, 2),
            event("c", 3, 0, 0, 3),
        ],
    )
    rows, found = left(raw, 1)
    assert (rows, found.count) == ([3], 1)
    assert str(position_of(found.last)) == "00000001.0000000000000002.ffffffffffffffff"


def test_in_several_partitions_the_lsn_tells(spark: "SparkSession") -> None:
    raw = frame(
        spark,
        [
            event("c", 1, 10, 0, 700),
            event("c", 2, 20, 1, 3),
            event("t", None, 50, 2, 0),
            event("c", 3, 60, 0, 701),
            event("c", 4, 70, 1, 4),
            event("t", None, 30, 1, 5),  # an older one, that came late
        ],
    )
    rows, found = left(raw, 3)
    assert (rows, found.count) == ([3, 4], 2)
    assert found.last == Truncation(0, 50, 3)
    assert position_of(found.last) is None


def test_a_record_that_comes_later_than_the_truncate_it_precedes(spark: "SparkSession") -> None:
    raw = frame(spark, [event("u", 1, 40, 0, 5), event("c", 2, 60, 0, 6)])
    assert left(raw, 3, before=Truncation(0, 50, 3))[0] == [2]


def test_rows_that_a_table_holds_are_told_apart(spark: "SparkSession") -> None:
    stored = spark.createDataFrame(
        [
            ("00000001.0000000000000007.0000000000000031",),
            ("00000001.0000000000000001.0000000000000033",),
        ],
        "position string",
    )
    last = Truncation(offset=0, lsn=0x32, partitions=2)
    older = stored.where(is_older(last, stored["position"])).collect()
    assert [row["position"][-2:] for row in older] == ["31"]
    last = Truncation(offset=4, lsn=0, partitions=1)
    older = stored.where(is_older(last, stored["position"])).collect()
    assert [row["position"][-2:] for row in older] == ["33"]


def test_a_table_that_shares_its_topic_must_not_be_emptied(spark: "SparkSession") -> None:
    raw = frame(spark, [event("c", 1, 10, 0, 0), event("t", None, 20, 0, 1, table="another")])
    topic = described(raw, types={"id": "int", "v": "text"})
    with pytest.raises(SinkError, match="share the topic"):
        truncations(raw, topic, 1)


@pytest.mark.usefixtures("has_avro")
def test_truncates_in_avro(spark: "SparkSession") -> None:
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
    topic = described(raw, schema_of=registry.text_of)
    found = truncations(raw, topic, 1)
    assert (found.count, found.last) == (1, Truncation(1, 9, 1))
    changes = newer(found.last, parse(raw, topic)) if found.last else None
    assert changes is not None
    assert [row["id"] for row in changes.collect()] == [2]


def test_the_last_truncate_stays_the_last_though_an_older_one_is_read_later() -> None:
    before = Truncation(10, 2000, 2)
    assert last_of(before, Truncation(900, 1000, 2)) == before
    assert last_of(before, Truncation(11, 3000, 2)) == Truncation(11, 3000, 2)
    alone = Truncation(900, 1000, 1)
    assert last_of(Truncation(10, 2000, 1), alone) == alone, "by its offset"
    assert last_of(None, before) == last_of(before, None) == before

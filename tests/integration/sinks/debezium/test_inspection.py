"""A topic's new records -> the table's plan, or why there is none."""

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from sinks.debezium.described import ConnectorOptions, RecordSource, declared_column
from sinks.debezium.inspection import PlannedTopics, plan_tables
from sinks.debezium.log import topic_of
from sinks.run.plan import TablePlan
from tests.fixtures.debezium_topics import DEBEZIUM, Raw, frame, made_record
from tests.fixtures.few import few
from tests.fixtures.made_plans import NAME, TOPIC, table_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SOURCE = RecordSource({}, ConnectorOptions(DEBEZIUM), None)
ID, TEXT = {"type": "int32"}, {"type": "string"}
RECORD = made_record({"id": (ID, 1), "v": (TEXT, "x")})
WIDER = made_record({"id": ({"type": "int64"}, 1), "v": (TEXT, "x")})
PLAIN = Raw(b'{"id":1}', RECORD.value)
QUOTED = Raw(b'{"id":"1"}', RECORD.value)


def planned(
    monkeypatch: pytest.MonkeyPatch,
    raw: "DataFrame",
    table: TablePlan,
    *,
    types: dict[str, str] | None = None,
    compacted: bool = False,
) -> PlannedTopics:
    """What becomes of a table whose new records are those of a frame."""
    columns = {name: declared_column(name, text) for name, text in (types or {}).items()}
    monkeypatch.setattr("sinks.debezium.inspection.read_records", lambda *_: raw)
    compacted_topics = {TOPIC} if compacted else set[str]()
    return plan_tables(
        raw.sparkSession, SOURCE, {TOPIC: columns}, compacted_topics, {str(NAME): table}
    )


def refused(found: PlannedTopics) -> str:
    return str(found.refused.get(str(NAME), ""))


TWO = {0: 0, 1: 0}
KEYS = {
    "another type": ([RECORD, WIDER], {}),
    "JSON without schemas": ([RECORD, PLAIN], {"id": "int"}),
    "text in the place of a number": ([PLAIN, QUOTED], {"id": "int"}),
}


@pytest.mark.parametrize("what", few(KEYS, "JSON without schemas"))
def test_keys_of_other_bytes_have_no_order_among_partitions(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    records, types = KEYS[what]
    raw = frame(spark, records)
    several = table_plan(start=TWO, end={0: 9, 1: 9}, next=TWO)
    assert "several partitions" in refused(planned(monkeypatch, raw, several, types=types))
    one = planned(monkeypatch, raw, table_plan(), types=types)
    assert refused(one) == "", "in one partition the offset tells"
    forms = topic_of(one.tables[str(NAME)]).key_forms
    assert forms == tuple(dict.fromkeys(forms))
    assert len(forms) == 2
    assert "compaction keeps both" in refused(
        planned(monkeypatch, raw, table_plan(), types=types, compacted=True)
    )


@pytest.mark.proof
def test_a_key_is_held_against_those_of_earlier_runs(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(monkeypatch, frame(spark, [RECORD]), table_plan()).tables[str(NAME)]
    applied = first.model_copy(update={"base": 1, "start": TWO, "end": {0: 9, 1: 9}})
    assert refused(planned(monkeypatch, frame(spark, [RECORD]), applied)) == ""
    raw = frame(spark, [WIDER])
    refusal = planned(monkeypatch, raw, applied)
    assert "written in another form" in refused(refusal)
    assert refusal.tables[str(NAME)].end == TWO, "it stays where it is"
    removed = applied.model_copy(update={"base": 0})
    assert refused(planned(monkeypatch, raw, removed)) == "", "a table that begins anew"


@pytest.mark.proof
def test_a_table_that_begins_anew_may_have_another_key(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(monkeypatch, frame(spark, [RECORD]), table_plan()).tables[str(NAME)]
    other = Raw(b'{"v":"x"}', RECORD.value)
    raw = frame(spark, [other])
    applied = first.model_copy(update={"base": 1})
    assert "key has changed: id → v" in refused(planned(monkeypatch, raw, applied))
    found = planned(monkeypatch, raw, first).tables[str(NAME)]
    schemas = topic_of(found).schemas
    assert [[one.name for one in schema.key] for schema in schemas] == [["v"]]
    assert found.first_version == found.schema_version == schemas[-1].version


def test_records_of_one_table_that_cannot_be_read_hold_up_no_other(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "p.public.u"
    good = frame(spark, [RECORD])
    broken = good.withColumn("value", F.raise_error(F.lit("not to be read")).cast("binary"))
    monkeypatch.setattr(
        "sinks.debezium.inspection.read_records",
        lambda _spark, _kafka, start, _end: broken if other in start else good,
    )
    tables = {str(NAME): table_plan(), "public.u": table_plan(topic=other, source="public.u")}
    found = plan_tables(spark, SOURCE, {}, (), tables)
    assert [*found.tables] == [str(NAME)]
    assert [*found.refused] == ["public.u"]
    assert "its records can't be read" in str(found.refused["public.u"])


def at(lsn: int, minute: int, key: int | None = 1, op: str = "c", *, keyed: bool = True) -> Raw:
    """A row, or a TRUNCATE where there is no key, with its LSN and time."""
    said = None if key is None or not keyed else f'{{"id":{key}}}'.encode()
    after, op = ("null", "t") if key is None else (f'{{"id":{key}}}', op)
    source = f'"schema":"public","table":"t","lsn":{lsn},"ts_ms":{minute * 60_000}'
    return Raw(
        said, f'{{"before":null,"after":{after},"op":"{op}","source":{{{source}}}}}'.encode()
    )


@pytest.mark.proof
def test_a_truncate_among_several_partitions_is_refused_but_in_an_archive(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    types = {"id": "int"}
    raw = frame(spark, [at(600, 1), at(700, 2, None), at(800, 3)])
    several = table_plan(start=TWO, end={0: 9, 1: 9}, next=TWO)
    first = planned(monkeypatch, frame(spark, [at(600, 1)]), several, types=types)
    applied = first.tables[str(NAME)].model_copy(update={"base": 1})
    for kind in ("current", "history"):
        begun = applied.model_copy(update={"kind": kind})
        refusal = planned(monkeypatch, raw, begun, types=types)
        assert "2 partitions and records of TRUNCATE" in refused(refusal)
        assert refusal.tables[str(NAME)].end == TWO, "it stays where it is"
    archive = applied.model_copy(update={"kind": "changes"})
    assert refused(planned(monkeypatch, raw, archive, types=types)) == "", "it has every event"


WITHOUT, WITH, EMPTIED = at(1, 1, keyed=False), at(2, 2), at(3, 3, None)
KEYLESS = {
    # The records, and the kinds of tables that are refused.
    "no record has a key": ([WITHOUT, EMPTIED], {"current", "history"}),
    "the key comes later": ([WITHOUT, WITH], {"current", "history", "changes"}),
    "the key goes": ([WITH, WITHOUT], {"current", "history", "changes"}),
    "a TRUNCATE never has one": ([WITH, EMPTIED], set[str]()),
    "TRUNCATEs alone say nothing": ([EMPTIED], set[str]()),
}


@pytest.mark.parametrize("what", few(KEYLESS, "no record has a key"))
def test_records_without_a_key_are_refused(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    records, kinds = KEYLESS[what]
    types = {"id": "int"}
    refusals = {
        kind: refused(
            planned(monkeypatch, frame(spark, records), table_plan(kind=kind), types=types)
        )
        for kind in ("current", "history", "changes")
    }
    assert {kind for kind, why in refusals.items() if why} == kinds
    for kind in kinds:
        assert "have no key" in refusals[kind]
        assert "give the table a primary key, or set message.key.columns" in refusals[kind]

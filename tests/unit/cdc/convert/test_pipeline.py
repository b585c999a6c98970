"""The encoder: frames' rows through rules, transforms and converter to records."""

import json
from dataclasses import replace

import pytest

from cdc.convert.converters import converters
from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.convert.pipeline import Encoder, RecordPipeline
from cdc.events.changes import Read
from cdc.events.rules import EventRules
from cdc.records.connect import SourceRecord
from cdc.records.position import HEADER, Lsn, Position, header
from cdc.settings import ConnectPlugin
from cdc.transforms.chain import chain
from tests.fixtures.made_changes import (
    CLOCK_NS,
    LOG,
    LSN,
    NATIVE,
    POSITION,
    TRANSACTION,
    row,
    table,
)
from tests.fixtures.preset import DEBEZIUM

ID_V = table("id int4!, v text")
DEBEZIUM_S = RecordPipeline(converters({}, preset=True), position_header=False)


def encoder(rules: EventRules = NATIVE, pipeline: RecordPipeline = PLAIN) -> Encoder:
    made = Encoder(ID_V, rules, LOG, pipeline, clock_ns=lambda: CLOCK_NS)
    made.begin(TRANSACTION)
    return made


def test_every_record_of_a_change_has_its_position_and_schema_version() -> None:
    made = encoder().update(row("1", None), True, row("2", "b"), LSN, POSITION)
    assert len(made) == 3
    assert {record.headers[-1] for record in made} == {(HEADER, header(POSITION, 7))}


def test_only_the_record_with_the_row_names_values_that_were_read_again() -> None:
    unwrap = chain([ConnectPlugin("unwrap", "io.debezium.transforms.ExtractNewRecordState", {})])
    for pipeline in (PLAIN, replace(PLAIN, transform=unwrap)):
        made = encoder(pipeline=pipeline).update(
            row("1", None), True, row("2", "b"), LSN, POSITION, (1,)
        )
        assert made[-1].headers[-1] == (HEADER, header(POSITION, 7, (1,)))
        assert {record.headers[-1] for record in made[:-1]} == {(HEADER, header(POSITION, 7))}


def test_debezium_s_records_have_debezium_s_headers_only() -> None:
    (made,) = encoder(DEBEZIUM, DEBEZIUM_S).insert(row("1", "a"), LSN, POSITION)
    assert made.key is not None
    assert json.loads(made.key)["payload"] == {"id": 1}
    assert [name for name, _ in made.headers] == [
        "__debezium.context.connectorLogicalName",
        "__debezium.context.taskId",
        "__debezium.context.connectorName",
    ]


def test_what_a_transform_sends_elsewhere_goes_to_a_topic_that_is_made_for_it() -> None:
    opened: list[tuple[str, str]] = []

    def twice_without_tombstones(record: SourceRecord) -> list[SourceRecord]:
        return [] if record.value is None else 2 * [record._replace(topic="elsewhere")]

    pipeline = replace(
        PLAIN,
        transform=twice_without_tombstones,
        open_topic=lambda name, cleanup: opened.append((name, cleanup)),
    )
    made = encoder(pipeline=pipeline).delete(row("1", None), True, LSN, POSITION)
    assert [record.topic for record in made] == ["elsewhere", "elsewhere"]
    assert set(opened) == {("elsewhere", "compact")}
    outbox = replace(pipeline, routes_events=True)
    opened.clear()
    encoder(pipeline=outbox).delete(row("1", None), True, LSN, POSITION)
    assert set(opened) == {("elsewhere", "delete")}


def test_a_snapshot_can_say_where_in_it_a_row_stands() -> None:
    said = Read("first", xid=77)
    (made,) = encoder().snapshot_row(row("1", "a"), Position(1, Lsn(9), 0), Lsn(9), 5, said)
    assert made.value is not None
    source = json.loads(made.value)["source"]
    assert (source["snapshot"], source["txId"]) == ("first", 77)


def test_a_row_before_its_transaction_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Encoder(ID_V, NATIVE, LOG, PLAIN).insert(row("1", "a"), LSN, POSITION)

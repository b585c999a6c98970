"""Changes made by hand, by Debezium's rules → the records that Debezium made of such changes.

The recording is of Debezium Server 3.6. Values that differ in each run are ``*`` in it.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.convert.converters import converters
from cdc.convert.pipeline import RecordPipeline
from cdc.events.changes import Change, Read
from cdc.events.metadata import MessageEvents, TransactionMetadata, heartbeat
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules, rekeyed
from cdc.records.connect import SourceRecord
from cdc.records.position import Lsn
from cdc.records.record import Record
from cdc.records.schema import TableSchema
from cdc.records.topics import heartbeat_topic, transaction_topic
from cdc.settings.modes import ColumnRule, KeyRule
from cdc.wal.messages import LogicalMessage
from tests.fixtures.made_changes import (
    POSITION,
    TRANSACTION,
    delete,
    events,
    having,
    insert,
    patterns,
    read,
    table,
    truncate,
    update,
    with_columns,
)
from tests.fixtures.preset import DEBEZIUM

RECORDED: Final = Path(__file__).parents[3] / "fixtures" / "recorded_events.jsonl"
TIMES: Final = {"ts_ms", "ts_us", "ts_ns"}
CHANGING: Final = TIMES | {"lsn", "txId", "sequence", "version", "db"}
NONE_SKIPPED: Final = having(DEBEZIUM, skipped=frozenset())


def recorded(case: str, topic: str) -> list[dict[str, Any]]:
    lines = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return [
        {name: line[name] for name in ("key", "value", "headers")}
        for line in lines
        if line["case"] == case
        if line["topic"].endswith(f".{topic}") or line["topic"].startswith(topic)
    ]


def converted(made: Iterable[SourceRecord], *, schemas: bool = False) -> list[dict[str, Any]]:
    """Records as the recording has them."""
    enable = {"schemas.enable": str(schemas).lower()}
    pipeline = RecordPipeline(converters(enable, preset=True), position_header=False)
    return [said(record) for record in pipeline.of_stream(made, POSITION)]


def said(record: Record) -> dict[str, Any]:
    key: Any = None if record.key is None else json.loads(record.key)
    value = None if record.value is None else json.loads(record.value)
    hide(value)
    if key is not None and record.topic.endswith(".transaction"):
        key["payload"]["id"] = "*"
    headers = [
        [name, json.loads(text)]
        for name, text in record.headers
        if not name.startswith("__debezium.context.")
    ]
    return {"key": key, "value": value, "headers": headers}


def hide(value: Any) -> None:
    """Put ``*`` where values differ from run to run."""
    if value is None:
        return
    payload = value["payload"] if set(value) == {"schema", "payload"} else value
    for block, names in ((payload, TIMES), (payload.get("source", {}), CHANGING)):
        block.update({name: "*" for name in names & set(block) if block[name] is not None})
    if payload.get("transaction"):
        payload["transaction"]["id"] = "*"
    if "status" in payload:
        payload["id"] = "*"


def of(schema: TableSchema, case: str) -> TableSchema:
    """The table under its recorded topic."""
    return schema.model_copy(update={"topic": f"g_{case}.public.{schema.table}"})


def check(case: str, schema: TableSchema, *changes: Change, rules: EventRules = DEBEZIUM) -> None:
    log = LogContext(f"g_{case}", "db", 1, compacted=False)
    made = events(of(schema, case), *changes, rules=rules, log=log)
    assert converted(made) == recorded(case, f"public.{schema.table}")


def test_a_composite_key() -> None:
    schema = table("k1 int4!, k2 text!, v text", key="k2 k1", name="ri_composite")
    check(
        "replica_identity",
        schema,
        read("1", "a", "v1", said=Read("first", 7)),
        read("2", "a", "v2", said=Read("last_in_data_collection", 7)),
        insert("3", "b", "v3"),
        update(("1", "a", "V1")),
        delete("1", "a", None),
    )


def test_a_replica_identity_on_another_index_than_the_primary_key() -> None:
    schema = table("id int4!, code text!, a text, n int4", identity="i", name="ri_index")
    check(
        "replica_identity",
        schema,
        read("1", "c1", "one", "1", said=Read("first_in_data_collection", 7)),
        read("2", "c2", None, None, said=Read("last_in_data_collection", 7)),
        insert("3", "c3", "three", "3"),
        update(("1", "c1", "ONE", "1")),
        update(("2", "c2", None, "22")),
        update(("3", "c3b", "three", "3"), old=(None, "c3", None, None), key_only=True),
        update(("30", "c3b", "three", "3")),
        delete(None, "c1", None, None),
    )


def test_what_stands_in_the_columns_that_an_old_key_does_not_tell() -> None:
    schema = table(
        "id int4!, i int4!, t text!, b bool!, d numeric(6,2)!, ts timestamptz!, u uuid!,"
        " dd date!='2020-01-01'::date, di int4!=42, opt text",
        name="ri_notnull",
    )
    row = (
        *("1", "5", "five", "t", "5.50", "2024-01-01 00:00:00+00"),
        *("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "2024-01-01", "7"),
    )
    check(
        "replica_identity",
        schema,
        read(*row, "o", said=Read("last", 7)),
        update((*row, None)),
        delete("1", *(None,) * 9),
    )


def test_message_key_columns_that_old_rows_come_without() -> None:
    keys = (KeyRule(patterns("public.mk_pk"), ("email",)),)
    rules = with_columns(DEBEZIUM, keys=keys)
    schema = table("id int4!, email text!, v text", name="mk_pk")
    columns = rekeyed(schema.columns, schema.name, "d", rules)
    check(
        "message_key_columns",
        schema.model_copy(update={"columns": columns}),
        read("1", "a@x", "one", said=Read("first_in_data_collection", 7)),
        read("2", "b@x", "two", said=Read("last", 7)),
        insert("3", "c@x", "three"),
        update(("1", "a@x", "ONE")),
        update(("1", "a2@x", "ONE")),
        update(("20", "b@x", "two"), old=("2", None, None), key_only=True),
        delete("3", None, None),
        rules=rules,
    )


def test_masks_hashes_and_truncation() -> None:
    def rule(kind: Any, columns: str, length: int = 0, version: Any = 1) -> ColumnRule:
        matching = patterns(f"public.pii.({columns})")
        return ColumnRule(kind, matching, length, "SHA-256", "CzQMA0cB5K", version)

    rules = with_columns(
        DEBEZIUM,
        rules=(
            rule("truncate", "bio|name", 5),
            rule("mask", "ssn", 12),
            rule("mask", "secret", 0),
            rule("hash", "email", version=2),
            rule("hash", "card", version=1),
        ),
    )
    schema = table(
        "id int4!, name varchar(50), email varchar(50), ssn bpchar(11), bio text, secret text,"
        " card varchar(19), n int4, amount numeric(10,2), nn text!='x'::text, code varchar(3)",
        name="pii",
    )
    alice = ("Alice", "alice@example.com", "123-45-6789", "long biography text here", "s3cr3t")
    one = (*alice, "4111111111111111", "5", "10.50", "nn", "abc")
    two = (*(None,) * 8, "", "")
    emoji = "😀"
    three = (f"ünïcödé {emoji * 3}", "é", " " * 11, emoji * 6, "", "", "0", "0.00", "nn", "ü")
    check(
        "column_mask_truncate",
        schema,
        read("1", *one, said=Read("first", 7)),
        read("2", *two, said=Read("true", 7)),
        read("3", *three, said=Read("last_in_data_collection", 7)),
        insert("11", *one),
        insert("12", *two),
        insert("13", *three),
        update(("1", *one)),
        update(("1", "Bob", *one[1:])),
        delete("2", *(None,) * 10),
        rules=rules,
    )


CASE = "schemas_txmeta_message_truncate"


@pytest.fixture
def blocks() -> TransactionMetadata:
    made = TransactionMetadata(DEBEZIUM, transaction_topic(f"g_{CASE}"))
    made.begin(TRANSACTION, Lsn(1))
    return made


def test_schemas_of_keys_envelopes_and_header_values(blocks: TransactionMetadata) -> None:
    rules = with_columns(NONE_SKIPPED, source_type_of=patterns(".*"))
    log = LogContext(f"g_{CASE}", "db", 1, compacted=False)
    one = of(table("id int4!, v varchar(10), n numeric(5,2)", name="s1"), CASE)
    two = of(table("id int4!, v text", name="s2"), CASE)
    first = events(one, read("1", "x", "1.00", said=Read("last", 7)), rules=rules, log=log)
    blocks.block("public.s1", TRANSACTION, Lsn(1))  # the transaction's first event
    made = events(two, insert("1", "z"), rules=rules, log=log, blocks=blocks)
    blocks.begin(TRANSACTION, Lsn(1))
    moved = update(("5", "z"), old=("1", None), key_only=True)
    made += events(two, moved, rules=rules, log=log, blocks=blocks)
    blocks.begin(TRANSACTION, Lsn(1))
    emptied = events(one, truncate(), rules=rules, log=log, blocks=blocks)
    assert converted(made, schemas=True) == recorded(CASE, "public.s2")
    assert converted([*first, *emptied], schemas=True) == recorded(CASE, "public.s1")


def test_schemas_of_transaction_markers(blocks: TransactionMetadata) -> None:
    begin = blocks.begin(TRANSACTION, Lsn(1))
    for collection in ("public.s2", "public.s1"):
        blocks.block(collection, TRANSACTION, Lsn(2))
    end = blocks.end(TRANSACTION, Lsn(3))
    assert converted([begin, end], schemas=True) == recorded(CASE, "transaction")


def test_schemas_of_logical_messages(blocks: TransactionMetadata) -> None:
    log = LogContext(f"g_{CASE}", "db", 1, compacted=False)
    message = LogicalMessage(True, Lsn(5), "p", b"hello")
    made = MessageEvents(DEBEZIUM, log, blocks=blocks).record(message, TRANSACTION, Lsn(5))
    assert made is not None
    assert converted([made], schemas=True) == recorded(CASE, "message")


def test_schemas_of_heartbeats() -> None:
    made = heartbeat(f"g_{CASE}", heartbeat_topic(f"g_{CASE}"))
    assert converted([made], schemas=True) == recorded(CASE, "__debezium-heartbeat")

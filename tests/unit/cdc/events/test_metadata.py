"""Transaction markers and blocks, logical messages, heartbeats: Debezium's, or better."""

from dataclasses import replace

import pytest

from cdc.errors import CorruptMessageError
from cdc.events.metadata import MessageEvents, TransactionMetadata, heartbeat
from cdc.events.rules import EventRules
from cdc.records.connect import SourceRecord
from cdc.records.position import Lsn, Transaction
from cdc.records.topics import heartbeat_topic, transaction_topic
from cdc.wal.messages import LogicalMessage
from tests.fixtures.made_changes import (
    CLOCK_NS,
    LOG,
    NATIVE,
    TRANSACTION,
    delete,
    events,
    insert,
    patterns,
    read,
    table,
    update,
)
from tests.fixtures.preset import DEBEZIUM

A, B = table("id int4!, v text", name="a"), table("id int4!, v text", name="b")


def counting(rules: EventRules) -> TransactionMetadata:
    return TransactionMetadata(rules, transaction_topic("pre"))


MESSAGES = replace(NATIVE, message_prefix_include=patterns(r"app\..*"))


def message(
    made: LogicalMessage, latest: Transaction | None = TRANSACTION, rules: EventRules = MESSAGES
) -> SourceRecord | None:
    return MessageEvents(rules, LOG, clock_ns=lambda: CLOCK_NS).record(made, latest, Lsn(850))


TRANSACTIONAL = LogicalMessage(True, Lsn(850), "app.tx", b"\x00\xff")
APART = LogicalMessage(False, Lsn(850), "app.nontx", b"")


def test_the_markers_of_a_transaction_have_its_counts_between_them() -> None:
    blocks = counting(NATIVE)
    begin = blocks.begin(TRANSACTION, Lsn(790))
    made = [
        *events(A, insert("1", "x"), blocks=blocks),
        *events(B, insert("1", "x"), blocks=blocks),
        *events(A, update(("2", "y"), old=("1", None), key_only=True), blocks=blocks),
    ]
    end = blocks.end(TRANSACTION, Lsn(910))
    assert [record.value and record.value["transaction"] for record in made] == [
        {"id": "1302:900", "total_order": 1, "data_collection_order": 1},
        {"id": "1302:900", "total_order": 2, "data_collection_order": 1},
        {"id": "1302:900", "total_order": 3, "data_collection_order": 2},
        None,  # a tombstone
        {"id": "1302:900", "total_order": 4, "data_collection_order": 3},
    ]
    assert (begin.topic, begin.key) == ("pre.transaction", {"id": "1302:900"})
    assert begin.value == {
        "status": "BEGIN",
        "id": "1302:900",
        "event_count": None,
        "data_collections": None,
        "ts_ms": 5_000,
    }
    assert end.value == {
        "status": "END",
        "id": "1302:900",
        "event_count": 4,
        "data_collections": [
            {"data_collection": "public.a", "event_count": 3},
            {"data_collection": "public.b", "event_count": 1},
        ],
        "ts_ms": 5_000,
    }


def test_a_transaction_of_which_no_event_came_counts_nothing() -> None:
    blocks = counting(NATIVE)
    blocks.begin(TRANSACTION, Lsn(790))
    blocks.block("public.a", TRANSACTION, Lsn(800))
    blocks.begin(TRANSACTION, Lsn(920))
    end = blocks.end(TRANSACTION, Lsn(930))
    assert (end.value["event_count"], end.value["data_collections"]) == (0, [])


def test_debezium_identifies_each_record_of_a_transaction_by_its_own_lsn() -> None:
    blocks = counting(DEBEZIUM)
    begin = blocks.begin(TRANSACTION, Lsn(790))
    (made,) = events(A, insert("1", "x"), rules=DEBEZIUM, blocks=blocks)
    end = blocks.end(TRANSACTION, Lsn(910))
    assert begin.key == {"id": "1302:790"}
    assert made.value["transaction"]["id"] == "1302:800"
    assert end.value["id"] == "1302:910"


def test_what_is_skipped_or_read_by_a_snapshot_is_not_counted() -> None:
    blocks = counting(NATIVE)
    blocks.begin(TRANSACTION, Lsn(790))
    skipping = replace(NATIVE, events=replace(NATIVE.events, skipped=frozenset("d")))
    events(A, delete("1", None), rules=skipping, blocks=blocks)
    (row,) = events(A, read("1", "x"), blocks=blocks)
    assert row.value["transaction"] is None
    assert blocks.end(TRANSACTION, Lsn(910)).value["event_count"] == 0


def test_a_logical_message_is_an_event_of_its_own_kind() -> None:
    made = message(TRANSACTIONAL)
    assert made is not None
    assert (made.topic, made.key) == ("pre.message", {"prefix": "app.tx"})
    assert list(made.value) == ["op", "ts_ms", "source", "transaction", "message"]
    assert (made.value["op"], made.value["ts_ms"]) == ("m", 7_000)
    assert made.value["message"] == {"prefix": "app.tx", "content": b"\x00\xff"}
    source = made.value["source"]
    assert (source["schema"], source["table"], source["txId"]) == ("", "", 1302)
    assert (source["lsn"], source["sequence"]) == (850, '["700","850"]')


def test_a_message_outside_of_transactions_has_the_time_when_it_came() -> None:
    made = message(APART)
    assert made is not None
    source = made.value["source"]
    assert (source["txId"], source["ts_us"]) == (None, 7_000_000)
    assert source["sequence"] == '["900","850"]'
    first = message(APART, None)
    assert first is not None
    assert first.value["source"]["sequence"] == '[null,"850"]'


def test_debezium_gives_it_the_time_of_the_last_transaction() -> None:
    made = message(APART, rules=DEBEZIUM)
    assert made is not None
    assert made.value["source"]["ts_us"] == TRANSACTION.commit_ts_us
    assert made.value["source"]["snapshot"] is None


def test_a_message_counts_in_its_transaction() -> None:
    blocks = counting(NATIVE)
    blocks.begin(TRANSACTION, Lsn(790))
    events(A, insert("1", "x"), blocks=blocks)
    messages = MessageEvents(MESSAGES, LOG, blocks=blocks)
    inside = messages.record(TRANSACTIONAL, TRANSACTION, Lsn(850))
    apart = messages.record(APART, TRANSACTION, Lsn(860))
    assert inside is not None
    assert apart is not None
    assert inside.value["transaction"] == {
        "id": "1302:900",
        "total_order": 2,
        "data_collection_order": 1,
    }
    assert apart.value["transaction"] is None
    assert blocks.end(TRANSACTION, Lsn(910)).value["event_count"] == 2


def test_message_prefixes_are_included_or_excluded_by_whole_patterns() -> None:
    excluded = replace(NATIVE, message_prefix_exclude=patterns(r"app\.tx"))
    prefixes = ["app.tx", "xapp.tx", "app.tx2"]
    wanted = [[rules.wants_message(one) for one in prefixes] for rules in (MESSAGES, excluded)]
    assert wanted == [[True, False, True], [False, True, True]]
    assert message(APART, rules=MESSAGES) is not None
    assert message(TRANSACTIONAL, rules=excluded) is None


def test_a_message_that_nobody_asked_for_is_no_event_but_for_debezium() -> None:
    assert message(APART, rules=NATIVE) is None
    assert message(APART, rules=DEBEZIUM) is not None


def test_a_transactional_message_outside_of_a_transaction_stops() -> None:
    with pytest.raises(CorruptMessageError):
        message(TRANSACTIONAL, None)


def test_a_heartbeat_tells_the_time() -> None:
    made = heartbeat("pre", heartbeat_topic("pre"), clock_ns=lambda: CLOCK_NS)
    assert (made.topic, made.key) == ("__debezium-heartbeat.pre", {"serverName": "pre"})
    assert made.value == {"ts_ms": 7_000}

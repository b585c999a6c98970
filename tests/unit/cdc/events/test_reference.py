"""Each kind of change → its records, by native rules and by Debezium's."""

import json
from typing import Any, Final

import pytest

from cdc.convert.converters import converters
from cdc.errors import CorruptMessageError, TableRefusedError
from cdc.events.changes import ABSENT, Read
from cdc.events.rules import EventRules
from cdc.records.bounds import Bound, EndedRows, RangeEdge
from cdc.records.position import Lsn, Position
from tests.fixtures.made_changes import (
    LOG,
    NATIVE,
    RETAINED,
    delete,
    ended,
    events,
    having,
    insert,
    patterns,
    read,
    said,
    table,
    truncate,
    update,
    with_columns,
)
from tests.fixtures.preset import DEBEZIUM

ID_V = table("id int4!, v text")
FULL = table("id int4!, v text", identity="f")
NOT_NULL = table("id int4!, t text!, b bool!, n int4")
NO_KEY = table("v text", key="", identity="f")
CODE = table("id int4!, code text!", identity="i")
"""Its replica identity is an index on ``code``."""

NATIVE_JSON: Final = converters({})

BOTH = pytest.mark.parametrize("rules", [NATIVE, DEBEZIUM], ids=["native", "debezium"])


@BOTH
def test_insert_and_update_show_the_row_under_its_key(rules: EventRules) -> None:
    made = events(ID_V, insert("1", "a"), update(("1", None)), rules=rules)
    assert said(made) == [
        ("c", {"id": 1}, None, {"id": 1, "v": "a"}),
        ("u", {"id": 1}, None, {"id": 1, "v": None}),
    ]


@BOTH
def test_replica_identity_full_tells_the_row_before(rules: EventRules) -> None:
    made = events(FULL, update(("1", "b"), old=("1", None)), rules=rules)
    assert said(made) == [("u", {"id": 1}, {"id": 1, "v": None}, {"id": 1, "v": "b"})]


@BOTH
def test_another_key_is_another_row(rules: EventRules) -> None:
    made = events(FULL, update(("2", "b"), old=("1", "a")), rules=rules)
    assert said(made) == [
        ("d", {"id": 1}, {"id": 1, "v": "a"}, None),
        (None, {"id": 1}),
        ("c", {"id": 2}, None, {"id": 2, "v": "b"}),
    ]


def test_debezium_links_the_two_halves_of_a_key_change_by_headers() -> None:
    made = events(ID_V, update(("2", "b"), old=("1", None), key_only=True), rules=DEBEZIUM)
    linked = [
        [(header.name, header.value) for header in record.headers if "key" in header.name]
        for record in made
    ]
    new, old = ("__debezium.newkey", {"id": 2}), ("__debezium.oldkey", {"id": 1})
    assert linked == [[new], [new], [old]]
    assert made[0].headers[-1].schema is made[0].key_schema


def test_debezium_says_which_connector_a_record_comes_from() -> None:
    (made,) = events(ID_V, insert("1", "a"), rules=DEBEZIUM, log=LOG._replace(run_id="r1"))
    assert [(header.name, header.value) for header in made.headers] == [
        ("__debezium.context.connectorLogicalName", "pre"),
        ("__debezium.context.taskId", "0"),
        ("__debezium.context.connectorName", "postgresql"),
        ("__debezium.context.runId", "r1"),
    ]


def test_an_old_key_tells_the_key_and_nothing_else() -> None:
    (deleted, _) = events(NOT_NULL, delete("1", None, None, None))
    assert said([deleted]) == [("d", {"id": 1}, {"id": 1}, None)]


def test_debezium_makes_up_what_an_old_key_does_not_tell() -> None:
    (deleted, _) = events(NOT_NULL, delete("1", None, None, None), rules=DEBEZIUM)
    before = {"id": 1, "t": "", "b": False, "n": None}
    assert said([deleted]) == [("d", {"id": 1}, before, None)]


def test_an_old_key_that_did_not_change_is_no_row_before() -> None:
    change = update(("1", "a"), old=("1", None), key_only=True)
    assert said(events(ID_V, change)) == [("u", {"id": 1}, None, {"id": 1, "v": "a"})]
    assert said(events(ID_V, change, rules=DEBEZIUM)) == [
        ("u", {"id": 1}, {"id": 1, "v": None}, {"id": 1, "v": "a"})
    ]


def test_a_replica_identity_without_the_key_is_refused() -> None:
    with pytest.raises(TableRefusedError, match="replica identity"):
        events(CODE, delete(None, "c1"))


def test_debezium_makes_up_the_key_then() -> None:
    made = events(CODE, delete(None, "c1"), rules=DEBEZIUM)
    assert said(made) == [("d", {"id": 0}, {"id": 0, "code": "c1"}, None), (None, {"id": 0})]
    made = events(CODE, update(("3", "c4"), old=(None, "c3"), key_only=True), rules=DEBEZIUM)
    assert [(record.key, record.value and record.value["op"]) for record in made] == [
        ({"id": 0}, "d"),
        ({"id": 0}, None),
        ({"id": 3}, "c"),
    ]
    made = events(CODE, update(("30", "c3")), rules=DEBEZIUM)
    assert said(made) == [("u", {"id": 30}, None, {"id": 30, "code": "c3"})]


@BOTH
def test_a_table_without_a_key_has_events_without_one(rules: EventRules) -> None:
    changes = insert("a"), update(("b",), old=("a",)), delete("b", key_only=False)
    made = events(NO_KEY, *changes, rules=having(rules, tombstones=None), log=RETAINED)
    assert said(made) == [
        ("c", None, None, {"v": "a"}),
        ("u", None, {"v": "a"}, {"v": "b"}),
        ("d", None, {"v": "b"}, None),
    ]
    assert {record.key_schema for record in made} == {None}


@BOTH
def test_a_composite_key_has_its_own_order(rules: EventRules) -> None:
    composite = table("k1 int4!, k2 text!", key="k2 k1")
    (made,) = events(composite, insert("1", "a"), rules=rules)
    assert list(made.key) == ["k2", "k1"]
    assert made.key_schema is not None
    assert [field.name for field in made.key_schema.fields] == ["k2", "k1"]


def test_an_unchanged_large_value_is_left_out() -> None:
    (made,) = events(ID_V, update(("1", ABSENT)))
    assert made.value["after"] == {"id": 1}


def test_debezium_puts_a_placeholder_there() -> None:
    (made,) = events(ID_V, update(("1", ABSENT)), rules=DEBEZIUM)
    assert made.value["after"] == {"id": 1, "v": "__debezium_unavailable_value"}


@BOTH
def test_an_unchanged_large_value_is_taken_from_the_old_row(rules: EventRules) -> None:
    (made,) = events(FULL, update(("1", ABSENT), old=("1", "large")), rules=rules)
    assert made.value["after"] == {"id": 1, "v": "large"}


@pytest.mark.parametrize(
    ("tombstones", "compacted", "expected"),
    [
        (None, True, ["d", None]),
        (None, False, ["d"]),
        (True, False, ["d", None]),
        (False, True, ["d"]),
    ],
)
def test_tombstones_on_delete(
    tombstones: bool | None, compacted: bool, expected: list[str | None]
) -> None:
    rules = having(NATIVE, tombstones=tombstones)
    made = events(ID_V, delete("1", None), rules=rules, log=LOG._replace(compacted=compacted))
    assert [record.value and record.value["op"] for record in made] == expected


def test_debezium_has_a_tombstone_even_where_there_is_no_key() -> None:
    made = events(NO_KEY, delete("a", key_only=False), rules=DEBEZIUM, log=RETAINED)
    assert said(made) == [("d", None, {"v": "a"}, None), (None, None)]


def test_truncate_reaches_every_partition_of_a_compacted_topic() -> None:
    made = events(ID_V, truncate())
    assert [(record.partition, record.key) for record in made] == [
        (partition, {"__millrace_truncate": True}) for partition in range(3)
    ]
    assert {record.value["op"] for record in made} == {"t"}


def test_truncate_in_a_retained_topic_has_no_key() -> None:
    made = events(ID_V, truncate(), log=RETAINED)
    assert [(record.partition, record.key) for record in made] == [(0, None), (1, None), (2, None)]


ENDED = EndedRows(
    bounds=(Bound(columns=("id",), lower=(RangeEdge("min"),), upper=(RangeEdge("value", 3),)),),
    upto=Position(1, Lsn(899), 9),
)
BOUNDS = '[{"columns":["id"],"lower":[["min",null]],"upper":[["value",3]],"values":null}]'


def test_the_end_of_a_partitions_rows_reaches_every_partition_under_a_key_of_its_bounds() -> None:
    made = [NATIVE_JSON(record) for record in events(ID_V, ended(ENDED))]
    assert [(record.partition, record.key) for record in made] == [
        (partition, b'{"__millrace_ended":' + BOUNDS.encode() + b"}") for partition in range(3)
    ]
    (value,) = {record.value for record in made}
    event = json.loads(value or b"")
    assert (event["op"], event["before"], event["after"]) == ("p", None, None)
    assert EndedRows.model_validate(event["ended"]) == ENDED
    assert list(event)[-1] == "ended"


def test_the_end_of_a_partitions_rows_in_a_retained_topic_has_no_key() -> None:
    made = events(ID_V, ended(ENDED), log=RETAINED)
    assert [(record.partition, record.key) for record in made] == [(0, None), (1, None), (2, None)]


def test_debezium_skips_truncate_unless_told_otherwise() -> None:
    assert events(ID_V, truncate(), rules=DEBEZIUM, log=RETAINED) == []
    none_skipped = having(DEBEZIUM, skipped=frozenset())
    (made,) = events(ID_V, truncate(), rules=none_skipped, log=RETAINED)
    assert (made.partition, made.key, made.value["before"], made.value["after"]) == (None,) * 4


@BOTH
def test_skipped_operations_leave_the_other_half_of_a_key_change(rules: EventRules) -> None:
    rules = having(rules, skipped=frozenset("ud"))
    changes = (
        insert("1", "a"),
        update(("1", "b")),
        update(("2", "b"), old=("1", None), key_only=True),
        delete("2", None),
    )
    assert [(record.key, record.value["op"]) for record in events(ID_V, *changes, rules=rules)] == [
        ({"id": 1}, "c"),
        ({"id": 2}, "c"),
    ]


@BOTH
def test_skip_messages_without_change_looks_at_what_events_show(rules: EventRules) -> None:
    secret = table("id int4!, v text, secret text", identity="f")
    rules = with_columns(having(rules, skip_without_change=True), exclude=patterns(".*secret"))
    old = ("1", "a", "s")
    assert events(secret, update(("1", "a", "other"), old=old), rules=rules) == []
    assert len(events(secret, update(("1", "b", "s"), old=old), rules=rules)) == 1
    assert len(events(ID_V, update(("1", "a")), rules=rules)) == 1  # nobody knows what it was


def test_a_row_that_moves_to_another_key_is_a_change_even_where_events_do_not_show_it() -> None:
    rules = having(NATIVE, skip_without_change=True)
    rules = with_columns(rules, exclude=patterns("public.t.id"))
    made = events(FULL, update(("2", "a"), old=("1", "a")), rules=rules)
    assert [record.key for record in made] == [{"id": 1}, {"id": 1}, {"id": 2}]


def test_a_row_of_a_snapshot_tells_its_marker() -> None:
    said_of = Read("last_in_data_collection", xid=77)
    (plain, marked) = events(ID_V, read("1", "a"), read("1", "a", said=said_of))
    assert said([plain]) == [("r", {"id": 1}, None, {"id": 1, "v": "a"})]
    assert (plain.value["source"]["snapshot"], plain.value["source"]["txId"]) == ("true", None)
    source = marked.value["source"]
    assert (source["snapshot"], source["txId"]) == ("last_in_data_collection", 77)
    assert (source["lsn"], source["sequence"]) == (800, '[null,"800"]')


def test_a_row_of_an_incremental_snapshot_has_no_place_in_the_wal() -> None:
    (made,) = events(ID_V, read("1", "a", said=Read("incremental")), rules=DEBEZIUM)
    source = made.value["source"]
    assert (source["snapshot"], source["txId"], source["lsn"]) == ("incremental", None, None)


def test_the_source_block_says_where_a_change_comes_from() -> None:
    (made,) = events(ID_V, insert("1", "a"))
    source = made.value["source"]
    version = source.pop("version")
    assert version
    assert source == {
        "connector": "postgresql",
        "name": "pre",
        "ts_ms": 5_000,
        "snapshot": "false",
        "db": "shop",
        "sequence": '["700","800"]',
        "ts_us": 5_000_001,
        "ts_ns": 5_000_001_000,
        "schema": "public",
        "table": "t",
        "txId": 1302,
        "lsn": 800,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def test_debezium_leaves_the_marker_to_its_default_while_streaming() -> None:
    (made,) = events(ID_V, insert("1", "a"), rules=DEBEZIUM)
    assert made.value["source"]["snapshot"] is None
    assert made.value_schema is not None
    source = made.value_schema.of_field("source")
    assert source is not None
    marker = source.of_field("snapshot")
    assert marker is not None
    assert marker.default == "false"


@pytest.mark.parametrize(
    "change", [insert("1"), insert(ABSENT, "a"), update(("1", "x"), old=("1",))]
)
def test_a_row_that_does_not_fit_its_table_stops(change: Any) -> None:
    with pytest.raises(CorruptMessageError, match="row"):
        events(ID_V, change)

"""A change → its records: keys, tombstones, images, headers, Debezium's field order."""

import json
from typing import Any, Literal

import pytest

from cdc.convert.pipeline import NATIVE, Encoder
from cdc.errors import CorruptMessageError, TableRefusedError
from cdc.events.reference import VERSION, LogContext
from cdc.events.rules import EventRules
from cdc.records.position import Lsn, Position, Transaction
from cdc.records.record import Record
from cdc.records.schema import Column, TableSchema
from cdc.records.topics import TRUNCATE_KEY
from cdc.wal.messages import ABSENT
from tests.fixtures.position_headers import parse_header

POSITION = Position(1, Lsn(972_600_336), 3)
LSN = Lsn(972_599_984)
TRANSACTION = Transaction(1302, Lsn(972_600_336), 1_795_254_064_218_814, Lsn(968_255_640))


def schema(
    *columns: str, key: str = "id", identity: Literal["d", "n", "f", "i"] = "d"
) -> TableSchema:
    """A table of int columns ``id…`` and ``n…``, and text columns; ``key`` in key order."""
    keys = key.split()
    return TableSchema(
        namespace="public",
        table="t",
        version=7,
        since=str(POSITION),
        topic="pre.public.t",
        replica_identity=identity,
        signature="s",
        columns=tuple(
            Column(
                name=name,
                type="int4" if name[0] in "in" else "text",
                type_oid=23,
                declared="integer" if name[0] in "in" else "text",
                key=keys.index(name) + 1 if name in keys else None,
            )
            for name in columns
        ),
    )


def encoder(table: TableSchema, *, compacted: bool = True) -> Encoder:
    log = LogContext("pre", "shop", 3, compacted=compacted)
    clock_ns = 1_795_254_064_438_971_317
    made = Encoder(table, EventRules(), log, NATIVE, clock_ns=lambda: clock_ns)
    made.begin(TRANSACTION)
    return made


def seen(records: list[Record]) -> list[tuple[Any, Any, Any, Any]]:
    """Per record: key, operation, before, after; a tombstone has the operation None."""
    told = []
    for record in records:
        key = json.loads(record.key) if record.key is not None else None
        value = json.loads(record.value) if record.value is not None else {}
        told.append((key, value.get("op"), value.get("before"), value.get("after")))
    return told


ID_V = schema("id", "v")


def test_a_create_is_debeziums_record_byte_for_byte() -> None:
    (record,) = encoder(ID_V).insert((b"1", b'"\xc3\xa9"'), LSN, POSITION)
    assert record.topic == "pre.public.t"
    assert record.key == b'{"id":1}'
    assert record.partition is None
    assert record.value is not None
    assert record.value.decode() == (
        '{"before":null,"after":{"id":1,"v":"\\"é\\""},"source":{"version":"' + VERSION + '",'
        '"connector":"postgresql","name":"pre","ts_ms":1795254064218,"snapshot":"false",'
        '"db":"shop","sequence":"[\\"968255640\\",\\"972599984\\"]","ts_us":1795254064218814,'
        '"ts_ns":1795254064218814000,"schema":"public","table":"t","txId":1302,'
        '"lsn":972599984,"xmin":null,"origin":null,"origin_lsn":null},"transaction":null,'
        '"op":"c","ts_ms":1795254064438,"ts_us":1795254064438971,"ts_ns":1795254064438971317}'
    )


def test_a_snapshot_row_is_read_without_transaction() -> None:
    (record,) = encoder(ID_V).snapshot_row((b"1", None), Position(1, Lsn(9), 0), Lsn(9), 5_000_001)
    assert seen([record]) == [({"id": 1}, "r", None, {"id": 1, "v": None})]
    assert record.value is not None
    source = json.loads(record.value)["source"]
    assert (source["snapshot"], source["txId"], source["lsn"]) == ("true", None, 9)
    assert (source["sequence"], source["ts_ms"], source["ts_us"]) == (
        '[null,"9"]',
        5_000,
        5_000_001,
    )


def test_every_record_has_its_position_and_schema_version() -> None:
    made = encoder(ID_V)
    records = [
        *made.insert((b"1", b""), LSN, POSITION),
        *made.update((b"0", None), True, (b"1", b""), LSN, POSITION),
        *made.delete((b"1", None), True, LSN, POSITION),
        *made.truncate(LSN, POSITION),
        *made.snapshot_row((b"1", b""), POSITION, LSN, 0),
    ]
    for record in records:
        ((name, value),) = record.headers
        assert (name, parse_header(value)) == ("millrace.position", (POSITION, 7))


def test_the_first_transaction_of_a_stream_has_no_predecessor() -> None:
    made = encoder(ID_V)
    made.begin(TRANSACTION._replace(previous_commit_lsn=None))
    (record,) = made.insert((b"1", None), LSN, POSITION)
    assert record.value is not None
    assert json.loads(record.value)["source"]["sequence"] == '[null,"972599984"]'


def test_an_update_without_old_row_has_no_before() -> None:
    records = encoder(ID_V).update(None, False, (b"1", b"x"), LSN, POSITION)
    assert seen(records) == [({"id": 1}, "u", None, {"id": 1, "v": "x"})]


def test_an_update_under_full_identity_has_the_old_row() -> None:
    records = encoder(ID_V).update((b"1", None), False, (b"1", b"x"), LSN, POSITION)
    assert seen(records) == [({"id": 1}, "u", {"id": 1, "v": None}, {"id": 1, "v": "x"})]


def test_a_large_key_sent_although_unchanged_is_no_key_change() -> None:
    table = schema("k", "v", key="k")
    records = encoder(table).update((b"long", None), True, (ABSENT, b"x"), LSN, POSITION)
    assert seen(records) == [({"k": "long"}, "u", None, {"k": "long", "v": "x"})]


def test_a_key_change_is_delete_tombstone_create() -> None:
    table = schema("n_a", "b", "v", key="b n_a")
    records = encoder(table).update((b"1", b"x", None), True, (b"1", b"xx", b"v"), LSN, POSITION)
    assert [record.key for record in records] == [
        b'{"b":"x","n_a":1}',
        b'{"b":"x","n_a":1}',
        b'{"b":"xx","n_a":1}',
    ]
    assert [told[1:] for told in seen(records)] == [
        ("d", {"n_a": 1, "b": "x"}, None),
        (None, None, None),
        ("c", None, {"n_a": 1, "b": "xx", "v": "v"}),
    ]


def test_a_key_change_under_full_identity_deletes_the_whole_row() -> None:
    records = encoder(ID_V).update((b"1", b"one"), False, (b"2", ABSENT), LSN, POSITION)
    assert seen(records) == [
        ({"id": 1}, "d", {"id": 1, "v": "one"}, None),
        ({"id": 1}, None, None, None),
        ({"id": 2}, "c", None, {"id": 2, "v": "one"}),
    ]


def test_a_key_change_leaves_what_is_unknown_absent() -> None:
    records = encoder(ID_V).update((b"1", None), True, (b"2", ABSENT), LSN, POSITION)
    assert seen(records)[-1] == ({"id": 2}, "c", None, {"id": 2})


def test_an_unchanged_large_value_is_left_out_not_null() -> None:
    records = encoder(ID_V).update(None, False, (b"1", ABSENT), LSN, POSITION)
    assert seen(records) == [({"id": 1}, "u", None, {"id": 1})]
    records = encoder(schema("v", "id")).update(None, False, (ABSENT, b"1"), LSN, POSITION)
    assert seen(records) == [({"id": 1}, "u", None, {"id": 1})]


def test_an_unchanged_large_value_is_taken_from_the_full_old_row() -> None:
    records = encoder(ID_V).update((b"1", b"big"), False, (b"1", ABSENT), LSN, POSITION)
    assert seen(records)[0][3] == {"id": 1, "v": "big"}
    records = encoder(ID_V).update((b"1", None), False, (b"1", ABSENT), LSN, POSITION)
    assert seen(records)[0][3] == {"id": 1, "v": None}


def test_a_delete_has_what_the_identity_has_and_a_tombstone() -> None:
    by_key = encoder(ID_V).delete((b"1", None), True, LSN, POSITION)
    assert seen(by_key) == [({"id": 1}, "d", {"id": 1}, None), ({"id": 1}, None, None, None)]
    full = encoder(ID_V).delete((b"1", None), False, LSN, POSITION)
    assert seen(full)[0] == ({"id": 1}, "d", {"id": 1, "v": None}, None)


def test_a_retained_topic_gets_no_tombstones() -> None:
    made = encoder(ID_V, compacted=False)
    assert len(made.delete((b"1", None), True, LSN, POSITION)) == 1
    assert [record.value is None for record in made.update(
        (b"1", None), True, (b"2", b"x"), LSN, POSITION)] == [False, False]  # fmt: skip


def test_a_table_without_key_has_null_keys() -> None:
    made = encoder(schema("n", "v", key="", identity="f"), compacted=False)
    assert seen(made.update((b"1", None), False, (b"2", None), LSN, POSITION)) == [
        (None, "u", {"n": 1, "v": None}, {"n": 2, "v": None})
    ]
    assert seen(made.delete((b"1", None), False, LSN, POSITION)) == [
        (None, "d", {"n": 1, "v": None}, None)
    ]


def test_a_truncate_reaches_every_partition() -> None:
    records = encoder(ID_V).truncate(LSN, POSITION)
    assert [record.partition for record in records] == [0, 1, 2]
    assert {record.key for record in records} == {TRUNCATE_KEY}
    assert seen(records)[0][1:] == ("t", None, None)
    retained = encoder(ID_V, compacted=False).truncate(LSN, POSITION)
    assert {record.key for record in retained} == {None}


def test_a_table_read_once_more_lets_go_of_older_rows_before_its_own() -> None:
    before = Position(1, Lsn(9), 0).just_before()
    made = encoder(ID_V)
    truncates = made.snapshot_truncate(before, 5_000_001)
    assert [record.partition for record in truncates] == [0, 1, 2]
    ((_, header),) = truncates[0].headers
    position, _ = parse_header(header)
    assert position == before > Position(1, Lsn(8), 1)


def test_an_odd_name_is_quoted() -> None:
    table = schema('i"d', "v\\é", key='i"d')
    (record,) = encoder(table).insert((b"1", b"x"), LSN, POSITION)
    assert seen([record]) == [({'i"d': 1}, "c", None, {'i"d': 1, "v\\é": "x"})]


def test_an_old_row_without_the_key_is_refused() -> None:
    made = encoder(schema("id", "code", identity="i"))
    with pytest.raises(TableRefusedError, match=r"REPLICA IDENTITY.*millrace snapshot"):
        made.delete((None, b"c"), True, LSN, POSITION)
    with pytest.raises(TableRefusedError, match="REPLICA IDENTITY"):
        made.update((None, b"c"), True, (b"1", b"d"), LSN, POSITION)


def test_a_malformed_value_names_its_column() -> None:
    with pytest.raises(CorruptMessageError, match="column id isn't a integer"):
        encoder(ID_V).insert((b"x", b"y"), LSN, POSITION)


@pytest.mark.parametrize("row", [(), (b"1",), (b"1", b"x", b"y")])
def test_a_row_of_another_width_is_corrupt(row: tuple[bytes, ...]) -> None:
    made = encoder(ID_V)
    with pytest.raises(CorruptMessageError, match="columns"):
        made.insert(row, LSN, POSITION)
    with pytest.raises(CorruptMessageError, match="columns"):
        made.update(row, True, (b"1", b"x"), LSN, POSITION)
    with pytest.raises(CorruptMessageError, match="columns"):
        made.update((b"1", b"x"), False, row, LSN, POSITION)
    with pytest.raises(CorruptMessageError, match="columns"):
        made.delete(row, True, LSN, POSITION)


def test_a_new_row_without_its_key_is_corrupt() -> None:
    with pytest.raises(CorruptMessageError, match="without its key"):
        encoder(ID_V).insert((ABSENT, b"x"), LSN, POSITION)

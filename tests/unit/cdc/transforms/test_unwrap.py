"""ExtractNewRecordState: inserts, updates, deletes, tombstones and TRUNCATE → its records."""

from typing import Any

import pytest

from cdc.errors import ConversionError
from cdc.records.connect import Header, Schema, SourceRecord, Type
from cdc.transforms.chain import Chain
from tests.unit.cdc.transforms.events import INT, NEW_KEY, SNAPSHOT, TEXT, Table, struct
from tests.unit.cdc.transforms.sections import build

N = Schema(Type.BYTES, optional=True, default=b"\1")
TABLE = Table("un", "id", id=INT, v=TEXT, n=N)
ONE = {"id": 1, "v": "one", "n": None}
TWO = {"id": 2, "v": "two", "n": b"\2"}
CHANGES = [
    TABLE.change("r", None, ONE),
    TABLE.change("u", ONE, TWO),
    TABLE.change("d", TWO, None),
    TABLE.tombstone(2),
    TABLE.change("t", None, None),
]


def chain(lossless: bool = False, /, **options: str) -> Chain:
    settings = {name.replace("_", "."): value for name, value in options.items()}
    return build(
        {
            "order": "unwrap",
            "unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            **{f"unwrap.{name}": value for name, value in settings.items()},
        },
        lossless=lossless,
    )


def applied(transform: Chain, *records: SourceRecord) -> list[SourceRecord]:
    return [left for record in records for left in transform(record)]


def rows(mode: str) -> list[Any]:
    unwrap = chain(delete_tombstone_handling_mode=mode)
    return [record.value for record in applied(unwrap, *CHANGES)]


@pytest.mark.parametrize(
    "options",
    [
        {"add_fields": "op:v,table", "add_fields_prefix": ""},
        {"add_fields": "op,table:op"},
        {"add_fields": "op:deleted", "delete_tombstone_handling_mode": "rewrite"},
    ],
)
def test_what_is_added_takes_no_columns_place(options: dict[str, str]) -> None:
    with pytest.raises(ConversionError, match=r"already has these fields: (v|__op|__deleted) "):
        chain(**options)(CHANGES[0])


@pytest.mark.parametrize("mode", ["tombstone", "delete-to-tombstone"])
def test_a_delete_becomes_the_tombstone(mode: str) -> None:
    assert rows(mode) == [ONE, TWO, None]


def test_deletes_and_tombstones_can_be_dropped() -> None:
    assert rows("drop") == [ONE, TWO]


@pytest.mark.parametrize(("mode", "tombstones"), [("rewrite", 0), ("rewrite-with-tombstone", 1)])
def test_a_delete_can_be_the_old_row_with_a_mark(mode: str, tombstones: int) -> None:
    rewritten = {"id": 1, "v": "one", "n": b"\1", "__deleted": "false"}
    assert rows(mode) == [
        rewritten,
        {**TWO, "__deleted": "false"},
        {**TWO, "__deleted": "true"},
        *[None] * tombstones,
    ]


def test_the_row_keeps_its_schema_and_is_required() -> None:
    (record,) = chain()(CHANGES[0])
    assert record.value_schema == struct("shop.public.un.Value", id=INT, v=TEXT, n=N)
    assert (record.key, record.key_schema) == ({"id": 1}, TABLE.key_schema)


def test_schemas_are_made_once() -> None:
    unwrap = chain(add_fields="op")
    first, second = applied(unwrap, *CHANGES[:2])
    assert first.value_schema is second.value_schema


def test_rewriting_puts_defaults_in_the_place_of_null_only_where_debezium_decides() -> None:
    options = {"delete_tombstone_handling_mode": "rewrite"}
    (kept,) = chain(True, **options)(CHANGES[0])
    (replaced,) = chain(False, **options)(CHANGES[0])
    assert (kept.value["n"], replaced.value["n"]) == (None, b"\1")


def test_fields_are_added_behind_the_columns_with_optional_schemas() -> None:
    unwrap = chain(add_fields="op,table,source.ts_ms,source.snapshot,transaction.id,lsn:at,nosuch")
    snapshot, streamed = applied(unwrap, *CHANGES[:2])
    assert snapshot.value == {
        **ONE,
        "__op": "r",
        "__table": "un",
        "__source_ts_ms": 1_700,
        "__source_snapshot": "last",
        "__transaction_id": None,
        "__at": 42,
    }
    assert streamed.value["__source_snapshot"] is None
    assert streamed.value_schema is not None
    added = streamed.value_schema.of_field("__source_snapshot")
    assert added == Schema(Type.STRING, optional=True, name=SNAPSHOT.name)


@pytest.mark.parametrize("lossless", [False, True])
def test_headers_are_added_and_a_tombstone_says_that_it_is_a_delete(lossless: bool) -> None:
    unwrap = chain(
        lossless,
        delete_tombstone_handling_mode="rewrite-with-tombstone",
        add_headers="op,source.schema",
        add_headers_prefix="x-",
    )
    own = Header(NEW_KEY, {"id": 3}, TABLE.key_schema)
    deleted, tombstone = applied(unwrap, TABLE.change("d", TWO, None, own), TABLE.tombstone(2, own))
    of_delete = (Header("x-op", "d", TEXT), Header("x-source_schema", "public", TEXT))
    assert deleted.headers == (own, *of_delete)
    twice = () if lossless else of_delete
    assert tombstone.headers == (own, *twice, Header("x-op", "d", Schema(Type.STRING)))


def test_a_column_can_name_the_topic() -> None:
    unwrap = chain(route_by_field="v")
    routed = applied(unwrap, *CHANGES[:3], TABLE.change("c", None, {"id": 1, "v": None, "n": None}))
    assert [record.topic for record in routed] == ["one", "two", "two", TABLE.topic]


@pytest.mark.parametrize(
    ("compatible", "from_key", "kept", "key"),
    [
        ("true", "false", {"id": 1, "n": None}, {"id": 1}),
        ("false", "false", {"n": None}, {"id": 1}),
        ("false", "true", {"n": None}, {}),
    ],
)
def test_a_header_can_name_columns_to_leave_out(
    compatible: str, from_key: str, kept: dict[str, Any], key: dict[str, Any]
) -> None:
    unwrap = build(
        {
            "order": "unwrap",
            "unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            "unwrap.drop.fields.header.name": "drop",
            "unwrap.drop.fields.keep.schema.compatible": compatible,
            "unwrap.drop.fields.from.key": from_key,
        }
    )
    names = Header("drop", ["id", "v"], Schema(Type.ARRAY, items=TEXT))
    (record,) = unwrap(TABLE.change("c", None, ONE, names))
    assert (record.value, record.key) == (kept, key)
    assert record.value_schema is not None
    assert [field.name for field in record.value_schema.fields] == list(kept)


def test_a_column_that_was_not_sent_stays_absent() -> None:
    (record,) = chain(True, delete_tombstone_handling_mode="rewrite")(
        TABLE.change("u", None, {"id": 1, "v": "x"})
    )
    assert record.value == {"id": 1, "v": "x", "__deleted": "false"}


def test_other_records_pass() -> None:
    heartbeat = SourceRecord("h", None, None, {"ts_ms": 1}, struct("io.debezium.Heartbeat"))
    assert chain(add_headers="op")(heartbeat) == [heartbeat]

"""Records as a real Debezium wrote them, and as Millrace writes them → events."""

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Message

from cdc.errors import ConfigError, LogFormatError
from cdc.reader.envelope import Envelopes
from cdc.reader.events import ChangeEvent
from cdc.records.dead_letters import CLAIM_HEADER, Claim, claim_of
from cdc.records.position import HEADER, Lsn, Position, header
from cdc.records.schema import Column, TableSchema
from cdc.settings import Settings
from tests.fixtures.debezium_topics import MadeRegistry, Raw, in_avro, recorded

POSITION = Position(1, Lsn(500), 2)
SOURCE = {"schema": "public", "table": "t", "lsn": 400, "ts_us": 1_700_000_000_000_000, "txId": 7}


def settings(*, debezium: bool = False, **sections: Any) -> Settings:
    own: dict[str, Any] = {"source": {}, "capture": {"topic.prefix": "p"}}
    own["kafka"] = {"bootstrap.servers": "nowhere"}
    if debezium:
        own["preset"] = "debezium"
        own["lakehouse"] = {"path": "nowhere", "topics_written_by": "debezium"}
    return Settings.model_validate(own | sections)


def schema(*columns: str) -> TableSchema:
    return TableSchema(
        namespace="public",
        table="t",
        version=3,
        since=str(POSITION),
        topic="p.public.t",
        replica_identity="d",
        signature="",
        columns=tuple(
            Column(name=name, type="text", type_oid=25, declared="text") for name in columns
        ),
    )


def read(
    records: Iterable[Raw],
    of: Settings,
    *,
    headers: dict[str, bytes] | None = None,
    columns: tuple[str, ...] = (),
    claimed: bytes | None = None,
) -> list[ChangeEvent]:
    class Made:
        def schema(self, _table: str, version: int, _ts_ms: int) -> TableSchema | None:
            return schema(*columns) if version == 3 else None

        def value(self, _claim: Claim, _ts_ms: int) -> bytes | None:
            return claimed

    made: Any = Made()
    envelopes = Envelopes(of, made)
    events = (
        envelopes.event(
            Message(
                topic=record.topic,
                partition=record.partition,
                offset=offset,
                key=record.key,
                value=record.value,
                headers=list((headers or {}).items()),
                timestamp=(1, 5_000),
            ),
            "public.t",
        )
        for offset, record in enumerate(records)
    )
    return [event for event in events if event is not None]


def own(op: str, after: Any, before: Any = None, key: Any = None, **more: Any) -> Raw:
    value = {"before": before, "after": after, "source": SOURCE, "op": op, **more}
    return Raw(json.dumps(key).encode() if key else None, json.dumps(value).encode())


@pytest.mark.parametrize(
    ("case", "table"),
    [("schemas_typical", "cust"), ("schemas_temporal_decimal", "td")],
)
def test_avro_and_json_with_schemas_say_the_same(
    case: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = MadeRegistry()
    monkeypatch.setattr("cdc.convert.converters.schema_reader", lambda _options: registry.text_of)
    by_schema = read(recorded(case, table), settings(debezium=True))
    in_binary = read(in_avro(case, table, registry), settings(debezium=True))
    assert by_schema == in_binary
    assert {event.operation for event in by_schema} >= {"c"}
    values = [value for event in by_schema for value in (event.after or {}).values()]
    assert any(isinstance(value, bytes | Decimal) for value in values)


def test_avro_needs_a_registry() -> None:
    with pytest.raises(ConfigError, match="no schema registry is configured"):
        read([Raw(b"\0\0\0\0\1x", None)], settings(debezium=True))


def test_what_debezium_stands_in_for_an_unchanged_value_is_absent() -> None:
    events = read(recorded("toast_default", "to_default"), settings(debezium=True))
    updates = [event for event in events if event.operation == "u"]
    assert any(event.absent for event in updates)
    for event in updates:
        assert not set(event.absent) & (event.after or {}).keys()
        assert "__debezium_unavailable_value" not in map(str, (event.after or {}).values())


def test_a_null_is_there_and_an_absent_value_is_not() -> None:
    position = {HEADER: header(POSITION, 3, [1])}
    (event,) = read(
        [own("u", {"id": 1, "n": None}, key={"id": 1})],
        settings(),
        headers=position,
        columns=("id", "n", "text"),
    )
    assert (event.after, event.absent, event.filled) == ({"id": 1, "n": None}, ("text",), ("n",))
    assert (event.position, event.schema_version) == (POSITION, 3)
    assert event.source.xid == 7
    assert event.commit_time.isoformat() == "2023-11-14T22:13:20+00:00"


def test_a_tombstone_tells_of_a_delete_only_where_that_is_gone() -> None:
    key = b'{"id": 1}'
    deleted = own("d", None, {"id": 1}, {"id": 1})
    assert [event.operation for event in read([deleted, Raw(key, None)], settings())] == ["d"]
    (event,) = read([Raw(key, None)], settings())
    assert (event.operation, event.key, event.row) == ("d", {"id": 1}, {"id": 1})


def test_a_value_elsewhere_is_fetched_or_said_to_be_lost() -> None:
    whole, small = own("c", {"id": 1, "v": "x" * 99}), own("c", {"id": 1}, key={"id": 1})
    claim, _ = claim_of("p", "a", whole.value or b"", 10)
    headers = {
        HEADER: header(POSITION, 3),
        CLAIM_HEADER: claim.model_dump_json().encode(),
    }
    columns = "id", "v"
    (event,) = read([small], settings(), headers=headers, columns=columns, claimed=whole.value)
    assert (event.row["v"], event.lost) == ("x" * 99, ())
    (event,) = read([small], settings(), headers=headers, columns=columns)
    assert (event.row, event.lost, event.absent) == ({"id": 1}, ("v",), ())
    assert isinstance(claim, Claim)


@pytest.mark.parametrize(
    "record",
    [
        Raw(None, b"{"),
        Raw(None, b'{"id": 1}'),
        Raw(b'"a"', own("c", {}).value),
        own("x", {}),
        own("c", {}, source={"ts_ms": "now"}),
        own("c", {}, source=None),
    ],
)
def test_what_is_no_event_is_refused(record: Raw) -> None:
    with pytest.raises(LogFormatError):
        read([record], settings())


def test_a_record_whose_schema_the_log_lacks_is_refused() -> None:
    later = {HEADER: header(POSITION, 4)}
    with pytest.raises(LogFormatError, match=r"no schema 4 of public\.t"):
        read([own("c", {"id": 1})], settings(), headers=later)
    (event,) = read([own("d", None, {"id": 1})], settings(), headers=later)
    assert event.row == {"id": 1}


@pytest.mark.parametrize("name", [HEADER, CLAIM_HEADER])
def test_a_header_of_ours_that_says_nothing_is_refused(name: str) -> None:
    headers = {HEADER: header(POSITION, 3), name: b"{"}
    with pytest.raises(LogFormatError, match=f"header {name} can't be read"):
        read([own("c", {"id": 1})], settings(), headers=headers, columns=("id",))


def test_an_operation_is_read_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = MadeRegistry()
    monkeypatch.setattr("cdc.convert.converters.schema_reader", lambda _options: registry.text_of)
    unused: Any = None
    envelopes = Envelopes(settings(debezium=True), unused)
    case = "schemas_typical", "cust"
    by_form = [
        [
            envelopes.operation(
                Message(topic="t", partition=0, offset=0, key=record.key, value=record.value)
            )
            for record in records
        ]
        for records in (recorded(*case), in_avro(*case, registry))
    ]
    assert by_form[0] == by_form[1]
    assert {"c", "d", ""} <= set(by_form[0])

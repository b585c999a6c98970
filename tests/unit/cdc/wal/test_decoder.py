"""Every message that our slots send: whole, cut at every byte, with an extra one, and garbage."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn
from cdc.records.schema import UNREADABLE
from cdc.wal import messages as m
from cdc.wal.decoder import decode
from cdc.wal.frames import POSTGRES_EPOCH_US
from tests.fixtures.wal_bytes import row, sized, u8, u32, u64

XID = 0xFFFF_FFF0
OID = 0x8000_0001
LSN, END = Lsn(0xFFFF_FFFF_0000_0001), Lsn(0x1_0000_0000)
US = POSTGRES_EPOCH_US
VALUES: m.Row = (b"1", None, m.ABSENT, b"", "é".encode())
COLUMNS = (m.RelationColumn(True, "id", 23, -1), m.RelationColumn(False, "näme", OID, 14))
_COLUMNS = b"\0\2" + b"\1id\0" + u32(23, 0xFFFF_FFFF) + b"\0" + "näme\0".encode() + u32(OID, 14)

CASES: dict[str, tuple[bytes, m.Message]] = {
    "relation": (
        b"R" + u32(OID) + b"public\0t\0d" + _COLUMNS,
        m.Relation(OID, "public", "t", "d", COLUMNS),
    ),
    "relation_of_catalog": (
        b"R" + u32(1) + b"\0t\0f" + b"\0\0",
        m.Relation(1, "pg_catalog", "t", "f", ()),
    ),
    "type": (b"Y" + u32(OID) + b"public\0mood\0", m.TypeMessage(OID, "public", "mood")),
    "insert": (b"I" + u32(OID) + b"N" + row(VALUES), m.Insert(OID, VALUES)),
    "insert_no_columns": (b"I" + u32(OID) + b"N" + row(()), m.Insert(OID, ())),
    "update": (b"U" + u32(OID) + b"N" + row(VALUES), m.Update(OID, None, False, VALUES)),
    "update_key": (
        b"U" + u32(OID) + b"K" + row((b"0", None)) + b"N" + row((b"1", None)),
        m.Update(OID, (b"0", None), True, (b"1", None)),
    ),
    "update_full": (
        b"U" + u32(OID) + b"O" + row((b"0",)) + b"N" + row((b"1",)),
        m.Update(OID, (b"0",), False, (b"1",)),
    ),
    "delete_key": (b"D" + u32(OID) + b"K" + row((b"0",)), m.Delete(OID, (b"0",), True)),
    "delete_full": (b"D" + u32(OID) + b"O" + row(VALUES), m.Delete(OID, VALUES, False)),
    "truncate": (b"T" + u32(2) + u8(3) + u32(OID, 7), m.Truncate((OID, 7), True, True)),
    "truncate_plain": (b"T" + u32(1) + u8(0) + u32(OID), m.Truncate((OID,), False, False)),
    "message": (
        b"M" + u8(1) + u64(LSN) + b"prefix\0" + sized(b"\0content\xff"),
        m.LogicalMessage(True, LSN, "prefix", b"\0content\xff"),
    ),
    "begin": (b"B" + u64(LSN, 5) + u32(XID), m.Begin(LSN, US + 5, XID)),
    "begin_before_2000": (
        b"B" + u64(LSN, (1 << 64) - US) + u32(XID),
        m.Begin(LSN, 0, XID),
    ),
    "commit": (b"C\0" + u64(LSN, END, 5), m.Commit(LSN, END, US + 5)),
    "origin": (b"O" + u64(LSN) + b"elsewhere\0", m.Origin(LSN, "elsewhere")),
    "stream_start": (b"S" + u32(XID) + u8(1), m.StreamStart(XID, True)),
    "stream_goes_on": (b"S" + u32(XID) + u8(0), m.StreamStart(XID, False)),
    "stream_stop": (b"E", m.StreamStop()),
    "stream_commit": (
        b"c" + u32(XID) + b"\0" + u64(LSN, END, 5),
        m.StreamCommit(XID, LSN, END, US + 5),
    ),
    "stream_abort": (b"A" + u32(XID, 7), m.StreamAbort(XID, 7)),
}
each_case = pytest.mark.parametrize(("payload", "message"), CASES.values(), ids=CASES.keys())


@each_case
def test_a_whole_message_gives_its_fields(payload: bytes, message: m.Message) -> None:
    decoded = decode(payload)
    assert decoded == message
    assert type(decoded) is type(message)


@each_case
def test_a_message_cut_short_is_corrupt(payload: bytes, message: m.Message) -> None:
    for size in range(len(payload)):
        with pytest.raises(CorruptMessageError):
            decode(payload[:size])


@each_case
def test_a_byte_too_many_is_corrupt(payload: bytes, message: m.Message) -> None:
    with pytest.raises(CorruptMessageError):
        decode(payload + b"\0")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"I" + u32(OID) + b"N\0\1b" + sized(b"\0\0\0\1"),
        b"I" + u32(OID) + b"O" + row((b"1",)),
        b"U" + u32(OID) + b"K" + row((b"1",)) + b"K" + row((b"1",)),
        b"D" + u32(OID) + b"N" + row((b"1",)),
        b"R" + u32(OID) + b"public\0t\0x\0\0",
        b"R" + u32(OID) + b"public\0t\0d\0\1\2id\0" + u32(23, 0),
        b"C\1" + u64(LSN, END, 5),
        b"B" + u64(LSN, (1 << 63) - 1) + u32(XID),
        b"T" + u32(0xFFFF_FFFF) + u8(0) + u32(OID),
        b"T" + u32(1) + u8(4) + u32(OID),
        b"M\2" + u64(LSN) + b"p\0" + sized(b""),
        b"S" + u32(XID) + u8(2),
        b"I" + u32(OID) + b"N\0\1t\xff\xff\xff\xff",
    ],
)
def test_what_the_protocol_does_not_know_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="byte"):
        decode(payload)


@pytest.mark.parametrize("kind", [b"b", b"P", b"K", b"r", b"p"])
def test_a_prepared_transaction_is_an_error_that_names_the_reason(kind: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="created with two_phase"):
        decode(kind + u64(LSN, END, 5) + u32(XID) + b"my gid\0")


def test_the_error_names_message_and_place_but_no_data() -> None:
    with pytest.raises(CorruptMessageError) as raised:
        decode(b"I" + u32(OID) + b"N\0\1b" + sized(b"secret"))
    assert "'I' message" in str(raised.value)
    assert "byte 8" in str(raised.value)
    assert "secret" not in str(raised.value)


@given(st.binary(max_size=64), st.sampled_from("IUDBCORYTMSEcAbPKrp"))
def test_any_bytes_give_a_message_or_corrupt(body: bytes, kind: str) -> None:
    for payload in (body, kind.encode() + body):
        with suppress(CorruptMessageError):
            decode(payload)


@given(st.data())
def test_a_damaged_message_gives_a_message_or_corrupt(data: st.DataObject) -> None:
    whole, _ = data.draw(st.sampled_from(list(CASES.values())))
    payload = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptMessageError):
        decode(bytes(payload))


def test_a_name_of_a_sql_ascii_database_may_be_no_utf8() -> None:
    relation = decode(b"R" + u32(OID) + b"pub\xfflic\0t\0d\0\0")
    assert isinstance(relation, m.Relation)
    assert relation.namespace == f"pub{UNREADABLE}lic"

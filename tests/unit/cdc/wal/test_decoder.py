"""Every message of protocol 1 to 4: whole, cut at every byte, with a byte too many, and garbage."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn
from cdc.wal import messages as m
from cdc.wal.decoder import decode
from cdc.wal.message_reader import POSTGRES_EPOCH_US
from tests.fixtures.wal_bytes import row, sized, u8, u32, u64

XID = 0xFFFF_FFF0
OID = 0x8000_0001
LSN, END = Lsn(0xFFFF_FFFF_0000_0001), Lsn(0x1_0000_0000)
US = POSTGRES_EPOCH_US
GID = b"my gid\0"
VALUES: m.Row = (b"1", None, m.ABSENT, b"", "é".encode())
COLUMNS = (m.RelationColumn(True, "id", 23, -1), m.RelationColumn(False, "näme", OID, 14))
_COLUMNS = b"\0\2" + b"\1id\0" + u32(23, 0xFFFF_FFFF) + b"\0" + "näme\0".encode() + u32(OID, 14)
_PREPARED = u64(LSN, END, 5) + u32(XID) + GID

# name: (kind, what may be preceded by a transaction id, message without and with one)
Streamable = (
    m.Relation | m.TypeMessage | m.Insert | m.Update | m.Delete | m.Truncate | m.LogicalMessage
)
STREAMABLE: dict[str, tuple[bytes, bytes, Streamable]] = {
    "relation": (
        b"R",
        u32(OID) + b"public\0t\0d" + _COLUMNS,
        m.Relation(OID, "public", "t", "d", COLUMNS),
    ),
    "relation_of_catalog": (
        b"R",
        u32(1) + b"\0t\0f" + b"\0\0",
        m.Relation(1, "pg_catalog", "t", "f", ()),
    ),
    "type": (b"Y", u32(OID) + b"public\0mood\0", m.TypeMessage(OID, "public", "mood")),
    "insert": (b"I", u32(OID) + b"N" + row(VALUES), m.Insert(OID, VALUES)),
    "insert_no_columns": (b"I", u32(OID) + b"N" + row(()), m.Insert(OID, ())),
    "update": (b"U", u32(OID) + b"N" + row(VALUES), m.Update(OID, None, False, VALUES)),
    "update_key": (
        b"U",
        u32(OID) + b"K" + row((b"0", None)) + b"N" + row((b"1", None)),
        m.Update(OID, (b"0", None), True, (b"1", None)),
    ),
    "update_full": (
        b"U",
        u32(OID) + b"O" + row((b"0",)) + b"N" + row((b"1",)),
        m.Update(OID, (b"0",), False, (b"1",)),
    ),
    "delete_key": (b"D", u32(OID) + b"K" + row((b"0",)), m.Delete(OID, (b"0",), True)),
    "delete_full": (b"D", u32(OID) + b"O" + row(VALUES), m.Delete(OID, VALUES, False)),
    "truncate": (b"T", u32(2) + u8(3) + u32(OID, 7), m.Truncate((OID, 7), True, True)),
    "truncate_plain": (b"T", u32(1) + u8(0) + u32(OID), m.Truncate((OID,), False, False)),
    "message": (
        b"M",
        u8(1) + u64(LSN) + b"prefix\0" + sized(b"\0content\xff"),
        m.LogicalMessage(True, LSN, "prefix", b"\0content\xff"),
    ),
}
PLAIN: dict[str, tuple[bytes, m.Message]] = {
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
    "stream_abort_parallel": (
        b"A" + u32(XID, 7) + u64(LSN, 5),
        m.StreamAbort(XID, 7, LSN, US + 5),
    ),
    "begin_prepare": (b"b" + _PREPARED, m.BeginPrepare(LSN, END, US + 5, XID, "my gid")),
    "prepare": (b"P\0" + _PREPARED, m.Prepare(LSN, END, US + 5, XID, "my gid")),
    "commit_prepared": (b"K\0" + _PREPARED, m.CommitPrepared(LSN, END, US + 5, XID, "my gid")),
    "rollback_prepared": (
        b"r\0" + u64(LSN, END, 5, 6) + u32(XID) + GID,
        m.RollbackPrepared(LSN, END, US + 5, US + 6, XID, "my gid"),
    ),
    "stream_prepare": (b"p\0" + _PREPARED, m.StreamPrepare(LSN, END, US + 5, XID, "my gid")),
}
CASES: dict[str, tuple[bytes, bool, m.Message]] = {
    **{name: (kind + body, False, message) for name, (kind, body, message) in STREAMABLE.items()},
    **{
        f"{name}_streamed": (kind + u32(XID) + body, True, message._replace(xid=XID))
        for name, (kind, body, message) in STREAMABLE.items()
    },
    **{name: (payload, False, message) for name, (payload, message) in PLAIN.items()},
    **{f"{name}_streamed": (payload, True, message) for name, (payload, message) in PLAIN.items()},
}
each_case = pytest.mark.parametrize(
    ("payload", "streaming", "message"), CASES.values(), ids=CASES.keys()
)
SHORTER_IS_WHOLE = {b"A" + u32(XID, 7)}
"""Stream Abort without its optional fields is the beginning of one with them."""


@each_case
def test_a_whole_message_gives_its_fields(
    payload: bytes, streaming: bool, message: m.Message
) -> None:
    decoded = decode(payload, streaming=streaming)
    assert decoded == message
    assert type(decoded) is type(message)


@each_case
def test_a_message_cut_short_is_corrupt(
    payload: bytes, streaming: bool, message: m.Message
) -> None:
    for size in range(len(payload)):
        if payload[:size] not in SHORTER_IS_WHOLE:
            with pytest.raises(CorruptMessageError):
                decode(payload[:size], streaming=streaming)


@each_case
def test_a_byte_too_many_is_corrupt(payload: bytes, streaming: bool, message: m.Message) -> None:
    with pytest.raises(CorruptMessageError):
        decode(payload + b"\0", streaming=streaming)


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
        b"R" + u32(OID) + b"pub\xfflic\0t\0d\0\0",
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


def test_the_error_names_message_and_place_but_no_data() -> None:
    with pytest.raises(CorruptMessageError) as raised:
        decode(b"I" + u32(OID) + b"N\0\1b" + sized(b"secret"))
    assert "'I' message" in str(raised.value)
    assert "byte 8" in str(raised.value)
    assert "secret" not in str(raised.value)


@given(st.binary(max_size=64), st.sampled_from("IUDBCORYTMSEcAbPKrp"), st.booleans())
def test_any_bytes_give_a_message_or_corrupt(body: bytes, kind: str, streaming: bool) -> None:
    for payload in (body, kind.encode() + body):
        with suppress(CorruptMessageError):
            decode(payload, streaming=streaming)


@given(st.data())
def test_a_damaged_message_gives_a_message_or_corrupt(data: st.DataObject) -> None:
    whole, streaming, _ = data.draw(st.sampled_from(list(CASES.values())))
    payload = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptMessageError):
        decode(bytes(payload), streaming=streaming)

"""Long, late and wrong messages → the extension stays within its limits, like the model."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.compiled import fast
from cdc.errors import CorruptMessageError
from cdc.records.position import Lsn, Position
from cdc.records.record import each
from cdc.records.schema import Column, TableSchema
from cdc.stream.in_progress import InProgress
from cdc.stream.translation import Limits, Translation
from cdc.tables.tables import Tables
from tests.fixtures import wal_bytes as wal
from tests.properties.cdc.compiled.test_stream import (
    OID,
    START,
    WAYS,
    OneTable,
    frame,
    outcome,
    relation,
    timeless,
)


def translated(
    table: OneTable, messages: list[bytes], *, compiled: bool, records_max: int = 10
) -> Translation:
    """One stream's translation after its last message."""
    progress = SimpleNamespace(position=START, cut=START, flush_lsn=Lsn(0), cut_ts_us=0)
    translation = WAYS[compiled](
        cast("Tables", table),
        cast("Any", progress),
        table.actions,
        lambda _: None,
        in_progress=InProgress(Path("/nowhere"), 1 << 20),
    )
    data = bytearray(b"".join(frame(10 + number, one) for number, one in enumerate(messages)))
    assert translation.feed(data, 0, len(data), Limits(records_max, 1 << 40)) == len(data)
    return translation


def texts(*types: str, modifier: int = -1) -> TableSchema:
    columns = tuple(
        Column(name=f"c{number}", type=name, type_oid=25, modifier=modifier, declared=name)
        for number, name in enumerate(types)
    )
    return TableSchema(
        namespace="public", table="t", version=1, since=str(START), topic="t",
        replica_identity="f", columns=columns, signature="",
    )  # fmt: skip


BEGIN = b"B" + struct.pack(">QqI", 900, 0, 1)


@pytest.mark.parametrize("since", [START, Position(1, Lsn(1_000), 0)], ids=["in the log", "unread"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_row_that_nobody_wants_is_checked_all_the_same(compiled: bool, since: Position) -> None:
    schema = texts("text")
    reached = Position(1, Lsn(900), 5) if since == START else START
    progress = SimpleNamespace(position=reached, cut=reached, flush_lsn=Lsn(0), cut_ts_us=0)
    table = OneTable(schema, compacted=False, since=since)
    row = wal.row((b"text",))
    for message in (
        b"I" + wal.u32(OID) + b"N" + row[:-1],
        b"I" + wal.u32(OID) + b"N" + row + b"\0",
        b"I" + wal.u32(OID) + b"O" + row,
        b"U" + wal.u32(OID) + b"O" + row + b"O" + row,
        b"U" + wal.u32(OID) + b"K" + row,
        b"D" + wal.u32(OID) + b"N" + row,
        b"D" + wal.u32(OID) + b"K" + row + row,
        b"I" + wal.u32(OID) + b"N\xff\xff",
    ):
        translation = WAYS[compiled](
            cast("Tables", table),
            cast("Any", progress),
            table.actions,
            lambda _: None,
            in_progress=InProgress(Path("/nowhere"), 1 << 20),
        )
        data = bytearray(frame(1, relation(schema)) + frame(2, BEGIN) + frame(3, message))
        with pytest.raises(CorruptMessageError):
            translation.feed(data, 0, len(data), Limits(10, 1 << 20))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["B", "C"])
def test_a_commit_time_beyond_64_bits_is_corrupt(compiled: bool, kind: str) -> None:
    table = OneTable(texts("text"), compacted=False, since=START)
    late = 2**63 - 1
    messages = [b"B" + struct.pack(">QqI", 900, late, 1)]
    if kind == "C":
        messages = [BEGIN, b"C\0" + struct.pack(">QQq", 900, 950, late)]
    with pytest.raises(CorruptMessageError):
        translated(table, messages, compiled=compiled)


@pytest.mark.parametrize(
    "value",
    [b"\x01" * 70_000, b'"' * 70_000, b"\\" * 70_000, b"a" * 70_000, "é".encode() * 70_000,
     b"\x01" * 9 + b"a" * 70_000, b"x" * 65_535, b"\x1f" * 65_535],
    ids=["controls", "quotes", "backslashes", "letters", "accents", "both", "short", "shorter"],
)  # fmt: skip
def test_room_is_kept_for_the_longest_form_of_a_long_text(value: bytes) -> None:
    schema = texts("text", "text")
    messages = [relation(schema), BEGIN, b"I" + wal.u32(OID) + b"N" + wal.row((value, value))]
    table = OneTable(schema, compacted=False, since=START)
    made, plain = (
        list(each(translated(table, messages, compiled=way).records)) for way in (True, False)
    )
    assert timeless(made, bytes) == timeless(plain, bytes)


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        *(("text", element) for element in ("a", "", '""', "\x01", '"\x01"', r'"\\"', '"\\\x01"')),
        *(("int4", "0"), ("float8", "0"), ("numeric", "0"), ("bool", "f"), ("bool", "NULL")),
        *(("date", "2024-02-29"), ("timestamptz", '"2024-02-29 13:14:15+00"')),
    ],
)
def test_room_is_kept_for_the_elements_of_a_long_array(kind: str, element: str) -> None:
    value = f"{{{','.join([element] * 40_000)}}}".encode()
    schema = texts(kind)
    array = schema.columns[0].model_copy(update={"array": True})
    schema = schema.model_copy(update={"columns": (array,)})
    table = OneTable(schema, compacted=False, since=START)
    stream = frame(1, relation(schema)) + frame(2, BEGIN)
    stream += frame(3, b"I" + wal.u32(OID) + b"N" + wal.row((value,)))
    made, plain = (
        outcome(table, stream, Limits(10, 1 << 40), compiled=way) for way in (True, False)
    )
    assert timeless(made[0], bytes) == timeless(plain[0], bytes)
    assert made[2] == plain[2]


def test_a_precision_that_postgresql_does_not_have_is_no_reason_to_write_beyond_the_room() -> None:
    schema = texts("timestamptz", modifier=60_000)
    row = wal.row((b"2024-02-29 13:14:15+00",))
    messages = [relation(schema), BEGIN, b"I" + wal.u32(OID) + b"N" + row]
    table = OneTable(schema, compacted=False, since=START)
    made, plain = (
        list(each(translated(table, messages, compiled=way).records)) for way in (True, False)
    )
    assert timeless(made, bytes) == timeless(plain, bytes)


def _nothing(_payload: bytes) -> bool:
    """Nothing comes this far."""
    return False


def test_what_lies_outside_of_the_buffer_is_not_read() -> None:
    translator = fast.Translator(fast.Cursor(START, START, Lsn(0)), [], lambda *_: None, _nothing)
    for start, end in ((0, 11), (-1, 10), (8, 7)):
        with pytest.raises(ValueError, match="buffer"):
            translator.feed(bytearray(10), start, end, 0, 10, 10)
    with pytest.raises(ValueError, match="records"):
        fast.produce(print, [], 0, 1, fast.WrittenRecords())


def test_a_huge_row_leaves_no_memory_taken() -> None:
    """Its room would stay as long as the stream does."""
    schema = texts("text")
    table = OneTable(schema, compacted=False, since=START)
    row = b"I" + wal.u32(OID) + b"N" + wal.row((b"a" * (64 << 20),))
    before = resident()
    translation = translated(table, [relation(schema), BEGIN, row], compiled=True)
    translation.take()
    assert resident() - before < 32 << 20


def test_single_rows_between_messages_of_another_kind_take_little_memory() -> None:
    """Each is a buffer of its own, and a batch has up to max.batch.size of them."""
    schema = texts("text")
    table = OneTable(schema, compacted=False, since=START)
    row = b"I" + wal.u32(OID) + b"N" + wal.row((b"a",))
    origin = b"O" + wal.u64(1) + b"o\0"
    messages = [relation(schema), BEGIN, *[row, origin] * 10_000]
    before = resident()
    translation = translated(table, messages, compiled=True, records_max=20_000)
    assert resident() - before < 32 << 20
    assert translation.take().events == 10_000


def resident() -> int:
    """Bytes of memory that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

"""Rows of a COPY: the extension writes what the reference writes, byte for byte."""

import re
import struct
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from cdc.compiled import fast
from cdc.convert.pipeline import NATIVE, Encoder
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder, Refusals
from cdc.errors import MillraceError, TableRefusedError
from cdc.events.changes import Read, Row
from cdc.events.reference import INCREMENTAL, LogContext
from cdc.events.rules import EventRules
from cdc.kafka.topics import TopicLimits
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, RecordOrBatch, each, record_bytes
from cdc.records.schema import Column, TableSchema
from cdc.stream.translation import Limits
from snapshots import copied_rows
from snapshots.copied_rows import CopiedRow, copier, parse
from tests.fixtures import stream_model
from tests.fixtures.examples import examples
from tests.fixtures.preset import DEBEZIUM
from tests.properties.cdc.compiled.test_forms import FORMS, RULES
from tests.properties.cdc.compiled.test_stream import timeless
from tests.properties.cdc.events.test_reference import rows, tables

ALL = Limits(1_000, 1 << 30)
HERE = Position(2, Lsn(77), 0), 5_000_000
WAYS: tuple[Any, ...] = (fast.Copier, stream_model.ModelCopier)
_ESCAPES = {
    b"\\": rb"\\", b"\b": rb"\b", b"\f": rb"\f", b"\n": rb"\n", b"\r": rb"\r", b"\t": rb"\t",
    b"\v": rb"\v",
}  # fmt: skip
_SPECIAL = re.compile(rb"[\\\b\f\n\r\t\v]")


def line(row: Row, extra: tuple[bytes, ...] = ()) -> bytes:
    """As COPY TO writes it."""
    fields = [
        _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text) if isinstance(text, bytes) else rb"\N"
        for text in (*row, *extra)
    ]
    return b"\t".join(fields) + b"\n"


def copy_data(payload: bytes) -> bytes:
    return b"d" + struct.pack(">I", len(payload) + 4) + payload


def native(schema: TableSchema, *, compacted: bool) -> Encoder:
    return Encoder(schema, EventRules(), LogContext("p", "d", 2, compacted=compacted), NATIVE)


@st.composite
def encoders(draw: st.DrawFn, schema: TableSchema) -> Encoder:
    """Native, or in one of the forms; some with something in place of what isn't taken."""
    compacted = bool(schema.key) and draw(st.booleans())
    if not draw(st.integers(0, 3)):
        return native(schema, compacted=compacted)
    rules, form = draw(st.sampled_from(RULES)), draw(st.sampled_from(FORMS))
    log = LogContext("p", "d", 2, compacted=compacted, run_id="run")
    if draw(st.booleans()):
        return Encoder(schema, rules, log, form)
    limits = {"topic": TopicLimits(draw(st.integers(1_500, 4_000)), keyless=draw(st.booleans()))}
    dead_letters = DeadLetters("p", lambda _: True, limits, Refusals())
    return GuardedEncoder(dead_letters, schema, rules, log, form)


@st.composite
def lines(draw: st.DrawFn, schema: TableSchema, extra: int) -> bytes:
    """A line of COPY; seldom one that is wrong."""
    row = draw(rows(schema))
    made = line(row, (b"(0,1)",) * extra)
    kind = draw(st.integers(0, 40))
    if kind == 0:
        made = line((*row, b"more"), (b"(0,1)",) * extra)
    elif kind == 1:
        made = made[:-1]
    elif kind == 2:
        made = draw(st.binary(max_size=20))
    elif kind == 3:
        made = made[:-1] + b"\\\n"
    elif kind == 4:
        made = rb"\q\N" + made
    return made


class Copied:
    """A table's rows that are read at once: by the extension, or by what stands for it."""

    def __init__(self, way: Any, encoder: Encoder, *read_at: Any, **options: Any) -> None:
        self.records: list[RecordOrBatch] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast, "Copier", way)
            self.copier = copier(self.records, encoder, *read_at, **options)

    def feed(self, data: bytearray, start: int, limits: Limits) -> int:
        """Take in what is there."""
        return self.copier.feed(data, start, len(data), time.time_ns(), *limits)

    def take(self) -> list[Record]:
        """What was made since the last time."""
        made = list(each(self.records))
        self.records.clear()
        return made


def outcome(
    copied: Copied, data: bytes, limits: Limits
) -> tuple[list[Record], list[int], int, type[MillraceError] | None]:
    """Records, where each batch ended, how many rows, and what stopped it."""
    made: list[Record] = []
    stops: list[int] = []
    buffer, start = bytearray(data), 0
    try:
        while (used := copied.feed(buffer, start, limits)) != start:
            stops.append(start := used)
            batch = copied.take()
            assert copied.copier.made_bytes == sum(map(record_bytes, batch))
            made += batch
    except MillraceError as error:
        return [*made, *copied.take()], stops, copied.copier.row_count, type(error)
    return made, stops, copied.copier.row_count, None


@settings(max_examples=examples(75))
@given(st.data())
def test_it_writes_what_the_reference_writes(data: st.DataObject) -> None:
    schema = data.draw(tables())
    try:
        encoder = data.draw(encoders(schema))
    except TableRefusedError:
        reject()
    extra = data.draw(st.integers(0, 2))
    given_lines = data.draw(st.lists(lines(schema, extra), max_size=6))
    marker = data.draw(st.sampled_from(["true", "first", INCREMENTAL]))
    read = Read(marker, data.draw(st.one_of(st.none(), st.integers(0, 2**32 - 1))))
    lsn = Lsn(data.draw(st.integers(0, 2**64 - 1)))
    place = Position(data.draw(st.integers(1, 9)), lsn, 0)
    ts_us = data.draw(st.integers(-(2**50), 2**60))
    key = tuple(data.draw(st.sets(st.integers(0, len(schema.columns) - 1), max_size=2)))
    stale = {
        b"\0".join(fields[index] for index in key)
        for one in given_lines[::2]
        if len(fields := one[:-1].split(b"\t")) > max(key, default=0)
    }
    limits = Limits(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5_000)))
    found = []
    for way in WAYS:
        options = {"key": key, "stale": stale if key else (), "extra": extra}
        copied = Copied(way, encoder, place, ts_us, read, **options)
        stream = b"".join(map(copy_data, given_lines)) + b"c\0\0\0\4"
        found.append(outcome(copied, stream, limits))
    (made, *rest), (plain, *plain_rest) = found
    assert unnamed(made) == unnamed(plain)
    assert rest == plain_rest


def unnamed(records: list[Record]) -> list[Any]:
    """Records without times, and letters without the names that they give themselves."""
    return [
        made if made[0] == "topic" else (made[0], len(made)) for made in timeless(records, bytes)
    ]


def table(*columns: tuple[str, str], key: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(
        namespace="public", table="t", version=3, since=str(Position(1, Lsn(0), 0)),
        topic="topic", replica_identity="d", signature="",
        columns=tuple(
            Column(
                name=name, type=kind, type_oid=1, declared=kind,
                key=key.index(name) + 1 if name in key else None,
            )
            for name, kind in columns
        ),
    )  # fmt: skip


def both(encoder: Encoder, data: list[bytes], **options: Any) -> list[Record]:
    """What both ways make, which is the same."""
    found = []
    for way in WAYS:
        copied = Copied(way, encoder, *HERE, **options)
        found.append(outcome(copied, b"".join(map(copy_data, data)), ALL))
    assert timeless(found[0][0], bytes) == timeless(found[1][0], bytes)
    assert found[0][1:] == found[1][1:]
    assert found[0][3] is None
    return found[0][0]


def slow_lines(encoder: Encoder, data: list[bytes], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of the lines the extension hands back."""
    left: list[bytes] = []

    def parse_noted(text: bytes) -> CopiedRow:
        left.append(text)
        return parse(text)

    with monkeypatch.context() as patch:
        patch.setattr(copied_rows, "parse", parse_noted)
        copied = Copied(fast.Copier, encoder, *HERE)
        buffer = bytearray(b"".join(map(copy_data, data)))
        assert copied.feed(buffer, 0, ALL) == len(buffer)
    return len(left)


def test_every_escape_is_read_without_help(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = table(("id", "int8"), ("v", "text"), ("w", "text"), key=("id",))
    encoder = native(schema, compacted=True)
    data = [
        line((b"1", b"\b\f\n\r\t\v\\", b"")),
        line((b"2", None, b"\\N")),
        b"3\t\\x\\N\\\\\t\\.\n",
        b"4\ta\\\tb\n",  # a backslash that escapes nothing
    ]
    afters = [re.findall(rb'"after":(\{.*?\}),', made.value or b"") for made in both(encoder, data)]
    assert [after for (after,) in afters] == [
        rb'{"id":1,"v":"\b\f\n\r\t\u000b\\","w":""}',
        rb'{"id":2,"v":null,"w":"\\N"}',
        rb'{"id":3,"v":"xN\\","w":"."}',
        rb'{"id":4,"v":"a\\","w":"b"}',
    ]
    assert slow_lines(encoder, data, monkeypatch) == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rules", [EventRules(), DEBEZIUM], ids=["lossless", "preset"])
def test_forms_in_json_need_no_help(
    rules: EventRules, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preset's snapshot has quirks of its own: of dates, not of other columns."""
    schema = table(("id", "int8"), ("n", "numeric"), ("d", "date"), ("v", "text"), key=("id",))
    encoder = Encoder(schema, rules, LogContext("p", "d", 2, compacted=False), form)
    assert encoder.compiled_read(Lsn(1), 1, Read()) is not None
    data = [line((b"1", b"1.50", b"2024-02-29", b"text")), line((b"2", None, b"infinity", b"\n"))]
    assert len(both(encoder, data)) == 2
    assert slow_lines(encoder, data, monkeypatch) == 0


def test_a_key_that_the_snapshot_reads_in_its_own_way_is_left_to_python() -> None:
    for kind, text in (("date", b"0044-03-15 BC"), ("timetz", b"01:02:03+01:02:03")):
        schema = table(("id", kind), key=("id",))
        encoder = Encoder(schema, DEBEZIUM, LogContext("p", "d", 2, compacted=False), FORMS[0])
        assert encoder.compiled_read(Lsn(1), 1, Read()) is None
        assert len(both(encoder, [line((text,))])) == 1


def test_tables_without_columns_have_rows_all_the_same() -> None:
    encoder = native(table(), compacted=False)
    assert len(both(encoder, [b"\n"] * 3)) == 3
    assert len(both(encoder, [b"(0,1)\n"] * 3, extra=1)) == 3


def test_stale_rows_are_left_out_by_the_texts_of_their_keys() -> None:
    """A row whose key lacks a part is never stale; message.key.columns aren't asked."""
    schema = table(("a", "text"), ("b", "int8"), ("v", "text"), key=("v",))
    rows = [(b"x\ty", b"1", b"0"), (b"x", b"2", b"1"), (None, b"1", b"2"), (b"x", b"wrong", b"3")]
    data = [line(row, (b"(0,1)",)) for row in rows]
    stale = {b"x\ty\0" + b"1", b"\0" + b"1", b"x\0wrong"}
    encoder = native(schema, compacted=True)
    left = both(encoder, data, key=(0, 1), extra=1, stale=stale)
    assert [made.key for made in left] == [b'{"v":"1"}', b'{"v":"2"}']


def test_rows_that_a_topic_does_not_take_are_left_to_python() -> None:
    schema = table(("id", "int8"), ("v", "text"), key=("id",))
    dead_letters = DeadLetters(
        "p", lambda _: True, {"topic": TopicLimits(2_000, keyless=False)}, Refusals()
    )
    encoder = GuardedEncoder(
        dead_letters, schema, EventRules(), LogContext("p", "d", 2, compacted=True), FORMS[0]
    )
    copied = Copied(fast.Copier, encoder, *HERE)
    data = [line((b"1", b"small")), line((b"2", b"x" * 3_000)), line((b"wrong", b"small"))]
    made, *_ = outcome(copied, b"".join(map(copy_data, data)), ALL)
    assert [record.key for record in made if record.topic == "topic"] == [b'{"id":1}']
    assert copied.copier.row_count == 3
    assert len({record.topic for record in made}) == 2


def test_no_text_is_more_than_its_room() -> None:
    """Escapes beside controls, which take six bytes each; and as large as rows come."""
    encoder = native(table(("v", "text"), ("w", "text")), compacted=False)
    for size in (1, 5_000, 200_000):
        text = b"\\" + b"\x01\t" * size
        assert len(both(encoder, [line((text, text)), line((b"", text))])) == 2


@given(st.lists(st.binary(max_size=3), max_size=4), st.integers(0, 9), st.integers(0, 9))
def test_the_last_message_is_found_by_both(parts: list[bytes], cut: int, start: int) -> None:
    data = bytearray(b"".join(map(copy_data, parts)) + b"c\0\0\0\4")
    end = max(0, len(data) - cut)
    start = min(start, end)
    assert fast.last_copy_data(data, start, end) == stream_model.last_copy_data(data, start, end)


def test_a_table_with_transforms_or_in_avro_goes_by_python_alone() -> None:
    schema = table(("id", "int8"), key=("id",))
    log = LogContext("p", "d", 2, compacted=False)
    without = replace(FORMS[0], transform=lambda record: [record])
    encoder = Encoder(schema, EventRules(), log, without)
    assert encoder.compiled_read(Lsn(1), 1, Read()) is None
    assert len(both(encoder, [b"1\n"])) == 1
    skipped = replace(DEBEZIUM, events=replace(DEBEZIUM.events, skipped=frozenset("r")))
    encoder = Encoder(schema, skipped, log, FORMS[0])
    assert both(encoder, [b"1\n"]) == []

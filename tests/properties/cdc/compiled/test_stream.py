"""Random streams, also with odd bytes: the extension equals the reference and the model."""

import json
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, Self, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.convert.pipeline import NATIVE, Encoder
from cdc.errors import CorruptMessageError, MillraceError, TableRefusedError
from cdc.events.changes import RereadRequest
from cdc.events.metadata import MessageEvents
from cdc.events.reference import LogContext
from cdc.events.rules import EventRules
from cdc.records.position import HEADER, Lsn, Position
from cdc.records.record import Record, each
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings.modes import Patterns
from cdc.stream.encoding import Actions
from cdc.stream.in_progress import InProgress
from cdc.stream.translation import Limits, Translation
from cdc.tables.tables import Arrival, Tables
from cdc.wal.messages import ABSENT, Row
from tests.fixtures import wal_bytes as wal
from tests.fixtures.examples import examples
from tests.fixtures.position_headers import parse_filled, parse_header
from tests.fixtures.stream_model import ModelTranslation
from tests.properties.cdc.events.test_reference import rows, tables

OID = 16_385
START = Position(1, Lsn(0), 0)
WAYS: dict[bool, type[Translation]] = {True: Translation, False: ModelTranslation}
_CLOCK = re.compile(rb',"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+\}(\}?)$')


class NoObstacles:
    """Sets nothing aside: what is wrong with a row ends the stream, as the model's does."""

    def set_aside(self, _table: Any, error: TableRefusedError) -> NoReturn:
        raise error


class OneTable:
    """Knows one table, whose rows are wanted from a position on."""

    def __init__(
        self, schema: TableSchema, *, compacted: bool, since: Position, reselects: bool = False
    ) -> None:
        self._schema = schema
        self._reselects = reselects
        self._compacted = compacted
        self._since = since

    transactions = None
    dead_letters = None
    requested_changes = 0
    waiting: ClassVar[dict[TableName, Any]] = {}
    obstacles = NoObstacles()
    pipeline = NATIVE
    messages = MessageEvents(
        EventRules(message_prefix_include=Patterns((".*",))),
        LogContext("p", "d", 2, compacted=False),
        clock_ns=lambda: 5_000_000,
    )

    def is_whole(self, _table: Any) -> bool:
        return True

    def has_read(self, _relation: Any, position: Position) -> bool:
        return position < self._since

    def is_set_aside(self, _table: Any) -> bool:
        return False

    def is_taken(self, _table: Any) -> bool:
        return True

    @property
    def states(self) -> Self:
        return self

    @property
    def encoders(self) -> Self:
        return self

    @property
    def actions(self) -> Actions:
        return Actions(lambda _: None, self.reread, lambda *_: [])

    def arrive(self, _relation: Any, _since: Position, _xid: int | None) -> Arrival:
        return Arrival(self._schema, [])

    def encoder(self, _schema: TableSchema) -> Encoder:
        log = LogContext("p", "d", 2, compacted=self._compacted)
        return Encoder(self._schema, EventRules(), log, NATIVE, reselects=self._reselects)

    def reread(self, request: RereadRequest) -> dict[tuple[bytes, ...], Row]:
        """Some rows are gone; of the others some columns are, and the rest is null by now."""
        return {
            key: tuple(None if (index + len(key[0])) % 3 else ABSENT for index in request.columns)
            for key in request.keys
            if len(key[-1]) % 3
        }


def frame(lsn: int, message: bytes) -> bytes:
    payload = b"w" + struct.pack(">QQq", lsn, lsn, 0) + message
    return b"d" + struct.pack(">I", len(payload) + 4) + payload


def relation(schema: TableSchema) -> bytes:
    columns = b"".join(
        wal.u8(column.key is not None) + column.name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
        for column in schema.columns
    )
    name = schema.namespace.encode() + b"\0" + schema.table.encode() + b"\0"
    return b"R" + wal.u32(OID) + name + b"d" + struct.pack(">H", len(schema.columns)) + columns


def as_key(row: Row, schema: TableSchema) -> Row:
    return tuple(
        value if column.key else None for column, value in zip(schema.columns, row, strict=True)
    )


@st.composite
def row_messages(draw: st.DrawFn, schema: TableSchema) -> bytes:
    kind = draw(st.sampled_from("IIUUUDDTM"))
    if kind == "T":
        return b"T" + wal.u32(1) + wal.u8(0) + wal.u32(OID)
    if kind == "M":
        return b"M" + wal.u8(1) + wal.u64(5) + b"prefix\0" + wal.sized(b"text")
    new = draw(rows(schema))
    if kind == "I":
        return b"I" + wal.u32(OID) + b"N" + wal.row(new)
    old = draw(st.one_of(st.just(new), rows(schema, new)))
    old_is_key = draw(st.booleans())
    image = b"K" + wal.row(as_key(old, schema)) if old_is_key else b"O" + wal.row(old)
    if kind == "D":
        return b"D" + wal.u32(OID) + image
    without = draw(st.booleans())
    return b"U" + wal.u32(OID) + (b"" if without else image) + b"N" + wal.row(new)


@st.composite
def streams(draw: st.DrawFn, schema: TableSchema) -> bytes:
    """A relation, then transactions one after the other, with keepalives in between."""
    lsn = draw(st.integers(1, 2**63))
    found = [frame(lsn, relation(schema))]
    for xid in range(draw(st.integers(1, 3))):
        messages = draw(st.lists(row_messages(schema), max_size=5))
        lsn += 1_000
        ts = draw(st.integers(-(2**61), 2**61))
        if not draw(st.integers(0, 3)):  # written by the transaction, right before its commit
            note = b"M\0" + struct.pack(">Q", lsn + 900) + b"note\0" + wal.u32(1) + b"x"
            found.append(frame(lsn + 900, note))
        found.append(frame(lsn, b"B" + struct.pack(">QqI", lsn + 900, ts, xid)))
        if draw(st.integers(0, 3)) == 0:
            origin = draw(
                st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
            )
            message = (
                b"O" + struct.pack(">Q", draw(st.integers(0, 2**63))) + origin.encode() + b"\0"
            )
            found.append(frame(lsn, message))
        found += [frame(lsn + number, message) for number, message in enumerate(messages)]
        if draw(st.integers(0, 9)):
            found.append(frame(lsn, b"C\0" + struct.pack(">QQq", lsn + 900, lsn + 950, ts)))
        if draw(st.booleans()):
            keepalive = b"k" + struct.pack(">QqB", lsn + draw(st.integers(0, 2_000)), 0, 0)
            found.append(b"d" + struct.pack(">I", len(keepalive) + 4) + keepalive)
    return b"".join(found)


def outcome(
    table: OneTable, data: bytes, limits: Limits, *, compiled: bool, reached: Position = START
) -> tuple[list[Record], tuple[Any, ...], type[MillraceError] | None]:
    """What a stream's bytes become, where the cursor stands and each call ended, what stopped it.

    ``reached``: what the log has when the stream begins.
    """
    progress = SimpleNamespace(position=reached, cut=START, flush_lsn=Lsn(0), cut_ts_us=0)
    translation = WAYS[compiled](
        cast("Tables", table),
        cast("Any", progress),
        table.actions,
        lambda _: None,
        in_progress=InProgress(Path("/nowhere"), 1 << 20),
    )
    made: list[Record] = []
    buffer, start, error = bytearray(data), 0, None
    stops: list[tuple[int, int, int]] = []
    try:
        while True:
            used = translation.feed(buffer, start, len(buffer), limits)
            batch = translation.take()
            stops.append((used, batch.events, batch.size))
            made += each(batch.records)
            if used == start and not translation.is_behind:
                break
            start = used
    except (CorruptMessageError, TableRefusedError) as raised:
        error = type(raised)
        with suppress(CorruptMessageError, TableRefusedError):  # A waiting row may be wrong, too.
            made += each(translation.take().records)
    cursor = translation.cursor
    places = cursor.reached, cursor.cut, cursor.flush_lsn, cursor.cut_ts_us, cursor.transaction
    return made, (*places, stops) if error is None else (), error


def timeless(records: list[Record], read: Callable[[bytes], Any]) -> list[Any]:
    """Records without the time at which they were made."""
    return [
        (record.topic, record.key, record.headers, record.partition)
        + ((read(_CLOCK.sub(rb"}\1", record.value)),) if record.value is not None else ())
        for record in records
    ]


@settings(max_examples=examples(50))
@given(st.data())
def test_the_extension_writes_what_the_reference_writes(data: st.DataObject) -> None:
    schema = data.draw(tables())
    stream = data.draw(streams(schema))
    since = Position(1, Lsn(data.draw(st.one_of(st.just(0), st.integers(0, 2**63)))), 0)
    compacted = bool(schema.key) and data.draw(st.booleans())
    reselects = compacted and data.draw(st.booleans())
    table = OneTable(schema, compacted=compacted, since=since, reselects=reselects)
    limits = Limits(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5_000)))
    fast, fast_place, fast_error = outcome(table, stream, limits, compiled=True)
    plain, plain_place, plain_error = outcome(table, stream, limits, compiled=False)
    assert timeless(fast, bytes) == timeless(plain, bytes)
    assert fast_error == plain_error
    assert fast_place == plain_place


@settings(max_examples=examples(50))
@given(st.data())
def test_a_start_in_the_middle_goes_on_where_the_model_does(data: st.DataObject) -> None:
    schema = data.draw(tables())
    stream = data.draw(streams(schema))
    table = OneTable(schema, compacted=bool(schema.key), since=START)
    limits = Limits(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5_000)))
    whole, _, _ = outcome(table, stream, limits, compiled=False)
    positions = [parse_header(dict(record.headers)[HEADER])[0] for record in whole]
    reached = data.draw(st.sampled_from([START, *positions]))
    made, place, error = outcome(table, stream, limits, compiled=True, reached=reached)
    plain, plain_place, plain_error = outcome(
        table, stream, limits, compiled=False, reached=reached
    )
    assert timeless(made, bytes) == timeless(plain, bytes)
    assert (error, place) == (plain_error, plain_place)
    left = [record for record, at in zip(whole, positions, strict=True) if at > reached]
    assert timeless(made, bytes) == timeless(left, bytes)


@settings(max_examples=examples(60))
@given(st.data())
def test_bytes_that_are_wrong_are_the_same_error_to_both(data: st.DataObject) -> None:
    schema = data.draw(tables())
    stream = bytearray(data.draw(streams(schema)))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(stream[: data.draw(st.integers(1, len(stream)))])
    keyed = bool(schema.key)
    table = OneTable(schema, compacted=keyed, since=START, reselects=data.draw(st.booleans()))
    limits = Limits(1_000, 1 << 20)
    fast, fast_place, fast_error = outcome(table, cut, limits, compiled=True)
    plain, plain_place, plain_error = outcome(table, cut, limits, compiled=False)
    # A number that PostgreSQL wouldn't write so may be written in another, equal form.
    assert timeless(fast, json.loads) == timeless(plain, json.loads)
    assert fast_error == plain_error
    assert fast_place == plain_place


def test_values_that_were_not_sent_are_left_out_by_both() -> None:
    """An unchanged value is filled from the old row, where that has it."""
    columns = tuple(
        Column(name=name, type="text", type_oid=25, declared="text", key=key)
        for name, key in (("id", 1), ("big", None))
    )
    schema = TableSchema(
        namespace="public", table="t", version=1, since=str(START), topic="t",
        replica_identity="f", columns=columns, signature="",
    )  # fmt: skip
    table = OneTable(schema, compacted=True, since=START)
    begin = b"B" + struct.pack(">QqI", 900, 0, 1)
    old = b"O" + wal.row((b"1", b"large"))
    messages = [
        relation(schema),
        begin,
        b"U" + wal.u32(OID) + b"N" + wal.row((b"1", ABSENT)),
        b"U" + wal.u32(OID) + old + b"N" + wal.row((b"1", ABSENT)),
    ]
    data = b"".join(frame(10 + number, message) for number, message in enumerate(messages))
    for compiled in (True, False):
        made, _, _ = outcome(table, data, Limits(10, 1 << 20), compiled=compiled)
        rows = [json.loads(record.value or b"")["after"] for record in made]
        assert rows == [{"id": "1"}, {"id": "1", "big": "large"}]


def test_values_that_were_read_again_are_in_their_places_and_named() -> None:
    """Rows wait for their batch's end, and then stand where they would have stood."""
    columns = tuple(
        Column(name=name, type="text", type_oid=25, declared="text", key=key)
        for name, key in (("id", 1), ("n", None), ("big", None))
    )
    schema = TableSchema(
        namespace="public", table="t", version=1, since=str(START), topic="t",
        replica_identity="d", columns=columns, signature="",
    )  # fmt: skip
    begin = b"B" + struct.pack(">QqI", 900, 0, 7)
    messages = [
        relation(schema),
        begin,
        b"I" + wal.u32(OID) + b"N" + wal.row((b"1", b"0", b"large")),
        b"U" + wal.u32(OID) + b"N" + wal.row((b"1", b"1", ABSENT)),
        b"U"
        + wal.u32(OID)
        + b"K"
        + wal.row((b"1", None, None))
        + b"N"
        + wal.row((b"2", b"2", ABSENT)),
        b"U" + wal.u32(OID) + b"N" + wal.row((b"2", b"3", ABSENT)),
        b"U" + wal.u32(OID) + b"N" + wal.row((b"2", b"4", b"new")),
    ]
    data = b"".join(frame(10 + number, message) for number, message in enumerate(messages))

    class Source(OneTable):
        requests: list[RereadRequest]

        def reread(self, request: RereadRequest) -> dict[tuple[bytes, ...], Row]:
            self.requests.append(request)
            return {(b"2",): (b"new",)}

    for compiled in (True, False):
        table = Source(schema, compacted=True, since=START, reselects=True)
        table.requests = []
        made, _, _ = outcome(table, data, Limits(10, 1 << 20), compiled=compiled)
        events = [json.loads(record.value) if record.value else None for record in made]
        afters = [(e["op"], e["after"]) if e else None for e in events]
        assert afters == [
            ("c", {"id": "1", "n": "0", "big": "large"}),
            ("u", {"id": "1", "n": "1"}),
            ("d", None),
            None,
            ("c", {"id": "2", "n": "2", "big": "new"}),
            ("u", {"id": "2", "n": "3", "big": "new"}),
            ("u", {"id": "2", "n": "4", "big": "new"}),
        ]
        told = [parse_filled(record.headers[0][1]) for record in made]
        assert told == [(), (), (), (), (2,), (2,), ()]
        (request,) = table.requests
        assert (request.columns, request.keys, request.xids) == (
            (2,),
            ((b"1",), (b"2",)),
            frozenset({7}),
        )

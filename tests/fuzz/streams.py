"""CopyData streams, mutated, to the extension and to its model: the same records or error."""

import json
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from cdc.errors import CorruptMessageError, TableRefusedError
from cdc.records.orders import DeadLetterOrder
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, each
from cdc.records.schema import Column, TableSchema
from cdc.stream.in_progress import InProgress
from cdc.stream.logical_messages import OWN
from cdc.stream.translation import Limits
from cdc.tables.tables import Tables
from cdc.wal.messages import ABSENT, Row, Value
from tests.fixtures import wal_bytes as wal
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target
from tests.fuzz.texts import TEXTS, as_arrays
from tests.properties.cdc.compiled.test_stream import (
    OID,
    WAYS,
    OneTable,
    frame,
    relation,
    timeless,
)

_COMMIT = 1_000
_PREFIXES = (b"prefix", b"", b"\xff", b"p" * 300, *(prefix.encode() for prefix in sorted(OWN)))
_ORDER = DeadLetterOrder(outcome="replayed", number=1, id="x").model_dump_json().encode()
_CONTENTS = (b"text", b"", b"\xff", b"\0", b"x" * 300, b"[" * 1_000, b"{}", _ORDER)
_OTHERS = {
    "T": b"T" + wal.u32(1) + wal.u8(0) + wal.u32(OID),
    "Y": b"Y" + wal.u32(7) + b"public\0mood\0",
}


class Stream(NamedTuple):
    """Bytes, a table that they are of, and what of them the log has already."""

    table: OneTable
    reached: Position
    limits: Limits
    data: bytes


class OfTables(Target):
    """Makes rows of random tables with columns of all types."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._texts = {
            (kind, array): Mutator(as_arrays(texts) if array else texts, self.random)
            for kind, texts in TEXTS.items()
            for array in (False, True)
        }
        self._schemas = [self._schema() for _ in range(100)]

    def _schema(self) -> TableSchema:
        chance = self.random
        kinds = [chance.choice(sorted(TEXTS)) for _ in range(chance.randint(1, 6))]
        keyed = chance.randint(0, min(2, len(kinds)))
        columns = tuple(
            Column(
                name=chance.choice(("c", 'q"\\é')) + str(number),
                type=kind,
                type_oid=25,
                array=chance.random() < 0.3,
                modifier=chance.choice((-1, 0, 3)),
                declared=kind,
                key=number + 1 if number < keyed else None,
            )
            for number, kind in enumerate(kinds)
        )
        return TableSchema(
            namespace="public", table="t", version=1, since=str(Position(1, Lsn(0), 0)), topic="t",
            replica_identity="f", columns=columns, signature="",
        )  # fmt: skip

    def _row(self, schema: TableSchema) -> Row:
        return tuple(self._value(column) for column in schema.columns)

    def _value(self, column: Column) -> Value:
        chance = self.random.random()
        if chance < 0.05:
            return None
        if chance < 0.1:
            return ABSENT
        texts = self._texts[column.type, column.array]
        return texts.make() if chance < 0.15 else texts.unchanged()


class Streams(OfTables):
    """Transactions of random tables with columns of all types; one frame or the whole mutated."""

    name = "streams"
    share = 2

    def make(self) -> Stream:
        """Make a stream of a relation and one or two transactions."""
        chance = self.random
        schema = chance.choice(self._schemas)
        messages = [relation(schema)]
        for xid in range(chance.randint(1, 2)):
            commit_lsn, ts = (
                _COMMIT * (xid + 1),
                chance.choice((0, -1, 10**15, 2**63 - 1, -(2**63))),
            )
            messages.append(b"B" + struct.pack(">QqI", commit_lsn, ts, xid))
            messages += [self._change(schema) for _ in range(chance.randint(0, 4))]
            messages.append(b"C\0" + struct.pack(">QQq", commit_lsn, commit_lsn + 50, ts))
        if chance.random() < 0.8:
            number = chance.randrange(len(messages))
            messages[number] = Mutator(messages, chance).changed(messages[number])
        frames = [frame(10 + number, message) for number, message in enumerate(messages)]
        data = b"".join(frames)
        if chance.random() < 0.2:
            data = Mutator(frames, chance).changed(data)
        reached = Position(1, Lsn(chance.choice((0, 0, _COMMIT))), chance.choice((0, 1, 2)))
        since = Position(1, Lsn(chance.choice((0, 0, _COMMIT + 1))), 0)
        table = OneTable(schema, compacted=bool(schema.key), since=since)
        return Stream(table, reached, Limits(chance.choice((1, 3, 1_000)), 1 << 20), data)

    def check(self, made: Stream) -> None:
        """Translate it both ways."""
        fast, fast_cursor, fast_error = outcome(made, compiled=True)
        pure, pure_cursor, pure_error = outcome(made, compiled=False)
        assert fast_error == pure_error
        assert fast_cursor == pure_cursor
        if timeless(fast, bytes) != timeless(pure, bytes):
            # A number that PostgreSQL wouldn't write so may be written in another, equal form.
            assert timeless(fast, json.loads) == timeless(pure, json.loads)

    def _change(self, schema: TableSchema) -> bytes:
        kind = self.random.choice("IIIUUDTMYR")
        if kind == "M":
            return logical_message(self.random)
        if kind in "TYR":
            return _OTHERS[kind] if kind != "R" else relation(schema)
        head, new = kind.encode() + wal.u32(OID), wal.row(self._row(schema))
        if kind == "I":
            return head + b"N" + new
        old = self.random.choice((b"K", b"O")) + (
            new if self.random.random() < 0.5 else wal.row(self._row(schema))
        )
        if kind == "D":
            return head + old
        return head + self.random.choice((b"", old)) + b"N" + new


def logical_message(chance: random.Random) -> bytes:
    """One that anybody may write, with a prefix of ours or not."""
    head = b"M" + wal.u8(chance.choice((0, 1, 1))) + wal.u64(5)
    return head + chance.choice(_PREFIXES) + b"\0" + wal.sized(chance.choice(_CONTENTS))


class LogicalMessages(OfTables):
    """Messages that anybody may write: in transactions, in blocks of those, and outside."""

    name = "logical"
    share = 2

    def make(self) -> Stream:
        """Make a stream of them, of one transaction or of its blocks."""
        chance = self.random
        schema = chance.choice(self._schemas)
        messages = [logical_message(chance) for _ in range(chance.randint(1, 5))]
        ends = struct.pack(">QQq", _COMMIT, _COMMIT + 50, 5)
        if chance.random() < 0.5:
            begin = b"B" + struct.pack(">QqI", _COMMIT, 5, 7)
            messages = [begin, *messages, b"C\0" + ends]
        elif chance.random() < 0.8:
            xid = wal.u32(7)
            kept = [message[:1] + xid + message[1:] for message in messages]
            messages = [b"S" + xid + b"\1", *kept, b"E", b"c" + xid + b"\0" + ends]
        if chance.random() < 0.5:
            number = chance.randrange(len(messages))
            messages[number] = Mutator(messages, chance).changed(messages[number])
        data = b"".join(frame(10 + number, message) for number, message in enumerate(messages))
        reached = Position(1, Lsn(chance.choice((0, _COMMIT))), chance.choice((0, 1, 2)))
        table = OneTable(schema, compacted=bool(schema.key), since=reached)
        return Stream(table, reached, Limits(chance.choice((1, 3, 1_000)), 1 << 20), data)

    def check(self, made: Stream) -> None:
        """Translate it both ways."""
        assert outcome(made, compiled=True) == outcome(made, compiled=False)


def outcome(made: Stream, *, compiled: bool) -> tuple[list[Record], tuple[Any, ...], type | None]:
    """What a stream's bytes become, where the cursor stands then, and what stopped it."""
    reached = made.reached
    progress = SimpleNamespace(position=reached, cut=reached, flush_lsn=Lsn(0), cut_ts_us=0)
    translation = WAYS[compiled](
        cast("Tables", made.table),
        cast("Any", progress),
        made.table.actions,
        lambda _: None,
        in_progress=InProgress(Path("/nowhere"), 1 << 20),
    )
    buffer, start = bytearray(made.data), 0
    records: list[Record] = []
    try:
        while (
            used := translation.feed(buffer, start, len(buffer), made.limits)
        ) != start or translation.is_behind:
            records += each(translation.take().records)
            start = used
    except (CorruptMessageError, TableRefusedError) as error:
        return [*records, *each(translation.take().records)], (), type(error)
    cursor = translation.cursor
    positions = cursor.reached, cursor.cut, cursor.flush_lsn, cursor.cut_ts_us, cursor.transaction
    return records, (*positions, start), None

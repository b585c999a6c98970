"""A batch that sets a table aside: its other findings start no read of the table."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.convert.pipeline import Encoder
from cdc.errors import RecordRefusedError
from cdc.events.changes import ABSENT
from cdc.records.position import Lsn, Position
from cdc.records.record import each
from cdc.records.state import Phase, SnapshotRequest
from cdc.records.topics import table_topic
from cdc.stream.encoding import Actions
from cdc.stream.in_progress import InProgress
from cdc.stream.translation import Limits, Translation
from cdc.tables.obstacles import GIVEN_UP
from cdc.tables.tables import Tables
from tests.fixtures import wal_bytes as wal
from tests.fixtures.made_tables import STATE, tables
from tests.properties.cdc.compiled.test_stream import frame

START = Position(1, Lsn(500), 0)
BEGIN = b"B" + struct.pack(">QqI", 1_000, 0, 90)


def announced(identity: bytes, key: int) -> bytes:
    """The table's relation; ``key``: whether its old rows have the id (1 or 0)."""
    columns = [wal.u8(key) + b"id\0", wal.u8(0) + b"email\0"]
    types = b"".join(column + struct.pack(">Ii", 25, -1) for column in columns)
    return b"R" + wal.u32(STATE.oid) + b"public\0t\0" + identity + struct.pack(">H", 2) + types


def translating(made: Tables, folder: Path) -> Translation:
    return Translation(
        made,
        cast("Any", SimpleNamespace(position=START, cut=START, flush_lsn=Lsn(500), cut_ts_us=0)),
        Actions(lambda _: None, lambda _: None, lambda *_: []),
        lambda _: None,
        in_progress=InProgress(folder, 1 << 20),
    )


def test_a_table_is_not_read_anew_whose_changes_are_not_taken_any_more(tmp_path: Path) -> None:
    """A row of it lacks a value that can't be read: were it followed, no chunk would have that."""
    made = tables()
    first = SnapshotRequest(kind="initial")
    made.states.put(STATE.model_copy(update={"phase": Phase.SNAPSHOT, "requests": (first,)}))
    translation = translating(made, tmp_path)
    oid = wal.u32(STATE.oid)
    messages = [
        BEGIN,
        announced(b"d", 1),
        b"U" + oid + b"N" + wal.row([b"1", ABSENT]),
        announced(b"n", 0),
        b"I" + oid + b"N" + wal.row([b"2", b"x"]),
    ]
    data = bytearray(b"".join(frame(600 + n, message) for n, message in enumerate(messages)))
    start = 0
    while start < len(data):
        start = translation.feed(data, start, len(data), Limits(50, 1 << 20))
    translation.take()
    state = made.states[STATE.name]
    assert state.is_set_aside
    assert state.initial is None, "nobody would serve it"


def test_of_a_row_that_has_no_record_the_table_is_set_aside_from_there_on(tmp_path: Path) -> None:
    made = tables()
    made.states.put(STATE.model_copy(update={"phase": Phase.STREAMING}))
    translation = translating(made, tmp_path)
    oid = wal.u32(STATE.oid)
    rows = [b"x", b"\xe9", b"x"]
    inserts = [b"I" + oid + b"N" + wal.row([b"%d" % n, text]) for n, text in enumerate(rows)]
    messages = [BEGIN, announced(b"d", 1), *inserts]
    data = bytearray(b"".join(frame(600 + n, message) for n, message in enumerate(messages)))
    assert translation.feed(data, 0, len(data), Limits(50, 1 << 20)) == len(data)
    batch = translation.take()
    assert batch.events == 1, "what was before the row is in the log, and nothing behind it"
    assert translation.cursor.reached.index == len(rows)
    state = made.states[STATE.name]
    assert state.is_set_aside
    assert made.obstacles.is_given_up(STATE.name), "the catalog can't tell when it may be read"
    states = [record for record in each(batch.records) if record.topic == table_topic("pre")]
    assert f'"refused":"{GIVEN_UP}"'.encode() in (states[-1].value or b"")
    (noted,) = made.obstacles.try_again()
    assert not made.obstacles.is_given_up(STATE.name)
    assert b'"refused":""' in (noted.value or b"")


@pytest.mark.parametrize("kind", ["truncate", "insert"])
@pytest.mark.parametrize("where", ["the encoder", "the event"])
def test_so_it_is_where_there_is_no_encoder_or_no_event_of_a_truncate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, kind: str
) -> None:
    def refuse(*_: object) -> None:
        raise RecordRefusedError("no")

    made = tables()
    made.states.put(STATE.model_copy(update={"phase": Phase.STREAMING}))
    if where == "the encoder":
        monkeypatch.setattr(made.encoders, "encoder", refuse)
    else:
        for name in ("truncate", "insert", "compiled"):
            monkeypatch.setattr(Encoder, name, refuse if name != "compiled" else lambda _: None)
    oid = wal.u32(STATE.oid)
    insert = b"I" + oid + b"N" + wal.row([b"1", b"x"])
    truncate = b"T" + wal.u32(1) + b"\0" + oid
    messages = [BEGIN, announced(b"d", 1), truncate if kind == "truncate" else insert]
    data = bytearray(b"".join(frame(600 + n, message) for n, message in enumerate(messages)))
    translation = translating(made, tmp_path)
    assert translation.feed(data, 0, len(data), Limits(50, 1 << 20)) == len(data)
    assert translation.take().events == 0
    assert made.obstacles.is_given_up(STATE.name)

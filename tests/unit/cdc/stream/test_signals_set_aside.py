"""Signals count even if their table is set aside: reads wait for its watermarks."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.records.position import Lsn, Position
from cdc.records.record import each
from cdc.records.schema import TableName
from cdc.stream.encoding import Actions
from cdc.stream.in_progress import InProgress
from cdc.stream.signals import NOTHING, SignalOutput, StreamedRow
from cdc.stream.translation import Limits, Translation
from tests.fixtures import wal_bytes as wal
from tests.fixtures.made_tables import RELATION, STATE, tables
from tests.fixtures.stream_model import ModelTranslation

START = Position(1, Lsn(800), 0)
LIMITS = Limits(1_000, 1 << 20)


class Watcher:
    """Is shown the rows of the one table."""

    def __init__(self) -> None:
        self.rows: list[StreamedRow] = []

    def announce(self, _relation: object) -> None:
        """It is as it was."""

    def watches(self, table: TableName) -> bool:
        return table == STATE.name

    def key_tracking(self, _relation: object) -> None:
        """Rows are to be shown."""

    def note_row(self, row: StreamedRow) -> SignalOutput:
        self.rows.append(row)
        return NOTHING


def transaction(commit_lsn: int) -> bytes:
    """An INSERT, an UPDATE and a DELETE in a table without a replica identity's columns."""
    columns = b"".join(
        wal.u8(0) + column.name.encode() + b"\0" + struct.pack(">Ii", column.type_oid, -1)
        for column in RELATION.columns
    )
    name = RELATION.namespace.encode() + b"\0" + RELATION.name.encode() + b"\0"
    relation = b"R" + wal.u32(RELATION.oid) + name + b"n" + struct.pack(">H", 2) + columns
    row, oid = wal.row((b"1", b"a@b")), wal.u32(RELATION.oid)
    messages = [
        b"B" + struct.pack(">QqI", commit_lsn, 0, 5),
        relation,
        b"I" + oid + b"N" + row,
        b"U" + oid + b"N" + row,
        b"D" + oid + b"O" + row,
        b"C\0" + struct.pack(">QQq", commit_lsn, commit_lsn + 50, 0),
    ]
    made = b""
    for message in messages:
        payload = b"w" + struct.pack(">QQq", commit_lsn, commit_lsn, 0) + message
        made += b"d" + wal.u32(len(payload) + 4) + payload
    return made


@pytest.mark.parametrize("kind", [Translation, ModelTranslation])
@pytest.mark.parametrize("signals", ["public.t", "public.other"])
def test_rows_of_the_signal_table_are_shown_though_no_event_is_made(
    kind: type[Translation], signals: str
) -> None:
    capture = {"topic.prefix": "pre", "table.include.list": "public.t"}
    made, watcher = tables(capture={**capture, "signal.data.collection": signals}), Watcher()
    progress = SimpleNamespace(position=START, cut=START, flush_lsn=Lsn(0), cut_ts_us=0)
    translation = kind(
        made,
        cast("Any", progress),
        Actions(lambda _: None, lambda _: {}, lambda *_: []),
        lambda _: None,
        in_progress=InProgress(Path("/nowhere"), 1 << 20),
        signals=cast("Any", watcher),
    )
    data = bytearray(transaction(900) + transaction(1_900))
    start = 0
    while (used := translation.feed(data, start, len(data), LIMITS)) != start:
        start = used
    records = list(each(translation.take().records))
    assert made.states.is_set_aside(STATE.name)
    assert len(records) == 1, "its state, and no event"
    shown = [(row.position.commit_lsn, row.position.index) for row in watcher.rows]
    wanted = [(900, 1), (900, 3), (1_900, 1), (1_900, 3)]
    assert shown == (wanted if signals == "public.t" else [])

"""Debezium's markers of snapshot rows, as in its recorded snapshots."""

import struct
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cdc.compiled import fast
from cdc.convert.pipeline import Encoder
from cdc.events.changes import Read, Row
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, RecordOrBatch, each
from cdc.stream.translation import Limits
from snapshots.copied_rows import copier
from snapshots.initial import MarkedRows, Marker

READ = Read()


class Marking(Encoder):
    """Stands in for one: a record's topic is the row's marker, its key the row's only column."""

    def __init__(self) -> None:
        """Nothing of a table is known but its width."""

    @property
    def schema(self) -> Any:
        return SimpleNamespace(columns=range(1), version=1)

    def compiled_read(self, *_: object) -> None:
        """There is none."""

    def snapshot_row(
        self, row: Row, position: Position, lsn: Lsn, ts_us: int, read: Read = READ
    ) -> list[Record]:
        assert (position.commit_lsn, ts_us) == (lsn, 1)
        key = row[0]
        assert isinstance(key, bytes)
        return [Record(read.marker, key, None, [])]


def copied(records: list[RecordOrBatch], marker: Marker) -> fast.Copier:
    return copier(records, Marking(), Position(1, Lsn(1), 0), 1, Read(marker))


def marks(sizes: list[int], *, first: bool, last: bool, records_max: int = 9) -> list[str]:
    """The markers of rows that come so many at a time."""
    marked = MarkedRows(copied, first=first)
    found: list[Record] = []
    data, start, number = bytearray(), 0, 0
    for size in sizes:
        for _ in range(size):
            line = b"%d\n" % number
            number += 1
            data += b"d" + struct.pack(">I", len(line) + 4) + line
        while (used := marked.feed(data, start, len(data), Limits(records_max, 1 << 20))) != start:
            start = used
            found += each(marked.take())
    assert start == len(data)
    assert len(found) == marked.rows == max(0, number - 1)
    marked.end(lambda: last)
    found += each(marked.take())
    assert [record.key for record in found] == [b"%d" % row for row in range(number)]
    assert marked.rows == number
    return [record.topic for record in found]


def test_the_rows_of_the_first_the_middle_and_the_last_table() -> None:
    middle = ["true", "true"]
    assert marks([4], first=True, last=False) == ["first", *middle, "last_in_data_collection"]
    assert marks([4], first=False, last=False) == [
        "first_in_data_collection",
        *middle,
        "last_in_data_collection",
    ]
    assert marks([4], first=False, last=True) == ["first_in_data_collection", *middle, "last"]


def test_a_single_row() -> None:
    assert marks([1], first=True, last=True) == ["last"]
    assert marks([1], first=True, last=False) == ["first"]
    assert marks([1], first=False, last=False) == ["last_in_data_collection"]


def test_a_table_without_rows_asks_nothing() -> None:
    def asked() -> bool:
        raise AssertionError

    marked = MarkedRows(copied, first=True)
    marked.end(asked)
    assert marked.take() == []


@given(st.lists(st.integers(0, 3)), st.booleans(), st.booleans(), st.integers(1, 4))
def test_batches_make_no_difference(
    sizes: list[int], first: bool, last: bool, records_max: int
) -> None:
    at_once = marks([sum(sizes)], first=first, last=last)
    assert marks(sizes, first=first, last=last, records_max=records_max) == at_once

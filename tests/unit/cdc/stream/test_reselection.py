"""Rows that lack unchanged values: their wait, the query, and their places afterwards."""

from collections.abc import Mapping
from typing import cast

import pytest

from cdc.convert.pipeline import Encoder
from cdc.errors import CorruptMessageError
from cdc.events.changes import ABSENT, IdentityKey, RereadRequest, Row, Value
from cdc.records.position import Lsn, Position, Transaction
from cdc.records.record import Record, RecordOrBatch, each
from cdc.stream.reselection import Reselection
from cdc.wal.messages import Relation, RelationColumn, Update

NAMES = ("id", "n", "big", "more")
RELATION = Relation(
    7, "public", "t", "d", tuple(RelationColumn(name == "id", name, 25, -1) for name in NAMES)
)


class Encoding:
    """Writes rows as text, in the transaction that it was told to be in."""

    def __init__(self, reselects: frozenset[int] = frozenset({1, 2, 3})) -> None:
        self.reselects = reselects
        self.xid = 0

    def begin(self, transaction: Transaction) -> None:
        self.xid = transaction.xid

    def compiled(self) -> None:
        """There is none."""

    def update(
        self,
        old: Row | None,
        old_is_key: bool,
        new: Row,
        lsn: Lsn,
        position: Position,
        reread: tuple[int, ...] = (),
    ) -> list[Record]:
        assert (old_is_key, lsn, position.commit_lsn) == (old is not None, 5, 9)
        if b"wrong" in new:
            raise CorruptMessageError("wrong")
        deleted = [] if old is None else [Record("t", old[0] or b"", None, [])]  # type: ignore[arg-type]
        text = f"{self.xid}:{','.join(map(said, new))}:{reread}"
        return [*deleted, Record("t", new[0] or b"", text.encode(), [])]  # type: ignore[arg-type]


def said(value: Value) -> str:
    return value.decode() if isinstance(value, bytes) else repr(value)


class Source:
    """Has the same values for each key, and remembers what it was asked."""

    def __init__(self, rows: Mapping[IdentityKey, Mapping[str, Value]]) -> None:
        self.rows = rows
        self.requests: list[RereadRequest] = []

    def __call__(self, request: RereadRequest) -> Mapping[IdentityKey, Row]:
        self.requests.append(request)
        return {
            key: tuple(self.rows[key].get(NAMES[index], ABSENT) for index in request.columns)
            for key in request.keys
            if key in self.rows
        }


def update(key: str, *values: Value, old: Row | None = None) -> Update:
    return Update(7, old, old is not None, (key.encode(), *values))


def take(
    made: Reselection, records: list[RecordOrBatch], row: Update, encoding: Encoding, xid: int = 1
) -> bool:
    position = Position(1, Lsn(9), len(records) + 1)
    transaction = Transaction(xid, Lsn(9), 0, None)
    return made.defer(
        row, RELATION, cast("Encoder", encoding), records, Lsn(5), position, transaction
    )


def values(records: list[RecordOrBatch]) -> list[str]:
    return [(record.value or b"-").decode() for record in each(records)]


def test_rows_take_their_places_among_the_others() -> None:
    source = Source({(b"1",): {"big": b"B"}, (b"2",): {"big": None}})
    made, encoding = Reselection(source), Encoding()
    records: list[RecordOrBatch] = [Record("t", b"", b"first", [])]
    assert take(made, records, update("1", b"1", ABSENT, b"m"), encoding, xid=4)
    records.append(Record("t", b"", b"between", []))
    old: Row = (b"9", None, None, None)
    assert take(made, records, update("2", b"2", ABSENT, b"m", old=old), encoding, xid=5)
    assert take(made, records, update("3", b"3", ABSENT, b"m"), encoding, xid=5)
    records.append(Record("t", b"", b"last", []))
    added, size = made.complete(records)
    assert added == 1
    assert values(records) == [
        "first",
        "4:1,1,B,m:(2,)",
        "between",
        "-",
        "5:2,2,None,m:(2,)",
        "5:3,3,ABSENT,m:()",  # gone: its delete follows
        "last",
    ]
    assert size == sum(len(record.value or b"") + 1 for record in each(records) if record.key)
    (request,) = source.requests
    assert (request.identity, request.columns) == ((0,), (2,))
    assert request.keys == ((b"1",), (b"2",), (b"3",))
    assert request.xids == frozenset({4, 5})
    assert not made.is_waiting


def test_a_row_is_asked_for_once_per_set_of_columns() -> None:
    source = Source({(b"1",): {"big": b"B", "more": b"M"}})
    made, encoding, records = Reselection(source), Encoding(), list[RecordOrBatch]()
    for row in (("x", ABSENT, b"m"), ("y", ABSENT, b"m"), ("z", ABSENT, ABSENT)):
        n, big, more = row
        assert take(made, records, update("1", n.encode(), big, more), encoding)
    made.complete(records)
    assert [request.columns for request in source.requests] == [(2,), (2, 3)]
    assert [len(request.keys) for request in source.requests] == [1, 1]
    assert values(records) == ["1:1,x,B,m:(2,)", "1:1,y,B,m:(2,)", "1:1,z,B,M:(2, 3)"]


@pytest.mark.parametrize(
    ("row", "reselects"),
    [
        (update("1", b"1", b"B", b"m"), {1, 2, 3}),  # nothing lacks
        (update("1", b"1", ABSENT, b"m"), {1, 3}),  # events don't have the column
        (update("1", b"1", ABSENT, b"m", old=(b"1", b"0", b"B", b"m")), {2}),  # the old row has it
        (Update(7, None, False, (ABSENT, b"1", ABSENT, b"m")), {2}),  # nothing to find it by
        (Update(7, None, False, (b"1", ABSENT)), {1}),  # not a row of this relation
    ],
)
def test_what_needs_or_allows_no_look_does_not_wait(row: Update, reselects: set[int]) -> None:
    made, records = Reselection(Source({})), list[RecordOrBatch]()
    assert not take(made, records, row, Encoding(frozenset(reselects)))
    assert records == []


def test_a_batch_is_as_long_as_its_values_are_small() -> None:
    big: dict[IdentityKey, dict[str, Value]] = {
        (str(key).encode(),): {"big": b"x" * size} for key, size in enumerate((10, 1 << 20))
    }
    made, encoding = Reselection(Source(big)), Encoding()
    assert waits(made, encoding, 0) == 16, "nothing is known of the rows yet"
    assert waits(made, encoding, 0) == 64
    assert waits(made, encoding, 1) == 256
    assert waits(made, encoding, 1) == 4, "4 MiB"
    one_by_one = Reselection(Source(big), one_by_one=True)
    assert [waits(one_by_one, encoding, 0) for _ in range(2)] == [1, 1]


def waits(made: Reselection, encoding: Encoding, key: int) -> int:
    """How many rows wait until the batch is full."""
    records: list[RecordOrBatch] = []
    while not made.is_full:
        assert take(made, records, update(str(key), b"1", ABSENT, b"m"), encoding)
    made.complete(records)
    return len(records)


def test_a_row_that_is_wrong_ends_the_records_in_front_of_it() -> None:
    made, encoding = Reselection(Source({})), Encoding()
    records: list[RecordOrBatch] = [Record("t", b"", b"first", [])]
    take(made, records, update("1", b"wrong", ABSENT, b"m"), encoding)
    records.append(Record("t", b"", b"behind", []))
    with pytest.raises(CorruptMessageError):
        made.complete(records)
    assert values(records) == ["first"]

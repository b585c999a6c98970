"""Tables' states → records of bounded size, from which the same states come back."""

from collections.abc import Iterable, Sequence

from cdc.records.fingerprint import DoubtfulLeaf, LeafFingerprint, TableFingerprint
from cdc.records.record import Record, record_bytes
from cdc.records.schema import TableName
from cdc.records.state import (
    Doubt,
    LeafRead,
    Phase,
    SnapshotRequest,
    TableState,
    parse_state,
    table_key,
    table_record,
)
from cdc.records.state_pieces import PIECE_ENTRIES, StatePiece, StateRecords, is_piece, whole
from tests.fixtures.made_states import table_state

NAME = TableName("public", 'pa"r","piece":"t')
TOPIC = "__millrace.pre.tables"
LIMIT = 16_000


def state_of(leaves: int, read: int, **more: object) -> TableState:
    """A table of so many partitions, of which a first read has read some."""
    oids = range(20_000, 20_000 + leaves)
    parts = tuple(LeafFingerprint(oid, "r", oid, 0, "p", "123.4", f"{oid:08x}") for oid in oids)
    fingerprint = TableFingerprint(columns="c", identity="d", leaves=parts, seen="1:1:")
    done = tuple(LeafRead(leaf=oid, file=oid, ranges=((0, 1 << 48),)) for oid in oids[:read])
    request = SnapshotRequest(kind="initial", read=done, rows=10 * read)
    named: dict[str, object] = {"fingerprint": fingerprint, "requests": (request,)}
    return table_state(NAME, **({"phase": Phase.SNAPSHOT} | named | more))


def snapshot_of(leaves: int) -> list[TableState]:
    """The table's states as it is read, a partition at a time, up to its end."""
    last = state_of(leaves, leaves)
    (request,) = last.requests
    return [
        *(
            last.model_copy(
                update={
                    "requests": (request.model_copy(update={"read": request.read[:read]}),),
                    "rows_sent": 10 * read,
                }
            )
            for read in range(leaves)
        ),
        last.model_copy(update={"requests": (), "phase": Phase.STREAMING}),
    ]


def compacted(records: Iterable[Record]) -> dict[bytes | None, bytes]:
    """The newest value of each key, without those that are taken away."""
    newest: dict[bytes | None, bytes] = {}
    for record in records:
        newest.pop(record.key, None)
        if record.value is not None:
            newest[record.key] = record.value
    return newest


def read(records: Iterable[Record]) -> list[TableState]:
    """The states as a start finds them; of each piece that one names there has to be one."""
    newest = compacted(records)
    states = [
        parse_state(TableState, value, TOPIC) for key, value in newest.items() if not is_piece(key)
    ]
    return [
        whole(state, lambda key: parse_state(StatePiece, newest[key], TOPIC)) for state in states
    ]


def same(state: TableState, other: TableState) -> bool:
    return state.model_copy(update={"pieces": {}}) == other.model_copy(update={"pieces": {}})


def written(states: Sequence[TableState]) -> list[list[Record]]:
    """The records of each state, one after the other, as the daemon writes them."""
    records = StateRecords("pre", ())
    return [records.of(state) for state in states]


def test_a_small_table_has_one_record_without_pieces() -> None:
    for state in (table_state(NAME), state_of(PIECE_ENTRIES, PIECE_ENTRIES)):
        assert StateRecords("pre", ()).of(state) == [table_record("pre", state)]
        assert StateRecords("pre", [state]).gone(state) == [
            Record(TOPIC, table_key(NAME), None, [], 0)
        ]


def test_records_grow_with_what_was_read_and_none_with_the_number_of_partitions() -> None:
    few, many = (
        [record for records in written(snapshot_of(leaves)) for record in records]
        for leaves in (100, 1_000)
    )
    assert len(many) <= 12 * len(few)
    assert sum(map(record_bytes, many)) <= 12 * sum(map(record_bytes, few))
    assert max(map(record_bytes, many)) < LIMIT


def test_a_log_that_ends_anywhere_has_the_last_state_that_was_written() -> None:
    """As at least once writes it, where no transaction keeps a state and its pieces together."""
    states = snapshot_of(200)
    log, before = list[Record](), list[TableState]()
    for state, records in zip(states, written(states), strict=True):
        for record in records:
            log.append(record)
            before = [state] if record.key == table_key(NAME) else before
            found = read(log)
            assert len(found) == len(before)
            assert all(map(same, found, before))
    (last,) = read(log)
    assert last.requests == ()
    left = [key for key in compacted(log) if is_piece(key)]
    assert len(left) == len(last.pieces["leaves"]), "no piece is left that nobody names"


def test_a_start_goes_on_with_the_pieces_that_the_log_has() -> None:
    states = snapshot_of(300)
    log = [record for records in written(states[:200]) for record in records]
    (found,) = read(log)
    again = StateRecords("pre", [found])
    pieces = [record for record in again.of(found) if is_piece(record.key)]
    assert pieces == [], "all of them are there"
    log += again.of(states[200]) + again.of(states[-1])
    (last,) = read(log)
    assert same(last, states[-1])
    assert {key for key in compacted(log) if is_piece(key)} == {
        record.key for record in StateRecords("pre", ()).of(last) if is_piece(record.key)
    }
    log += again.gone(last)
    assert compacted(log) == {}


def test_every_list_of_a_state_comes_back_whatever_others_are_asked_for() -> None:
    first = state_of(150, 130)
    (request,) = first.requests
    doubtful = tuple(DoubtfulLeaf(oid, "123.4") for oid in range(20_000, 20_090))
    doubt = Doubt(reason="rewritten", since_ms=1, leaves=doubtful)
    asked = SnapshotRequest(kind="incremental", signal="s", order=1, read=request.read[:70])
    both = first.model_copy(update={"doubt": doubt, "requests": (request, asked)})
    other = both.model_copy(update={"requests": (asked,)})
    log = list[Record]()
    records = StateRecords("pre", ())
    for state in (first, both, other, both, table_state(NAME), other):
        log += records.of(state)
        (found,) = read(log)
        assert same(found, state)

"""Several tables that are read side by side, turn by turn."""

from concurrent.futures import Future
from dataclasses import replace
from typing import cast
from unittest.mock import Mock

import pytest

from cdc.compiled.fast import Cursor
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import CapturedTable, Leaf
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.wal.messages import Relation, RelationColumn
from snapshots.chunk import Chunk, ChunkRange, DescribedTable, Visibility
from snapshots.incremental import IncrementalSnapshots
from snapshots.reader import ALL
from snapshots.windows import Job, WindowReader
from tests.unit.snapshots.test_changes import TABLE
from tests.unit.snapshots.test_requests import HERE, NEVER, A, B, SignalledTables


class Reader:
    """Begins whatever is asked for; a test says when it has come to something."""

    threads, rows_max = 2, 0

    def __init__(self) -> None:
        self.descriptions: dict[TableName, Job[DescribedTable]] = {}
        self.marks: list[Job[bool]] = []

    def measure(self, *, is_busy: bool) -> None:
        """There is no source."""

    def tell_end(self) -> None:
        """Nobody listens."""

    def describe(self, table: CapturedTable, _streamed: Lsn) -> Job[DescribedTable]:
        self.descriptions[table.name] = job = Job[DescribedTable]()
        job.future = Future()
        return job

    def mark(self) -> Job[bool]:
        self.marks.append(Job[bool]())
        self.marks[-1].future = Future()
        return self.marks[-1]


class Chunks(Reader):
    """Reads chunks, too."""

    rows_max = 10

    def __init__(self) -> None:
        super().__init__()
        self.pace = Mock()
        self.chunks: list[Job[Chunk]] = []

    def read(self, _table: DescribedTable, _range: ChunkRange, _streamed: Lsn) -> Job[Chunk]:
        self.chunks.append(Job[Chunk]())
        self.chunks[-1].future = Future()
        return self.chunks[-1]


def described(name: TableName) -> DescribedTable:
    """A table of one page."""
    leaf = Leaf(1, name, 1, "d", frozenset({"id"}))
    return DescribedTable(replace(TABLE, name=name, leaves=(leaf,)), {})


def resetting(
    table: DescribedTable,
) -> tuple[SignalledTables, Reader, IncrementalSnapshots, Cursor]:
    """A reset of a table that is known by now; its mark is begun."""
    signalled, reader = SignalledTables(), Reader()
    reads = IncrementalSnapshots(cast("WindowReader", reader), signalled.tables, 1 << 20)
    cursor = Cursor(HERE, HERE, Lsn(500))
    signalled.signal("execute", {"data-collections": ["public.a"], "reset": True})
    reads.turn(cursor)
    reader.descriptions[A].result = table
    reads.turn(cursor)
    return signalled, reader, reads, cursor


def test_a_reset_isnt_forgotten_in_the_turn_in_which_another_table_is_known() -> None:
    signalled, reader, reads, cursor = resetting(described(A))
    signalled.signal("execute", {"data-collections": ["public.b"]})
    reads.turn(cursor)
    (mark,) = reader.marks
    mark.result, mark.behind = True, Lsn(600)
    reader.descriptions[B].result = described(B)
    cursor.idle_at(Lsn(700))
    output = reads.turn(cursor)
    assert len(output.events) == 3, "a TRUNCATE for each partition"
    reads.turn(cursor)
    reads.turn(cursor)
    assert len(reader.marks) == 1, "the table is begun anew once"
    assert [request.kind for request in signalled.of(A)] == ["initial"]
    assert not reads.awaits_stream


def test_a_reset_of_a_table_without_partitions_lets_go_of_its_rows() -> None:
    empty = DescribedTable(replace(TABLE, name=A, leaves=()), {})
    signalled, reader, reads, cursor = resetting(empty)
    (mark,) = reader.marks
    mark.result, mark.behind = True, Lsn(600)
    cursor.idle_at(Lsn(700))
    assert len(reads.turn(cursor).events) == 3, "a TRUNCATE for each partition"
    reader.descriptions[A].result = empty
    reads.turn(cursor)
    assert signalled.of(A) == ()


def test_a_reset_takes_no_table_back_to_what_it_was_before_the_stream_told_of_it() -> None:
    before = described(A)
    signalled, reader, reads, cursor = resetting(before)
    renamed = (RelationColumn(True, "id", 23, -1), RelationColumn(False, "later", 25, -1))
    relation = Relation(before.table.oid, A.namespace, A.name, "d", renamed)
    columns = (TABLE.columns[0], TABLE.columns[1].model_copy(update={"name": "later"}))
    since = Position(1, Lsn(550), 1)
    told, _ = signalled.tables.schemas.streamed(relation, since, lambda: columns)
    (mark,) = reader.marks
    mark.result, mark.behind = True, Lsn(600)
    cursor.idle_at(Lsn(700))
    looked_at = reader.descriptions[A]
    output = reads.turn(cursor)
    assert (output.events, output.states) == ([], [])
    assert signalled.tables.schemas.newest(A) == told
    assert reader.descriptions[A] is not looked_at, "it is looked at again"
    now = replace(before.table, columns=columns, signature=relation_signature(relation))
    reader.descriptions[A].result = DescribedTable(now, {})
    reads.turn(cursor)
    mark = reader.marks[-1]
    mark.result, mark.behind = True, Lsn(800)
    cursor.idle_at(Lsn(900))
    assert len(reads.turn(cursor).events) == 3, "a TRUNCATE for each partition"
    assert signalled.tables.schemas.newest(A) == told


@pytest.mark.parametrize("is_told", [False, True])
def test_a_chunk_that_is_older_than_what_a_check_has_told_is_read_again(*, is_told: bool) -> None:
    signalled, reader, before = SignalledTables(), Chunks(), described(A)
    reads = IncrementalSnapshots(cast("WindowReader", reader), signalled.tables, 1 << 20)
    cursor = Cursor(HERE, HERE, Lsn(500))
    signalled.signal("execute", {"data-collections": ["public.a"]})
    reads.turn(cursor)
    reader.descriptions[A].result = before
    reads.turn(cursor)
    schemas = signalled.tables.schemas
    if is_told:
        columns = (TABLE.columns[0], TABLE.columns[1].model_copy(update={"name": "later"}))
        later = replace(before.table, columns=columns, signature="later")
        schemas.described(later, Position(1, Lsn(550), 0))
    (job,) = reader.chunks
    seen = Visibility(1_000, 1_000, frozenset())
    job.result, job.behind = Chunk(before, 1, 1, ALL, bytearray(), 0, seen, 1), Lsn(600)
    cursor.idle_at(Lsn(700))
    reads.turn(cursor)
    newest = schemas.newest(A)
    assert newest is not None
    assert (newest.version, newest.columns[1].name) == (1, "later" if is_told else "v")
    assert bool(signalled.of(A)) == is_told, "it is done, or its range is missing"


def test_a_reset_of_a_table_that_could_never_be_captured_ends_without_a_read() -> None:
    signalled, reader, reads, cursor = resetting(described(A))
    before = NEVER.model_copy(update={"table": "a", "requests": signalled.of(A)})
    signalled.tables.states.put(before)
    (mark,) = reader.marks
    mark.result, mark.behind = True, Lsn(600)
    cursor.idle_at(Lsn(700))
    assert reads.turn(cursor).events == []
    state = signalled.tables.states[A]
    assert not state.is_in_log
    assert state.requests == ()
    assert state.outcome is not None
    assert state.outcome.failure
